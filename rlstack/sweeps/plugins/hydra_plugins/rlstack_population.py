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
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Trains the population of a command line."""
        from rlstack.sweeps.pbt import train_population

        loader = self.hydra_context.config_loader
        train_population(
            self.options,
            arguments,
            compose=lambda overrides: loader.load_sweep_config(self.config, overrides),
            launch=lambda jobs, first: self.launcher.launch(jobs, initial_job_idx=first),
        )
