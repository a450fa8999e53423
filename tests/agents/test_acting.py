"""How every agent acts: greedily, exploring, within bounds and masks, on any kind of observation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.agents.interface import Interface
from rlstack.data.flatten import flatten_agents
from rlstack.losses import dqn
from tests.agents.small_agents import (
    CASES,
    CONTINUOUS,
    DISCRETE,
    FRESH,
    ON_POLICY,
    Decisions,
    copies,
    equal,
    learn,
    options_of,
    plain,
    small,
    take_empty_masks,
)
from tests.exhaustive import exhaustive


def act(agent: Any, env: Decisions, explore: bool, *lead: int) -> Tensor:
    return agent.policy(explore)(env.draw(*lead))["action"]


@pytest.mark.parametrize(("name", "discrete"), CASES)
def test_greedy_is_deterministic_and_exploring_varies(name: str, discrete: bool) -> None:
    env = plain(discrete)
    agent = small(env, name=name, **({"epsilon": 0.2} if name == "rainbow" else {}))  # its noise stays between updates
    learn(agent, env, rounds=1)
    seen, greedy, exploring = env.draw(200), agent.policy(explore=False), agent.policy(explore=True)
    first, random = greedy(seen.clone())["action"], torch.get_rng_state()
    assert torch.equal(greedy(seen.clone())["action"], first)
    assert torch.equal(random, torch.get_rng_state()), "greedy draws no random numbers"
    assert not torch.equal(exploring(seen.clone())["action"], exploring(seen.clone())["action"])
    assert first.shape == ((200,) if discrete else (200, 2)) and not first.requires_grad
    torch.testing.assert_close(greedy(seen[:7].clone())["action"], first[:7])
    torch.testing.assert_close(greedy(seen[3].clone())["action"], first[3])


@pytest.mark.parametrize("squash", ["tanh", "arctan"])
def test_the_published_soft_actor_critic_draws_its_greedy_actions(squash: str) -> None:
    env = plain(discrete=False)
    agent = small(env, name="sac", greedy="sample", squash=squash)
    seen = env.draw(5)
    policy = agent.policy(explore=False)
    assert not torch.equal(policy(seen.clone())["action"], policy(seen.clone())["action"])


# -- bounds ------------------------------------------------------------------------------------------------------------


@exhaustive("name", CONTINUOUS)
@exhaustive("random_frames", [0, 1000])
def test_actions_keep_to_the_envs_bounds_and_fill_them(name: str, random_frames: int) -> None:
    low, high = torch.tensor([-2.0, 10.0]), torch.tensor([4.0, 10.5])
    env = Decisions(Bounded(-2.0, 2.0, shape=(3,)), Bounded(low, high, shape=(2,)))
    wide = {"noise": 2.0} if name in ("ddpg", "td3") else {"noise_high": 2.0} if name == "acqn" else {}
    agent = small(env, name=name, **wide, **({} if name in FRESH else {"random_frames": random_frames}))
    learn(agent, env)
    for explore in (True, False):
        action = act(agent, env, explore, 300)
        assert (action >= low).all() and (action <= high).all()
        if explore:
            assert (action.amin(0) < low + 0.3 * (high - low)).all()
            assert (action.amax(0) > high - 0.3 * (high - low)).all()
    inside = agent.interface.from_env(action)
    assert inside.abs().max() <= 1 + 1e-4
    torch.testing.assert_close(agent.interface.to_env(inside), action)
    corners = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0]])
    torch.testing.assert_close(agent.interface.to_env(corners), torch.stack((low, high, (low + high) / 2)))


def test_actions_are_remembered_as_the_agent_has_them() -> None:
    env = Decisions(Bounded(-2.0, 2.0, shape=(3,)), Bounded(10.0, 30.0, shape=(2,)))
    agent = small(env, name="td3", n_step=1)
    data = env.experience(agent, 3, 10)
    agent.learn(data, 30)
    remembered = agent.replay.storage.get(torch.arange(30))
    torch.testing.assert_close(remembered["action"], (data["action"].flatten(0, 1) - 20) / 10)


def test_a_number_with_a_single_value_is_harmless() -> None:
    interface = Interface.of(Decisions(Unbounded(3), Bounded(torch.tensor([2.0, 0.0]), torch.tensor([2.0, 4.0]))))  # type: ignore[arg-type]
    acted = torch.tensor([[0.7, 0.5], [-1.0, 1.0]])
    there = interface.to_env(acted)
    assert there.tolist() == [[2, 3], [2, 4]]
    assert interface.from_env(there).tolist() == [[0, 0.5], [0, 1]]


def test_infinite_bounds_leave_other_numbers_of_an_action_scaled() -> None:
    low, high = torch.tensor([0.0, -torch.inf, 2.0]), torch.tensor([5.0, torch.inf, torch.inf])
    interface = Interface.of(Decisions(Unbounded(3), Bounded(low, high)))  # type: ignore[arg-type]
    actions = torch.tensor([[-1.0, -1.0, 0.5], [0.2, 0.3, 1.0]])
    expected = torch.tensor([[0.0, -1.0, 0.5], [3.0, 0.3, 1.0]])  # 2.5 + 2.5 a for the first alone
    torch.testing.assert_close(interface.to_env(actions), expected)
    torch.testing.assert_close(interface.from_env(expected), actions)


def test_infinite_bounds_leave_actions_as_they_are() -> None:
    interface = Interface.of(Decisions(Unbounded(3), Bounded(-torch.inf, torch.inf, shape=(2,))))  # type: ignore[arg-type]
    action = torch.randn(5, 2)
    assert torch.equal(interface.to_env(action), action) and torch.equal(interface.from_env(action), action)


# -- masks and several choices -----------------------------------------------------------------------------------------

PER_QUANTILE = {"target_action": "per_quantile"}


@pytest.mark.parametrize("name", DISCRETE)
@exhaustive("random_frames", [0, 1000])
def test_forbidden_actions_are_never_chosen(name: str, random_frames: int) -> None:
    env = Decisions(Bounded(-2.0, 2.0, shape=(3,)), Categorical(4, shape=()), masked=True)
    own = {} if name in FRESH else options_of(name, random_frames=random_frames, n_step=3, epsilon=0.5)
    agent = small(env, name=name, **own)
    learn(agent, env)
    for explore in (True, False):
        assert (act(agent, env, explore, 40, 20) != 0).all()
    assert set(act(agent, env, True, 40, 20).unique().tolist()) == {1, 2, 3}


@exhaustive(("name", "own"), [("dqn", {}), ("dqn", {"double": False}), ("iqn", {}), ("iqn", PER_QUANTILE), ("sac", {})])
def test_targets_ignore_forbidden_actions(name: str, own: dict[str, Any]) -> None:
    """Checks that a target ignores the networks' outputs for a forbidden next action."""
    env = Decisions(Bounded(-2.0, 2.0, shape=(3,)), Categorical(4, shape=()), masked=True)
    agent = small(env, name=name, n_step=1, **own)
    batch, found = env.experience(agent, 1, 16)[0], []
    tau = torch.rand(16, 8)
    for _ in range(2):
        found.append(agent.loss.target_quantiles(batch, tau) if name == "iqn" else agent.loss.target_value(batch))
        for network in [*agent.networks.values(), *(target.network for target in agent.targets.values())]:
            if hasattr(network, "output"):
                network.output.bias.data[0] += 50
    torch.testing.assert_close(*found)


def test_rainbow_evaluates_allowed_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Decisions(Bounded(-2.0, 2.0, shape=(3,)), Categorical(4, shape=()), masked=True)
    agent = small(env, name="rainbow")
    batch = env.experience(agent, 1, 64)[0]
    seen: list[Tensor] = []

    def spy(values: Tensor, action: Tensor, inner: Any = dqn._of_action) -> Tensor:
        seen.append(action)
        return inner(values, action)

    monkeypatch.setattr(dqn, "_of_action", spy)
    agent.loss.target_distribution(batch)
    assert (seen[0] != 0).all() and len(seen[0].unique()) > 1


@pytest.mark.parametrize("name", DISCRETE)
def test_states_that_allow_nothing_do_no_harm(name: str) -> None:
    """Agents whose episode has ended often show an empty mask, in the last state and while they wait."""
    env = Decisions(Bounded(-2.0, 2.0, shape=(3,)), Categorical(4, shape=()), masked=True)
    own = {"epsilon": 0.5, "n_step": 1} if name not in FRESH else {}
    agent = small(env, name=name, **own | ({"target_action": "per_quantile"} if name == "iqn" else {}))
    take_empty_masks(agent, env)


def test_random_actions_are_uniform_over_what_is_allowed() -> None:
    torch.manual_seed(0)
    mask = torch.tensor([True, False, True, False, True])
    agent = small(Decisions(Bounded(-2.0, 2.0, shape=(3,)), Categorical(5), True), name="dqn", epsilon=0.5)
    fourth = torch.full((20_000,), 4)
    drawn = agent.epsilon_greedy(lambda: fourth, torch.zeros(20_000, 3), mask.expand(20_000, 5))
    shares = torch.bincount(drawn, minlength=5) / 20_000
    torch.testing.assert_close(shares, torch.tensor([1, 0, 1, 0, 4]) / 6, rtol=0, atol=0.02)


@pytest.mark.parametrize("name", ON_POLICY)
@pytest.mark.parametrize("masked", [False, True])
@exhaustive("counts", [(3, 2, 4), (5,)])
def test_several_choices_at_once(name: str, masked: bool, counts: tuple[int, ...]) -> None:
    env = Decisions(Bounded(-2.0, 2.0, shape=(3,)), MultiCategorical(torch.tensor(counts)), masked)
    agent = small(env, name=name)
    learn(agent, env)
    for explore in (True, False):
        action = act(agent, env, explore, 30, 10)
        assert action.shape == (30, 10, len(counts)) and (action < torch.tensor(counts)).all()
        assert not masked or (action > 0).all()
    random = agent.interface.random_action((500,), torch.device("cpu"), env.allowed.expand(500, -1) if masked else None)
    random = random.reshape(500, -1)
    assert (random.amax(0) == torch.tensor(counts) - 1).all() and (random.amin(0) == int(masked)).all()


def test_a_choice_whose_env_wants_a_dimension_gets_it() -> None:
    env = Decisions(Bounded(-2.0, 2.0, shape=(3,)), Categorical(4, shape=(1,)))
    agent = small(env, name="dqn", epsilon=0.5)
    assert act(agent, env, True, 6).shape == (6, 1)
    learn(agent, env)


# -- observations ------------------------------------------------------------------------------------------------------

STRUCTURED: dict[str, TensorSpec] = {
    "dict": Composite(
        {
            "pair": Bounded(-1.0, 1.0, shape=(2, 3)),
            "inner": Composite({"number": Unbounded(()), "flags": Binary(2, dtype=torch.bool)}),
            "choice": Categorical(5, shape=()),
        }
    ),
    "objects": Composite(
        {"self": Unbounded(7), "objects": Bounded(-1.0, 1.0, shape=(5, 4)), "mask": Binary(5, dtype=torch.bool)}
    ),
    "image": Bounded(0, 255, shape=(3, 40, 40), dtype=torch.uint8),
}


@exhaustive(("name", "discrete"), CASES)
@exhaustive("kind", ["dict", "objects"])
def test_structured_observations(name: str, discrete: bool, kind: str) -> None:
    action = Categorical(4, shape=()) if discrete else Bounded(-1.0, 1.0, shape=(2,))
    env = Decisions(STRUCTURED[kind], action)
    agent = small(env, name=name, normalize_observations=True, **({"candidates": 4} if name == "acqn" else {}))
    learn(agent, env)
    action = act(agent, env, False, 3, 4)
    assert action.shape == ((3, 4) if discrete else (3, 4, 2))


def test_candidates_are_compared_on_images_and_on_a_single_observation() -> None:
    for seen in (STRUCTURED["image"], Bounded(-1.0, 1.0, shape=(3,)), STRUCTURED["objects"]):
        env = Decisions(seen, Bounded(-1.0, 1.0, shape=(2,)))
        agent = small(env, candidates=4)
        learn(agent, env, rounds=1)
        policy, several = agent.policy(explore=False), env.draw(2, 3)
        together = policy(several.clone())["action"]
        assert together.shape == (2, 3, 2)
        torch.testing.assert_close(policy(several[1, 2].clone())["action"], together[1, 2], rtol=0, atol=1e-5)


# -- several agents ----------------------------------------------------------------------------------------------------


@exhaustive(("name", "discrete"), CASES)
def test_several_robots_of_which_some_are_inactive(name: str, discrete: bool) -> None:
    env = envs.make("marinenav", num_worlds=3, num_robots=3, continuous_actions=not discrete)
    agent: Any = small(env, name=name, inputs="raw", normalize_observations=True)
    batch = env.rollout(8, agent.policy(explore=True), break_when_any_done=False)
    flat = flatten_agents(batch, agent.interface.group)
    flat["active"][::2, 4:] = False
    flat["next", "done"][::2, 3:] = True
    active = int(flat["active"].sum())
    poisoned = flat.clone()
    poisoned["next", "reward"][~flat["active"]] = 1e6  # what nobody may learn from
    outcomes = []
    for data in (flat, poisoned):
        each: Any = small(env, name=name, inputs="raw", normalize_observations=True)
        torch.manual_seed(0)
        each.learn(data, active)
        outcomes.append(copies(each.parameters()))
        assert each.updates > 0
    assert equal(*outcomes)


# -- Actions that mix numbers and choices: as a vector, in the env's own form, and learned by PPO and A2C ------------


def action_spec(*lead: int) -> Composite:
    parts = {
        "button": Categorical(3, shape=lead),
        "axes": Bounded(0.0, 4.0, shape=(*lead, 2)),
        "more": MultiCategorical([2, 4], shape=(*lead, 2)),
    }
    return Composite(parts, shape=lead)


class Signs(EnvBase):
    """One decision an episode: a sign is shown, which the button must name and half of which the axis must be.

    Buttons 0 and 1 stand for -1 and 1; button 2 is never allowed and costs much.
    """

    def __init__(self, num_worlds: int = 64) -> None:
        super().__init__(batch_size=[num_worlds])
        lead = (num_worlds,)
        self.lead = lead
        seen = {"observation": Unbounded((*lead, 1)), "action_mask": Binary(3, shape=(*lead, 3), dtype=torch.bool)}
        self.observation_spec = Composite(seen, shape=lead)
        parts = {"axis": Bounded(-1.0, 1.0, shape=(*lead, 1)), "button": Categorical(3, shape=lead)}
        self.action_spec = Composite({"action": Composite(parts, shape=lead)}, shape=lead)
        self.reward_spec = Composite({"reward": Unbounded((*lead, 1))}, shape=lead)
        ends = {name: Binary(1, shape=(*lead, 1), dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        self.done_spec = Composite(ends, shape=lead)
        self.sign = torch.ones(lead)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        self.sign = torch.randint(2, self.lead) * 2.0 - 1
        mask = torch.tensor([True, True, False]).expand(*self.lead, -1)
        return TensorDict({"observation": self.sign[:, None], "action_mask": mask}, self.batch_size)

    def reward(self, action: TensorDictBase) -> Tensor:
        """Returns the reward, at most 1."""
        axis, button = action["axis"][:, 0], action["button"]
        right = (button == (self.sign > 0)).float() - 9 * (button == 2).float()
        return right - (axis - self.sign / 2).square()

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        reward, done = self.reward(tensordict["action"])[:, None], torch.ones(*self.lead, 1, dtype=torch.bool)
        ends = {"done": done, "terminated": done, "truncated": ~done}
        return self._reset().update({"reward": reward, **ends})

    def _set_seed(self, seed: int | None) -> None:
        pass


def test_a_dict_of_numbers_and_choices_is_one_vector() -> None:
    env: Any = Decisions(Unbounded(3), action_spec())
    hybrid = Interface.of(env).hybrid
    assert hybrid is not None and hybrid.numbers == 2 and hybrid.counts == (3, 2, 4)
    vector = torch.tensor([[-1.0, 0.5, 2, 1, 3], [7.0, -7.0, 0, 0, 2]])
    action = hybrid.to_env(vector)
    assert action["axes"].tolist() == [[0, 3], [4, 0]]  # within its bounds
    assert action["button"].tolist() == [2, 0] and action["more"].tolist() == [[1, 3], [0, 2]]
    assert action_spec(2).is_in(action)
    assert hybrid.from_env(action).tolist() == [[-1, 0.5, 2, 1, 3], [1, -1, 0, 0, 2]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_agents_learn_numbers_and_choices(name: str) -> None:
    torch.manual_seed(0)
    env = Signs()
    rate = {"ppo": {"lr": 5e-3, "epochs": 4, "minibatch_size": 128}, "a2c": {"lr": 5e-3}}[name]
    agent = small(env, 10**6, name, gamma=0.0, **rate)
    for _ in range(60 if name == "ppo" else 200):
        batch = env.rollout(4, agent.policy(explore=True), break_when_any_done=False)
        agent.learn(flatten_agents(batch, None), 1)
    greedy = agent.policy(explore=False)(env.reset())
    assert env.full_action_spec["action"].is_in(greedy["action"])
    assert env.reward(greedy["action"]).mean() > 0.9


def test_a_memory_acts_and_learns_too() -> None:
    env = Signs(8)
    agent = small(env, name="ppo", recurrent={"kind": "lstm", "size": 8, "sequence_length": 2})
    batch = env.rollout(4, agent.policy(explore=True), break_when_any_done=False)
    metrics = agent.update_once(flatten_agents(batch, None))
    assert metrics and all(torch.isfinite(torch.as_tensor(value)).all() for value in metrics.values())
