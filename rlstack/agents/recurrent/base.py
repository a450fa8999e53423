"""What agents with a memory share: networks behind a core, and a memory that goes on from batch to batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from envs.world import MEMORY
from rlstack.networks.recurrent import REMEMBERED, Core, Remembering, remembered
from rlstack.networks.segments import Segments

from ..base import Agent
from ..compilation import CannotCompile, Compiler
from ..interface import MASK, Interface
from ..optimizer import Info
from .policy import RecurrentPolicy

SEEN = "seen"


class Recurrent(Agent):
    """An agent whose networks remember; to be put in front of the algorithm it is mixed with.

    Each network's encoder gets a core of its own behind it. An observation ``[...]`` goes through these first; what
    comes out stands in its place wherever the algorithm knows an observation.

    Attributes:
        memories: the encoders with a core by the name of their network; the parts of a memory stand in this order.
        restored: what was remembered ``[N, M]`` when a checkpoint was saved, until learning goes on.
    """

    ACTING: ClassVar[str]
    """Network that decides."""
    memories: dict[str, Remembering]

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        given, nearest = interface, interface.nearest
        if nearest is not None:
            interface = dataclasses.replace(interface, nearest=lambda observation: nearest(observation.get(SEEN)))
        super().__init__(config, interface, total_frames, device)
        self.memories, self._given = {}, given
        for name, network in sorted(self.networks.items(), key=lambda entry: entry[0] != self.ACTING):
            for module in network.modules():
                if isinstance(module, Remembering):  # of layers that are shared the first name stays
                    module.name = module.name or name
                    self.memories[module.name] = module
        self._latest: Tensor | None = None
        self.restored: Tensor | None = None

    def encoder(self) -> nn.Module:
        encoder: Any = super().encoder()
        c = self.config.recurrent
        return Remembering(encoder, Core(c.kind, encoder.out_features, c.size, c.layers))

    def memory_size(self, names: Sequence[str]) -> int:
        """Length of the memory of some networks."""
        return sum(self.memories[name].core.memory_size for name in names)

    def part(self, memory: Tensor, name: str) -> Tensor:
        """That of one network, of the memory ``[..., M]`` of all."""
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
        algorithm, config, _, *rest = super().recipe()
        return algorithm, config, self._given, *rest

    def policy(self, explore: bool | None = None) -> RecurrentPolicy:
        names = [self.ACTING] if explore is False else list(self.memories)
        size = self.memory_size(names)
        inner: Any = super().policy(explore)  # type: ignore[safe-super]

        def recall(observation: Any, memory: Tensor) -> tuple[Any, Tensor]:
            return self.recall(observation, memory, names)

        def first(count: int) -> Tensor:
            # Not once learning has gone on: the worlds have, too.
            if explore is not False and self.restored is not None and len(self.restored) == count:
                return self.restored
            return torch.zeros(count, size, dtype=self.interface.dtype, device=self.device)

        return RecurrentPolicy(self.interface, inner, recall, size, first)

    def recall(self, observation: Any, memory: Tensor, names: Sequence[str]) -> tuple[Any, Tensor]:
        """One step of some networks' cores.

        Args:
            observation: raw, ``[...]``.
            memory: of these networks in this order, ``[..., M]``.

        Returns what is remembered, in the observation's place, and the memory after the step.
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
        """What a batch of sequences ``[N]`` holds to learn from, as the algorithm's own flat batch."""
        raise NotImplementedError

    def objective(self, batch: TensorDictBase, *args: Any, **options: Any) -> tuple[Tensor, Info]:
        """The algorithm's own, of a batch of sequences ``[N]``: a mean over its active decisions."""
        value, info = super().objective(self.unrolled(batch), *args, **options)  # type: ignore[misc]
        share = batch.get("share", None)
        return value if share is None else value * share.mean(), info

    def shared_out(self, batch: TensorDictBase, active: Tensor) -> TensorDictBase:
        """With what each row has a share of in the mean over the batch, where the batch is going to be split.

        Args:
            active: ``[N, L]``, decisions that are learned from.
        """
        if self.config.accumulate == 1:
            return batch
        count = active.sum(1)
        return batch.copy().set("share", count * (len(batch) / count.sum()))

    def lesson(self, batch: TensorDictBase) -> tuple[Any, Tensor, Tensor | None]:
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
