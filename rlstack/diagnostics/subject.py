"""What is diagnosed: the worlds and the agent of a training configuration, as they are half-way through their run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torchrl.envs import EnvBase

import envs
from envs.registry import world_hooks
from rlstack.agents import Agent, build_agent
from rlstack.runs.worlds import build_world
from rlstack.training.config import TrainConfig

from .timing import Clock

_SIZES = ("num_worlds", "num_envs")


@dataclass
class Subject:
    """A configuration and how to measure it.

    Attributes:
        config: of the training.
        raw: the same as plain values.
        device: what it computes on.
        clock: which tells the time.
        seconds: that a measurement takes; a point of a sweep takes a third.
    """

    config: TrainConfig
    raw: dict[str, Any]
    device: torch.device
    clock: Clock
    seconds: float

    def world(self, num_worlds: int | None = None) -> EnvBase:
        """Its worlds, or another number of them."""
        more = {} if num_worlds is None else {"num_worlds": num_worlds}
        return build_world(self.config.env, self.device, self.config.seed, **more)

    def agent(self, env: EnvBase) -> Agent:
        """Its agent with every schedule in the middle of the run: beyond random actions, and learning."""
        agent = build_agent(self.config.agent, env, self.config.total_frames, self.device)
        agent.set_frames(self.halfway)
        return agent

    @property
    def halfway(self) -> int:
        """Frames in the middle of the run, or where learning is under way if that is later."""
        late = max(int(self.config.agent.get(name) or 0) for name in ("learning_starts", "random_frames"))
        return max(self.config.total_frames // 2, late)

    @cached_property
    def size_option(self) -> str | None:
        """The option that holds the number of worlds; None if there is one world only."""
        accepted = envs.options_of(self.config.env["name"])
        return next((name for name in _SIZES if name in accepted), None)

    @cached_property
    def num_worlds(self) -> int:
        """How many worlds there are; those of an option that is null are counted."""
        given = self.config.env.get(self.size_option) if self.size_option else 1
        return self.world().batch_size.numel() if given is None else int(given)

    @property
    def processes(self) -> int:
        """Other processes that step the worlds; a world with a backend of torch has none, whatever its workers."""
        env = self.config.env
        return 0 if env.get("backend") == "torch" else int(env.get("workers") or 0)

    @property
    def sweeps(self) -> bool:
        """Worlds of another number can be had in a moment."""
        slow = self.config.env.get("compiled") or self.processes
        return self.size_option is not None and not slow

    @property
    def observing(self) -> tuple[str, ...]:
        """Functions of the world that make observations; none of a compiled one, which cannot be looked into."""
        compiled = self.config.env.get("compiled")
        return () if compiled else world_hooks(self.config.env["name"]).observing
