"""A batch of worlds as a Gymnasium vector environment."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from tensordict import TensorDictBase
from torch import Tensor

from .learner import OneLearner, Others, arrays, space_of, statistics


class VectorWorld(VectorEnv[Any, Any, Any]):
    """Worlds stepped at once with one learner each: ``gymnasium.make_vec("rlstack/Arena-v0", num_envs=64)``.

    Worlds reset by the rules of Gymnasium 1.x: with ``NEXT_STEP`` in the step after an episode's last one, whose action
    is ignored and whose reward is 0; with ``SAME_STEP`` in the last step, whose observation is then under
    ``final_obs``. For ended episodes (mask ``_statistics``), ``info["statistics"]`` holds return ``r``, length ``l``
    and the world's statistics, as arrays over the worlds; Gymnasium's own wrappers use ``info["episode"]``.

    Args:
        world: a name or path for :func:`rlstack.envs.make`.
        num_envs: number of worlds W.
        autoreset_mode: ``NEXT_STEP`` or ``SAME_STEP``, or its name.
        output: ``numpy`` arrays, or ``torch`` tensors on the device of the worlds.
        others: see :class:`~rlstack.envs.faces.single.SingleWorld`.
        options: options of the world.

    Raises:
        ValueError: a world, option, player or mode is unknown, or a value is impossible.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        world: str,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        output: Literal["numpy", "torch"] = "numpy",
        others: Others | None = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        modes = {mode.value: mode for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)}
        modes |= {mode.name: mode for mode in modes.values()}
        mode = autoreset_mode.value if isinstance(autoreset_mode, AutoresetMode) else autoreset_mode
        if mode not in modes:
            raise ValueError(f"autoreset_mode: {mode!r} is unknown, allowed: NEXT_STEP and SAME_STEP")
        if output not in ("numpy", "torch"):
            raise ValueError(f"output: {output!r} is unknown, allowed: numpy and torch")
        if render_mode is not None:
            raise ValueError("render_mode: a vector draws nothing, leave it out; gymnasium.make draws one world")
        self.num_envs, self.render_mode, self.autoreset_mode = num_envs, None, modes[mode]
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self._learner = OneLearner(world, num_envs, others, **options)
        self.world = self._learner.world
        self.single_observation_space = space_of(self._learner.observation)
        self.single_action_space = space_of(self._learner.action)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._numpy = output == "numpy"
        self._over = torch.zeros(num_envs, dtype=torch.bool, device=self.world.device)
        self._returns = torch.zeros(num_envs, dtype=torch.float64, device=self.world.device)
        self._lengths = torch.zeros(num_envs, dtype=torch.int64, device=self.world.device)
        self._is_seeded = False

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins episodes in all worlds; a seed s stands for seeds s, s + 1, ... ``options`` are ignored."""
        if seed is None and not self._is_seeded:
            self.world.set_seed(int(np.random.SeedSequence().generate_state(1)[0] >> 1))
        self._is_seeded = True
        seeds = [seed + index for index in range(self.num_envs)] if isinstance(seed, int | np.integer) else seed
        root = self._learner.begin(seeds)
        self._forget(torch.ones_like(self._over))
        self._over = torch.zeros_like(self._over)
        return self._shown(root), self._masked({}, root)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all worlds."""
        following, terminated, truncated = self._learner.step(self._learner.read(actions))
        ended = terminated | truncated
        reward = self._learner.part(following, "reward").reshape(-1).double()
        waiting = self._over  # worlds whose episode ended in the last step: this step only resets them
        anew = ended if self.autoreset_mode is AutoresetMode.SAME_STEP else waiting
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            reward, ended = reward.masked_fill(waiting, 0.0), ended & ~waiting
            terminated, truncated = terminated & ~waiting, truncated & ~waiting
            self._over = ended
        self._returns, self._lengths = self._returns + reward, self._lengths + (~waiting).long()
        info: dict[str, Any] = {}
        if bool(ended.any()):
            columns = {"r": self._returns, "l": self._lengths, **statistics(following)}
            mask = self._out(ended)
            info = {"statistics": {name: self._out(value) for name, value in columns.items()}, "_statistics": mask}
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                info |= {"final_obs": self._shown(following), "_final_obs": mask}
        root: TensorDictBase = following
        if bool(anew.any()):
            root = self._learner.begin_anew(anew)
            self._forget(anew)
        flags = (self._out(reward), self._out(terminated), self._out(truncated))
        return self._shown(root), *flags, self._masked(info, root)

    def _forget(self, worlds: Tensor) -> None:
        self._returns, self._lengths = self._returns.masked_fill(worlds, 0.0), self._lengths.masked_fill(worlds, 0)

    def _masked(self, info: dict[str, Any], root: TensorDictBase) -> dict[str, Any]:
        mask = self._learner.mask(root)
        return info if mask is None else {**info, "action_mask": self._shown_value(mask)}

    def _shown(self, root: TensorDictBase) -> Any:
        return self._shown_value(self._learner.part(root, "observation"))

    def _shown_value(self, value: Any) -> Any:
        return arrays(value) if self._numpy else value.clone()

    def _out(self, value: Tensor) -> Any:
        return value.cpu().numpy().copy() if self._numpy else value.clone()

    def close_extras(self, **_: Any) -> None:
        """Closes the worlds."""
        self.world.close(raise_if_closed=False)
