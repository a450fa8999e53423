"""Recorded decisions to imitate: gathering them with a policy, files of plain arrays, and the split for cloning.

A file is an ``.npz`` without pickles: ``observation [N, ...]`` (``observation/<leaf>`` for structured observations),
``action [N, ...]`` in the world's form, and ``action_mask [N, n]`` if the world has one. Files of transitions
(:mod:`rlstack.data.recordings`) contain these entries too, and recorded episodes of agents from elsewhere, such as
MarineNav's ``evaluations.npz``, can be read as well.
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

from rlstack.agents.base import Agent
from rlstack.agents.interface import MASK, Interface
from rlstack.agents.recurrent import Recurrent, RecurrentPolicy
from rlstack.config import ConfigError
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.data.recordings import save_arrays
from rlstack.data.sequences import cut, episode_starts
from rlstack.envs.working import working
from rlstack.envs.world import MEMORY

from .recorded import read_file

UNORDERED = "imitation: a recurrent agent needs decisions in their order: an expert, or sequences, not a file"
HELD_OUT = 10
"""One of this many stretches of the data is held out: measured, never trained on."""
_STRETCHES = 100
_CHUNK = 4096  # decisions measured at once: greedy acting may evaluate many actions for each
_KEYS = ("observation", "action", MASK)


def decisions(sequences: TensorDictBase, ordered: bool = False) -> TensorDict:
    """Selects the entries of sequences ``[B, T]`` (see :func:`rlstack.flatten_agents`) that imitation needs.

    Returns the active entries as a flat batch ``[N]`` with ``observation``, ``action`` and, if there is one,
    ``action_mask``. Without an entry ``active`` all entries count; a batch may be flat already. With ``ordered``, which
    recurrent agents need, it returns ``[B, T]`` with ``active`` and ``("next", "done")``.
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
    """Lets a policy act until active agents have made ``frames`` decisions; returns these, ``[frames]``.

    Args:
        observe: called with every collected batch of sequences ``[B, T]``.
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
    """Writes the decisions of one or several batches of sequences ``[B, T]`` to a file (see the module's docstring).

    Example:
        >>> batches = [rlstack.flatten_agents(batch) for batch in collector]
        >>> save_demonstrations("demonstrations.npz", batches)
    """
    batches = [sequences] if isinstance(sequences, TensorDictBase) else list(sequences)
    data: Any = torch.cat([decisions(batch) for batch in batches])
    save_arrays(path, data)


def read_demonstrations(path: str | Path, interface: Interface, device: torch.device | str = "cpu") -> TensorDict:
    """Reads the decisions of a file and checks that they fit the world in which they will be imitated.

    Returns a flat batch ``[N]`` as :func:`decisions` does.

    Raises:
        ConfigError: there is no such file, it has another format, or its decisions are of another world.
    """
    return read_file(path, interface).to(device)


# -- the split into training and held-out data --------------------------------------------------------------------


def _held_out(count: int, device: torch.device) -> Tensor:
    """Returns which of ``count`` rows are held out, ``[count]``: every tenth of some hundred stretches."""
    stretch = torch.arange(count, device=device) // max(count // _STRETCHES, 1)
    return stretch % HELD_OUT == HELD_OUT - 1


class RecordedDecisions:
    """Decisions in a flat batch ``[N]``, a tenth of them held out.

    Args:
        agent: the learner.
        data: ``observation``, ``action`` (in the world's form) and, if the world has one, ``action_mask``.

    Raises:
        ConfigError: there are too few decisions.
    """

    _units = "decisions"

    def __init__(self, agent: Agent, data: TensorDictBase) -> None:
        if len(data) < HELD_OUT:
            raise ConfigError(f"imitation: {len(data)} {self._units} are too few, at least {HELD_OUT} are needed")
        self.agent, data = agent, data.to(agent.device).copy()
        self.data = data.set("action", agent.interface.from_env(data.get("action")))
        self._held = _held_out(len(data), agent.device)

    def refresh(self) -> None:
        """Prepares a pass over the data."""

    def size(self, batch: TensorDictBase) -> int:
        """Returns the number of decisions in a batch."""
        return len(batch)

    def train(self) -> TensorDictBase:
        """Returns the part that is trained on."""
        return self.data[~self._held]

    def observations(self) -> Any:
        """Returns the observations that are trained on, ``[N]``."""
        return self.train().get("observation")

    def batches(self, batch_size: int) -> list[TensorDictBase]:
        """Returns the part that is trained on, shuffled, in batches of about ``batch_size`` decisions."""
        train = self.train()
        rows = max(round(batch_size * len(train) / self.size(train)), 1)
        order = torch.randperm(len(train), device=self.agent.device)
        return [train[index] for index in order.split(rows)]

    def held_out(self) -> Sequence[TensorDictBase]:
        """Returns the part that is held out, in pieces."""
        rest = self.data[self._held]
        return rest.split(max(_CHUNK * len(rest) // max(self.size(rest), 1), 1))

    def greedy(self, policy: Any, batch: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Returns the actions of a greedy policy and the actions to imitate, both in the agent's form."""
        interface = self.agent.interface
        seen: Any = TensorDict({}, batch.batch_size, device=self.agent.device)
        for name in ("observation", MASK) if interface.masked else ("observation",):
            seen.set(interface.key(name), batch.get(name))
        return interface.from_env(policy(seen).get(interface.key("action"))), batch.get("action")


class RecordedSequences(RecordedDecisions):
    """Decisions in sequences ``[B, T]``, cut into parts for a recurrent agent.

    Each pass first computes the recurrent state in which every part begins: the one that the learner would have had.

    Args:
        data: additionally ``active [B, T]`` and ``("next", "done") [B, T, 1]``.
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
        if (count := int(self._used.sum())) < HELD_OUT:
            raise ConfigError(f"imitation: {count} {self._units} with decisions are too few, give at least {HELD_OUT}")
        self._held = self._used.clone()
        self._held[self._used] = _held_out(count, agent.device)

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
        observation, wanted, mask = self.agent.imitation_batch(batch)
        return self.agent.interface.from_env(policy.inner.entries(observation, mask)["action"]), wanted
