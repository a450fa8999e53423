"""Two sides of a world that learn separately: two agents of the same algorithm, with nothing shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rlstack.config import ConfigError
from rlstack.envs.world import GROUP
from rlstack.networks.calls import by_name

from .base import Agent
from .compilation import Compiler
from .interface import Interface

SIDES = ("first", "second")
_NAMED = ("networks", "targets", "optimizers")


class SplitPolicy(TensorDictModuleBase):
    """Makes each side's agents ``[..., A / 2]`` act by that side's policy; if fewer than A, all are of the first side.

    Args:
        policies: policies of the two sides.
        agents: A, the number of agents in each world.
        interface: interface of the world.
    """

    def __init__(self, policies: Sequence[Any], agents: int, interface: Interface) -> None:
        super().__init__()
        self.in_keys, self.out_keys = policies[0].in_keys, policies[0].out_keys
        self.policies, self._agents, self._interface = nn.ModuleList(policies), agents, interface

    @by_name()
    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        group = tensordict.get(GROUP)
        if not group.batch_size:
            group.batch_size = self._interface.lead(self._interface.observed(tensordict))
        if group.shape[-1] < self._agents:
            return self.policies[0](tensordict)
        half = self._agents // 2
        acted = []
        for policy, part in zip(self.policies, (group[..., :half], group[..., half:])):
            shown = part.empty().set("observation", part.get("observation"))
            if "action_mask" in part.keys():  # noqa: SIM118
                shown.set("action_mask", part.get("action_mask"))
            acted.append(policy(tensordict.empty().set(GROUP, shown)))
        for key in self.out_keys:
            first, second = (part.get(key) for part in acted)
            tensordict.set(key, torch.cat((first, second), group.ndim - 1))
        return tensordict


class Split(Agent):
    """Both sides of a world, each an agent with its own networks, optimisers and replay buffer.

    Where only one side is to be controlled, as in matches, the first side's agent controls it.

    Args:
        make: makes an agent.
        interface: interface of the world.
        agents: the number of agents in each world, half of them on either side.

    Raises:
        ConfigError: the world does not have an even number of agents in a group.
    """

    def __init__(self, make: Callable[[], Agent], interface: Interface, agents: int | None) -> None:
        if interface.group is None or not agents or agents % 2:
            raise ConfigError(
                f"agent.parameters: split needs a world of two sides, an even number of agents; it has {agents or 1}"
            )
        self.parts = [make() for _ in SIDES]
        one = self.parts[0]
        self.config, self.interface, self.device, self.total_frames = (
            one.config,
            interface,
            one.device,
            one.total_frames,
        )
        self.agents, self.updates, self.frames = agents, 0, 0
        self.normalizer, self.reward_scaler = None, None
        self.schedules, self.scheduled = one.schedules, one.scheduled
        self.own = one.own
        self.networks, self.targets, self.optimizers = map(self._named, _NAMED)

    def _named(self, attribute: str) -> dict[str, Any]:
        return {
            f"{side}/{name}": value
            for side, part in zip(SIDES, self.parts)
            for name, value in getattr(part, attribute).items()
        }

    @classmethod
    def check(cls, interface: Interface) -> None:
        """Accepts every env: the algorithm of the parts makes its own check."""

    def check_learning(self) -> None:
        for part in self.parts:
            part.check_learning()

    def compile(self, compiler: Compiler) -> None:
        for part in self.parts:
            part.compile(compiler)
        self.compiler = compiler

    def expected_updates(self) -> float:
        return sum(part.expected_updates() for part in self.parts) / len(SIDES)

    def policy(self, explore: bool | None = None) -> TensorDictModuleBase:
        return SplitPolicy([part.policy(explore) for part in self.parts], self.agents, self.interface)

    def _halves(self, sequences: TensorDictBase) -> list[TensorDictBase]:
        """Returns the rows of each side, out of ``[W*A, T]``."""
        side = torch.arange(len(sequences), device=sequences.device) % self.agents // (self.agents // 2)
        return [sequences[(side == number).nonzero()[:, 0]] for number in range(len(SIDES))]

    def _joined(self, metrics: Sequence[dict[str, Tensor | float]]) -> dict[str, Tensor | float]:
        self.updates = sum(part.updates for part in self.parts)
        return {f"{name}_{side}": value for side, own in zip(SIDES, metrics) for name, value in own.items()}

    def learn(self, sequences: TensorDictBase, frames: int) -> dict[str, Tensor | float]:
        metrics = [part.learn(rows, frames) for part, rows in zip(self.parts, self._halves(sequences))]
        self.frames, self.scheduled = frames, self.parts[0].scheduled
        return self._joined(metrics)

    def update_once(self, sequences: TensorDictBase) -> dict[str, Tensor | float]:
        return self._joined([part.update_once(rows) for part, rows in zip(self.parts, self._halves(sequences))])

    def set_frames(self, frames: int) -> None:
        for part in self.parts:
            part.set_frames(frames)
        self.frames, self.scheduled = frames, self.parts[0].scheduled

    def state_dict(self) -> dict[str, Any]:
        states = {side: part.state_dict() for side, part in zip(SIDES, self.parts)}
        merged: dict[str, Any] = {
            kind: {f"{side}/{name}": value for side, own in states.items() for name, value in own.pop(kind).items()}
            for kind in _NAMED
        }
        return {**merged, "updates": self.updates, "frames": self.frames, "sides": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for side, part in zip(SIDES, self.parts):
            start = f"{side}/"
            own = {
                kind: {name.removeprefix(start): value for name, value in state[kind].items() if name.startswith(start)}
                for kind in _NAMED
            }
            part.load_state_dict({**own, **state["sides"][side]})
        self.updates = sum(part.updates for part in self.parts)
        self.set_frames(self.parts[0].frames)

    def take_weights(self, weights: Mapping[str, Any]) -> None:
        for part in self.parts:
            part.take_weights(weights)

    def begin_episodes(self) -> None:
        for part in self.parts:
            part.begin_episodes()

    def replay_state(self) -> dict[str, Any] | None:
        states = {side: part.replay_state() for side, part in zip(SIDES, self.parts)}
        return None if None in states.values() else states

    def load_replay_state(self, state: dict[str, Any]) -> None:
        for side, part in zip(SIDES, self.parts):
            part.load_replay_state(state[side])
