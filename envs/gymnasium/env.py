"""Any Gymnasium environment as a TorchRL environment: W copies, stepped in this process or in workers."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.error import DependencyNotInstalled
from gymnasium.error import Error as GymnasiumError
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import TensorSpec

from ..foreign import check_instances, completed
from ..foundation.processes import TIMEOUT
from ..spaces import Array
from ..world import Act, World
from .batch import STATISTICS, Batch, collect
from .making import Recipe, missing_package
from .simulators import Codec, LocalSimulators, WorkerSimulators

_NOT_LOGGED = "info['is_success'] is not logged; env.success=true logs it as success"


class Gymnasium(World):
    """A batch of ``num_envs`` copies of one environment, stepped together.

    :class:`rlstack.envs.spaces.Observations` encodes ``observation`` and :class:`rlstack.envs.spaces.Actions`
    ``action``; ``reward``
    and the end flags are ``[W, 1]``. ``("next", "observation")`` of a step that ends an episode is its last
    observation. ``("episode", "return")`` and ``("episode", "length")`` ``[W, 1]`` are updated in every step and final
    at ``done``. If an environment reports ``action_mask``, in a Dict observation or in ``info``, the root has an entry
    ``action_mask [W, choices]`` bool. An ended environment that is stepped without a reset stays unchanged, with
    reward 0.

    Simulators cannot be saved: after :meth:`load_state_dict` new episodes begin, from seeds that follow from the saved
    generator and step count.

    Args:
        id: ``Name-v0``, ``package.module:Name-v0`` or ``package.module:Class``; ``ALE/Name-v5`` is preprocessed, see
            :func:`rlstack.envs.gymnasium.making.atari`.
        num_envs: number of environments W.
        workers: number of processes among which the environments are divided; 0 steps them in this process.
        worker_timeout: seconds in which a worker must answer. One that does not, or dies, is replaced; the episodes of
            its environments are truncated, and :attr:`worker_failures` counts it.
        kwargs: arguments of the environment's constructor.
        max_steps: number of steps after which an episode is truncated; None is the environment's own limit.
        success: whether ``("episode", "success")`` shows ``info["is_success"]`` at an episode's end.
        dtype: type of rewards, statistics, continuous actions and of all observations except images.
        device: device of the outputs; the environments themselves run on the CPU.
        seed: determines every environment's first seed, independently of ``num_envs`` and ``workers``.
        max_instances: number of environments that can live at once, for simulators that allow few; None for any.
            Evaluations make no more, and those of a training play in its environments.

    Raises:
        ValueError: the environment is unknown, a package is missing, or a space is not supported.
    """

    evaluation_options: ClassVar[dict[str, Any]] = {"workers": 0}
    drawing_options: ClassVar[dict[str, Any]] = {"kwargs": {"render_mode": "rgb_array"}}
    """Options with which the environment draws itself."""
    saves_episodes = False
    _first_number = 0
    _seeds: dict[int, int]
    observing = (
        "rlstack.envs.gymnasium.batch:Columns.write",
        "rlstack.envs.gymnasium.batch:Batch.account",
        "rlstack.envs.gymnasium.batch:Batch.following",
    )

    def __init__(
        self,
        id: str | None = None,
        num_envs: int = 8,
        workers: int = 0,
        kwargs: dict[str, Any] | None = None,
        max_steps: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int | None = 0,
        worker_timeout: float = TIMEOUT,
        max_instances: int | None = None,
        success: bool = False,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs: {num_envs} is not a positive number of environments")
        if workers < 0:
            raise ValueError(f"workers: {workers} is not a number of processes")
        if worker_timeout <= 0:
            raise ValueError(f"worker_timeout: {worker_timeout} is not a positive number of seconds")
        check_instances(num_envs, max_instances)
        self._recipe = Recipe(id, dict(kwargs or {}), max_steps)
        super().__init__(num_envs, device, dtype, seed)
        self._numpy_dtype = str(torch.empty(0, dtype=dtype).numpy().dtype)
        self._codec, self._first = Codec.of_first(self._recipe, self._numpy_dtype)
        self._workers, self._timeout = min(workers, num_envs), worker_timeout
        self.pictures_per_second = float(self._first.metadata.get("render_fps") or 20)
        self._simulators: LocalSimulators | WorkerSimulators | None = None
        self._success = success
        self._over = False
        self._steps_before = 0
        self.choices = self._codec.actions.nvec if self._codec.mask else None
        self._set_specs()

    def _set_specs(self) -> None:
        lead, device = (self.num_worlds,), self.device
        shown: dict[str, TensorSpec] = {"observation": self._codec.observations.spec(lead, device)}
        if self._codec.mask:
            shown["action_mask"] = self._codec.actions.mask_spec(lead, device)
        statistics = STATISTICS[: 3 if self._success else 2]
        self.declare_specs(shown, self._codec.actions.spec(lead, device), statistics)

    # -- simulators ----------------------------------------------------------------------------------------------

    def _start(self) -> LocalSimulators | WorkerSimulators:
        """Makes the other environments on the first reset, since a world may be built only for its specs."""
        if self._over:
            raise RuntimeError("this world is closed")
        arrays = self._codec.arrays(self.num_worlds)
        simulators: LocalSimulators | WorkerSimulators
        self._over = True  # if it fails, all that was made has been closed
        if self._workers:
            self._first.close()
            shared = self._workers, self._timeout, self.run_type_checks
            simulators = WorkerSimulators(self._recipe, self._numpy_dtype, arrays, *shared)
            arrays = simulators.arrays
        else:
            environments = completed([self._first], self._recipe.make, self.num_worlds)
            rows = range(self.num_worlds)
            simulators = LocalSimulators(self._recipe, environments, rows, self._codec, arrays, self.run_type_checks)
        self._over = False
        self._batch = Batch(arrays, self._codec.observations, self._numpy_dtype, self.device, self._success)
        self._batch.steps = self._steps_before
        self._simulators = simulators
        return simulators

    def _restart(self, worlds: Tensor | None) -> None:
        self._restart_rows(list(range(self.num_worlds)) if worlds is None else worlds.tolist())

    def _restart_each(self, seeds: list[int]) -> None:
        self._seeds = dict(enumerate(seeds))
        self._restart(None)

    def _restart_rows(self, rows: list[int]) -> None:
        simulators = self._simulators or self._start()
        if not self._success and self._batch.arrays.success.any():
            warnings.warn(f"{self._recipe.id}: {_NOT_LOGGED}", RuntimeWarning, stacklevel=2)
        simulators.reset(rows, [self._seeds.pop(row, None) for row in rows])
        self._batch.begin(rows)

    def render(self) -> Tensor:
        """Draws the first environment in its current state, uint8 ``[H, W, 3]``.

        Raises:
            RuntimeError: it does not draw; it needs ``kwargs: {render_mode: rgb_array}`` and ``workers: 0``.
            ValueError: it draws with a package that is not installed, or something other than a picture.
        """
        from ..rendering.rendered import as_picture  # which imports what draws

        if self._workers:
            raise RuntimeError(f"{self._recipe.id} renders no picture in other processes; set workers: 0")
        if self._simulators is None:
            self._restart(None)
        try:
            picture = self._first.render()
        except DependencyNotInstalled as error:
            raise ValueError(missing_package(str(self._recipe.id), error)) from None
        except GymnasiumError:  # of Atari without a render_mode
            picture = None
        if not isinstance(picture, np.ndarray):
            raise RuntimeError(f"{self._recipe.id} renders no picture; set kwargs: {{render_mode: rgb_array}}")
        return torch.from_numpy(as_picture(picture))

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes environments and workers; the world can no longer be used."""
        self.is_closed = True
        if self.__dict__.get("_over", True):  # closed, or its constructor failed
            return
        self._over = True
        (self._simulators or self._first).close()

    # -- step ----------------------------------------------------------------------------------------------------

    @property
    def total_steps(self) -> int:
        """Number of steps so far, including those before a restored checkpoint."""
        return self._steps_before if self._simulators is None else self._batch.steps

    @property
    def worker_failures(self) -> int:
        """Number of workers that have been replaced."""
        return 0 if self._simulators is None else self._simulators.failures

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        self._take(tensordict.get("action").detach().cpu().numpy())
        return self._batch.following()

    def _take(self, action: Array) -> None:
        """Steps all environments."""
        simulators = self._simulators
        if simulators is None or self._over:
            raise RuntimeError("this world is closed" if self._over else "reset() comes before the first step")
        batch = self._batch
        running = ~batch.done
        self._codec.actions.store(batch.arrays.action, action)
        simulators.step()
        batch.account(running)

    def _restart_ended(self) -> bool:
        ended = bool(np.count_nonzero(self._batch.done))  # a quarter of the time of any() for a few
        if ended:
            self._restart_rows(np.flatnonzero(self._batch.done).tolist())
        return ended

    def collect(self, act: Act, steps: int) -> TensorDict:
        """Makes ``steps`` steps with a policy from the current state, on the CPU.

        Args:
            act: function from observation and action mask (or None) to a dict with ``action`` and further entries. They
                must not share memory with the observation, which the next step overwrites.

        Returns the same batch ``[W, steps]`` as stepping one by one and stacking, at a fraction of the cost for a few
        quick environments.
        """
        return collect(self._batch, self._codec.observations, act, steps, self._take, self._restart_ended)

    def _following_root(self, following: TensorDict) -> TensorDict:
        # Where no environment has ended, the next root shares the step's tensors.
        return self._batch.root_after_reset() if self._restart_ended() else self._batch.root_from(following)

    def _current(self) -> TensorDict:
        return self._batch.root()

    # -- seeds and checkpoint ------------------------------------------------------------------------------------

    def share(self, first: int, all_worlds: int, seed: int) -> None:
        """See :meth:`World.share`; each environment has the same seed as in a single world of all environments."""
        self.all_worlds, self._first_number = all_worlds, first
        self._set_seed(seed)

    def _set_seed(self, seed: int | None) -> None:
        super()._set_seed(seed)
        if seed is not None:
            self._draw_seeds(0)

    def _draw_seeds(self, steps: int) -> None:
        """Draws a seed for the next reset of every environment; later resets continue its own random numbers."""
        entropy = int(torch.randint(2**62, (), generator=self.generator, device=self.device))
        self._seeds = {
            row: int(np.random.SeedSequence((entropy, steps, self._first_number + row)).generate_state(1)[0] >> 1)
            for row in range(self.num_worlds)
        }

    def _state_to_save(self) -> dict[str, Any]:
        return {"total_steps": self.total_steps}

    def _load_state(self, state: dict[str, Any]) -> None:
        self._steps_before = int(state["total_steps"])
        self._draw_seeds(self._steps_before)
        self._restart(None)
        self._batch.steps = self._steps_before
