"""Recurrent agents: PPO, A2C, DQN and IQN with a recurrent core (``agent.recurrent`` in their yaml).

PPO and A2C learn from whole sequences, each starting from the recurrent state in which it began. DQN and IQN replay
sequences (R2D2, Kapturowski et al. 2019): a sequence begins in the recurrent state that the policy had when it was
gathered; as that state belongs to old parameters, the first ``burn_in`` steps only bring it up to date. n-step returns
stay within the sequence, which is n - 1 steps longer for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rlstack.config import ConfigError
from rlstack.data.flatten import n_step_returns
from rlstack.data.sequences import Windows, cut, episode_starts
from rlstack.envs.tensordicts import unchecked
from rlstack.envs.world import MEMORY
from rlstack.networks.recurrent import REMEMBERED, Core, Remembering, remembered
from rlstack.networks.segments import Segments

from .base import Agent, exploring
from .central import Others
from .dqn import DQN
from .interface import MASK, Interface
from .iqn import IQN
from .off_policy import OffPolicy
from .on_policy import OnPolicy
from .optimizer import CannotCompile, Compiler, Info
from .recurrent_policy import RecurrentPolicy

SEEN = "seen"
_LARGEST = 0.9
"""Weight of a sequence's largest error in its priority (Kapturowski et al. 2019)."""


@cache
def recurrent_class(cls: type[Agent]) -> type[Agent]:
    """Returns the class of the same algorithm with a recurrent core.

    Raises:
        ConfigError: there is none.
    """
    base: Any
    if issubclass(cls, OnPolicy):
        base = RecurrentOnPolicy
    elif issubclass(cls, DQN | IQN):
        base = RecurrentOffPolicy
    else:
        raise ConfigError(f"agent.recurrent: {cls.__name__} has no recurrent core; ppo, a2c, dqn and iqn have one")
    doc = f"{cls.__name__} with a recurrent core."
    return type(f"Recurrent{cls.__name__}", (base, cls), {"__doc__": doc, "ALGORITHM": cls})


class Recurrent(Agent):
    """A mixin for agents with recurrent networks; it comes before the algorithm in the bases of a class.

    Each network's encoder is followed by its own recurrent core. An observation ``[...]`` first goes through these, and
    their output replaces it wherever the algorithm expects an observation.

    Attributes:
        memories: encoders with a core by the name of their network, in the order of their parts of a recurrent state.
        restored: the recurrent state ``[N, M]`` at the time a checkpoint was saved, until learning continues.
    """

    ACTING: ClassVar[str]
    """The name of the network that acts."""
    memories: dict[str, Remembering]

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        given, nearest = interface, interface.nearest
        if nearest is not None:
            interface = dataclasses.replace(interface, nearest=lambda observation: nearest(observation.get(SEEN)))
        super().__init__(config, interface, total_frames, device)
        self.memories, self._given = {}, given
        for name, network in sorted(self.networks.items(), key=lambda entry: entry[0] != self.ACTING):
            for module in network.modules():
                if isinstance(module, Remembering):  # shared layers keep their first name
                    module.name = module.name or name
                    self.memories[module.name] = module
        self._latest: Tensor | None = None
        self.restored: Tensor | None = None

    def encoder(self, role: str = "network") -> nn.Module:
        encoder: Any = super().encoder(role)
        c = self.config.recurrent
        return Remembering(encoder, Core(c.kind, encoder.out_features, c.size, c.layers))

    def memory_size(self, names: Sequence[str]) -> int:
        """Returns the size of the recurrent state of some networks."""
        return sum(self.memories[name].core.memory_size for name in names)

    def part(self, memory: Tensor, name: str) -> Tensor:
        """Returns one network's part of the recurrent state ``[..., M]`` of all."""
        sizes = [network.core.memory_size for network in self.memories.values()]
        return memory.split(sizes, -1)[list(self.memories).index(name)]

    # -- acting --------------------------------------------------------------------------------------------------

    def normalized(self, observation: Any) -> Any:
        if isinstance(observation, TensorDictBase) and REMEMBERED in observation.keys():  # noqa: SIM118
            return observation
        return super().normalized(observation)

    def compile(self, compiler: Compiler) -> None:
        raise CannotCompile("agent.recurrent cuts its batches by where episodes end")

    def recipe(self) -> tuple[Any, ...]:
        algorithm, config, _, frames = super().recipe()
        return algorithm, config, self._given, frames

    def policy(self, explore: bool | None = None) -> RecurrentPolicy:
        names = [self.ACTING] if explore is False else list(self.memories)
        size = self.memory_size(names)
        inner: Any = super().policy(explore)  # type: ignore[safe-super]

        def recall(observation: Any, memory: Tensor) -> tuple[Any, Tensor]:
            with self.precision(exploring(explore)):
                return self.recall(observation, memory, names)

        def first(count: int) -> Tensor:
            # Not after learning has gone on: by then the worlds have, too.
            if explore is not False and self.restored is not None and len(self.restored) == count:
                return self.restored
            like: Any = self.memories[names[0]].core.cells.weight_hh_l0  # of the present precision
            return torch.zeros(count, size, dtype=like.dtype, device=like.device)

        return RecurrentPolicy(self.interface, inner, recall, size, first)

    def precision(self, explores: bool) -> AbstractContextManager[Any]:
        """Returns the context in which a policy makes a step of its cores."""
        return nullcontext()

    def recall(self, observation: Any, memory: Tensor, names: Sequence[str]) -> tuple[Any, Tensor]:
        """Makes one step of some networks' cores.

        Args:
            observation: raw, ``[...]``.
            memory: recurrent state of these networks in this order, ``[..., M]``.

        Returns the cores' output, which replaces the observation, and the recurrent state after the step.
        """
        seen, features, following = self.normalized(observation), {}, []
        sizes = [self.memories[name].core.memory_size for name in names]
        for name, before in zip(names, memory.split(sizes, -1)):
            features[name], after = self.memories[name].step(seen, before)
            following.append(after)
        besides = {} if self.interface.nearest is None else {SEEN: observation}
        return remembered(features, **besides), following[0] if len(following) == 1 else torch.cat(following, -1)

    # -- learning ------------------------------------------------------------------------------------------------

    def unrolled(self, batch: TensorDictBase) -> TensorDictBase:
        """Returns the flat batch that the algorithm learns from, given a batch of sequences ``[N]``."""
        raise NotImplementedError

    def objective(self, batch: TensorDictBase, *args: Any, **options: Any) -> tuple[Tensor, Info]:
        """Returns the algorithm's objective on a batch of sequences ``[N]``: a mean over its active decisions."""
        value, info = super().objective(self.unrolled(batch), *args, **options)  # type: ignore[misc]
        share = batch.get("share", None)
        return value if share is None else value * share.mean(), info

    def shared_out(self, batch: TensorDictBase, active: Tensor) -> TensorDictBase:
        """Adds the weight of each row in the mean over the batch, if the batch is going to be split.

        Args:
            active: ``[N, L]``, decisions to learn from.
        """
        if self.config.accumulate == 1:
            return batch
        count = active.sum(1)
        return batch.copy().set("share", count * (len(batch) / count.sum()))

    def imitation_batch(self, batch: TensorDictBase) -> tuple[Any, Tensor, Tensor | None]:
        core, active = self.memories[self.ACTING], batch.get("active")
        segments = Segments(batch.get("starts"), active)
        observation = self.normalized(batch.get("observation"))
        features, _ = core.unroll(observation, batch.get(MEMORY), segments)
        mask = batch.get(MASK, None)
        seen = remembered({core.name: features[active]})
        return seen, batch.get("action")[active], None if mask is None else mask[active]

    def learn(self, sequences: TensorDictBase, frames: int) -> dict[str, Tensor | float]:
        metrics = super().learn(sequences, frames)  # type: ignore[safe-super]
        self.restored, following = None, sequences.get("next")
        memory, over = following.get(MEMORY, None), following.get("done")[:, -1]
        self._latest = None if memory is None else memory[:, -1] * (~over).to(memory.dtype)
        return metrics

    # -- checkpoint ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), MEMORY: self._latest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        memory = state.get(MEMORY)
        self.restored = self._latest = None if memory is None else memory.to(self.device)

    def begin_episodes(self) -> None:
        super().begin_episodes()
        self.restored = self._latest = None


class RecurrentOnPolicy(Recurrent, OnPolicy):
    """An :class:`OnPolicy` agent with a recurrent core.

    A batch consists of sequences ``[N]`` of ``sequence_length`` steps, into which the rollout is cut. Their initial
    recurrent states are those that the policy had.
    """

    ACTING = "actor"

    def precision(self, explores: bool) -> AbstractContextManager[Any]:
        # That in which it learns, as in OnPolicy.policy: the ratio of a policy to itself must be one.
        return self.optimizer.autocast(explores)

    # -- data ----------------------------------------------------------------------------------------------------

    def can_learn(self, sequences: TensorDictBase) -> bool:
        return self.least(int(sequences.get("active").sum())) > 0  # a recurrent core takes at least one step

    def _values(self, observation: Any, sequences: TensorDictBase) -> tuple[Tensor, Tensor]:
        rows, time = sequences.batch_size
        following = sequences.get(("next", "observation"))
        entries = self._cut(TensorDict({"here": observation, "next": following}, [rows, time]), sequences)
        segments = Segments(entries.get("starts"), entries.get("active"), extended=True)
        core = self.memories[self._critic_memory]
        after = self.normalized(entries.get("next")[segments.ends])
        memory = self.part(entries.get(MEMORY), core.name)
        encoded = []
        for features in core.unroll(entries.get("here"), memory, segments, after):
            assert features is not None
            encoded.append(self.critic.encoder(remembered({core.name: features})))
        if self.others is None:
            encoded = [self.critic.head(part) for part in encoded]
        here, then = (part.reshape(rows, -1, part.shape[-1])[:, :time] for part in encoded)
        if self.others is None:
            return here, then
        self.others.pieces = entries.exclude("next")
        value = self.others.values(here)
        return value, self._next_values(value, sequences, lambda index: then[index])

    def _log_prob(self, batch: TensorDict, sequences: TensorDictBase) -> Tensor:
        rows, time = sequences.batch_size
        pieces = self._cut(batch, sequences)
        with self.optimizer.autocast():
            flat = self.unrolled(pieces)
            distribution = self.distribution(flat.get("observation"), flat.get("action_mask", None))
        log_prob, active = distribution.log_prob(flat.get("action")), pieces.get("active")
        whole = torch.zeros(active.shape, dtype=log_prob.dtype, device=log_prob.device)
        return whole.masked_scatter(active, log_prob).reshape(rows, -1)[:, :time]

    @property
    def _critic_memory(self) -> str:
        return "critic" if "critic" in self.memories else self.ACTING

    def _batch(self, entries: TensorDict, sequences: TensorDictBase) -> TensorDictBase:
        batch = self._cut(entries, sequences)
        return batch[batch.get("active").any(1)]

    def _cut(self, entries: TensorDict, sequences: TensorDictBase) -> TensorDictBase:
        """Cuts entries ``[B, T]`` into sequences ``[N]``, with ``active`` and ``starts [N, L]``, ``memory [N, M]``."""
        self.row_size = min(self.config.recurrent.sequence_length, sequences.batch_size[1])
        entries = entries.copy().set("active", sequences.get("active")).set("starts", episode_starts(sequences))
        batch = cut(entries, self.row_size)
        batch.batch_size = batch.batch_size[:1]
        return batch.set(MEMORY, sequences.get(MEMORY)[:, :: self.row_size].flatten(0, 1))

    # -- learning ------------------------------------------------------------------------------------------------

    def unrolled(self, batch: TensorDictBase) -> TensorDictBase:
        active = batch.get("active")
        segments = Segments(batch.get("starts"), active)
        observation, memory = batch.get("observation"), batch.get(MEMORY)
        features = {
            name: core.unroll(observation, self.part(memory, name), segments)[0][active]
            for name, core in self.memories.items()
        }
        apart = ("observation", "active", "starts", "share", MEMORY)
        entries = {key: value[active] for key, value in batch.items() if key not in apart}
        if self.others is not None:
            entries["others"] = self._unrolled_others(self.others, batch.get("place")[:, 0])[active]
        flat = remembered(features)
        return unchecked({"observation": flat, **entries}, batch_size=flat.batch_size)

    def _unrolled_others(self, others: Others, first: Tensor) -> Tensor:
        """Returns the pooled encodings of the others ``[N, L, V]`` for sequences that begin at places ``[N]``.

        Every agent of a world is unrolled once, however many of them are in the batch.
        """
        pieces = others.pieces
        assert pieces is not None
        row, step = others.row_and_step(first)
        per_row = len(pieces) // others.rows
        together, which = (row // others.agents * per_row + step // self.row_size).unique(return_inverse=True)
        rows = (together // per_row)[:, None] * others.agents + torch.arange(others.agents, device=first.device)
        chosen = pieces[(rows * per_row + (together % per_row)[:, None]).flatten()]
        active, core = chosen.get("active"), self.memories[self._critic_memory]
        segments = Segments(chosen.get("starts"), active)
        features, _ = core.unroll(chosen.get("here"), self.part(chosen.get(MEMORY), core.name), segments)
        encoded = self.critic.encoder(remembered({core.name: features}))
        worlds = (-1, others.agents)
        return others.among(encoded.unflatten(0, worlds), active.unflatten(0, worlds))[which, row % others.agents]

    def _others(self, others: Others, batch: TensorDictBase) -> Tensor:
        return batch.get("others")

    def for_step(self, batch: TensorDictBase) -> TensorDictBase:
        return super().for_step(self.shared_out(batch, batch.get("active")))

    def with_normalized_advantages(self, batch: TensorDictBase) -> TensorDictBase:
        advantage, active = batch.get("advantage"), batch.get("active")
        if active.sum() < 2:
            return batch
        seen = advantage[active]
        return batch.copy().set("advantage", (advantage - seen.mean()) / (seen.std() + 1e-8))


class RecurrentOffPolicy(Recurrent, OffPolicy):
    """A value-based :class:`OffPolicy` agent with a recurrent core, whose only network is called ``network``.

    The sizes of batch and replay buffer, in transitions, count the steps that are learned from.
    """

    ACTING = "network"

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        target: Any = self.targets[self.ACTING].network
        self._target: Remembering = target.encoder
        self._target.name = "target"
        self._target.core.cells.flatten_parameters()  # cuDNN wants them in one piece, which a copy does not keep
        c = config.recurrent
        self.n_step: Any = Windows(c.burn_in, c.sequence_length, config.n_step - 1)

    def make_replay(self, steps: int = 1) -> Any:
        c = self.config
        length = c.recurrent.sequence_length
        rows, rest = divmod(c.batch_size, length)
        if rest or rows % c.accumulate:
            parts = "" if c.accumulate == 1 else f" times accumulate ({c.accumulate})"
            raise ConfigError(
                f"agent.batch_size {c.batch_size} is not a multiple of recurrent.sequence_length ({length}){parts}"
            )
        return super().make_replay(length)

    # -- data ----------------------------------------------------------------------------------------------------

    def extend(self, sequences: TensorDictBase) -> None:
        super().extend(sequences if MEMORY in sequences.keys() else self._followed(sequences))  # noqa: SIM118

    def _followed(self, sequences: TensorDictBase) -> TensorDict:
        """Adds the recurrent state that this agent would have had, for data in which another one acted."""
        core, windows, active = self.memories[self.ACTING], self.n_step, sequences.get("active")
        begun = windows.following
        if begun is None or len(begun) != len(active):
            begun = torch.zeros(len(active), core.core.memory_size, dtype=self.interface.dtype, device=self.device)
        observation = self.normalized(sequences.get("observation"))
        before, memory = core.follow(observation, begun, episode_starts(sequences), active)
        over = sequences.get(("next", "done"))[:, -1]
        windows.following = memory * (~over).to(memory.dtype)
        return sequences.copy().set(MEMORY, torch.stack(before, 1))

    def _transitions(self, sequences: TensorDictBase) -> TensorDictBase:
        """Returns the windows as they are."""
        return sequences

    def update_once(self, sequences: TensorDictBase) -> dict[str, Tensor | float]:
        windows = Windows(0, self.config.recurrent.sequence_length, self.config.n_step - 1, carry=False)
        return self.update(self.prepared(windows(self._own(sequences))))

    def prepared(self, batch: TensorDictBase) -> TensorDictBase:
        batch = super().prepared(batch)
        active, burn_in = batch.get("active"), self._burn_in(batch)
        return self.shared_out(batch, active[:, burn_in : burn_in + self.config.recurrent.sequence_length])

    def _burn_in(self, batch: TensorDictBase) -> int:
        """Returns the number of steps at the beginning of these windows that are not learned from."""
        c = self.config
        return batch.get("active").shape[1] - c.recurrent.sequence_length - (c.n_step - 1)

    # -- learning ------------------------------------------------------------------------------------------------

    def objective(self, batch: TensorDictBase, *args: Any, **options: Any) -> tuple[Tensor, Info]:
        """Returns the loss of windows ``[N]``; a window's error mixes the largest and the mean of its steps (R2D2)."""
        value, info = super().objective(batch, *args, **options)
        if "td_error" in info:
            active, burn_in = batch.get("active"), self._burn_in(batch)
            learned = active[:, burn_in : burn_in + self.config.recurrent.sequence_length]
            errors = info["td_error"].new_zeros(learned.shape).masked_scatter(learned, info["td_error"])
            mean = errors.sum(1) / learned.sum(1).clamp(min=1)
            info["td_error"] = _LARGEST * errors.amax(1) + (1 - _LARGEST) * mean
        return value, info

    def unrolled(self, batch: TensorDictBase) -> TensorDict:
        burn_in = self._burn_in(batch)
        before, rest = _parts(batch, burn_in)
        segments = Segments(rest.get("starts"), rest.get("active"), extended=True)
        after = rest.get(("next", "observation"))[segments.ends]

        def unroll(core: Remembering) -> tuple[Tensor, Tensor]:
            memory = batch.get(MEMORY)
            if burn_in:
                _, memory = core.follow(before.get("observation"), memory, before.get("starts"), before.get("active"))
            here, following = core.unroll(rest.get("observation"), memory, segments, after)
            assert following is not None
            return here, following

        own = self.memories[self.ACTING]
        features, following = unroll(own)
        with torch.no_grad():
            _, target = unroll(self._target)
        entries = {key: rest.get(key) for key in ("action", "active", MASK) if key in rest.keys()}  # noqa: SIM118
        if (weight := batch.get("priority_weight", None)) is not None:
            entries["priority_weight"] = weight[:, None].expand(rest.shape)
        then = rest.get("next").copy()
        then.set("observation", remembered({own.name: following.detach(), self._target.name: target}))
        sequences = TensorDict(
            {**entries, "observation": remembered({own.name: features}), "next": then}, rest.get("active").shape
        )
        returns = n_step_returns(sequences, self.config.n_step, self.config.gamma)
        returns = returns[:, : self.config.recurrent.sequence_length]
        return returns.exclude("active")[returns.get("active")]


def _parts(batch: TensorDictBase, burn_in: int) -> tuple[TensorDictBase, TensorDictBase]:
    """Splits windows ``[N]`` into their first ``burn_in`` steps and the others, each ``[N, L]``."""
    steps = batch.exclude(MEMORY, "share", "index", "priority_weight")
    steps.batch_size = batch.get("active").shape
    return steps[:, :burn_in], steps[:, burn_in:]
