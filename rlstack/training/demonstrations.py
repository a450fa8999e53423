"""Recorded decisions to imitate: gathered with a policy, kept in files of plain arrays, and split for cloning.

A file is an ``.npz`` without pickles: ``observation [N, ...]``, or ``observation/<leaf>`` of a structured one,
``action [N, ...]`` as the world takes it, and ``action_mask [N, n]`` where the world has one. Files of transitions
(:mod:`rlstack.data.recordings`) hold these, too, and recorded episodes from elsewhere, such as MarineNav's
``evaluations.npz``, are read as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase

from envs.working import working
from envs.world import MEMORY
from rlstack.agents.base import Agent
from rlstack.agents.interface import MASK, Interface
from rlstack.agents.recurrent import Recurrent
from rlstack.agents.recurrent_policy import RecurrentPolicy
from rlstack.config import ConfigError
from rlstack.data import cut, episode_starts
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.data.recordings import save_arrays

from .recorded import read_file

UNORDERED = "imitation: a recurrent agent needs decisions in their order: an expert, or sequences, not a file"
HELD_OUT = 10
"""One in so many stretches of the data is not trained on but measured."""
_STRETCHES = 100
_CHUNK = 4096  # decisions measured at once: greedy acting may look at many actions each
_KEYS = ("observation", "action", MASK)


def decisions(sequences: TensorDictBase, ordered: bool = False) -> TensorDict:
    """Selects the entries of sequences ``[B, T]`` (see :func:`rlstack.flatten_agents`) that imitation needs.

    Returns the active entries as a flat batch ``[N]`` with ``observation``, ``action`` and, where there is one,
    ``action_mask``. All entries count where there is no ``active``; a batch may be flat already. ``ordered``, which
    recurrent agents need, returns ``[B, T]`` with ``active`` and ``("next", "done")``.
    """
    active = sequences.get("active", None)
    if not ordered:
        kept = sequences.select(*_KEYS, strict=False)
        return kept.reshape(-1) if active is None else kept[active]
    kept = sequences.select(*_KEYS, "active", ("next", "done"), strict=False)
    if active is None:
        kept.set("active", torch.ones(kept.batch_size, dtype=torch.bool, device=kept.device))
    return kept


def gather(
    env: EnvBase,
    expert: TensorDictModuleBase,
    interface: Interface,
    frames: int,
    steps_per_batch: int = 16,
    observe: Callable[[TensorDictBase], None] | None = None,
    ordered: bool = False,
) -> TensorDict:
    """Lets a policy act until ``frames`` decisions of active agents have been made; ``[frames]`` of them.

    Args:
        observe: is shown every collected batch of sequences ``[B, T]``.
        ordered: see :func:`decisions`.
    """
    collector = make_collector(env, expert, steps_per_batch)
    gathered, count, steps = [], 0, 0
    with working("gathering", "decisions", frames) as work:

        def step(*_: Any) -> None:  # a batch may take long
            nonlocal steps
            steps += 1
            work.reach(min(count, frames), f"step {steps:,}")

        hook = expert.register_forward_pre_hook(step)
        try:
            for batch in collector:
                sequences = flatten_agents(batch, interface.group)
                if observe is not None:
                    observe(sequences)
                gathered.append(decisions(sequences, ordered))
                count += int(sequences.get("active").sum())
                if count >= frames:
                    break
        finally:
            hook.remove()
            collector.shutdown(close_env=False)
    return torch.cat(gathered, 1) if ordered else torch.cat(gathered)[:frames]


# -- files -------------------------------------------------------------------------------------------------------


def save_demonstrations(path: str | Path, sequences: TensorDictBase | Sequence[TensorDictBase]) -> None:
    """Writes the decisions of sequences ``[B, T]``, one batch or several, to a file (see the module's docstring).

    Example:
        >>> batches = [rlstack.flatten_agents(batch) for batch in collector]
        >>> save_demonstrations("demonstrations.npz", batches)
    """
    batches = [sequences] if isinstance(sequences, TensorDictBase) else list(sequences)
    data: Any = torch.cat([decisions(batch) for batch in batches])
    save_arrays(path, data)


def read_demonstrations(path: str | Path, interface: Interface, device: torch.device | str = "cpu") -> TensorDict:
    """The decisions of a file, checked against the world they are to be imitated in.

    Returns a flat batch ``[N]`` as :func:`decisions` does.

    Raises:
        ConfigError: no such file, not such a file, or observations or actions of another world.
    """
    return read_file(path, interface).to(device)


# -- what is learned, and what is held out -----------------------------------------------------------------------


class RecordedDecisions:
    """Decisions in a flat batch ``[N]``, a tenth of them held out.

    Args:
        agent: who learns.
        data: ``observation``, ``action`` (as the world takes it) and, where the world has one, ``action_mask``.

    Raises:
        ConfigError: there are too few.
    """

    _units = "decisions"

    def __init__(self, agent: Agent, data: TensorDictBase) -> None:
        if len(data) < HELD_OUT:
            raise ConfigError(f"imitation: {len(data)} {self._units} are too few, {HELD_OUT} are needed at least")
        self.agent, data = agent, data.to(agent.device).copy()
        self.data = data.set("action", agent.interface.from_env(data.get("action")))
        self._held = torch.arange(len(data), device=agent.device) // max(len(data) // _STRETCHES, 1) % HELD_OUT
        self._held = self._held == HELD_OUT - 1

    def refresh(self) -> None:
        """Prepares a pass over the data."""

    def size(self, batch: TensorDictBase) -> int:
        """Decisions in a batch."""
        return len(batch)

    def train(self) -> TensorDictBase:
        """The part that is trained on."""
        return self.data[~self._held]

    def observations(self) -> Any:
        """Observations that are trained on, ``[N]``."""
        return self.train().get("observation")

    def batches(self, batch_size: int) -> list[TensorDictBase]:
        """The part that is trained on, shuffled, in batches of about so many decisions."""
        train = self.train()
        rows = max(round(batch_size * len(train) / self.size(train)), 1)
        order = torch.randperm(len(train), device=self.agent.device)
        return [train[index] for index in order.split(rows)]

    def held_out(self) -> Sequence[TensorDictBase]:
        """The part that is held out, in pieces."""
        rest = self.data[self._held]
        return rest.split(max(_CHUNK * len(rest) // max(self.size(rest), 1), 1))

    def greedy(self, policy: Any, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Actions of a greedy policy and the actions to imitate, both as the agent has them."""
        interface = self.agent.interface
        seen: Any = TensorDict({}, batch.batch_size, device=self.agent.device)
        for name in ("observation", MASK) if interface.masked else ("observation",):
            seen.set(interface.key(name), batch.get(name))
        return interface.from_env(policy(seen).get(interface.key("action"))), batch.get("action")


class RecordedSequences(RecordedDecisions):
    """Decisions in sequences ``[B, T]``, which are cut for a recurrent agent.

    Before each pass the state in which a part begins is computed anew: the one that the learner itself would have had.

    Args:
        data: besides ``active [B, T]`` and ``("next", "done") [B, T, 1]``.
    """

    _units = "sequences"
    agent: Recurrent

    def __init__(self, agent: Recurrent, data: TensorDictBase) -> None:
        if data.ndim != 2 or ("next", "done") not in data.keys(include_nested=True):
            raise ConfigError(UNORDERED)
        self._rows = len(data)
        entries = data.exclude("next").set("starts", episode_starts(data))
        parts = cut(entries, agent.config.recurrent.sequence_length)
        parts.batch_size = parts.batch_size[:1]
        super().__init__(agent, parts)
        self._used = self.data.get("active").any(1)
        self._held &= self._used

    @torch.no_grad()
    def refresh(self) -> None:
        agent, begun = self.agent, []
        core = agent.memories[agent.ACTING]
        memory = torch.zeros(self._rows, core.core.memory_size, dtype=agent.interface.dtype, device=agent.device)
        for part in self.data.unflatten(0, (self._rows, len(self.data) // self._rows)).unbind(1):
            begun.append(memory)
            observation = agent.normalized(part.get("observation"))
            _, memory = core.follow(observation, memory, part.get("starts"), part.get("active"))
        self.data.set(MEMORY, torch.stack(begun, 1).flatten(0, 1))

    def size(self, batch: TensorDictBase) -> int:
        return int(batch.get("active").sum())

    def train(self) -> TensorDictBase:
        return self.data[~self._held & self._used]

    def observations(self) -> Any:
        train = self.train()
        return train.get("observation")[train.get("active")]

    def greedy(self, policy: RecurrentPolicy, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
        observation, wanted, mask = self.agent.lesson(batch)
        return self.agent.interface.from_env(policy.inner.entries(observation, mask)["action"]), wanted
