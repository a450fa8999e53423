"""A world's own players as policies, to imitate them."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from envs.world import GROUP
from rlstack.config import ConfigError

from .players import ScriptedPlayer
from .sides import half_worlds, sides_of
from .versus import Versus


class ScriptedPolicy(TensorDictModuleBase):
    """Drives every agent that an env shows as the world's own player would, by the state the env is in.

    Args:
        env: a world of two sides, with or without opponents inside.
        name: of the player, such as Rocket's ``rule``.
    """

    def __init__(self, env: EnvBase, name: str) -> None:
        super().__init__()
        self.in_keys, self.out_keys = [(GROUP, "observation")], [(GROUP, "action")]
        self._env, self._world = env, _whole(env)
        self._player = ScriptedPlayer(self._world, name)

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        shown = tensordict.get(GROUP)
        if isinstance(self._env, Versus):
            rows = self._env.learners
        else:
            rows = torch.arange(2 * len(shown), device=shown.device)
        action = self._player.act(self._world, half_worlds(self._world._current().get(GROUP)), rows)
        return tensordict.set((GROUP, "action"), action.reshape(*shown.batch_size, *action.shape[2:]))


def _whole(env: EnvBase) -> Any:
    """The world with both sides as agents."""
    return env.inner if isinstance(env, Versus) else env


def scripted_policy(env: EnvBase, name: str) -> ScriptedPolicy | None:
    """A world's own player by its name; None where the world has no such one."""
    try:
        known = sides_of(_whole(env)).scripted
    except ConfigError:
        return None
    return ScriptedPolicy(env, name) if name in known else None
