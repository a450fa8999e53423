"""A world with several agents as a PettingZoo ``ParallelEnv``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv
from tensordict import TensorDict, TensorDictBase

from .. import registry
from ..foundation.tensors import ACTION_MASK, GROUP
from .gymnasium import arrays, check_plain, space_of, statistics


class ParallelWorld(ParallelEnv):
    """The agents of one world, ``agent_0`` to ``agent_<A - 1>``; in a two-sided world the first half is one side.

    An agent leaves ``agents`` when it is done, and all agents do when the world ends. Agents that are inactive from the
    beginning never enter. The info of an agent holds the world's episode statistics so far, and ``action_mask`` if the
    world has one.

    Args:
        world: a name or path for :func:`rlstack.envs.make`.
        render_mode: None.
        options: options of the world.

    Raises:
        ValueError: a world or option is unknown, a value is impossible, or the world has a single agent.
    """

    def __init__(self, world: str, render_mode: str | None = None, **options: Any) -> None:
        if render_mode is not None:
            raise ValueError(f"render_mode: {render_mode!r} is unknown, allowed: None")
        both = registry.world_hooks(world).two_sided_options
        self.world: Any = registry.make(world, num_worlds=1, **{**both, **options})
        if GROUP not in self.world.full_action_spec.keys():  # noqa: SIM118
            raise ValueError(f"{world}: a world of a single agent, see gymnasium.make")
        self.metadata = {"name": world, "render_modes": [], "is_parallelizable": True}
        self.render_mode = None
        count = self.world.full_action_spec[GROUP].shape[1]
        self.possible_agents = [f"agent_{index}" for index in range(count)]
        self.agents: list[str] = []
        self._observation = space_of(self.world.observation_spec[GROUP, "observation"][0, 0])
        self._action_spec = self.world.full_action_spec[GROUP, "action"]
        check_plain(self._action_spec)
        self._action = space_of(self._action_spec[0, 0])
        self.observation_spaces = dict.fromkeys(self.possible_agents, self._observation)
        self.action_spaces = dict.fromkeys(self.possible_agents, self._action)
        self._is_seeded = False

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Returns the space, which is equal for every agent."""
        return self._observation

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Returns the space, which is equal for every agent."""
        return self._action

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begins an episode; the same seed repeats the same episodes. ``options`` are ignored."""
        if seed is None and not self._is_seeded:
            seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
        if seed is not None:
            self.world.set_seed(seed)
            self._is_seeded = True
        root = self.world.reset()
        present = root.get((GROUP, "active"))[0].tolist()
        self.agents = [agent for agent, there in zip(self.possible_agents, present, strict=True) if there]
        return self._observations(root), self._infos(root)

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Makes one step with an action for every agent in ``agents``."""
        chosen = torch.zeros_like(self._action_spec.zero())
        for index in self._indices():
            given = torch.as_tensor(np.asarray(actions[self.possible_agents[index]]), dtype=chosen.dtype)
            chosen[0, index] = given.reshape(chosen.shape[2:])
        following = self.world._advance(TensorDict({GROUP: {"action": chosen}}, [1]))
        over = bool(following.get("done"))
        late = over and bool(following.get("truncated"))
        agents = following.get(GROUP)

        def of(name: str) -> dict[str, Any]:
            return {self.possible_agents[index]: agents.get(name)[0, index].item() for index in self._indices()}

        terminated, truncated = of("terminated"), of("truncated")
        for agent in self.agents:  # the end of the world ends every agent
            if over and not (terminated[agent] or truncated[agent]):
                terminated[agent], truncated[agent] = not late, late
        results = self._observations(following), of("reward"), terminated, truncated, self._infos(following)
        self.agents = [agent for agent in self.agents if not (terminated[agent] or truncated[agent])]
        return results

    def _indices(self) -> list[int]:
        return [self.possible_agents.index(agent) for agent in self.agents]

    def _observations(self, root: TensorDictBase) -> dict[str, Any]:
        shown = root.get((GROUP, "observation"))[0]
        return {self.possible_agents[index]: arrays(shown[index]) for index in self._indices()}

    def _infos(self, root: TensorDictBase) -> dict[str, Any]:
        known = {name: float(value) for name, value in statistics(root).items()}
        mask = root.get((GROUP, ACTION_MASK), None)
        masks = {} if mask is None else {index: {ACTION_MASK: arrays(mask[0, index])} for index in self._indices()}
        return {self.possible_agents[index]: {**known, **masks.get(index, {})} for index in self._indices()}

    def render(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Closes the world."""
        self.world.close(raise_if_closed=False)
