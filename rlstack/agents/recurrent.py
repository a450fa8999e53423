"""Agents with recurrent cores (``agent.recurrent`` in their yaml): PPO, A2C, DQN, IQN, DDPG, TD3, SAC and TQC.

PPO and A2C learn from whole sequences, each starting from the recurrent state in which it began. The others replay
sequences (R2D2, Kapturowski et al. 2019): a sequence begins in the recurrent state that the policy had when it was
gathered; as that state belongs to old parameters, the first ``burn_in`` steps only bring it up to date. n-step returns
stay within the sequence, which is n - 1 steps longer for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rlstack.config import ConfigError
from rlstack.data.flatten import Windows, cut, episode_starts, n_step_returns
from rlstack.envs.foundation.tensors import by_name, unchecked
from rlstack.envs.world import MEMORY
from rlstack.networks.encoders import Encoder
from rlstack.networks.recurrent import REMEMBERED, Core, Remembering, Segments, becomes_a_program, lasts, remembered
from rlstack.networks.values import Others

from .a2c import A2C
from .base import Agent, AgentPolicy, exploring
from .ddpg import DDPG
from .dqn import DQN
from .interface import MASK, Interface
from .iqn import IQN
from .off_policy import ActorCritic, OffPolicy
from .on_policy import OnPolicy
from .optimizer import CannotCompile, Compiler, Info
from .ppo import PPO
from .sac import SAC
from .td3 import TD3

SEEN = "seen"
_LARGEST = 0.9
"""Weight of a sequence's largest error in its priority (Kapturowski et al. 2019)."""


Recall = Callable[[Any, Tensor], tuple[Any, Tensor]]
"""Maps observation ``[...]`` and recurrent state ``[..., M]`` to the core's output and the next recurrent state."""


class RecurrentPolicy(TensorDictModuleBase):
    """Writes an action for every decision in an env's tensordict, and the recurrent state before and after it.

    The recurrent state ``[..., M]`` is stored as ``memory`` (or ``("agents", "memory")``), that after the decision in
    ``next``. An :class:`rlstack.envs.world.World` passes it on from step to step and sets it to zero where an episode
    ends. In other envs the policy keeps it, and :class:`EpisodeStarts` tells where episodes begin; inside ``vmap``,
    ``torch.export`` and traces it is read from the tensordict there, too, and nothing is kept. The recurrent state of
    an agent that is not active becomes zero.

    Args:
        interface: the env as the agent sees it.
        inner: policy that acts on the core's output in place of an observation.
        recall: see :data:`Recall`.
        size: M; of a larger recurrent state only the first M entries are used.
        first: maps a number of decisions N to the recurrent state ``[N, M]`` to begin with where there is none.
    """

    def __init__(
        self, interface: Interface, inner: AgentPolicy, recall: Recall, size: int, first: Callable[[int], Tensor]
    ) -> None:
        super().__init__()
        self._key: Any = interface.key(MEMORY)
        following = ("next", *(self._key if isinstance(self._key, tuple) else (self._key,)))
        self.in_keys = [*inner.in_keys, *([self._key] if interface.carries else [])]
        self._inner_keys = list(inner.out_keys)
        self.out_keys = [*inner.out_keys, self._key, following]
        self.interface, self.size, self._following = interface, size, following
        self.inner, self._recall, self._first = inner, recall, first
        self._starts = None if interface.carries else EpisodeStarts(interface)
        self._held: Tensor | None = None

    @property
    def phase(self) -> Any:
        """See :class:`~rlstack.agents.base.AgentPolicy`."""
        return self.inner.phase

    def reset(self) -> None:
        """Forgets the recurrent states that it keeps itself: the next call begins episodes everywhere."""
        self._held = None
        if self._starts is not None:
            self._starts.reset()

    @torch.no_grad()
    def step(self, observation: Any, memory: Tensor, mask: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """Returns the entries for a tensordict, by name without group, and the next recurrent state ``[..., M]``."""
        seen, following = self._recall(observation, memory)
        return self.inner.entries(seen, mask), following

    def action(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Returns the env's action for an observation ``[...]`` at the beginning of an episode."""
        lead = self.interface.lead(observation)
        return self.step(observation, self._first(lead.numel()).view(*lead, -1), mask)[0]["action"]

    def __reduce__(self) -> Any:
        build, arguments = self.inner.__reduce__()
        return build, (*arguments[:-1], self.state_dict())

    @by_name()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        interface = self.interface
        if self.inner.copied:
            self.inner.catch_up()
        observation = interface.observed(tensordict)
        lead = interface.lead(observation)
        starts = self._starts if lasts(tensordict.get(self.in_keys[0])) else None
        memory = self._memory(tensordict, lead, starts)
        acted, following = self.step(
            observation, memory, tensordict.get(interface.key(MASK)) if interface.masked else None
        )
        active = None if interface.group is None else tensordict.get(interface.key("active"), None)
        if active is not None:
            following = following * active.to(following.dtype).unsqueeze(-1)
        for key in self._inner_keys:
            tensordict.set(key, acted[key if isinstance(key, str) else key[-1]])
        if starts is not None:
            self._held = following
            starts.remember(tensordict, lead)
        return tensordict.set(self._key, memory).set(self._following, following)

    def _memory(self, tensordict: TensorDictBase, lead: torch.Size, starts: EpisodeStarts | None) -> Tensor:
        memory = tensordict.get(self._key, None) if starts is None else self._held
        if memory is None or memory.shape[:-1] != lead:
            if self._starts is not None and becomes_a_program():
                raise ValueError(f"the recurrent state is to be given under {self._key!r}: a program keeps none itself")
            return self._first(lead.numel()).view(*lead, -1)
        if starts is None:
            return memory[..., : self.size]
        return memory * (~starts(tensordict, lead)).to(memory.dtype).unsqueeze(-1)


class EpisodeStarts:
    """Tells at every step which entries of the batch begin an episode.

    If the tensordict has ``is_init`` (TorchRL's ``InitTracker``), at the root or under the group, that decides.
    Otherwise the tensordict of the last call is read again: the env's step has put ``next`` into it in the meantime, so
    an entry begins an episode where ``next`` was done, or where the observation differs from that in ``next`` (after a
    reset in between, even of a running episode). Where steps leave no ``next`` in the policy's own tensordict (because
    it was given a copy), only ``done`` of the tensordict itself is left, and the caller must report resets by
    :meth:`reset`.
    """

    def __init__(self, interface: Interface) -> None:
        self._interface, self._keys = interface, interface.observation_keys()
        self._last: TensorDictBase | None = None
        self._lead: torch.Size | None = None

    def reset(self) -> None:
        """Makes all entries begin an episode at the next step."""
        self._last = self._lead = None

    def remember(self, tensordict: TensorDictBase, lead: torch.Size) -> None:
        """Takes a tensordict for that of the last step."""
        self._last, self._lead = tensordict, lead

    def __call__(self, tensordict: TensorDictBase, lead: torch.Size) -> Tensor:
        """Returns bools of shape ``lead``, the batch dimensions (worlds, and agents if there are several)."""
        last, known = self._last, self._lead
        device = tensordict.get(self._keys[0]).device
        init = self._flags(tensordict, "is_init", lead)
        if known != lead or last is None:
            return torch.ones(lead, dtype=torch.bool, device=device)
        if init is not None:
            return init
        starts = torch.zeros(lead, dtype=torch.bool, device=device)
        following = last.get("next", None) if last is not tensordict else None
        for entry in (tensordict, following):
            done = None if entry is None else self._flags(entry, "done", lead)
            starts = starts if done is None else starts | done
        for key in self._keys:
            promised = None if following is None else following.get(key, None)
            if promised is not None:
                differs = promised != tensordict.get(key)
                starts = starts | differs.reshape(*lead, -1).any(-1)
        return starts

    def _flags(self, tensordict: TensorDictBase, name: str, lead: torch.Size) -> Tensor | None:
        """Returns a flag for every entry, set where the world's or the agent's is set; None if neither exists."""
        flags: Tensor | None = None
        for key in {name, self._interface.key(name)}:
            flag = tensordict.get(key, None)
            if flag is None:
                continue
            single = flag.shape[-1:] == (1,) and (flag.dim() > 1 or not lead)  # a flag of an unbatched env is [1], too
            flag = flag.bool().reshape(flag.shape[:-1] if single else flag.shape)
            flag = flag.reshape([*flag.shape, *[1] * (len(lead) - flag.dim())]).expand(lead)
            flags = flag if flags is None else flags | flag
        return flags


class Recurrent(Agent):
    """The part of an agent that its recurrent cores take; it comes before the algorithm in the bases of a class.

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

    def encoder(self, role: str = "network") -> Encoder:
        encoder: Any = super().encoder(role)
        if role == "critic" and self.interface.privileged is not None:
            return encoder  # what is seen in training alone cannot be followed while acting
        c = self.config.recurrent
        return Remembering(encoder, Core(c.kind, encoder.out_features, c.size, c.layers))

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
        cores = [self.memories[self.ACTING]] if explore is False else list(self.memories.values())
        sizes = [network.core.memory_size for network in cores]
        inner: Any = super().policy(explore)

        def recall(observation: Any, memory: Tensor) -> tuple[Any, Tensor]:
            """Makes one step of the cores, whose output replaces the observation."""
            with self.precision(exploring(explore)):
                seen, features, following = self.normalized(observation), {}, []
                for network, before in zip(cores, memory.split(sizes, -1)):
                    features[network.name], after = network.step(seen, before)
                    following.append(after)
                besides = {} if self.interface.nearest is None else {SEEN: observation}
                state = following[0] if len(following) == 1 else torch.cat(following, -1)
                return remembered(features, **besides), state

        def first(count: int) -> Tensor:
            # Not after learning has gone on: by then the worlds have, too.
            if explore is not False and self.restored is not None and len(self.restored) == count:
                return self.restored
            like: Any = cores[0].core.cells.weight_hh_l0  # of the present precision
            return torch.zeros(count, sum(sizes), dtype=like.dtype, device=like.device)

        return RecurrentPolicy(self.interface, inner, recall, sum(sizes), first)

    def precision(self, explores: bool) -> AbstractContextManager[Any]:
        """Returns the context in which a policy makes a step of its cores."""
        return nullcontext()

    # -- learning ------------------------------------------------------------------------------------------------

    def unrolled(self, batch: TensorDictBase) -> TensorDictBase:
        """Returns the flat batch that the algorithm learns from, given a batch of sequences ``[N]``."""
        raise NotImplementedError

    def objective(self, batch: TensorDictBase, *args: Any, **options: Any) -> tuple[Tensor, Info]:
        """Returns the algorithm's objective on a batch of sequences ``[N]``: a mean over its active decisions."""
        value, info = super().objective(self.unrolled(batch), *args, **options)  # type: ignore[misc]
        return self.of_sequences(value, info, batch)

    def of_sequences(self, value: Tensor, info: Info, batch: TensorDictBase) -> tuple[Tensor, Info]:
        """Returns the loss of :meth:`unrolled` sequences ``[N]``, weighted by their share of the whole batch."""
        share = batch.get("share", None)
        return value if share is None else value * share.mean(), info

    def beside(self, observation: Any) -> dict[str, Any]:
        """Returns what critics without a core see of normalised observations, to be put beside :func:`remembered`."""
        return {} if self.interface.privileged is None else dict(observation.items())

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

    def learn(self, sequences: TensorDictBase, frames: int | Tensor) -> dict[str, Tensor | float]:
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
        if self.interface.privileged is not None:
            return super()._values(observation, sequences)
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

    def predicted_returns(self, sequences: TensorDictBase) -> Tensor | None:
        if self.others is not None:
            return None
        sequences = self.with_critic_inputs(sequences)
        return self._values(self.normalized(sequences.get("observation")), sequences)[0][..., 0]

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
        flat = remembered(features, **self.beside(observation[active]))
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

    def for_step(self, batch: TensorDictBase) -> TensorDictBase:
        return super().for_step(self.shared_out(batch, batch.get("active")))

    def with_normalized_advantages(self, batch: TensorDictBase) -> TensorDictBase:
        advantage, active = batch.get("advantage"), batch.get("active")
        if active.sum() < 2:
            return batch
        seen = advantage[active]
        return batch.copy().set("advantage", (advantage - seen.mean()) / (seen.std() + 1e-8))


class RecurrentOffPolicy(Recurrent, OffPolicy):
    """An :class:`OffPolicy` agent with a recurrent core in each of its networks.

    The sizes of batch and replay buffer, in transitions, count the steps that are learned from.
    """

    ACTING = "network"

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        self._targets: dict[str, Remembering] = {}
        for name, target in self.targets.items():
            for core in (module for module in target.network.modules() if isinstance(module, Remembering)):
                core.name, self._targets[name] = f"target_{name}", core
                core.core.cells.flatten_parameters()  # cuDNN wants them in one piece, which a copy does not keep
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
        if MEMORY in sequences.keys():  # noqa: SIM118
            super().extend(sequences)
            return
        # Another one acted: adds the recurrent state that this agent would have had.
        windows, active = self.n_step, sequences.get("active")
        begun, size = windows.following, sum(core.core.memory_size for core in self.memories.values())
        if begun is None or len(begun) != len(active):
            begun = torch.zeros(len(active), size, dtype=self.interface.dtype, device=self.device)
        observation, starts = self.normalized(sequences.get("observation")), episode_starts(sequences)
        followed = [
            core.follow(observation, self.part(begun, name), starts, active) for name, core in self.memories.items()
        ]
        over, memory = sequences.get(("next", "done"))[:, -1], torch.cat([last for _, last in followed], -1)
        windows.following = memory * (~over).to(memory.dtype)
        states = torch.cat([torch.stack(before, 1) for before, _ in followed], -1)
        super().extend(sequences.copy().set(MEMORY, states))

    def predicted_returns(self, sequences: TensorDictBase) -> Tensor | None:
        return None  # the values depend on recurrent states of whole episodes

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

    def of_sequences(self, value: Tensor, info: Info, batch: TensorDictBase) -> tuple[Tensor, Info]:
        """Adds the errors of windows ``[N]``: each mixes the largest and the mean of its steps (R2D2)."""
        if "td_error" in info:
            active, burn_in = batch.get("active"), self._burn_in(batch)
            learned = active[:, burn_in : burn_in + self.config.recurrent.sequence_length]
            errors = info["td_error"].new_zeros(learned.shape).masked_scatter(learned, info["td_error"])
            mean = errors.sum(1) / learned.sum(1).clamp(min=1)
            info["td_error"] = _LARGEST * errors.amax(1) + (1 - _LARGEST) * mean
        return super().of_sequences(value, info, batch)

    def unrolled(
        self, batch: TensorDictBase, learning: Sequence[str] | None = None, ahead: bool = True
    ) -> TensorDictBase:
        """See :meth:`Recurrent.unrolled`.

        Args:
            learning: names of the networks whose cores gradients reach; None: all but targets.
            ahead: whether to return transitions; False leaves out what follows the observations.
        """
        length, burn_in, memory = self.config.recurrent.sequence_length, self._burn_in(batch), batch.get(MEMORY)
        steps = batch.exclude(MEMORY, "share", "index", "priority_weight")
        steps.batch_size = batch.get("active").shape
        before, rest = steps[:, :burn_in], steps[:, burn_in : None if ahead else burn_in + length]
        segments = Segments(rest.get("starts"), rest.get("active"), extended=ahead)
        after = rest.get(("next", "observation"))[segments.ends] if ahead else None

        def unroll(name: str, core: Remembering, learns: bool) -> tuple[Tensor, Any]:
            begun = self.part(memory, name)
            with torch.set_grad_enabled(learns and torch.is_grad_enabled()):
                if burn_in:
                    begun = core.follow(before.get("observation"), begun, before.get("starts"), before.get("active"))[1]
                return core.unroll(rest.get("observation"), begun, segments, after)

        features, following = {}, {}
        for name, core in self.memories.items():
            features[name], next_features = unroll(name, core, learning is None or name in learning)
            if ahead:
                following[name] = next_features.detach()
        entries = {key: rest.get(key) for key in ("action", "active", MASK) if key in rest.keys()}  # noqa: SIM118
        if (weight := batch.get("priority_weight", None)) is not None:
            entries["priority_weight"] = weight[:, None].expand(rest.shape)
        entries["observation"] = remembered(features, **self.beside(rest.get("observation")))
        if ahead:
            following |= {core.name: unroll(name, core, False)[1] for name, core in self._targets.items()}
            then = rest.get("next").copy()
            entries["next"] = then.set("observation", remembered(following, **self.beside(then.get("observation"))))
        sequences = TensorDict(entries, rest.get("active").shape)
        if ahead:
            sequences = n_step_returns(sequences, self.config.n_step, self.config.gamma)[:, :length]
        return sequences.exclude("active")[sequences.get("active")]


class RecurrentActorCritic(RecurrentOffPolicy, ActorCritic):
    """An :class:`ActorCritic` whose actor and critics have recurrent cores of their own.

    As the cores see no actions, an actor's step takes the critics' features as they are.
    """

    ACTING = "actor"

    def critic_objective(self, batch: TensorDictBase) -> tuple[Tensor, Info]:
        value, info = self.loss.critic_loss(self.unrolled(batch, self.CRITICS))
        return self.of_sequences(value, info, batch)

    def actor_objective(self, batch: TensorDictBase) -> tuple[Tensor, Info]:
        value, info = self.loss.actor_loss(self.unrolled(batch, (self.ACTING,), ahead=False))
        return self.of_sequences(value, info, batch)


class RecurrentPPO(RecurrentOnPolicy, PPO):
    """PPO with a recurrent core."""


class RecurrentA2C(RecurrentOnPolicy, A2C):
    """A2C with a recurrent core."""


class RecurrentDQN(RecurrentOffPolicy, DQN):
    """DQN with a recurrent core."""


class RecurrentIQN(RecurrentOffPolicy, IQN):
    """IQN with a recurrent core."""


class RecurrentDDPG(RecurrentActorCritic, DDPG):
    """DDPG with recurrent cores."""


class RecurrentTD3(RecurrentActorCritic, TD3):
    """TD3 with recurrent cores."""


class RecurrentSAC(RecurrentActorCritic, SAC):
    """SAC with recurrent cores."""


RECURRENT: dict[type[Agent], type[Agent]] = {
    **{PPO: RecurrentPPO, A2C: RecurrentA2C, DQN: RecurrentDQN, IQN: RecurrentIQN},
    **{DDPG: RecurrentDDPG, TD3: RecurrentTD3, SAC: RecurrentSAC},
}
"""The classes of algorithms with a recurrent core; TQC and a user's algorithms add theirs."""


def recurrent_class(cls: type[Agent]) -> type[Agent]:
    """Returns the class of the same algorithm with a recurrent core.

    Raises:
        ConfigError: there is none.
    """
    if cls in RECURRENT:
        return RECURRENT[cls]
    known = ", ".join(algorithm.__name__.lower() for algorithm in RECURRENT)
    raise ConfigError(f"agent.recurrent: {cls.__name__} has no recurrent core; {known} have one")
