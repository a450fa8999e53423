"""Any Gymnasium environment as a TorchRL environment: W copies, stepped in this process or in workers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.error import DependencyNotInstalled
from gymnasium.error import Error as GymnasiumError
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import TensorSpec

from rlstack.envs.foundation.tensors import unchecked

from ..foreign import check_instances, check_positive, completed
from ..foundation.processes import TIMEOUT
from ..spaces import Array, Observations
from ..world import Act, ForeignWorld
from .simulators import (
    AtariSimulators,
    Codec,
    LocalSimulators,
    Recipe,
    SimulatorArrays,
    WorkerSimulators,
    missing_package,
)

STATISTICS = ("return", "length", "success")
"""The statistics of an episode; success where the world shows it."""


class Batch:
    """Makes tensordicts of :class:`SimulatorArrays`; they are copies, as the arrays are written again every step.

    Small batches are all overhead, so this is a plain object with few tensor operations: flags, and numbers, are copied
    in one go each.

    Args:
        dtype: NumPy name of the type of rewards and statistics.
        device: of the tensordicts.
        success: whether the tensordicts show the episodes' success.

    Attributes:
        done: bool ``[W]``, which environments have ended and not been reset.
        numbers: reward, return, length, and success if it is shown, ``[3 or 4, W, 1]``.
        seen: observation and mask (None without one) ``[W, ...]`` in the arrays' own memory, on the CPU: every step
            overwrites them.
        steps: environment steps taken.
    """

    def __init__(
        self, arrays: SimulatorArrays, observations: Observations, dtype: str, device: torch.device, success: bool
    ) -> None:
        count = len(arrays.reward)
        self.arrays, self.done, self.steps = arrays, arrays.flags[0, :, 0], 0
        self._returns = np.zeros(count)
        self.numbers: Array = np.zeros((4 if success else 3, count, 1), dtype)
        self._reward, self._return, self._length, *self._success = self.numbers[..., 0]
        self._nested = observations.nested
        self._size, self._device, self._on_cpu = torch.Size([count]), device, device.type == "cpu"
        self._leaves = [torch.from_numpy(array) for array in arrays.observations]
        self._mask = None if arrays.mask is None else torch.from_numpy(arrays.mask)
        observation = self._nested(self._leaves, lambda part: _made(part, self._size))
        self.seen: tuple[Any, Tensor | None] = (observation, self._mask)
        self._flag_tensor, self._number_tensor = torch.from_numpy(arrays.flags), torch.from_numpy(self.numbers)

    def begin(self, rows: list[int]) -> None:
        """New episodes have begun in these rows."""
        self._returns[rows] = 0.0
        self.numbers[:, rows] = 0.0

    def account(self, running: Array) -> None:
        """A step has been taken; ``running [W]`` were those that had not ended before it."""
        self._returns += self.arrays.reward
        self._reward[:], self._return[:] = self.arrays.reward, self._returns
        self._length += running
        for success in self._success:
            success[:] = self.arrays.success
        self.steps += len(running)

    def root(self) -> TensorDict:
        """Root entries without the end flags."""
        return self._tensordict(self._shown()[0])

    def root_after_reset(self) -> TensorDict:
        """Root entries and end flags."""
        return self._tensordict(self._shown()[0] | self._flags())

    def following(self) -> TensorDict:
        """The entries under ``"next"``."""
        entries, reward = self._shown()
        entries["reward"] = reward
        return self._tensordict(entries | self._flags())

    def root_from(self, following: TensorDict) -> TensorDict:
        """The root after :meth:`following` where no environment has ended: the same tensors."""
        root = self._shared(following)
        del root["reward"]
        return self._tensordict(root)

    def _shown(self) -> tuple[dict[str, Any], Tensor]:
        """Root entries but the end flags, and the reward."""
        reward, *known = self._copy(self._number_tensor).unbind(0)
        shown = {
            "observation": self._nested([self._copy(leaf) for leaf in self._leaves], self._tensordict),
            "episode": self._tensordict(dict(zip(STATISTICS, known))),
        }
        if self._mask is not None:
            shown["action_mask"] = self._copy(self._mask)
        return shown, reward

    def _shared(self, part: TensorDict) -> dict[str, Any]:
        """Its tensors in tensordicts of their own."""
        return {
            key: self._tensordict(self._shared(value)) if isinstance(value, TensorDict) else value
            for key, value in part.items()
        }

    def _flags(self) -> dict[str, Tensor]:
        done, terminated, truncated = self._copy(self._flag_tensor).unbind(0)
        return {"done": done, "terminated": terminated, "truncated": truncated}

    def _copy(self, tensor: Tensor) -> Tensor:
        return tensor.clone() if self._on_cpu else tensor.to(self._device)

    def _tensordict(self, entries: dict[str, Any]) -> TensorDict:
        # The public constructor checks every entry, which would take a third of a step of a small batch.
        return unchecked(entries, batch_size=self._size, device=self._device)


# -- many steps, written side by side as they happen -----------------------------------------------------------------


class Columns:
    """Room for so many steps of what a batch shows, in arrays ``[W, steps, ...]``."""

    def __init__(self, batch: Batch, observations: Observations, steps: int) -> None:
        arrays, self._nested = batch.arrays, observations.nested
        self._size = size = len(arrays.reward), steps
        self.leaves = [np.empty((*size, *leaf.shape[1:]), leaf.dtype) for leaf in arrays.observations]
        self.numbers = np.empty((len(batch.numbers), *size, 1), batch.numbers.dtype)
        self.flags = np.empty((3, *size, 1), bool)
        self.mask = None if arrays.mask is None else np.empty((*size, arrays.mask.shape[1]), bool)
        shown = [*arrays.observations, np.moveaxis(batch.numbers, 0, -1), np.moveaxis(arrays.flags, 0, -1), arrays.mask]
        room = [*self.leaves, np.moveaxis(self.numbers, 0, -1), np.moveaxis(self.flags, 0, -1), self.mask]
        self._pairs = [(column, source) for column, source in zip(room, shown) if column is not None]

    def write(self, t: int) -> None:
        """Takes in the batch as it stands at a step."""
        for column, source in self._pairs:
            column[:, t] = source

    def follow(self, other: Columns, begun: list[int]) -> None:
        """Takes in every step but those in ``begun``, which it has: each shows what ``other`` showed one before it."""
        for first, end in zip(begun, [*begun[1:], self._size[1]]):
            for (column, _), (source, _) in zip(self._pairs, other._pairs):
                column[:, first + 1 : end] = source[:, first : end - 1]

    def entries(self, rewards: bool) -> dict[str, Any]:
        """All steps as entries ``[W, steps, ...]`` of a tensordict."""
        reward, *known = map(torch.from_numpy, self.numbers)
        done, terminated, truncated = map(torch.from_numpy, self.flags)
        entries = {
            "observation": self._nested([*map(torch.from_numpy, self.leaves)], lambda part: _made(part, self._size)),
            "episode": _made(dict(zip(STATISTICS, known)), self._size),
            **{"done": done, "terminated": terminated, "truncated": truncated},
        }
        if rewards:
            entries["reward"] = reward
        if self.mask is not None:
            entries["action_mask"] = torch.from_numpy(self.mask)
        return entries


def collect(
    batch: Batch,
    observations: Observations,
    act: Act,
    steps: int,
    advance: Callable[[Array], None],
    restart: Callable[[], bool],
) -> TensorDict:
    """``[W, steps]`` as a collector makes it, without a tensordict for every step.

    Args:
        batch: at its current step.
        act: the policy.
        advance: takes actions ``[W, ...]`` and steps.
        restart: begins new episodes where they have ended, and tells whether there were any.
    """
    here, following = Columns(batch, observations, steps), Columns(batch, observations, steps)
    acted: list[dict[str, Tensor]] = []
    begun: list[int] = []  # steps that do not show what followed the one before
    restarted = True
    for t in range(steps):
        if restarted:
            here.write(t)
            begun.append(t)
        acted.append(act(*batch.seen))
        advance(acted[-1]["action"].numpy())
        following.write(t)
        restarted = restart()
    here.follow(following, begun)
    size = (len(batch.done), steps)
    entries = here.entries(rewards=False)
    entries |= {name: torch.stack([entry[name] for entry in acted], 1) for name in acted[0]}
    entries["next"] = _made(following.entries(rewards=True), size)
    return _made(entries, size)


def _made(entries: dict[str, Any], size: tuple[int, ...]) -> TensorDict:
    return unchecked(entries, batch_size=torch.Size(size), device=torch.device("cpu"))


_NOT_LOGGED = "info['is_success'] is not logged; env.success=true logs it as success"


class Gymnasium(ForeignWorld):
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
            :func:`rlstack.envs.gymnasium.simulators.atari`.
        num_envs: number of environments W.
        workers: number of processes among which the environments are divided; 0 steps them in this process. Of Atari
            games it is the number of threads (0: one), see
            :class:`~rlstack.envs.gymnasium.simulators.AtariSimulators`.
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
    _seeds: dict[int, int]
    observing = (
        "rlstack.envs.gymnasium.env:Columns.write",
        "rlstack.envs.gymnasium.env:Batch.account",
        "rlstack.envs.gymnasium.env:Batch.following",
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
        check_positive(num_envs=num_envs, max_steps=max_steps, worker_timeout=worker_timeout)
        if workers < 0:
            raise ValueError(f"workers: {workers} is not a number of processes")
        check_instances(num_envs, max_instances)
        self._recipe = Recipe(id, dict(kwargs or {}), max_steps)
        super().__init__(num_envs, device, dtype, seed)
        self._numpy_dtype = str(torch.empty(0, dtype=dtype).numpy().dtype)
        self._codec, self._first = Codec.of_first(self._recipe, self._numpy_dtype)
        self._workers, self._timeout = min(workers, num_envs), worker_timeout
        self.pictures_per_second = float(self._first.metadata.get("render_fps") or 20)
        self._simulators: AtariSimulators | LocalSimulators | WorkerSimulators | None = None
        self._success = success
        self._over = False
        self._steps_before = 0
        lead, here = (num_envs,), self.device
        shown: dict[str, TensorSpec] = {"observation": self._codec.observations.spec(lead, here)}
        if self._codec.mask:
            self.choices = self._codec.actions.nvec
            shown["action_mask"] = self._codec.actions.mask_spec(lead, here)
        statistics = STATISTICS[: 3 if success else 2]
        self.declare_specs(shown, self._codec.actions.spec(lead, here), statistics)

    # -- simulators ----------------------------------------------------------------------------------------------

    def _start(self) -> AtariSimulators | LocalSimulators | WorkerSimulators:
        """Makes the other environments on the first reset, since a world may be built only for its specs."""
        if self._over:
            raise RuntimeError("this world is closed")
        arrays = self._codec.arrays(self.num_worlds)
        simulators: AtariSimulators | LocalSimulators | WorkerSimulators
        self._over = True  # if it fails, all that was made has been closed
        if AtariSimulators.plays(self._recipe):
            game = replace(self._recipe, id=self._first.spec.id)  # type: ignore[union-attr]  # ALE/Pong has no version
            self._first.close()
            simulators = AtariSimulators(game, arrays, max(1, self._workers))
        elif self._workers:
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

        if self._workers and not AtariSimulators.plays(self._recipe):
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
