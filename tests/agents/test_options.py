"""Options that every agent has: precision of the forward passes, split batches, update frequency, targets."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical, Unbounded

from rlstack.agents.on_policy import LOG_STD_RANGE
from rlstack.agents.optimizer import Optimizer
from rlstack.agents.sac import LOG_ALPHA_RANGE
from rlstack.data.normalizers import ObservationNormalizer, RewardScaler
from tests.agents.small_agents import (
    CASES,
    DISCRETE,
    FRESH,
    REMEMBERING,
    Decisions,
    copies,
    equal,
    learn,
    options_of,
    plain,
    small,
)
from tests.exhaustive import exhaustive

OFF_POLICY = [(name, discrete) for name, discrete in CASES if name not in FRESH]


# -- precision ---------------------------------------------------------------------------------------------------------


MEMORY = {"recurrent": {"kind": "gru", "size": 4, "sequence_length": 3}}
RECURRENT = [(name, name in DISCRETE, MEMORY) for name in REMEMBERING]


@exhaustive(("name", "discrete", "own"), [*((*case, {}) for case in CASES), *RECURRENT])
@exhaustive("precision", ["bfloat16", "float16"])
def test_low_precision_learns(name: str, discrete: bool, own: dict[str, Any], precision: str) -> None:
    action = Categorical(4, shape=()) if discrete else Bounded(-1.0, 1.0, shape=(2,))
    env = Decisions(Bounded(-2.0, 2.0, shape=(3,)), action, masked=discrete)
    batch = {} if not own or name in FRESH else {"batch_size": 15}
    agent = small(env, name=name, precision=precision, **own, **batch)
    before = copies(agent.parameters())
    learn(agent, env, 4)  # the first steps may be left out, until the loss's scale fits
    moved = [not torch.equal(old, new) for old, new in zip(before, agent.parameters())]
    assert sum(moved) > 0.8 * len(moved)
    assert all(parameter.dtype == torch.float32 for parameter in agent.parameters())


@exhaustive(("name", "discrete"), CASES)
def test_low_precision_stays_close_to_full_precision(name: str, discrete: bool) -> None:
    losses = []
    for precision in ("float32", "bfloat16"):
        env = plain(discrete)
        agent = small(env, name=name, precision=precision)
        torch.manual_seed(1)
        metrics = agent.update_once(env.experience(agent, 2, 32))
        losses.append(float(metrics.get("loss/critic", metrics.get("loss/value", 0.0))))
    assert losses[0] != losses[1] and losses[1] == pytest.approx(losses[0], rel=0.1)


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_in_low_precision_a_policy_acts_as_it_learns(name: str, discrete: bool) -> None:
    env = plain(discrete)
    agent = small(env, name=name, precision="bfloat16")
    batch = agent.rollout(env.experience(agent, 2, 32))
    with torch.autocast("cpu", torch.bfloat16):
        distribution, values = agent.policy_and_value(batch)
    assert torch.allclose(distribution.log_prob(batch["action"]), batch["log_prob"], atol=1e-5)
    assert torch.allclose(values.float(), batch["value"], atol=1e-5)
    assert not torch.allclose(agent.critic(batch["observation"])[:, 0], batch["value"], atol=1e-5)


@pytest.mark.parametrize("name", [name for name in DISCRETE if name not in FRESH])
def test_masked_choices_can_be_imitated_in_low_precision(name: str) -> None:
    agent = small(plain(discrete=True), name=name)
    observation, mask = torch.randn(8, 3), (torch.arange(4) > 0).expand(8, 4)
    with torch.autocast("cpu", torch.float16):
        loss = agent.imitation_loss(observation, torch.ones(8, dtype=torch.int64), mask)
    assert 0 < loss.item() < 10


def test_a_step_whose_gradients_overflow_is_left_out() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = Optimizer([[parameter]], 0.1, max_grad_norm=1.0, precision="float16")
    scale, batch = optimizer._scaler.get_scale(), TensorDict({"x": torch.ones(4)}, [4])
    factors = iter([1e38, 1.0])

    def loss(part: TensorDict) -> tuple[Tensor, dict[str, Tensor]]:
        return (next(factors) * parameter.sum() * part["x"].mean(), {})

    optimizer.minimize(loss, batch)
    assert torch.equal(parameter.detach(), torch.ones(3)) and optimizer._scaler.get_scale() == scale / 2
    optimizer.minimize(loss, batch)
    torch.testing.assert_close(parameter.detach(), torch.full((3,), 0.9))


# -- split batches -----------------------------------------------------------------------------------------------------


def gradients(agent: Any, batch: TensorDict) -> list[Tensor]:
    """Returns the gradients of every optimiser after one update that leaves the parameters unchanged."""
    for optimizer in agent.optimizers.values():
        optimizer.lr = 0.0
    if hasattr(agent.loss, "draw"):
        agent.loss.draw = lambda like: torch.full_like(like, 0.3)
    if hasattr(agent.loss, "draw_levels"):
        levels = torch.linspace(0.1, 0.9, agent.config.num_quantiles, dtype=torch.float64)
        agent.loss.draw_levels = lambda like: levels.expand(len(like), -1)
    agent.resample = lambda: None
    if hasattr(agent, "for_step"):
        agent.optimizer.minimize(agent.objective, agent.for_step(batch))
    else:
        agent.update(batch)
    return [parameter.grad for parameter in agent.parameters() if parameter.grad is not None]


@exhaustive(("name", "discrete"), CASES)
@exhaustive("max_grad_norm", [None, 0.1])
def test_a_split_batch_gives_the_gradients_of_the_whole(name: str, discrete: bool, max_grad_norm: float | None) -> None:
    norms = dict.fromkeys(("max_grad_norm", "max_grad_norm_actor", "max_grad_norm_critic"), max_grad_norm)
    own = options_of(name, **norms, target_noise=0.0, n_step=1, normalize_advantage=True)
    env, found = plain(discrete, torch.float64), []
    for accumulate in (1, 4):
        agent = small(env, name=name, accumulate=accumulate, **own)
        torch.manual_seed(1)
        data = env.experience(agent, 2, 16)
        batch = agent.rollout(data) if name in FRESH else data.exclude("active").reshape(-1)
        if name == "rainbow":
            batch["priority_weight"], batch["index"] = torch.rand(32, dtype=torch.float64), torch.arange(32)
            agent.replay.extend(batch.exclude("priority_weight", "index"))
        found.append(gradients(agent, batch))
    assert len(found[0]) > 4 and any((gradient != 0).any() for gradient in found[0])
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


# -- replay and cadence ------------------------------------------------------------------------------------------------


def followers(agent: Any) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Returns the parameters of networks and of their targets."""
    pairs = [(agent.networks[name], target.network) for name, target in agent.targets.items()]
    if agent.config.name == "acqn":
        loss = agent.loss
        pairs = [(agent.actor, loss.target_actor_network), (agent.critic, loss.target_critic_network)]
    return [(list(network.parameters()), list(target.parameters())) for network, target in pairs]


@exhaustive(("name", "discrete"), OFF_POLICY, quick=2)
@exhaustive("every", [None, 40])
def test_targets_follow_by_tau_and_by_period(name: str, discrete: bool, every: int | None) -> None:
    env = plain(discrete)
    agent = small(env, name=name, target_tau=0.25, target_every=every, frames_per_update=20, n_step=1)
    pairs = followers(agent)
    assert pairs and not any(parameter.requires_grad for _, target in pairs for parameter in target)
    for frames in range(20, 121, 20):
        before = [copies(target) for _, target in pairs]
        agent.learn(env.experience(agent, 1, 20), frames)
        assert agent.updates == frames // 20
        for (online, now), old in zip(pairs, before):
            if every is not None and frames % every:
                assert equal(now, old)
                continue
            for average, former, value in zip(now, old, online):
                torch.testing.assert_close(average, 0.75 * former + 0.25 * value.detach())


@pytest.mark.parametrize(("name", "discrete"), OFF_POLICY)
def test_the_first_frames_are_random(name: str, discrete: bool) -> None:
    env = plain(discrete)
    agent = small(env, name=name, random_frames=100)
    for frames, uniform in ((0, True), (99, True), (100, False)):
        agent.set_frames(frames)
        agent.explore = lambda observation, mask=None: torch.full(observation.shape[:1] + (() if discrete else (2,)), 1)
        action = agent.policy(explore=True)(env.draw(4000))["action"]
        if not uniform:
            assert (action == 1).all()
        elif discrete:
            shares = torch.bincount(action, minlength=4) / 4000
            torch.testing.assert_close(shares, torch.full((4,), 0.25), rtol=0, atol=0.04)
        else:
            assert action.abs().max() <= 1 and (action.std(0) - 3**-0.5).abs().max() < 0.03
            assert action.mean(0).abs().max() < 0.05


@exhaustive("name", ["dqn", "rainbow", "qrdqn", "iqn"])
def test_layer_norm_bounds_the_values_far_from_the_data(name: str) -> None:
    env = plain(discrete=True)
    near = env.draw(64)["observation"]
    growth = {}
    for layer_norm in (False, True):
        agent = small(env, name=name, layer_norm=layer_norm)
        learn(agent, env)
        spread = [agent.values_as_logits(scale * near).std().item() for scale in (1.0, 1e4)]
        growth[layer_norm] = spread[1] / spread[0]
    assert growth[True] < 10 and (growth[False] > 100 or name == "rainbow")  # whose values lie between its outer atoms


def test_the_temperature_is_learned_towards_its_entropy() -> None:
    for target, up in ((50.0, True), (-50.0, False)):
        env = plain(discrete=False)
        agent = small(env, name="sac", target_entropy=target, lr_alpha=0.01, alpha=0.2)
        learn(agent, env)
        assert (agent.temperature().item() > 0.2) == up
    fixed = small(plain(discrete=True), name="sac", learn_alpha=False, alpha=0.2)
    learn(fixed, plain(discrete=True))
    assert fixed.temperature().item() == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["td3", "sac", "tqc"])
def test_the_actor_may_wait_for_its_critics(name: str) -> None:
    """The targets of TD3 wait with it, and the temperature of the others."""
    env = plain(discrete=False)
    agent = small(env, name=name, actor_every=3, frames_per_update=20, n_step=1)
    late = [agent.actor, agent.targets["critic_1"].network if name == "td3" else agent.temperature]
    moved = []
    for frames in range(20, 181, 20):
        before = [copies(list(network.parameters())) for network in (*late, agent.critics[1])]
        metrics = agent.learn(env.experience(agent, 1, 20), frames)
        after = [copies(list(network.parameters())) for network in (*late, agent.critics[1])]
        moved.append([not any(map(torch.equal, old, new)) for old, new in zip(before, after)])
        assert ("loss/actor" in metrics) == moved[-1][0]
    assert moved == [[True, True, True], [False, False, True], [False, False, True]] * 3


@pytest.mark.parametrize("name", ["td3", "sac"])
def test_what_the_actor_reports_is_kept_until_it_learns_again(name: str) -> None:
    env = plain(discrete=False)
    agent = small(env, name=name, actor_every=2, n_step=1, frames_per_update=8)
    metrics = agent.learn(env.experience(agent, 4, 8), 32)  # four updates, of which the last has no step of the actor
    assert {"loss/actor", "grad/actor", "loss/critic"} <= metrics.keys()


@pytest.mark.slow
def test_the_temperature_stays_where_nothing_can_be_chosen() -> None:
    """A single legal action has no entropy, whatever the temperature is."""
    env = Decisions(Bounded(-2.0, 2.0, shape=(3,)), Categorical(2, shape=()), masked=True)
    agent = small(env, name="sac", lr_alpha=0.1, alpha=0.2)
    learn(agent, env, 4)
    assert agent.updates > 5 and agent.temperature().item() == pytest.approx(0.2)


def test_the_entropy_aimed_at_follows_the_legal_actions() -> None:
    agent = small(plain(discrete=True), name="sac")
    mask = torch.tensor([[True, True, True, False], [False, True, False, False]])
    _, info = agent.loss.actor_loss(TensorDict({"observation": torch.randn(2, 3), "action_mask": mask}, [2]))
    assert info["target_entropy"].item() == pytest.approx(0.89 * (math.log(3) + math.log(1)) / 2)


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in FRESH), ("ppo", {"rnd": {"coefficient": 0.5}}), ("ppo", MEMORY), ("a2c", MEMORY)],
)
def test_batches_with_little_or_nothing_to_learn_from(name: str, options: dict[str, Any]) -> None:
    env = plain(discrete=True)
    agent = small(env, name=name, normalize_observations=True, normalize_rewards=True, **options)
    batches = [env.experience(agent, 2, 3) for _ in range(2)]
    agent.interface = dataclasses.replace(agent.interface, group="agents")
    for count, data in enumerate(batches):
        data["active"][:] = False
        data["active"][:1, :count] = True
        metrics = agent.learn(data, 1)
        assert all(torch.isfinite(torch.as_tensor(value)).all() for value in metrics.values())
    assert all(torch.isfinite(parameter).all() for parameter in agent.parameters())


def test_ppo_may_learn_values_first() -> None:
    """As after imitation: the policy stays until the value function has been trained, and then moves."""
    env = plain(discrete=True)
    agent = small(env, name="ppo", value_first=50, lr=0.01)
    before = {name: copies(network.parameters()) for name, network in agent.networks.items()}
    moved = []
    for frames in (40, 80):
        agent.learn(env.experience(agent, 2, 20), frames)
        after = {name: copies(network.parameters()) for name, network in agent.networks.items()}
        moved.append({name: not all(map(torch.equal, before[name], after[name])) for name in before})
    assert moved == [{"actor": False, "critic": True}, {"actor": True, "critic": True}]


@pytest.mark.parametrize(
    ("name", "minibatch", "count", "sizes"),
    [
        ("ppo", 20, 40, [20, 20]),
        ("ppo", 20, 41, [21, 20]),
        ("ppo", 20, 51, [17] * 3),
        ("ppo", 20, 49, [25, 24]),
        ("ppo", 20, 19, [19]),
        ("ppo", 2, 7, [3, 2, 2]),  # never an entry by itself
        ("ppo_published", 20, 51, [20, 20, 11]),
    ],
)
def test_minibatches_are_of_almost_equal_sizes(name: str, minibatch: int, count: int, sizes: list[int]) -> None:
    env, seen = plain(discrete=True), []
    agent = small(env, name=name, epochs=1, minibatch_size=minibatch)
    agent.for_step = lambda batch, then=agent.for_step: (seen.append(len(batch)), then(batch))[1]
    agent.learn(env.experience(agent, 1, count), count)
    assert seen == sizes


@pytest.mark.parametrize("n_step", [1, 3])
def test_each_reward_of_a_sum_is_clipped_not_the_sum(n_step: int) -> None:
    """Rewards of 1 and one of 1000 standard deviations; without discount the sums hold n rewards each."""
    env = plain(discrete=True)
    agent = small(env, name="dqn", normalize_rewards=True, n_step=n_step, gamma=1.0)
    data = env.experience(agent, 1, 12)
    data["next", "reward"][:] = 1.0
    data["next", "reward"][0, 5] = 1000.0
    for end in ("done", "terminated"):
        data["next", end][:] = False
    agent.reward_scaler.update = lambda *_, **__: None
    agent.extend(data)
    following = agent.prepared(agent.replay[: len(agent.replay)])["next"]
    counted = following["reward"].unique()
    torch.testing.assert_close(counted, torch.tensor([1.0 * n_step, 10.0 + n_step - 1]), rtol=0, atol=1e-3)


# -- Learned scales stay within their bounds, and can return from them -----------------------------------------------


@pytest.mark.parametrize("name", ["ppo", "a2c"])
@pytest.mark.parametrize("end", LOG_STD_RANGE)
def test_the_spread_of_a_policy(name: str, end: float) -> None:
    env = plain(discrete=False)
    agent: Any = small(env, name=name)
    batch = agent.rollout(env.experience(agent, 2, 8))
    agent.actor.log_std.data.fill_(3 * end)
    agent.optimizer.minimize(agent.objective, agent.for_step(batch))
    assert agent.actor.log_std.tolist() == [end, end]
    distribution, _ = agent.policy_and_value(batch)
    assert torch.isfinite(distribution.log_prob(batch["action"])).all()


@pytest.mark.parametrize("target", [1e3, -1e3])
def test_the_temperature_of_sac(target: float) -> None:
    """With a target entropy out of reach, the temperature would otherwise grow (or shrink) without end."""
    env = plain(discrete=False)
    agent: Any = small(env, name="sac", target_entropy=target, lr_alpha=100.0)
    agent.update_once(env.experience(agent, 2, 8))
    end = LOG_ALPHA_RANGE[target > 0]
    assert agent.temperature.log_alpha.item() == end
    assert torch.isfinite(agent.temperature())


def test_the_variances_of_normalisers() -> None:
    """A constant observation has variance zero and a huge one a huge variance; the output stays within +-10."""
    for values in (torch.full((50, 2), 3.0), torch.full((50, 2), 1e30) * torch.tensor([[1.0, -1.0]])):
        normalizer = ObservationNormalizer(Unbounded((2,)))
        normalizer.update(values)
        scaled = normalizer(torch.cat((values, torch.zeros(1, 2), values + 1)))
        assert torch.isfinite(scaled).all() and scaled.abs().max() <= 10
    scaler = RewardScaler(0.99)
    scaler.moments.update(torch.zeros(10))
    assert scaler(torch.tensor([1e30, -1.0, 0.0])).tolist() == [10.0, -10.0, 0.0]
