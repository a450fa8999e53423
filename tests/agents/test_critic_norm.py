"""``critic_norm``, ``weight_norm`` and ``critic=categorical``: critics without target networks, and those of XQC."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchrl.modules import BatchRenorm1d

from rlstack.losses.ddpg import TD3Loss
from rlstack.networks.values import BatchNorm, BatchRenorm, running_statistics
from tests.agents.small_agents import copies, equal, learn, plain, small

AGENTS = ("ddpg", "td3", "sac")
NORM = {"critic_norm": "batch"}


def statistics(agent: Any) -> list[Tensor]:
    return [value for critic in agent.critics for value in running_statistics(critic)]


def learned(agent: Any, rounds: int = 3) -> None:
    learn(agent, plain(False), rounds)


@pytest.mark.parametrize("name", AGENTS)
def test_critics_learn_without_targets(name: str) -> None:
    agent = small(plain(False), name=name, **NORM)
    assert not agent.targets and len(statistics(agent)) == 6 * len(agent.critics)
    before, seen = copies(agent.parameters()), copies(statistics(agent))
    learned(agent)
    assert sum(not torch.equal(old, new) for old, new in zip(before, agent.parameters())) > 0.9 * len(before)
    assert not any(map(torch.equal, seen, statistics(agent)))


@pytest.mark.parametrize("name", AGENTS)
def test_statistics_run_on_with_the_critics_loss_alone(name: str) -> None:
    agent = small(plain(False), name=name, **NORM)
    learned(agent, 1)
    batch = agent.prepared(agent.sample())
    for critic in agent.critics:
        critic.train()  # as a policy that holds them may be told to
    before = copies(statistics(agent))
    agent.loss.actor_loss(batch)
    assert equal(before, statistics(agent))
    agent.loss.critic_loss(batch)
    assert not equal(before, statistics(agent))


@pytest.mark.parametrize(("name", "norm"), [("td3", "batch"), ("sac", "batch"), ("sac", "batch_targets")])
def test_predictions_of_an_agent_that_has_not_learned_yet_do_not_depend_on_the_batch(name: str, norm: str) -> None:
    agent = small(plain(False), name=name, critic_norm=norm)  # as one that was restored
    data, before = plain(False).experience(agent, 3, 8), copies(statistics(agent))
    whole, part = agent.predicted_returns(data), agent.predicted_returns(data[:1])
    torch.testing.assert_close(whole[:1], part)
    assert equal(before, statistics(agent))


def test_statistics_are_those_of_all_processes() -> None:
    agent = small(plain(False), name="td3", **NORM)
    agent.critic_optimizer.mean = lambda tensors: [torch.full_like(value, 0.5) for value in tensors]
    learned(agent, 1)
    assert all((value == 0.5).all() for value in statistics(agent))


def test_the_state_holds_the_statistics() -> None:
    agent, other = (small(plain(False), name="sac", **NORM) for _ in range(2))
    learned(agent)
    other.load_state_dict(agent.state_dict())
    assert equal(statistics(agent), statistics(other))
    (count,) = {
        int(layer.num_batches_tracked) for layer in agent.critics[0].modules() if isinstance(layer, BatchRenorm)
    }
    assert count == agent.updates


def test_td3_without_normalisation_bootstraps_from_its_own_networks() -> None:
    """Apart from the normalisation, one pass over both states equals targets that are copies."""
    agent = small(plain(False), name="td3", n_step=1)
    learned(agent, 1)
    agent.loss.target_noise = 0.0
    for target in agent.targets.values():
        target.copy()
    batch = agent.prepared(agent.sample())
    joint = TD3Loss(agent.actor, agent.critics, gamma=agent.config.gamma, target_noise=0.0, joint=True)
    torch.testing.assert_close(joint.critic_loss(batch)[0], agent.loss.critic_loss(batch)[0])


# -- XQC ---------------------------------------------------------------------------------------------------------------

XQC = {
    "critic_norm": "batch_targets",
    "critic": "categorical",
    "weight_norm": True,
    "critic_hidden": [12, 12],
    "num_atoms": 11,
}


def by_hand(critic: Any, observation: Tensor, action: Tensor) -> Tensor:
    """Returns the output of a critic whose layers normalise by the mean and variance of this batch."""
    x = torch.cat((observation, action), -1)
    for layer in critic.trunk:
        if isinstance(layer, BatchNorm):
            x = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-3).sqrt() * layer.weight + layer.bias
        elif isinstance(layer, nn.Linear):
            x = x @ layer.weight.T
        else:
            x = x.clamp(min=0)
    return x @ critic.output.weight.T + critic.output.bias


def test_critics_and_their_targets_see_both_states_as_one_batch() -> None:
    agent = small(plain(False), name="sac", n_step=1, critic_norm="batch_targets", critic_hidden=[12, 12])
    learned(agent)
    batch = agent.prepared(agent.sample())
    agent.loss.draw = torch.zeros_like
    observations = torch.cat((batch["observation"], batch["next", "observation"]))
    action, log_prob = agent.loss.action_and_log_prob(batch["next"])
    actions = torch.cat((batch["action"], action))
    targets = [by_hand(agent.targets[name].network, observations, actions)[16:] for name in agent.CRITICS]
    soft = torch.minimum(*targets) - agent.temperature() * log_prob
    wanted = batch["next", "reward"] + agent.config.gamma * soft * ~batch["next", "terminated"]
    values = [by_hand(critic, observations, actions)[:16] for critic in agent.critics]
    expected = sum((value - wanted).square().mean() for value in values)
    torch.testing.assert_close(agent.loss.critic_loss(batch)[0], expected, rtol=1e-4, atol=1e-5)


def test_running_statistics_are_those_of_the_trained_critics_alone() -> None:
    agent = small(plain(False), name="sac", **XQC)
    held = [value for target in agent.targets.values() for value in running_statistics(target.network)]
    first, seen = copies(held), copies(statistics(agent))
    learned(agent)
    assert equal(first, held) and not any(map(torch.equal, seen, statistics(agent)))
    batch, before = agent.prepared(agent.sample()), copies(statistics(agent))
    agent.loss.actor_loss(batch)
    assert equal(before, statistics(agent))


def test_running_statistics_approach_those_of_the_batches() -> None:
    layer, x = BatchNorm(3).double(), torch.randn(64, 3, dtype=torch.float64) * 2 + 1
    layer(x)
    torch.testing.assert_close(layer.running_mean, 0.01 * x.mean(0))
    torch.testing.assert_close(layer.running_var, 0.99 + 0.01 * x.var(0))
    with torch.no_grad():
        expected = (x - layer.running_mean) / (layer.running_var + 1e-3).sqrt()
        torch.testing.assert_close(layer.eval()(x), expected)


def test_all_rows_of_categorical_critics_keep_their_norm() -> None:
    agent = small(plain(False), name="sac", **XQC)
    learned(agent)
    layers = [layer for critic in agent.critics for layer in critic.modules() if isinstance(layer, nn.Linear)]
    assert len(layers) == 6 and [layer.out_features for layer in layers] == [12, 12, 11] * 2
    for layer in layers:
        torch.testing.assert_close(layer.weight.norm(dim=-1), torch.ones(len(layer.weight)))


def test_values_of_categorical_critics_are_means_of_distributions() -> None:
    agent = small(plain(False), name="sac", **XQC)
    observation, action = torch.rand(5, 3), torch.rand(5, 2)
    chances = [critic.eval()(observation, action).softmax(-1) for critic in agent.critics]
    atoms = torch.arange(11) - 5.0
    expected = sum(chance @ atoms for chance in chances) / 2
    torch.testing.assert_close(agent.predicted_values(observation, action), expected)


# -- layers ------------------------------------------------------------------------------------------------------------


def test_batch_renormalisation_is_torchrls_until_that_overshoots() -> None:
    """Checks ``x_hat r + d`` (Ioffe 2017) with r and d in full force after the warm-up; TorchRL then multiplies."""
    ours, theirs = BatchRenorm(3, warmup_steps=4).double(), BatchRenorm1d(3, warmup_steps=4).double()
    for _ in range(8):
        x = 0.5 * torch.randn(16, 3, dtype=torch.float64) + 1
        torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-12)
    std = (ours.running_var + ours.eps).sqrt()
    r = ((x.var(0, unbiased=False) + ours.eps).sqrt() / std).clamp(1 / 3, 3)
    d = ((x.mean(0) - ours.running_mean) / std).clamp(-5, 5)
    expected = (x - x.mean(0)) / (x.var(0, unbiased=False) + ours.eps).sqrt() * r + d
    torch.testing.assert_close(ours(x), expected, rtol=0, atol=1e-12)
    assert (theirs(x) - expected).abs().max() > 1e-3, "TorchRL counts no further: BatchRenorm is no longer needed"


@pytest.mark.parametrize("options", [NORM, {"layer_norm": True}])
@pytest.mark.parametrize("name", ["td3", "sac"])
def test_weights_of_hidden_units_keep_their_norm(name: str, options: dict[str, Any]) -> None:
    agent = small(plain(False), name=name, weight_norm=True, **options)
    weights = [layer.weight for critic in agent.critics for layer in critic.trunk if isinstance(layer, nn.Linear)]
    assert len(weights) == 4
    for name, target in agent.targets.items():
        assert equal(list(target.network.state_dict().values()), list(agent.networks[name].state_dict().values()))
    before = copies(weights)
    for weight in weights:
        torch.testing.assert_close(weight.norm(dim=-1), torch.ones(len(weight)))
    learned(agent)
    for old, weight in zip(before, weights):
        torch.testing.assert_close(weight.norm(dim=-1), torch.ones(len(weight)))
        assert not torch.equal(old, weight)


@pytest.mark.parametrize("kind", [BatchNorm, BatchRenorm])
def test_a_batch_without_finite_statistics_leaves_the_running_ones(kind: type[Any]) -> None:
    """One observation of 1e25 has an infinite variance, with which no later step would be sound."""
    layer = kind(2)
    layer(torch.randn(8, 2))
    before = copies(running_statistics(layer))
    layer(torch.cat((torch.randn(7, 2), torch.full((1, 2), 1e25))))
    assert equal(before, copies(running_statistics(layer)))
    layer(torch.randn(8, 2))
    assert not equal(before, copies(running_statistics(layer)))
