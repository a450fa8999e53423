"""``hydra/sweeper=pbt`` as Hydra wants it; what it does is in :mod:`rlstack.sweeps.pbt`."""

from __future__ import annotations

from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class PopulationSweeper(Sweeper):
    """Population-based training; ``conf/hydra/sweeper/pbt.yaml`` says what the options do."""

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
        """Trains the population of a command line."""
        from rlstack.sweeps.pbt import train_population

        train_population(self.options, arguments, self._compose, self._launch)
