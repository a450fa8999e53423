"""Policies and worlds simple enough that their results can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Composite, Unbounded
from torchrl.envs import EnvBase

from rlstack.envs.marinenav.episodes import Config, default_robot, make_episode
from rlstack.envs.marinenav.rules import MarineNavRules
from rlstack.evaluation.evaluator import EpisodeSet, Evaluation, evaluate


class Scripted(TensorDictModuleBase):
    """A policy from a function of the tensordict."""

    def __init__(self, function: Callable[[TensorDictBase], Tensor], key: Any = ("agents", "action")) -> None:
        super().__init__()
        self.in_keys, self.out_keys, self._function = [], [key], function

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set(self.out_keys[0], self._function(tensordict))


def full_ahead(tensordict: TensorDictBase) -> Tensor:
    """Full thrust where the goal is less than 100 m away, else none."""
    goal = tensordict["agents", "observation", "self"][..., :2]
    return (goal.norm(dim=-1, keepdim=True) < 100).to(goal.dtype).expand_as(goal)


def vessel(start: tuple[float, float], goal: tuple[float, float]) -> Config:
    """One robot that heads north and perceives exactly."""
    robot = default_robot(start, goal, 0.0)
    robot["perception"] |= {"pos_std": 0.0, "vel_std": 0.0, "r_mean_ratio": 1.0}
    return robot


def episodes() -> dict[str, Config]:
    """What each name says, for :func:`full_ahead`; every way leads north."""
    rock = [16.0 + 1.0 + MarineNavRules().r, 10.0, 1.0]  # touched at x = 16
    lazy = vessel((10.0, 40.0), (1000.0, 40.0))
    return {
        "arrives": make_episode([vessel((10.0, 10.0), (30.0, 10.0))]),
        "collides": make_episode([vessel((10.0, 10.0), (50.0, 10.0)), lazy], obstacles=[rock]),
        "both": make_episode([vessel((10.0, 10.0), (18.0, 10.0))], obstacles=[rock]),
        "rests": make_episode([lazy]),
    }


def play(names: list[str], **arguments: Any) -> Evaluation:
    """Full ahead in these episodes; the options are those of a training that must not count."""
    chosen = EpisodeSet([episodes()[name] for name in names], names)
    training = {"collision_penalty": -50.0, "max_steps": 5, "discount": 0.5, "num_robots": 1, "num_worlds": 9}
    options = training | {"dtype": torch.float64}
    return evaluate(Scripted(full_ahead), "marinenav", options, 1, 0, episode_set=chosen, **arguments)


def straight_run(distance: float) -> tuple[list[float], list[float]]:
    """Metres gained and energy of each step of a vessel that goes straight from rest until ``distance`` is covered.

    The surge equation of the vessel by itself: 380 du/dt = T_l + T_r - (100 + 150 |u|) u.
    """
    x = u = thrust = 0.0
    gained: list[float] = []
    energy: list[float] = []
    while x < distance:
        before = x
        for substep in range(10):
            x += 0.05 * u
            if substep == 0:
                thrust = min(thrust + 500.0, 1000.0)
            u += 0.05 * (2 * thrust - (100 + 150 * abs(u)) * u) / 380
        gained.append(x - before)
        energy.append(2 * thrust * 0.5)
    return gained, energy


class Countdown(EnvBase):
    """World w ends after ``last + w % 4`` steps; no statistics of its own.

    A single agent is rewarded 1 a step; with ``agents=3`` they get 1, 3 and 100, and the third is mere padding.
    """

    batch_locked = True

    def __init__(self, num_worlds: int = 1, agents: int = 0, seed: int = 0, last: int = 1) -> None:
        super().__init__(batch_size=[num_worlds])
        self._last = last
        self._agents, lead = agents, (num_worlds, agents)
        here = {"shape": (num_worlds,)}

        def group(**leaves: Any) -> Composite:
            content = leaves if not agents else {"agents": Composite(leaves, shape=lead)}
            return Composite(content, **here)

        size = lead if agents else (num_worlds,)
        entries = {"observation": Unbounded((*size, 1))}
        self.observation_spec = group(**entries | ({"active": Binary(shape=size, dtype=torch.bool)} if agents else {}))
        self.action_spec = group(action=Bounded(-1.0, 1.0, shape=(*size, 1)))
        self.reward_spec = group(reward=Unbounded((*size, 1)))
        flags = {name: Binary(shape=(num_worlds, 1), dtype=torch.bool) for name in ("done", "terminated")}
        self.done_spec = Composite(flags, **here)

    def _show(self) -> dict[str, Any]:
        steps = self._steps.float()
        if not self._agents:
            return {"observation": steps}
        active = torch.arange(3).expand(len(steps), 3) < 2
        leaves = {"observation": steps[:, None].expand(-1, 3, 1).clone(), "active": active.clone()}
        return {"agents": TensorDict(leaves, batch_size=(len(steps), 3))}

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        fresh = torch.zeros(*self.batch_size, 1, dtype=torch.int64)
        self._steps = fresh if mask is None else torch.where(mask, fresh, self._steps)
        return TensorDict(self._show(), batch_size=self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self._steps = self._steps + 1
        out = TensorDict(self._show(), batch_size=self.batch_size)
        if self._agents:
            out.set(("agents", "reward"), torch.tensor([[1.0], [3.0], [100.0]]).repeat(*self.batch_size, 1, 1))
        else:
            out.set("reward", torch.ones(*self.batch_size, 1))
        done = self._steps >= self._last + torch.arange(len(self._steps))[:, None] % 4
        return out.set("done", done).set("terminated", done.clone())

    def _set_seed(self, seed: int | None) -> None:
        pass


class Four(Countdown):
    """Always four worlds."""

    def __init__(self) -> None:
        super().__init__(4)


class AgentsAlone(Countdown):
    """The same with three agents, whose ends are the only ones that are shown: all agents of a world end at once."""

    def __init__(self, num_worlds: int = 1, seed: int = 0) -> None:
        super().__init__(num_worlds, 3)
        lead = (num_worlds, 3)
        flags = {name: Binary(shape=(*lead, 1), dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        self.done_spec = Composite(agents=Composite(flags, shape=lead), shape=(num_worlds,))

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        mask = None if tensordict is None else tensordict.get(("agents", "_reset"), None)
        root = None if mask is None else TensorDict({"_reset": mask[:, 0]}, batch_size=self.batch_size)
        return super()._reset(root)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        out = super()._step(tensordict)
        over = out.pop("done")[:, None].expand(-1, 3, 1)
        flags = {"done": over, "terminated": over, "truncated": torch.zeros_like(over)}
        out.get("agents").update({name: value.clone() for name, value in flags.items()})
        return out.exclude("terminated")
