"""Repeated actions and stacked observations: sums, ends, histories, specs, and resuming from a checkpoint."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.envs.world import World
from rlstack.envs.wrappers import ActionRepeat, FrameStack
from tests.envs.test_any_action import assert_equal
from tests.refusals import refused


class Clock(World):
    """World w observes [steps, last action, w] and images of steps; it ends after ``lengths[w]`` steps.

    The reward is the action times the step's number.
    """

    input_features = "of the clock"

    def __init__(self, lengths: tuple[int, ...] = (3, 5, 50), seed: int | None = 0) -> None:
        super().__init__(len(lengths), "cpu", torch.float32, seed)
        lead = self.batch_size
        self.lengths = torch.tensor(lengths)
        self.steps, self.last = torch.zeros(len(lengths)), torch.zeros(len(lengths))
        vector = Bounded(torch.tensor([0.0, -1.0, 0.0]).expand(3, 3), torch.tensor([100.0, 1.0, 2.0]).expand(3, 3))
        parts = {
            "vector": vector,
            "image": Bounded(0, 255, shape=(*lead, 2, 4, 4), dtype=torch.uint8),
            "photo": Bounded(0.0, 255.0, shape=(*lead, 5, 4, 2)),
            "gray": Bounded(0, 255, shape=(*lead, 5, 4), dtype=torch.uint8),
            "late": Binary(1, shape=(*lead, 1), dtype=torch.bool),
            "parity": Categorical(2, shape=lead, dtype=torch.int64),
        }
        action = Bounded(-1.0, 1.0, shape=(*lead, 1))
        self.declare_specs({"observation": Composite(parts, shape=lead)}, action, ["length"])
        self.reward_spec = Bounded(-60.0, 100.0, shape=(*lead, 1))

    def _current(self) -> TensorDict:
        worlds = torch.arange(3.0)
        observation = {
            "vector": torch.stack([self.steps, self.last, worlds], -1),
            "image": self.steps.byte().view(3, 1, 1, 1).expand(3, 2, 4, 4).clone(),
            "photo": self.steps.view(3, 1, 1, 1) + torch.tensor([0.0, 0.5]).expand(3, 5, 4, 2),
            "gray": self.steps.byte().view(3, 1, 1).expand(3, 5, 4).clone(),
            "late": self.steps[:, None] > 2,
            "parity": self.steps.long() % 2,
        }
        episode = TensorDict({"length": self.steps.clone()[:, None]}, [3])
        return TensorDict({"observation": TensorDict(observation, [3]), "episode": episode}, [3])

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        self.last = tensordict["action"][:, 0]
        self.steps = self.steps + 1
        done = (self.steps >= self.lengths)[:, None]
        reward = (self.last * self.steps)[:, None]
        ends = {"done": done, "terminated": done, "truncated": torch.zeros_like(done)}
        return self._current().update({"reward": reward, **ends})

    def _restart(self, worlds: Tensor | None) -> None:
        restarted = torch.ones(3, dtype=torch.bool) if worlds is None else torch.isin(torch.arange(3), worlds)
        self.steps, self.last = (torch.where(restarted, 0.0, value) for value in (self.steps, self.last))

    def _state_to_save(self) -> dict[str, Any]:
        return {"steps": self.steps, "last": self.last}

    def _load_state(self, state: dict[str, Any]) -> None:
        self.steps, self.last = state["steps"], state["last"]


class Team(World):
    """One world of two agents that observe the number of steps; agent a is truncated after ``lengths[a]`` steps.

    Rewards are 1 for agent 0 and 10 for agent 1, also after they have ended.
    """

    def __init__(self, lengths: tuple[int, int] = (2, 5)) -> None:
        super().__init__(1, "cpu", torch.float32, 0)
        self.lengths, self.steps = torch.tensor([lengths]), 0
        observation, action = Bounded(0.0, 100.0, shape=(1, 2, 1)), Categorical(2, shape=(1, 2), dtype=torch.int64)
        self.declare_specs({"observation": observation}, action, ["length"], agents=2)

    def _active(self) -> Tensor:
        return self.steps < self.lengths

    def _current(self) -> TensorDict:
        agents = {"observation": torch.full((1, 2, 1), float(self.steps)), "active": self._active()}
        episode = TensorDict({"length": torch.full((1, 1), float(self.steps))}, [1])
        return TensorDict({"agents": TensorDict(agents, [1, 2]), "episode": episode}, [1])

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        before = self._active()
        self.steps += 1
        following, done = self._current(), ~self._active()[..., None]
        truncated = done & before[..., None]
        ends = {"done": done, "terminated": done & ~truncated, "truncated": truncated}
        following["agents"].update({"reward": torch.tensor([[[1.0], [10.0]]]), **ends})
        over = done.all(1)
        return following.update({"done": over, "terminated": torch.zeros_like(over), "truncated": over})

    def _restart(self, worlds: Tensor | None) -> None:
        self.steps = 0

    def _state_to_save(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def _load_state(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def clock(**options: Any) -> EnvBase:
    return envs.make(f"{__name__}:Clock", **options)


def act(env: EnvBase, td: TensorDictBase, value: float = 1.0) -> tuple[TensorDictBase, TensorDictBase]:
    return env.step_and_maybe_reset(td.set("action", torch.full((3, 1), value)))


# --- the options every world takes


def test_one_means_no_wrapper() -> None:
    assert type(clock(action_repeat=1, frame_stack=1)) is Clock
    env = clock(action_repeat=2, frame_stack=3)
    assert isinstance(env, FrameStack) and isinstance(env.inner, ActionRepeat) and isinstance(env.inner.inner, Clock)
    assert {"lengths", "action_repeat", "frame_stack"} <= set(envs.options_of(f"{__name__}:Clock"))


@pytest.mark.parametrize(
    ("world", "options", "message"),
    [
        ("Clock", {"action_repeat": 0}, "action_repeat: 0 is not a positive whole number"),
        ("Clock", {"action_repeat": 10_001}, "action_repeat: 10001 is more than 10000"),
        ("Clock", {"frame_stack": 1.5}, r"frame_stack: 1\.5 is not a positive whole number"),
        ("Clock", {"action_repeat": True}, "action_repeat: True is not a positive whole number"),
        ("tests.envs.torchrl_toys:Counter", {"action_repeat": 2}, r"Counter is not an rlstack\.envs\.world\.World"),
        ("marinenav", {"frame_stack": 2}, "frame_stack: the observation of MarineNav has object slots"),
    ],
)
def test_wrong_options_are_explained(world: str, options: dict[str, Any], message: str) -> None:
    refused(ValueError, message, envs.make, f"{__name__}:Clock" if world == "Clock" else world, **options)


def test_seeds_reach_the_inner_world() -> None:
    env = clock(action_repeat=2, frame_stack=2)
    env.set_seed(5)
    assert env.inner.inner.generator.initial_seed() == 5 and env.generator is env.inner.inner.generator


# --- action repeat


def test_rewards_are_summed_up_to_the_first_end() -> None:
    env = clock(action_repeat=4)
    step, td = act(env, env.reset(), 0.5)
    following = step["next"]
    assert following["reward"][:, 0].tolist() == [0.5 * (1 + 2 + 3), 0.5 * (1 + 2 + 3 + 4), 0.5 * 10]
    assert following["episode", "length"][:, 0].tolist() == [3, 4, 4]
    assert following["done"][:, 0].tolist() == [True, False, False]
    assert td["episode", "length"][:, 0].tolist() == [0, 4, 4] and not td["done"].any()
    step, td = act(env, td, 1.0)
    assert step["next", "reward"][:, 0].tolist() == [6, 5, 5 + 6 + 7 + 8]
    assert step["next", "episode", "length"][:, 0].tolist() == [3, 5, 8]


def test_the_reward_spec_knows_of_the_sum() -> None:
    space = clock(action_repeat=4).reward_spec.space
    assert space.low.eq(-240).all() and space.high.eq(400).all()


def test_an_agent_stops_at_its_own_end() -> None:
    env = envs.make(f"{__name__}:Team", action_repeat=3)
    td = env.reset().update(env.full_action_spec.zero())
    step, td = env.step_and_maybe_reset(td)
    agents = step["next", "agents"]
    assert agents["reward"].flatten().tolist() == [2, 30]
    # Agent 0 was truncated in the second of three steps: its observation then is the basis of the bootstrap value.
    assert agents["observation"].flatten().tolist() == [2, 3]
    assert agents["done"].flatten().tolist() == agents["truncated"].flatten().tolist() == [True, False]
    assert not agents["terminated"].any() and agents["active"].flatten().tolist() == [False, True]
    assert not step["next", "done"].any()
    step, td = env.step_and_maybe_reset(td.update(env.full_action_spec.zero()))
    agents = step["next", "agents"]
    assert agents["reward"][0, 1].item() == 20 and agents["observation"][0, 1].item() == 5
    assert agents["truncated"][0, 1] and step["next", "truncated"].all()
    assert td["agents", "observation"].eq(0).all() and td["agents", "active"].all() and not td["agents", "done"].any()


# --- frame stack


def test_the_last_observations_stand_side_by_side() -> None:
    env = clock(frame_stack=3, lengths=(3, 50, 50))
    assert env.input_features is None, "they read vectors only"
    td = env.reset()
    shapes = {"vector": (9,), "image": (6, 4, 4), "photo": (5, 4, 6), "gray": (3, 5, 4), "late": (3,), "parity": (3,)}
    assert {key: value.shape[1:] for key, value in td["observation"].items()} == shapes
    assert td["observation", "vector"][1].tolist() == [0, 0, 1] * 3
    step, td = act(env, td, 0.5)
    step, td = act(env, td, -0.5)
    assert step["next", "observation", "vector"][1].tolist() == [0, 0, 1, 1, 0.5, 1, 2, -0.5, 1]
    assert step["next", "observation", "image"][1, :, 0, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert step["next", "observation", "photo"][1, 0, 0].tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    assert step["next", "observation", "gray"][1, :, 4, 3].tolist() == [0, 1, 2]
    assert step["next", "observation", "parity"][1].tolist() == [0, 1, 0]
    step, td = act(env, td, 1.0)
    assert step["next", "observation", "late"][1].tolist() == [False, False, True]
    # The end of world 0 belongs to its own episode and does not appear in its next episode.
    assert step["next", "observation", "vector"][0].tolist() == [1, 0.5, 0, 2, -0.5, 0, 3, 1, 0]
    assert td["observation", "vector"][0].tolist() == [0, 0, 0] * 3
    assert td["observation", "vector"][1].tolist() == [1, 0.5, 1, 2, -0.5, 1, 3, 1, 1]
    assert td["episode", "length"][:, 0].tolist() == [0, 3, 3]  # entries other than observations are unchanged


def test_bounds_are_those_of_every_frame() -> None:
    spec = clock(frame_stack=2).observation_spec["observation", "vector"]
    assert spec.space.low[0].tolist() == [0, -1, 0, 0, -1, 0] and spec.space.high[0].tolist() == [100, 1, 2, 100, 1, 2]


def test_every_agent_has_a_stack_of_its_own() -> None:
    env = envs.make(f"{__name__}:Team", frame_stack=2)
    td = env.reset()
    for _ in range(2):
        _, td = env.step_and_maybe_reset(td.update(env.full_action_spec.zero()))
    assert td["agents", "observation"].tolist() == [[[1, 2], [1, 2]]]


# --- checkpoint and evaluation


def test_a_restored_clock_keeps_its_history() -> None:
    env, other = clock(action_repeat=2, frame_stack=3), clock(action_repeat=2, frame_stack=3)
    td = env.reset()
    for _ in range(4):
        _, td = act(env, td, 0.25)
    other.load_state_dict(env.state_dict())
    resumed = other.reset()
    assert_equal(resumed["observation"], td["observation"])
    for _ in range(5):
        step, td = act(env, td)
        again, resumed = act(other, resumed)
        assert_equal(step["next"], again["next"])


class Forgetful(Clock):
    """A world that cannot resume within an episode."""

    saves_episodes = False

    def _load_state(self, state: dict[str, Any]) -> None:
        self._restart(None)


@pytest.mark.parametrize("options", [{"action_repeat": 2}, {"frame_stack": 3}, {"action_repeat": 2, "frame_stack": 3}])
def test_worlds_that_begin_anew_show_no_old_history(options: dict[str, int]) -> None:
    env, other = (envs.make(f"{__name__}:Forgetful", **options) for _ in range(2))
    start = env.reset()
    _, td = act(env, start.copy())
    other.load_state_dict(env.state_dict())
    resumed = other.reset()
    assert_equal(resumed["observation"], start["observation"])
    assert not torch.equal(resumed["observation", "vector"], td["observation", "vector"])


def test_a_world_that_is_recorded_can_be_pickled() -> None:
    env = envs.make("arena", num_worlds=2, action_repeat=3)
    recorder = env.recorder([0])
    assert pickle.loads(pickle.dumps(env)).batch_size == (2,) and recorder is not None
