"""What every batched world shares: the TorchRL face of a simulation that steps ``W`` worlds at once."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from .memory import keep_freed_memory


class World(EnvBase):
    """A batch of ``num_worlds`` independent worlds, ``batch_size [W]``.

    A subclass implements :meth:`_advance` (one step for all worlds), :meth:`_restart` (a fresh start for some)
    and :meth:`_current` (what they show now), sets its specs, and lists its options as constructor arguments.
    Episode statistics, time limits and deactivation belong into the world: a transform around it would cost more than
    the simulation. On the CPU the process keeps the memory it frees, see :func:`keep_freed_memory`.

    Args:
        num_worlds: W.
        device: where state and outputs live.
        dtype: of all floating-point tensors.
        seed: of the world's own generator, the only source of its randomness.
    """

    batch_locked = True
    evaluation_options: ClassVar[dict[str, Any]] = {}
    """Constructor options that make the world judge as the published evaluation does."""
    evaluation_steps: ClassVar[int | None] = None
    """After how many steps the published evaluation judges an episode as it stands; None lets every episode end."""
    saves_episodes: bool = True
    """Whether a loaded state goes on within its episodes; False where simulators cannot be saved."""

    def __init__(self, num_worlds: int, device: torch.device | str, dtype: torch.dtype, seed: int | None) -> None:
        if num_worlds < 1:
            raise ValueError(f"num_worlds: {num_worlds} is not a positive number of worlds")
        super().__init__(device=torch.device(device), batch_size=[num_worlds])
        if self.device.type == "cpu":
            keep_freed_memory()
        self.num_worlds = num_worlds
        self.float_dtype = dtype
        self.generator = torch.Generator(device=self.device)
        self._continue_after_load = False
        self._set_seed(0 if seed is None else seed)

    @abstractmethod
    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        """Steps all worlds; returns everything that goes under ``"next"``."""

    @abstractmethod
    def _restart(self, worlds: Tensor | None) -> None:
        """Gives the worlds of an index tensor (None: all) a fresh start."""

    @abstractmethod
    def _current(self) -> TensorDict:
        """Observations and other root entries of all worlds as they stand, without the end flags."""

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        return self._advance(tensordict)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is not None:
            self._restart(mask.reshape(self.num_worlds).nonzero()[:, 0])
        elif self._continue_after_load:
            self._continue_after_load = False
        else:
            self._restart(None)
        return self._current()

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """One step; finished worlds restart. Same result as TorchRL's own version, without its bookkeeping."""
        following = self._advance(tensordict)
        tensordict.set("next", following)
        finished = following.get("done")
        worlds = finished[:, 0].nonzero()[:, 0]
        if len(worlds):
            self._restart(worlds)
        root = self._current()
        for key in self.done_keys:
            value = following.get(key)
            root.set(key, value & ~finished.view(-1, *[1] * (value.dim() - 1)) if len(worlds) else value)
        return tensordict, root

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.generator.manual_seed(seed)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Everything needed to go on exactly here: nested dict of tensors and numbers."""
        return {"generator": self.generator.get_state(), **self._state_to_save()}

    def load_state_dict(self, state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Restores :meth:`state_dict`. The next full ``reset()``, such as a new collector's, continues the worlds."""
        self.generator.set_state(state_dict["generator"].cpu())
        self._load_state(state_dict)
        self._continue_after_load = True

    @abstractmethod
    def _state_to_save(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load_state(self, state: dict[str, Any]) -> None: ...
