"""TorchRL environments with known numbers."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, Unbounded
from torchrl.envs import (
    Compose,
    EnvBase,
    RenameTransform,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)

ACTIONS = {
    "numbers": Bounded(torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0])),
    "table": Bounded(-1.0, 1.0, shape=(2, 2), dtype=torch.float64),
    "unbounded": Unbounded((3,)),
    "half": Bounded(torch.tensor([0.0]), torch.tensor([torch.inf])),
    "whole": Bounded(0, 3, shape=(1,), dtype=torch.int64),
    "choice": Categorical(4),
    "column": Categorical(4, shape=(1,)),
    "choices": MultiCategorical([2, 3]),
    "one-hot": OneHot(3),
    "one-hots": MultiOneHot([2, 3]),
    "bits": Binary(3, dtype=torch.int8),
}


class Counter(EnvBase):
    """Counts steps from a number that depends on the seed; row ``k`` of a batch ends after ``ends + k`` steps.

    Flags are true only in that step. The reward is 1, or 2 if a one-hot action is the last choice. ``taken`` holds all
    received actions.
    """

    def __init__(
        self, ends: int = 2, batch: tuple[int, ...] = (), action: str = "numbers", shows: str = "flat"
    ) -> None:
        super().__init__(batch_size=batch)
        self.ends, self.shows, self.taken = ends, shows, []
        rows = torch.arange(max(self.batch_size.numel(), 1)).reshape(batch) if batch else torch.zeros(())
        self.limits = ends + rows
        self.action_spec = ACTIONS[action].expand(*batch, *ACTIONS[action].shape)
        self.reward_spec = Unbounded((*batch, 1))
        self.done_spec = Composite(
            {name: Binary(1, shape=(*batch, 1), dtype=torch.bool) for name in ("done", "terminated")}, shape=batch
        )
        seen: dict[str, Any] = {"observation": Unbounded((*batch, 2))}
        if shows == "dict":
            seen = {
                "state": Composite({"count": Unbounded(batch), "first": Unbounded((*batch, 1))}, shape=batch),
                "kind": Categorical(3, shape=batch),
                "seen": Binary(2, shape=(*batch, 2), dtype=torch.bool),
                "pixels": Bounded(0, 255, shape=(*batch, 40, 40, 3), dtype=torch.uint8),
            }
        if "choice" in action or "one-hot" in action:
            seen["action_mask"] = Binary(4, shape=(*batch, 4), dtype=torch.bool) if action == "choice" else None
        self.observation_spec = Composite({key: spec for key, spec in seen.items() if spec is not None}, shape=batch)
        self.count = torch.zeros(batch)
        self.first = torch.zeros(batch)

    def _set_seed(self, seed: int | None) -> None:
        self.random = torch.Generator().manual_seed(seed or 0)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        begun = torch.ones(self.batch_size, dtype=torch.bool)
        if tensordict is not None and "_reset" in tensordict:
            begun = tensordict["_reset"].reshape(self.batch_size)
        self.count = torch.where(begun, 0.0, self.count)
        self.first = torch.where(begun, torch.rand(self.batch_size, generator=self.random), self.first)
        return TensorDict(self._seen(), self.batch_size)

    def _seen(self) -> dict[str, Any]:
        shape, count, first = self.batch_size, self.count, self.first
        seen: dict[str, Any] = {"observation": torch.stack((count, first), -1)}
        if self.shows == "dict":
            seen = {
                "state": TensorDict({"count": count, "first": first[..., None]}, shape),
                "kind": (count % 3).long(),
                "seen": torch.stack((count > 0, count > 1), -1),
                "pixels": count.to(torch.uint8).reshape(*shape, 1, 1, 1).expand(*shape, 40, 40, 3).clone(),
            }
        if "action_mask" in self.observation_spec:
            seen["action_mask"] = torch.arange(4).expand(*shape, 4) <= count[..., None]
        return seen

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.taken.append(tensordict["action"].clone())
        self.count = self.count + 1
        over = (self.count == self.limits)[..., None]
        entries = {**self._seen(), "reward": torch.ones(*self.batch_size, 1), "done": over, "terminated": over.clone()}
        return TensorDict(entries, self.batch_size)


class Pair(EnvBase):
    """Two agents under ``group``; the first ends after one step, the second and the environment after three.

    Args:
        own_ends: whether agents have flags.
        common_end: whether the environment has them; without them the second agent is truncated.
        shared_reward: one of 1 for both, in place of 1 and 3.
    """

    def __init__(
        self, group: str = "players", own_ends: bool = True, common_end: bool = True, shared_reward: bool = False
    ) -> None:
        super().__init__(batch_size=())
        self.shared = shared_reward
        self.group, self.own_ends, self.common_end = group, own_ends, common_end
        self.action_spec = Composite({group: Composite({"action": OneHot(3, shape=(2, 3))}, shape=(2,))})
        own = Composite({group: Composite({"reward": Unbounded((2, 1))}, shape=(2,))})
        self.reward_spec = Unbounded((1,)) if shared_reward else own
        self.observation_spec = Composite({group: Composite({"observation": Unbounded((2, 1))}, shape=(2,))})
        names = ("done", "terminated") if common_end else ("done", "terminated", "truncated")
        ends: dict[str, Any] = {name: Binary(1, dtype=torch.bool) for name in names} if common_end else {}
        if own_ends:
            own = {name: Binary(1, shape=(2, 1), dtype=torch.bool) for name in names}
            ends[group] = Composite(own, shape=(2,))
        self.done_spec = Composite(ends)
        self.count, self.taken = 0, []

    def _set_seed(self, seed: int | None) -> None:
        return

    def _told(self, **more: Any) -> dict[str, Any]:
        return {"observation": torch.full((2, 1), float(self.count)), **more}

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        self.count = 0
        return TensorDict({self.group: TensorDict(self._told(), [2])}, [])

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.count += 1
        self.taken.append(tensordict[self.group, "action"].clone())
        entries = self._told(**({} if self.shared else {"reward": torch.tensor([[1.0], [3.0]])}))
        over = torch.tensor([self.count >= 3])
        if self.own_ends:
            ends = torch.tensor([[self.count >= 1], [self.count >= 3]])
            entries |= {"done": ends, "terminated": ends.clone()}
        if self.common_end:
            root = {"done": over, "terminated": over.clone(), **({"reward": torch.ones(1)} if self.shared else {})}
            return TensorDict({self.group: TensorDict(entries, [2]), **root}, [])
        now = {"terminated": torch.tensor([[self.count == 1], [False]])}
        now["truncated"] = torch.tensor([[False], [self.count == 3]])
        return TensorDict(
            {self.group: TensorDict(entries | now | {"done": now["terminated"] | now["truncated"]}, [2])}, []
        )


def limited(steps: int = 3, ends: int = 9, batch: tuple[int, ...] = ()) -> TransformedEnv:
    """Returns an environment that is truncated by a transform and sums the rewards."""
    env = TransformedEnv(Counter(ends, tuple(batch)), StepCounter(max_steps=steps))
    return env.append_transform(RewardSum())


def in_series() -> EnvBase:
    """Returns a batch of TorchRL's, which makes its two environments when it is first used."""
    return SerialEnv(2, [Counter, lambda: Counter(3)])


def scaled() -> TransformedEnv:
    """Returns an environment whose rewards for the learner are ten times those that it sums."""
    return TransformedEnv(Counter(3), Compose(RewardSum(), RewardScaling(loc=0.0, scale=10.0)))


def nested() -> TransformedEnv:
    """Returns an environment with everything below ``robot``, also the ends."""
    told = ["observation", "reward", "done", "terminated"]
    below = RenameTransform(told, [("robot", name) for name in told], ["action"], [("robot", "action")])
    return TransformedEnv(Counter(3), below)


def unannotated():
    """A function without a return annotation."""
    raise AssertionError("called")


def liar() -> EnvBase:
    """A function whose annotation is wrong."""
    return 3  # type: ignore[return-value]


class Paying(Counter):
    """A :class:`Counter` that tells two terms of its reward: 1 for each step, and -2 for each step after the first."""

    def episode_terms(self) -> dict[str, Tensor]:
        return {"step": self.count.reshape(-1), "late": -2 * (self.count.reshape(-1) - 1).clamp(min=0)}
