"""A world that only a recurrent agent can master."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Unbounded

from rlstack.envs.world import World


class Recall(World):
    """Shows -1 or 1 once, then nothing for some steps; the last action should name it.

    Observation ``[2]``: what is shown, and 1 at the last step. Reward 1 for the right choice there. Without a memory
    half of the reward is the best there is. Episodes of odd worlds are one step longer.

    Args:
        delay: steps between the two.
        truncated: episodes are cut off, not ended, after the last step.
        continuous: the action is a number in [-1, 1], and the reward grows from 0 at the wrong end to 1 at the right.
        masked: with an ``action_mask``: there are four choices, and the last two are forbidden at the last step, the
            first two at all others.
    """

    def __init__(
        self,
        num_worlds: int = 16,
        delay: int = 4,
        truncated: bool = False,
        seed: int = 0,
        dtype: Any = torch.float32,
        continuous: bool = False,
        masked: bool = False,
    ) -> None:
        super().__init__(num_worlds, "cpu", dtype, seed)
        lead = (num_worlds,)
        shown: dict[str, Any] = {"observation": Unbounded((*lead, 2), dtype=dtype)}
        if masked:
            shown["action_mask"] = Binary(4, shape=(*lead, 4), dtype=torch.bool)
        numbers = Bounded(-1.0, 1.0, shape=(*lead, 1), dtype=dtype)
        self.declare_specs(shown, numbers if continuous else Categorical(4 if masked else 2, shape=lead), ())
        self.length = delay + 2 + torch.arange(num_worlds) % 2
        self.cut_off, self.continuous, self.masked = truncated, continuous, masked
        self.time, self.cue = torch.zeros(num_worlds, dtype=torch.int64), torch.zeros(num_worlds, dtype=torch.int64)

    def _observation(self) -> Tensor:
        shown = torch.where(self.time == 0, self.cue * 2 - 1, 0)
        return torch.stack((shown, self.time == self.length - 1), -1).to(self.float_dtype)

    def _restart(self, worlds: Tensor | None) -> None:
        worlds = torch.arange(self.num_worlds) if worlds is None else worlds
        drawn = torch.randint(2, (self.num_worlds,), generator=self.generator)
        self.time, self.cue = self.time.clone(), self.cue.clone()
        self.time[worlds], self.cue[worlds] = 0, drawn[worlds]

    def _current(self) -> TensorDict:
        shown = {"observation": self._observation()}
        if self.masked:
            last = (self.time == self.length - 1)[:, None]
            shown["action_mask"] = torch.cat((last, last, ~last, ~last), -1)
        return TensorDict(shown, self.batch_size)

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        last = self.time == self.length - 1
        action = tensordict["action"]
        right = (1 + action[:, 0] * (2 * self.cue - 1)) / 2 if self.continuous else action == self.cue
        reward = (last * right).to(self.float_dtype)
        self.time = self.time + 1
        done, never = last[:, None], torch.zeros_like(last)[:, None]
        ends = {"terminated": never if self.cut_off else done, "truncated": done if self.cut_off else never}
        return self._current().update({"reward": reward[:, None], "done": done, **ends})

    def _state_to_save(self) -> dict[str, Any]:
        return {"time": self.time, "cue": self.cue}

    def _load_state(self, state: dict[str, Any]) -> None:
        self.time, self.cue = state["time"], state["cue"]
