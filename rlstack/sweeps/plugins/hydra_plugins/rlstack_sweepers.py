"""``hydra/sweeper=pbt`` and ``hydra/sweeper=search`` as Hydra wants them.

What they do is in :mod:`rlstack.sweeps.population` and :mod:`rlstack.sweeps.search`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from rlstack.sweeps.jobs import Compose, Launch


class LaunchingSweeper(Sweeper):
    """A sweeper that composes configurations and launches jobs; its yaml says what the options do."""

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
        self.search(self.options, arguments, self._compose, self._launch)

    @abstractmethod
    def search(self, options: Mapping[str, Any], arguments: list[str], compose: Compose, launch: Launch) -> None:
        """The same with its options and means."""


class PopulationSweeper(LaunchingSweeper):
    """Population-based training."""

    def search(self, options: Mapping[str, Any], arguments: list[str], compose: Compose, launch: Launch) -> None:
        """Trains the population of a command line."""
        from rlstack.sweeps.population import train_population

        train_population(options, arguments, compose, launch)


class SearchSweeper(LaunchingSweeper):
    """A search with Optuna."""

    def search(self, options: Mapping[str, Any], arguments: list[str], compose: Compose, launch: Launch) -> None:
        """Makes the trials of a command line."""
        from rlstack.sweeps.search import search

        search(options, arguments, compose, launch)
