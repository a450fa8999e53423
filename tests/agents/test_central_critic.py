"""A critic that sees the observations of all agents of a world, and policies that do not."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Categorical, Unbounded

from rlstack import envs
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.envs.world import World
from tests.agents import small_agents
from tests.agents.recall import Recall
from tests.agents.small_agents import batches, copies, equal, some_arrive
from tests.exhaustive import exhaustive


class Signals(World):
    """Every agent sees a cue of its own, -1 or 1 and new at every step; it is paid the mean cue of its living others.

    Observation ``[2]``: the cue, and a tenth of the time. Actions change nothing. The dead see zeros, and are
    ``terminated`` in the step of their death alone. When a world is cut off nobody is active any more, and its true
    last observations are shown.

    Args:
        deaths: how probably an agent dies in a step.
        length: steps after which a world is cut off.
    """

    def __init__(
        self,
        num_worlds: int = 4,
        agents: int = 3,
        deaths: float = 0.1,
        length: int = 10,
        seed: int = 0,
        dtype: Any = torch.float64,
    ) -> None:
        super().__init__(num_worlds, "cpu", dtype, seed)
        self.deaths, self.length = deaths, length
        lead = (num_worlds, agents)
        shown, action = {"observation": Unbounded((*lead, 2), dtype=dtype)}, Categorical(2, shape=lead)
        self.declare_specs(shown, action, (), agents)
        self.time = torch.zeros(num_worlds, dtype=torch.int64)
        self.cue, self.alive = torch.zeros(lead), torch.ones(lead, dtype=torch.bool)

    def _drawn(self) -> Tensor:
        return torch.randint(2, self.cue.shape, generator=self.generator).to(self.float_dtype) * 2 - 1

    def _observed(self, alive: Tensor) -> Tensor:
        seen = torch.stack((self.cue, (self.time[:, None] / 10).expand_as(self.cue)), -1)
        return (seen * alive[..., None]).to(self.float_dtype)

    def _current(self) -> TensorDict:
        agents = {"observation": self._observed(self.alive), "active": self.alive.clone()}
        entries = {"agents": TensorDict(agents, self.cue.shape), "episode": TensorDict({}, self.batch_size)}
        return TensorDict(entries, self.batch_size)

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        before, cue = self.alive, self.cue * self.alive
        others = (before.sum(1, keepdim=True) - before.long()).clamp(min=1)
        reward = (cue.sum(1, keepdim=True) - cue) / others * before
        self.alive = before & (torch.rand(cue.shape, generator=self.generator) >= self.deaths)
        self.time, self.cue = self.time + 1, self._drawn()
        extinct = ~self.alive.any(1)
        cut = (self.time == self.length) & ~extinct
        over = (extinct | cut)[:, None]
        terminated, truncated = (before & ~self.alive)[..., None], (cut[:, None] & self.alive)[..., None]
        ends = {"done": terminated | truncated, "terminated": terminated, "truncated": truncated}
        agents = {"observation": self._observed(before), "active": self.alive & ~over}
        agents |= {"reward": reward[..., None].to(self.float_dtype), **ends}
        root = {"done": over, "terminated": extinct[:, None], "truncated": cut[:, None]}
        root["episode"] = TensorDict({}, self.batch_size)
        return TensorDict({"agents": TensorDict(agents, cue.shape), **root}, self.batch_size)

    def _restart(self, worlds: Tensor | None) -> None:
        chosen = torch.arange(self.num_worlds) if worlds is None else worlds
        drawn = self._drawn()
        self.time, self.cue, self.alive = self.time.clone(), self.cue.to(drawn.dtype, copy=True), self.alive.clone()
        self.time[chosen], self.cue[chosen], self.alive[chosen] = 0, drawn[chosen], True

    def _state_to_save(self) -> dict[str, Any]:
        return {"time": self.time, "cue": self.cue, "alive": self.alive}

    def _load_state(self, state: dict[str, Any]) -> None:
        self.time, self.cue, self.alive = state["time"], state["cue"], state["alive"]


NAMES = ("ppo", "a2c")
A = 3


def small(env: Any, name: str = "ppo", critic: str = "central", **overrides: Any) -> Any:
    return small_agents.small(env, 10_000, name, critic=critic, **overrides)


WORLDS = {"signals": Signals, "marinenav": some_arrive}


def by_hand(agent: Any, part: TensorDict) -> Tensor:
    """Returns the values ``[N]`` of the active decisions of a batch, each computed by itself."""
    critic, observation, active = agent.critic, agent.normalized(part["observation"]), part["active"]

    def encoding(row: int, step: int) -> Tensor:
        seen = observation[row, step]
        if "critic" in getattr(agent, "memories", {}):
            return agent.memories["critic"].step(seen, agent.part(part["memory"][row, step], "critic"))[0]
        return critic.encoder(seen)

    values = []
    for row, step in active.nonzero().tolist():
        own, world = encoding(row, step), range(row // A * A, row // A * A + A)
        views = [critic.view(encoding(mate, step)) for mate in world if mate != row and active[mate, step]]
        mean = torch.stack(views).mean(0) if views else torch.zeros_like(critic.view(own))
        share = torch.tensor([len(views) / (A - 1)], dtype=mean.dtype)
        values.append(critic.head(torch.cat((own, mean, share))))
    return torch.cat(values)


def all_values(agent: Any, part: TensorDict) -> tuple[Tensor, Tensor]:
    """Returns the values of all states, and of the states that follow, ``[B, T]``."""
    observation = agent.normalized(part["observation"])
    agent.others.begin(observation, part["active"])
    with torch.no_grad():
        value, following = agent._values(observation, part)
    return value[..., 0], following[..., 0]


MEMORY = {"kind": "lstm", "size": 8, "sequence_length": 5}
MEMORIES: list[Any] = [None, MEMORY]


# -- what it sees ------------------------------------------------------------------------------------------------------


@exhaustive("name", NAMES)
@exhaustive("world", list(WORLDS))
@exhaustive("shared_layers", [0, 1])
def test_values_are_of_oneself_and_the_others_that_are_there(name: str, world: str, shared_layers: int) -> None:
    env = WORLDS[world]()
    agent = small(env, name, shared_layers=shared_layers, normalize_observations=world == "signals")
    for part in islice(batches(env, agent, 12), 2):
        agent.learn(part, agent.frames + int(part["active"].sum()))
    assert (~part["active"]).any()
    batch, expected = agent.rollout(part), by_hand(agent, part)
    close = {"rtol": 0, "atol": 1e-10 if world == "signals" else 1e-5}
    torch.testing.assert_close(batch["value"], expected, **close)
    torch.testing.assert_close(agent.policy_and_value(batch)[1], expected, **close)
    order = torch.randperm(len(batch))
    for few in order.split(7):
        torch.testing.assert_close(agent.policy_and_value(batch[few])[1], expected[few], **close)


@exhaustive("name", NAMES)
@exhaustive("world", list(WORLDS))
@exhaustive("size", [4, 1, 99])
def test_with_a_memory_the_others_are_remembered_too(name: str, world: str, size: int) -> None:
    env = WORLDS[world]()
    agent = small(env, name, recurrent=MEMORY)
    parts = list(islice(batches(env, agent, 12), 2))
    expected, active = by_hand(agent, parts[1]), parts[1]["active"]
    assert (~active).any()
    batch = agent.rollout(parts[1])
    place, found = batch["place"], []
    for few in torch.randperm(len(batch)).split(size):
        flat = agent.unrolled(batch[few])
        found.append(torch.stack((place[few][batch["active"][few]], agent.policy_and_value(flat)[1].double()), 1))
    order = torch.cat(found).sort(0)[1][:, 0]
    close = {"rtol": 0, "atol": 1e-10 if world == "signals" else 1e-5}
    torch.testing.assert_close(torch.cat(found)[order, 1].to(expected.dtype), expected, **close)
    values = torch.full(active.shape, torch.nan, dtype=expected.dtype).flatten()
    values[place[batch["active"]]] = batch["value"][batch["active"]]
    torch.testing.assert_close(values.view_as(active)[active], expected, **close)


@exhaustive("world", list(WORLDS))
@exhaustive("memory", MEMORIES)
def test_a_batch_ends_with_the_values_that_the_next_one_begins_with(world: str, memory: Any) -> None:
    env = WORLDS[world]()
    agent = small(env, recurrent=memory)
    parts = list(islice(batches(env, agent, 5), 6))
    compared = 0
    for before, after in pairwise(parts):
        goes_on = before["active"][:, -1] & ~before["next", "done"][:, -1, 0]
        compared += int(goes_on.sum())
        last, first = all_values(agent, before)[1][goes_on, -1], all_values(agent, after)[0][goes_on, 0]
        torch.testing.assert_close(last, first, rtol=0, atol=1e-6)
    assert compared > 10


@pytest.mark.parametrize("memory", MEMORIES)
def test_what_is_cut_off_has_the_value_of_what_would_have_followed(memory: Any) -> None:
    short, long = (Signals(8, A, deaths=0.15, length=length, seed=3) for length in (4, 99))
    agent = small(long, recurrent=memory)
    cut, whole = (next(batches(env, agent, 6)) for env in (short, long))
    assert not cut["next", "active"][:, 3].any(), "this world says that nobody goes on"
    # The same cues and deaths; a world without truncation shows the same state at the next step.
    compared = whole["active"][:, 4] & cut["next", "done"][:, 3, 0] & whole["active"][:, 3]
    others = whole["active"][:, 4].view(-1, A).sum(1).repeat_interleave(A)
    assert compared.any() and (others[compared] < A).any(), "some have lost a mate by then"
    found, wanted = all_values(agent, cut)[1][:, 3], all_values(agent, whole)[0][:, 4]
    torch.testing.assert_close(found[compared], wanted[compared], rtol=0, atol=1e-12)


def test_an_agents_own_end_ends_its_return_and_no_mates() -> None:
    env = Signals(8, A, deaths=0.2)
    agent = small(env, gamma=0.5, gae_lambda=1.0, normalize_rewards=False)
    part = next(batches(env, agent, 6))
    returns = torch.full(part.shape, torch.nan, dtype=torch.float64)
    returns[part["active"]] = agent.rollout(part)["return"]
    reward, done = part["next", "reward"][..., 0], part["next", "done"][..., 0]
    died = part["active"] & part["next", "terminated"][..., 0]
    assert died.any() and torch.allclose(returns[died], reward[died])
    alive = (part["active"] & ~done)[:, :-1]
    assert (died.view(-1, A, 6).any(1, keepdim=True).expand(-1, A, -1).flatten(0, 1)[:, :-1] & alive).any()
    assert torch.allclose(returns[:, :-1][alive], (reward[:, :-1] + 0.5 * returns[:, 1:])[alive])


@exhaustive("memory", MEMORIES)
def test_what_the_absent_show_does_not_count(memory: Any) -> None:
    env = Signals(4, A, deaths=0.2)
    agent, other = (small(env, recurrent=memory) for _ in range(2))
    part = next(batches(env, agent, 8))
    poisoned = part.clone()
    absent = ~part["active"]
    assert absent.any()
    poisoned["observation"][absent] = 1e3
    poisoned["next", "observation"][absent | part["next", "terminated"][..., 0]] = 1e3
    for learner, data in ((agent, part), (other, poisoned)):
        torch.manual_seed(1)
        learner.learn(data, 10)
    assert equal(agent.parameters(), other.parameters())


def test_a_rollout_keeps_one_number_more_per_decision() -> None:
    env = Signals(4, A)
    own, central = (small(env, critic=critic) for critic in ("own", "central"))
    part = next(batches(env, central, 8))
    sizes = [sum(value[0].numel() for value in agent.rollout(part).values()) for agent in (own, central)]
    assert sizes[1] == sizes[0] + 1


# -- learning ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_learns_what_only_the_mates_see(name: str) -> None:
    explained = {}
    for critic in ("own", "central"):
        env = Signals(32, A, deaths=0.05, length=20)
        options = {"epochs": 4, "minibatch_size": 256} if name == "ppo" else {}
        agent = small(env, name, critic, gamma=0.0, gae_lambda=1.0, lr=3e-3, **options)
        for part in islice(batches(env, agent, 16 if name == "ppo" else 4), 15 if name == "ppo" else 120):
            agent.learn(part, agent.frames + int(part["active"].sum()))
        seen = agent.rollout(next(batches(env, agent, 16)))
        explained[critic] = float(1 - (seen["return"] - seen["value"]).var() / seen["return"].var())
    assert explained["own"] < 0.1 and explained["central"] > 0.9, explained


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("memory", MEMORIES)
def test_its_gradient_reaches_the_critic_alone(name: str, memory: Any) -> None:
    env = Signals(4, A)
    agent = small(env, name, recurrent=memory)
    batch = agent.rollout(next(batches(env, agent, 8)))
    batch = batch if memory is None else agent.unrolled(batch)
    agent.policy_and_value(batch)[1].sum().backward()
    assert all(parameter.grad is None for parameter in agent.actor.parameters())
    assert all((parameter.grad != 0).any() for parameter in agent.critic.parameters())
    before = copies([parameter.grad for parameter in agent.critic.parameters()])
    agent.distribution(batch["observation"]).entropy().sum().backward()
    assert equal(before, [parameter.grad for parameter in agent.critic.parameters()])


@exhaustive("name", NAMES)
@exhaustive("memory", MEMORIES)
def test_a_split_batch_gives_the_gradients_of_the_whole(name: str, memory: Any) -> None:
    found = []
    for accumulate in (1, 4):
        env = Signals(4, A)
        agent = small(env, name, accumulate=accumulate, recurrent=memory)
        agent.optimizer.lr = 0.0
        agent.optimizer.minimize(agent.objective, agent.for_step(agent.rollout(next(batches(env, agent, 8)))))
        found.append([parameter.grad for parameter in agent.parameters()])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-10)


@exhaustive("name", NAMES)
@exhaustive("world", ["recall", "marinenav"])
@exhaustive("memory", MEMORIES)
def test_an_agent_by_itself_has_a_critic_of_its_own(name: str, world: str, memory: Any) -> None:
    trained = []
    for critic in ("own", "central"):
        env = some_arrive(robots=1) if world == "marinenav" else Recall(4)
        agent = small(env, name, critic, recurrent=memory)
        for batch in islice(make_collector(env, agent.policy(explore=True), 8), 3):
            agent.learn(flatten_agents(batch, agent.interface.group), agent.frames + batch.numel())
        trained.append(agent.state_dict()["networks"])
    assert trained[0].keys() == trained[1].keys()
    for network in trained[0]:
        assert trained[0][network].keys() == trained[1][network].keys()
        assert equal(list(trained[0][network].values()), list(trained[1][network].values()))


# -- acting ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("explore", [False, True])
def test_acting_needs_nothing_of_the_others(explore: bool) -> None:
    agent, many = small(some_arrive(robots=3)), some_arrive(robots=5, num_worlds=1)
    policy, seen = agent.policy(explore), many.reset()
    assert all(key[:2] == ("agents", "observation") for key in policy.in_keys)
    torch.manual_seed(2)
    acted = policy(seen.clone())["agents", "action"]
    assert acted.shape == (1, 5, 2)
    if not explore:
        alone = [policy.action(seen["agents", "observation"][:, robot]) for robot in range(5)]
        torch.testing.assert_close(acted, torch.stack(alone, 1), rtol=0, atol=1e-6)


def test_other_agents_keep_what_they_kept() -> None:
    env = envs.make("marinenav", num_worlds=2, num_robots=2, curriculum=None, seed=0)
    agent = small_agents.small(env, name="sac", buffer_size=100)
    agent.extend(next(batches(env, agent, 8)))
    assert set(agent.sample()["next"].keys()) == {"observation", "reward", "terminated", "done"}
