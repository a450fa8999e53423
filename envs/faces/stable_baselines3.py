"""A batch of worlds as a Stable-Baselines3 ``VecEnv`` (extra ``sb3``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnv

from .gymnasium import Others, VectorWorld


class SB3World(VecEnv):
    """``num_envs`` worlds with one learner each: ``PPO("MlpPolicy", SB3World("arena", 64))``.

    It also wraps a vector: ``SB3World(gymnasium.make_vec("rlstack/Arena-v0", 64, autoreset_mode="SAME_STEP"))``.

    The info of a world whose episode ended holds ``terminal_observation``, ``TimeLimit.truncated``, ``episode``
    (return ``r`` and length ``l``) and, if the world defines success, ``is_success``.

    Args:
        world: a name or path for :func:`rlstack.envs.make`, or a vector, for which the other arguments do not apply.
        num_envs: number of worlds.
        others, options: see :class:`~rlstack.envs.faces.gymnasium.VectorWorld`.

    Raises:
        ValueError: the vector resets in the next step, holds tensors or other environments, or refuses an argument.
    """

    def __init__(
        self, world: str | VectorEnv[Any, Any, Any], num_envs: int = 1, others: Others | None = None, **options: Any
    ) -> None:
        if not isinstance(world, VectorEnv):
            world = VectorWorld(world, num_envs, AutoresetMode.SAME_STEP, "numpy", others, **options)
        self.vector, own = world, world.unwrapped
        if not isinstance(own, VectorWorld) or own.output != "numpy":
            told = "a vector of rlstack's worlds with output='numpy'; for others there is make_vec_env"
            raise ValueError(f"world: Stable-Baselines3 needs {told}")
        if self.vector.metadata.get("autoreset_mode") is not AutoresetMode.SAME_STEP:
            raise ValueError(
                "autoreset_mode: Stable-Baselines3 needs SAME_STEP, make_vec(..., autoreset_mode='SAME_STEP')"
            )
        self.render_mode, num_envs = None, self.vector.num_envs
        super().__init__(num_envs, self.vector.single_observation_space, self.vector.single_action_space)
        self._actions: Any = None
        self._next_seed: int | None = None

    def reset(self) -> Any:
        """Begins episodes in all worlds; after ``seed`` those of the seed."""
        observation, _ = self.vector.reset(seed=self._next_seed)
        self._next_seed = None
        return observation

    def step_async(self, actions: Any) -> None:
        """Stores the actions of a step."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
        """Steps all worlds."""
        observation, reward, terminated, truncated, info = self.vector.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for index in np.flatnonzero(terminated | truncated).tolist():
            ended = {name: float(values[index]) for name, values in info["statistics"].items()}
            own = infos[index]
            own["episode"] = {"r": ended["r"], "l": int(ended["l"]), "t": 0.0}
            own["TimeLimit.truncated"] = bool(truncated[index])
            own["terminal_observation"] = _row(info["final_obs"], index)
            if "success" in ended:
                own["is_success"] = ended["success"] > 0
        return observation, reward.astype(np.float32), terminated | truncated, infos

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Sets the seed of the next reset."""
        self._next_seed = seed
        return [None if seed is None else seed + index for index in range(self.num_envs)]

    def close(self) -> None:
        """Closes the worlds."""
        self.vector.close()

    def _count(self, indices: Any) -> int:
        """Returns the number of worlds that ``indices`` names: all, one or some."""
        return self.num_envs if indices is None else int(np.size(indices))

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Returns an attribute of the batch, repeated for each requested world."""
        return [getattr(self.vector, attr_name)] * self._count(indices)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Raises an error: worlds of a batch have no attributes of their own."""
        raise AttributeError(f"{attr_name}: worlds of a batch have no attributes of their own; build them with options")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Raises an error: worlds of a batch have no methods of their own."""
        raise AttributeError(f"{method_name}: worlds of a batch have no methods of their own")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Returns False for each requested world."""
        return [False] * self._count(indices)

    def get_images(self) -> Sequence[Any]:
        """Returns no pictures."""
        return [None] * self.num_envs


def _row(observation: Any, index: int) -> Any:
    if isinstance(observation, dict):
        return {name: part[index] for name, part in observation.items()}
    return observation[index]
