"""``hydra/sweeper=pbt`` and ``hydra/sweeper=search`` as Hydra wants them.

What they do is in :mod:`rlstack.sweeps.population` and :mod:`rlstack.sweeps.search`.
"""

from __future__ import annotations

import pkgutil
from typing import Any, ClassVar

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class LaunchingSweeper(Sweeper):
    """A sweeper that composes configurations and launches jobs; its yaml says what the options do."""

    function: ClassVar[str]
    """``module:function`` that runs a sweep, from the options, the command line, and means to compose and to launch."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's own call before :meth:`sweep`."""
        self.hydra_context, self.config = hydra_context, config
        loader = hydra_context.config_loader
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self._compose = lambda overrides: loader.load_sweep_config(config, overrides)
        self._launch = lambda jobs, first: launcher.launch(jobs, initial_job_idx=first)

    def sweep(self, arguments: list[str]) -> None:
        """Runs what a command line asks for."""
        pkgutil.resolve_name(self.function)(self.options, arguments, self._compose, self._launch)


class PopulationSweeper(LaunchingSweeper):
    """Population-based training."""

    function = "rlstack.sweeps.population:train_population"


class SearchSweeper(LaunchingSweeper):
    """A search with Optuna."""

    function = "rlstack.sweeps.search:search"
