"""One world with one learner as a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from tensordict import TensorDictBase

from ..world import hooks_of
from .learner import OneLearner, Others, arrays, space_of, statistics


class SingleWorld(gymnasium.Env[Any, Any]):
    """One world with one learner; the world's players, or a policy, control any other agents.

    Spaces follow from the world's specs; see :func:`~rlstack.envs.faces.learner.space_of`. ``info`` holds the world's
    episode
    statistics so far, ``action_mask`` if the world has one, and at the end ``is_success`` if the world defines success.
    The episode ends with the learner or with the world; time limits are the world's own.

    Args:
        world: a name or path for :func:`rlstack.envs.make`.
        render_mode: ``"rgb_array"`` for :meth:`render`, or None.
        others: controller of the other agents: the name of one of the world's players, such as Rocket's ``rule``, or a
            policy; None is the first of its players.
        options: options of the world.

    Raises:
        ValueError: a world, option or player is unknown, or a value is impossible.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(
        self, world: str, render_mode: str | None = None, others: Others | None = None, **options: Any
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode: {render_mode!r} is unknown, allowed: rgb_array and None")
        self._learner = OneLearner(world, 1, others, **options)
        self.world = self._learner.world
        self.render_mode = render_mode
        self._recorder: Any = None
        self._animation: Any = None
        self.observation_space = space_of(self._learner.observation)
        self.action_space = space_of(self._learner.action)
        self._is_seeded = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode; the same seed repeats the same episodes. ``options`` are ignored."""
        super().reset(seed=seed)
        if seed is not None or not self._is_seeded:
            self.world.set_seed(int(self.np_random.integers(2**31)))
            self._is_seeded = True
        self._recorder = None
        root = self._learner.begin()
        return arrays(self._learner.part(root, "observation")[0]), self._info(root)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Makes one step of the world."""
        following, terminated, truncated = self._learner.step(self._learner.read(action))
        if self._recorder is not None:
            self._recorder.add()
        part = self._learner.part
        info = self._info(following)
        if "success" in info and bool(terminated | truncated):
            info["is_success"] = info["success"] > 0
        observation = arrays(part(following, "observation")[0])
        return observation, float(part(following, "reward")), bool(terminated), bool(truncated), info

    def _info(self, root: TensorDictBase) -> dict[str, Any]:
        info: dict[str, Any] = {name: float(value) for name, value in statistics(root).items()}
        mask = self._learner.mask(root)
        return info if mask is None else {**info, "action_mask": arrays(mask[0])}

    def render(self) -> Any:
        """Draws the current state of the world, uint8 ``[height, width, 3]``; None without a ``render_mode``.

        Trails begin with the first picture of an episode.
        """
        if self.render_mode is None:
            return None
        if self._recorder is None:
            self._recorder, self._animation = hooks_of(self.world).recorder([0], [""]), None
            if self._recorder is None:
                return np.asarray(self.world.render())
            self._recorder.add()
        recording = self._recorder.recordings()[0]
        self._animation = recording.animation() if self._animation is None else self._animation.longer(recording)
        return self._animation.draw(self._animation.span[1])

    def close(self) -> None:
        """Closes the world."""
        self.world.close(raise_if_closed=False)
