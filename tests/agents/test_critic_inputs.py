"""Critics that see in training what policies do not see."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Composite, Unbounded

from rlstack import envs
from rlstack.agents.interface import Interface, difference
from rlstack.config import ConfigError
from rlstack.envs.world import World
from rlstack.networks.encoders import SEEN_BY_ACTOR
from tests.agents import small_agents
from tests.agents.small_agents import batches, copies, equal
from tests.agents.test_agents_going_on import both_go_on
from tests.exhaustive import exhaustive
from tests.refusals import refused

NAMES = ("ppo", "a2c", "sac", "td3", "ddpg", "tqc", "acqn")
CRITICS = {"ppo": "critic", "a2c": "critic", "ddpg": "critic"}


class Coins(World):
    """Every step pays the coin -1 or 1 that only ``state [2]`` shows (beside a zero), whatever the action is.

    Observation ``[3]``: the coin paid last, and two numbers that mean nothing; with ``keyed`` a dict of it (``seen``)
    and of the state (``coin``). Episodes are cut off after eight steps.
    """

    def __init__(self, num_worlds: int = 8, keyed: bool = False, seed: int = 0) -> None:
        super().__init__(num_worlds, "cpu", torch.float64, seed)
        self.keyed = keyed
        seen, state = (Unbounded((num_worlds, size), dtype=torch.float64) for size in (3, 2))
        shown: dict[str, Any] = {"observation": seen, "state": state}
        if keyed:
            shown = {"observation": Composite({"seen": seen, "coin": state}, shape=(num_worlds,))}
        self.declare_specs(shown, Bounded(-1.0, 1.0, shape=(num_worlds, 1), dtype=torch.float64), ())
        self.coin = self.paid = torch.zeros(num_worlds, 1, dtype=torch.float64)
        self.time = torch.zeros(num_worlds, 1, dtype=torch.int64)

    def _flipped(self) -> Tensor:
        return torch.randint(2, self.coin.shape, generator=self.generator).double() * 2 - 1

    def _current(self) -> TensorDict:
        noise = torch.rand(self.num_worlds, 2, generator=self.generator, dtype=torch.float64)
        seen, state = torch.cat((self.paid, noise), -1), torch.cat((self.coin, torch.zeros_like(self.coin)), -1)
        shown: dict[str, Any] = {"observation": seen, "state": state}
        if self.keyed:
            shown = {"observation": TensorDict({"seen": seen, "coin": state}, self.batch_size)}
        return TensorDict({**shown, "episode": TensorDict({}, self.batch_size)}, self.batch_size)

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        self.paid, self.coin, self.time = self.coin, self._flipped(), self.time + 1
        late = self.time >= 8
        ends = {"done": late, "truncated": late, "terminated": torch.zeros_like(late)}
        return self._current().update({"reward": self.paid, **ends})

    def _restart(self, worlds: Tensor | None) -> None:
        chosen = torch.arange(self.num_worlds) if worlds is None else worlds
        self.coin, self.paid, self.time = self.coin.clone(), self.paid.clone(), self.time.clone()
        self.coin[chosen], self.paid[chosen], self.time[chosen] = self._flipped()[chosen], 0.0, 0

    def _state_to_save(self) -> dict[str, Any]:
        return {"coin": self.coin, "paid": self.paid, "time": self.time}

    def _load_state(self, state: dict[str, Any]) -> None:
        self.coin, self.paid, self.time = state["coin"], state["paid"], state["time"]


def small(env: Any, name: str, inputs: list[str] | None, **overrides: Any) -> Any:
    return small_agents.small(env, 10_000, name, critic_inputs=inputs, **overrides)


def networks(agent: Any, name: str) -> tuple[Any, Any]:
    """Returns the actor and a critic."""
    critic = agent.critic if name == "acqn" else agent.networks[CRITICS.get(name, "critic_1")]
    return agent.actor, critic


@pytest.mark.parametrize("name", NAMES)
@exhaustive("keyed", [True, False])
def test_the_critic_sees_the_state_and_the_policy_does_not(name: str, keyed: bool) -> None:
    env, privileged = Coins(keyed=keyed), "coin" if keyed else "state"
    agent = small(env, name, ["observation", privileged])
    policy = agent.policy(explore=True)
    assert policy.in_keys == ([("observation", "seen")] if keyed else ["observation"])
    parts = list(islice(batches(env, agent), 2))
    before = copies(agent.parameters())
    for part in parts:
        agent.learn(part, agent.frames + part.numel())
    assert agent.updates > 0 and not equal(before, copies(agent.parameters()))
    joined = agent.with_critic_inputs(parts[-1])["observation"].flatten(0, 1)
    own = joined[SEEN_BY_ACTOR]["seen"] if keyed else joined[SEEN_BY_ACTOR]
    own.requires_grad_()
    joined[privileged].requires_grad_()
    actor, critic = networks(agent, name)
    more = () if name in ("ppo", "a2c") else (torch.zeros(len(joined), 1, dtype=torch.float64),)
    more += (torch.full((1, 4), 0.5, dtype=torch.float64),) if name == "acqn" else ()
    value = critic(joined, *more).sum()
    assert all(gradient.abs().sum() > 0 for gradient in torch.autograd.grad(value, (own, joined[privileged])))
    out = actor(joined)
    chosen = out[0].sum() if isinstance(out, tuple) else out.sum()
    to_own, to_state = torch.autograd.grad(chosen, (own, joined[privileged]), allow_unused=True)
    assert to_own.abs().sum() > 0 and to_state is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "error"), [("ppo", "return"), ("td3", "reward")])
def test_it_learns_what_only_the_state_tells(name: str, error: str) -> None:
    """With no discount the value of a state is its coin; nothing that a policy sees tells it."""
    found = {}
    for inputs in (None, ["state"]):
        env = Coins(32)
        options = {"lr": 1e-2, "epochs": 8, "minibatch_size": 64} if name == "ppo" else {"lr_critic": 1e-2}
        agent = small(env, name, inputs, gamma=0.0, **options, **({} if name == "ppo" else {"n_step": 1}))
        for part in islice(batches(env, agent), 30):
            agent.learn(part, agent.frames + part.numel())
        data = agent.with_critic_inputs(part)
        observation, coin = data["observation"].flatten(0, 1), part["state"].flatten(0, 1)[:, :1]
        more = () if name == "ppo" else (torch.zeros_like(coin),)
        with torch.no_grad():
            found[str(inputs)] = float((networks(agent, name)[1](observation, *more) - coin).square().mean())
    assert found["['state']"] < 0.1 < 0.8 < found["None"], found


def test_replayed_transitions_hold_what_was_seen_before_and_after() -> None:
    env = Coins(4)
    agent = small(env, "sac", ["state"], n_step=1)
    part = next(batches(env, agent))
    agent.extend(part)
    stored = agent.replay.storage.get(torch.arange(32))
    for key, wanted in (("observation", part["state"]), (("next", "observation"), part["next", "state"])):
        torch.testing.assert_close(stored.get(key)["state"], wanted.flatten(0, 1))
    assert "state" not in stored.keys()  # noqa: SIM118


def test_without_critic_inputs_a_state_is_not_stored() -> None:
    env = Coins(4)
    agent = small(env, "sac", None)
    agent.extend(next(batches(env, agent)))
    assert "state" not in agent.replay.storage.get(torch.arange(2)).keys(True)


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_statistics_of_both_are_kept_apart(name: str) -> None:
    env = Coins(8)
    agent = small(env, name, ["state"], normalize_observations=True)
    parts = list(islice(batches(env, agent), 3))
    for part in parts:
        agent.learn(part, agent.frames + part.numel())
    seen = torch.cat([part["state"] for part in parts]).flatten(0, 1)
    (moments,) = agent.critic_normalizer.moments
    torch.testing.assert_close(moments.mean, seen.mean(0))
    assert agent.normalizer.moments[0].mean.shape == (3,)
    assert "critic_normalizer" not in agent.acting()
    normalized = agent.normalized(agent.with_critic_inputs(part)["observation"])
    torch.testing.assert_close(normalized[SEEN_BY_ACTOR], agent.normalizer(part["observation"]))


@exhaustive("name", ["ppo", "sac", "td3"], quick=2)
def test_recurrent_actors_have_critics_without_a_core(name: str) -> None:
    env = Coins(8)
    core = {"kind": "gru", "size": 8, "sequence_length": 4}
    agent = small(env, name, ["observation", "state"], recurrent=core)
    parts = list(islice(batches(env, agent), 3))
    assert list(agent.memories) == ["actor"] and parts[0]["memory"].shape[-1] == 8
    before = copies(agent.parameters())
    for part in parts:
        agent.learn(part, agent.frames + part.numel())
    assert all(not torch.equal(old, new) for old, new in zip(before, agent.parameters()))


@exhaustive("name", ["sac", "ppo"])
def test_a_restored_agent_goes_on_alike(name: str) -> None:
    env = Coins(8)
    agent, other = (small(env, name, ["state"], normalize_observations=True) for _ in range(2))
    parts = list(islice(batches(env, agent), 4))
    for part in parts[:2]:
        agent.learn(part, agent.frames + part.numel())
    assert equal(*both_go_on(agent, other, parts[2:], [agent.frames + k * part.numel() for k in (1, 2)]))


def test_central_critics_take_the_states_of_all() -> None:
    options = {"num_robots": 3, "num_obstacles": 1, "min_start_goal_dis": 5.0, "max_steps": 12, "state": True}
    env = envs.make("marinenav", num_worlds=3, **options)
    agent = small(env, "ppo", ["state"], critic="central")
    before = copies(agent.parameters())
    for part in islice(batches(env, agent), 2):
        assert agent.learn(part, agent.frames + int(part["active"].sum()))
    assert all(not torch.equal(old, new) for old, new in zip(before, agent.parameters()))


def test_hidden_keys_do_not_make_another_world() -> None:
    interface = Interface.of(Coins(keyed=True))
    assert difference(interface.with_critic_inputs(["coin"]), interface) is None


@pytest.mark.parametrize(
    ("name", "inputs", "options", "message"),
    [
        ("ppo", ["stat"], {}, r"agent\.critic_inputs: the world shows no 'stat', it shows observation, state$"),
        ("sac", [], {}, r"critic_inputs \[\] names nothing new"),
        ("sac", ["observation"], {}, "names nothing new"),
        ("ppo", ["state"], {"shared_layers": 1}, "shares no layers, give shared_layers=0"),
        ("ppo", ["state"], {"symmetry": "augment"}, "symmetry=augment mirrors what actors see"),
        ("td3", ["state"], {"network": "a:B"}, "critic_inputs is for critics of ours"),
        ("acqn", ["state"], {"candidates": 4}, r"critic_inputs needs candidates=1 and cvar=1\.0"),
        ("pqn", ["state"], {}, "critic_inputs: unknown key"),
    ],
)
def test_what_cannot_be_is_refused(name: str, inputs: list[str], options: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, small, Coins(), name, inputs, **options)


def test_keys_that_a_world_lacks_or_needs_are_refused() -> None:
    marinenav, message = envs.make("marinenav", num_worlds=1), "shows observation, self, objects, mask; env.state=true"
    refused(ConfigError, rf"shows no 'state', it {message}", small, marinenav, "ppo", ["state"])
    message = "the actor sees what it does not name, and it names all keys"
    refused(ConfigError, message, small, Coins(keyed=True), "ppo", ["seen", "coin"])
