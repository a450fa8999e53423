"""DQN and IQN with a memory: replay of sequences (R2D2, Kapturowski et al. 2019).

A sequence begins in the state that the policy had when it was gathered. As that state belongs to old parameters, the
first ``burn_in`` steps only bring it up to date. n-step returns stay within the sequence, which is that much longer.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from envs.world import MEMORY
from rlstack.config import ConfigError
from rlstack.data import Windows, episode_starts
from rlstack.data.flatten import n_step_returns
from rlstack.networks.recurrent import Remembering, remembered
from rlstack.networks.segments import Segments

from ..interface import MASK, Interface
from ..off_policy import OffPolicy
from ..optimizer import Info
from .base import Recurrent

_LARGEST = 0.9
"""Share of the largest error of a sequence in its priority (Kapturowski et al. 2019)."""


class RecurrentOffPolicy(Recurrent, OffPolicy):
    """A value-based :class:`OffPolicy` agent with a memory, whose one network is called ``network``.

    Numbers of transitions, of a batch as of the memory, count the steps that are learned from.
    """

    ACTING = "network"

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        target: Any = self.targets[self.ACTING].network
        self._target: Remembering = target.encoder
        self._target.name = "target"
        self._target.core.cells.flatten_parameters()  # which a copy does not keep; cuDNN wants them in one piece
        c = config.recurrent
        self.n_step: Any = Windows(c.burn_in, c.sequence_length, config.n_step - 1)

    def make_replay(self, steps: int = 1) -> Any:
        c = self.config
        length = c.recurrent.sequence_length
        rows, rest = divmod(c.batch_size, length)
        if rest or rows % c.accumulate:
            parts = "" if c.accumulate == 1 else f" times accumulate ({c.accumulate})"
            raise ConfigError(
                f"agent.batch_size {c.batch_size} is no multiple of recurrent.sequence_length ({length}){parts}"
            )
        return super().make_replay(length)

    # -- data ----------------------------------------------------------------------------------------------------

    def remember(self, sequences: TensorDictBase) -> None:
        super().remember(sequences if MEMORY in sequences.keys() else self._followed(sequences))  # noqa: SIM118

    def _followed(self, sequences: TensorDictBase) -> TensorDict:
        """With the memory that this agent would have had where another one acted."""
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
        """Windows as they are."""
        return sequences

    def update_once(self, sequences: TensorDictBase) -> dict[str, Tensor | float]:
        windows = Windows(0, self.config.recurrent.sequence_length, self.config.n_step - 1, carry=False)
        return self.update(self.prepared(windows(self._own(sequences))))

    def prepared(self, batch: TensorDictBase) -> TensorDictBase:
        batch = super().prepared(batch)
        active, burn_in = batch.get("active"), self._burn_in(batch)
        return self.shared_out(batch, active[:, burn_in : burn_in + self.config.recurrent.sequence_length])

    def _burn_in(self, batch: TensorDictBase) -> int:
        """Steps at the beginning of these windows that are not learned from."""
        c = self.config
        return batch.get("active").shape[1] - c.recurrent.sequence_length - (c.n_step - 1)

    # -- learning ------------------------------------------------------------------------------------------------

    def objective(self, batch: TensorDictBase, *args: Any, **options: Any) -> tuple[Tensor, Info]:
        """Of windows ``[N]``; the error of a window is a mixture of its steps' largest and mean (R2D2)."""
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
    """The first steps of windows ``[N]``, and the others, as ``[N, L]`` each."""
    steps = batch.exclude(MEMORY, "share", "index", "priority_weight")
    steps.batch_size = batch.get("active").shape
    return steps[:, :burn_in], steps[:, burn_in:]
