"""A small two-sided world: every agent names a number, and the side with the higher sum wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import Binary, Categorical, Composite, Unbounded

from rlstack.agents import make_agent
from rlstack.config import to_plain
from rlstack.envs.world import Sides, World
from rlstack.play.matches import GameRunner
from rlstack.play.players import Player
from rlstack.runs.run_directory import RunDirectory
from rlstack.runs.worlds import build_world

NAME = "tests.play.duel:Duel"


class Duel(World):
    """W duels of two sides of ``size`` agents, each naming 0, 1 or 2 in each of ``length`` steps.

    An agent sees the share of time, its side's sum, the other side's, and how many it has reset to. A world plays
    ``length + w % 3`` steps. With ``absent`` the second side lacks its last agent.
    """

    def __init__(
        self,
        num_worlds: int = 4,
        size: int = 1,
        length: int = 3,
        absent: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__(num_worlds, device, dtype, seed)
        self.size, self.agents = size, 2 * size
        self.length = length + torch.arange(num_worlds) % 3
        self.present = torch.ones(num_worlds, self.agents, dtype=torch.bool)
        self.present[:, -1] = not absent
        lead, column = (num_worlds, self.agents), (num_worlds, 1)
        flag = lambda *shape: Binary(n=1, shape=shape, dtype=torch.bool)  # noqa: E731
        ends = ("done", "terminated", "truncated")
        seen = {"observation": Unbounded((*lead, 4)), "active": Binary(n=lead[1], shape=lead, dtype=torch.bool)}
        episode = {name: Unbounded(column) for name in ("success", "return", "sum_for", "sum_against", "reward_sum")}
        self.observation_spec = Composite(
            agents=Composite(seen, shape=lead), episode=Composite(episode, shape=(num_worlds,)), shape=(num_worlds,)
        )
        self.action_spec = Composite(
            agents=Composite(action=Categorical(3, shape=lead), shape=lead), shape=(num_worlds,)
        )
        self.reward_spec = Composite(agents=Composite(reward=Unbounded((*lead, 1)), shape=lead), shape=(num_worlds,))
        inner = Composite({name: flag(*lead, 1) for name in ends}, shape=lead)
        self.done_spec = Composite({"agents": inner, **{name: flag(*column) for name in ends}}, shape=(num_worlds,))
        self._restart(None)

    def sides(self) -> Sides:
        return SIDES

    def _restart(self, worlds: Tensor | None) -> None:
        if worlds is None:
            self.time = torch.zeros(self.num_worlds)
            self.sums = torch.zeros(self.num_worlds, 2)
            self.number = torch.zeros(self.num_worlds)
            worlds = torch.arange(self.num_worlds)
        self.time[worlds], self.sums[worlds] = 0.0, 0.0
        self.number[worlds] += 1

    def _restart_where(self, ended: Tensor) -> bool:
        self.time, self.sums = self.time.masked_fill(ended, 0.0), self.sums.masked_fill(ended[:, None], 0.0)
        self.number = self.number + ended
        return True

    def _current(self) -> TensorDict:
        ours = self.sums.repeat_interleave(self.size, 1)
        theirs = self.sums.flip(1).repeat_interleave(self.size, 1)
        share = (self.time / self.length)[:, None].expand_as(ours)
        number = self.number[:, None].expand_as(ours)
        seen = {"observation": torch.stack((share, ours, theirs, number), -1), "active": self.present.clone()}
        sums = {"sum_for": self.sums[:, :1].clone(), "sum_against": self.sums[:, 1:].clone()}
        success = (sums["sum_for"] > sums["sum_against"]).float()
        episode = {"success": success, "return": sums["sum_for"].clone(), "reward_sum": sums["sum_for"].clone(), **sums}
        agents = TensorDict(seen, [self.num_worlds, self.agents])
        return TensorDict({"agents": agents, "episode": TensorDict(episode, [self.num_worlds])}, [self.num_worlds])

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        chosen = tensordict["agents", "action"].float() * self.present
        self.sums = self.sums + chosen.view(self.num_worlds, 2, self.size).sum(-1)
        self.time = self.time + 1
        root = self._current()
        done = (self.time >= self.length)[:, None]
        none = torch.zeros_like(done)
        flags = {"done": done, "terminated": done, "truncated": none}
        for name, value in flags.items():
            root.set(name, value)
            root.set(("agents", name), value[:, None].expand(-1, self.agents, -1).clone())
        return root.set(("agents", "reward"), chosen[..., None])

    def _state_to_save(self) -> dict[str, Any]:
        return {"time": self.time.clone(), "sums": self.sums.clone(), "number": self.number.clone()}

    def _load_state(self, state: dict[str, Any]) -> None:
        self.time, self.sums, self.number = (state[name].clone() for name in ("time", "sums", "number"))


def _always(number: int) -> Any:
    def act(env: Any, worlds: Tensor) -> Tensor:
        return torch.full((len(worlds), env.agents), number)

    return act


SIDES = Sides(
    names=("left", "right"),
    score=lambda following: torch.cat((following["episode", "sum_for"], following["episode", "sum_against"]), -1),
    scripted={"high": _always(2), "low": _always(0)},
    anchors={"low": 1000.0},
    mirrored=(("sum_for", "sum_against"),),
    one_sided=("reward_",),
)


class Watching(Player):
    """Names a number, and records its calls."""

    def __init__(self, name: str, number: int = 1) -> None:
        super().__init__(name)
        self.number, self.seen, self.begun = number, [], []

    def act(self, env: Any, halves: TensorDictBase, rows: Tensor, counts: Tensor | None = None) -> Tensor:
        self.seen.append((rows.tolist(), halves["observation"][rows].clone()))
        return torch.full((len(rows), halves.batch_size[1]), self.number)

    def begin(self, rows: Tensor | None = None) -> None:
        self.begun.append(None if rows is None else rows.nonzero()[:, 0].tolist())


class Counting(TensorDictModuleBase):
    """A policy with its recurrent state in the tensordict: names how many steps it remembers, at most 2."""

    in_keys = [("agents", "observation")]
    out_keys = [("agents", "action"), ("agents", "memory"), ("next", "agents", "memory")]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        observation = tensordict["agents", "observation"]
        memory = tensordict.get(("agents", "memory"), None)
        memory = observation.new_zeros(*observation.shape[:-1], 1) if memory is None else memory
        tensordict["agents", "action"] = memory[..., 0].clamp(max=2).long()
        tensordict["agents", "memory"] = memory
        tensordict["next", "agents", "memory"] = memory + 1
        return tensordict


class CountingItself(TensorDictModuleBase):
    """The same, but the policy keeps its state itself and reads ``is_init``."""

    in_keys = [("agents", "observation")]
    out_keys = [("agents", "action")]

    def __init__(self) -> None:
        super().__init__()
        self.held: Tensor | None = None

    def reset(self) -> None:
        self.held = None

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        lead = tensordict["agents", "observation"].shape[:-1]
        held = torch.zeros(lead) if self.held is None else self.held
        held = held * (~tensordict["is_init"]).float()
        self.held = held + 1
        tensordict["agents", "action"] = held.clamp(max=2).long()
        return tensordict


def constant_run(folder: Path, number: int, frames: int = 1000, **options: Any) -> Path:
    """Makes a run directory whose agent always names this number; ``options`` are the world's."""
    env = {"name": NAME, "num_worlds": 2, **options}
    agent = make_agent("ppo", build_world(env), hidden=[2])
    output = agent.networks["actor"].output
    with torch.no_grad():
        output.weight.zero_()
        output.bias.copy_(5.0 * torch.nn.functional.one_hot(torch.tensor(number), 3))
    config = {"agent": to_plain(agent.config), "env": env, "total_frames": frames}
    run = RunDirectory.create(folder, folder.name, keep=2)
    run.write_config(config)
    run.checkpoints.save({"frames": frames, "agent": agent.state_dict(), "config": config}, frames)
    return folder


def seated(runner: GameRunner, *names: str) -> GameRunner:
    """Returns the runner with these players of its world."""
    for name in names:
        runner.add(name)
    return runner
