"""On the same batch, losses and gradients equal those of TorchRL's loss modules, in double precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import InteractionType, ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential
from tensordict.nn import TensorDictModule as Module
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal
from torchrl.modules import QValueActor, TanhNormal
from torchrl.objectives import (
    A2CLoss,
    ClipPPOLoss,
    CrossQLoss,
    DDPGLoss,
    DiscreteSACLoss,
    DQNLoss,
    SACLoss,
    TD3Loss,
    TQCLoss,
)

from rlstack.networks.values import BatchRenorm
from tests.agents.small_agents import plain, small

N, GAMMA = 32, 0.875
"""Numbers that single precision holds exactly: TorchRL keeps coefficients so."""
DOUBLE = torch.float64


def agent_and_batch(name: str, discrete: bool, **options: Any) -> tuple[Any, TensorDict]:
    """Returns an agent whose targets differ from its networks, and a flat batch of its own decisions."""
    off_policy: dict[str, Any] = {} if name in ("ppo", "a2c") else {"n_step": 1}
    if off_policy and options.get("critic_norm") != "batch":
        off_policy["target_tau"] = 0.5
    agent = small(plain(discrete, DOUBLE), name=name, gamma=GAMMA, **off_policy, **options)
    for target in agent.targets.values():
        for parameter in target.network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    batch = plain(discrete, DOUBLE).experience(agent, 1, N)[0]
    batch["next", "done"][:2] = True
    batch["next", "terminated"][:2] = torch.tensor([[True], [False]])
    return agent, batch


def gradients(value: Tensor, parameters: Iterable[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(parameters), retain_graph=True))


def same(ours: Tensor, theirs: Tensor, parameters: Iterable[Tensor], atol: float = 1e-12) -> None:
    """Asserts equal values, and equal gradients with respect to the shared parameters."""
    parameters = list(parameters)
    torch.testing.assert_close(ours, theirs.reshape(ours.shape), rtol=0, atol=atol)
    torch.testing.assert_close(gradients(ours, parameters), gradients(theirs, parameters), rtol=0, atol=atol)


def module(function: nn.Module, in_keys: list[str], out_keys: list[str]) -> Module:
    return Module(function, in_keys=in_keys, out_keys=out_keys)


def probabilistic(network: nn.Module, keys: list[str], distribution: Callable[..., Distribution]) -> Any:
    return ProbabilisticTensorDictSequential(
        module(network, ["observation"], keys),
        ProbabilisticTensorDictModule(
            in_keys=keys,
            out_keys=["action"],
            distribution_class=distribution,
            return_log_prob=True,
            default_interaction_type=InteractionType.RANDOM,
        ),
    )


def follow(loss: nn.Module, targets: dict[str, Any]) -> None:
    """Copies target parameters into TorchRL's, by the names of these; those of several networks are stacked there."""
    for theirs, ours in targets.items():
        states = [network.state_dict() for network in (ours if isinstance(ours, list) else [ours])]
        for key in states[0]:
            values = [state[key] for state in states]
            at(getattr(loss, theirs), key).data.copy_(torch.stack(values) if isinstance(ours, list) else values[0])


def at(params: TensorDictBase, name: str) -> Tensor:
    """Returns the one of TorchRL's parameters whose name ends so."""
    (found,) = [value for key, value in params.items(True, True) if ".".join(key).endswith(f".{name}")]
    return found


# -- values of actions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
def test_dqn(double: bool, dueling: bool) -> None:
    agent, batch = agent_and_batch("dqn", True, double=double, dueling=dueling)
    actor = QValueActor(agent.network, in_keys=["observation"], action_space="categorical")
    loss = DQNLoss(actor, loss_function="smooth_l1", delay_value=True, double_dqn=double, action_space="categorical")
    loss.make_value_estimator(gamma=GAMMA)
    follow(loss, {"target_value_network_params": agent.loss.target_network})
    same(agent.loss.critic_loss(batch)[0], loss(batch.clone())["loss"], agent.network.parameters())


# -- deterministic actors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["l2", "smooth_l1"])
def test_ddpg(error: str) -> None:
    agent, batch = agent_and_batch("ddpg", False, critic_loss="mse" if error == "l2" else error)
    actor = module(agent.actor, ["observation"], ["action"])
    critic = module(agent.critics[0], ["observation", "action"], ["state_action_value"])
    loss = DDPGLoss(actor, critic, loss_function=error, delay_actor=True, delay_value=True)
    loss.make_value_estimator(gamma=GAMMA)
    targets = {"actor": agent.targets["actor"].network, "value": agent.targets["critic"].network}
    follow(loss, {f"target_{name}_network_params": network for name, network in targets.items()})
    theirs = loss(batch.clone())
    same(agent.loss.critic_loss(batch)[0], theirs["loss_value"], agent.critics[0].parameters())
    same(agent.loss.actor_loss(batch)[0], theirs["loss_actor"], agent.actor.parameters())


def twins(agent: Any) -> dict[str, Any]:
    """Returns both target critics, which TorchRL stacks."""
    return {"target_qvalue_network_params": [agent.targets[f"critic_{k}"].network for k in (1, 2)]}


def same_critics(agent: Any, loss: nn.Module, ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs.sum(), rtol=0, atol=1e-12)
    names = [name for name, _ in agent.critics[0].named_parameters()]
    parameters = [critic.get_parameter(name) for name in names for critic in agent.critics]
    stacked = gradients(theirs.sum(), [at(loss.qvalue_network_params, name) for name in names])
    torch.testing.assert_close(gradients(ours, parameters), [grad for both in stacked for grad in both])


def test_td3_without_noise() -> None:
    agent, batch = agent_and_batch("td3", False, target_noise=0.0)
    actor = module(agent.actor, ["observation"], ["action"])
    critics = [module(critic, ["observation", "action"], ["state_action_value"]) for critic in agent.critics]
    loss = TD3Loss(
        actor,
        critics,
        bounds=(-1.0, 1.0),
        policy_noise=0.0,
        noise_clip=0.5,
        loss_function="l2",
        delay_actor=True,
        delay_qvalue=True,
    )
    loss.make_value_estimator(gamma=GAMMA)
    follow(loss, {"target_actor_network_params": agent.targets["actor"].network, **twins(agent)})
    theirs = loss(batch.clone())
    same_critics(agent, loss, agent.loss.critic_loss(batch)[0], theirs["loss_qvalue"])
    same(agent.loss.actor_loss(batch)[0], theirs["loss_actor"], agent.actor.parameters())


def test_td3_smooths_its_target_actions() -> None:
    agent, batch = agent_and_batch("td3", False, target_noise=0.4, target_noise_clip=0.5)
    observation = batch["next", "observation"].repeat(500, 1)
    following = TensorDict({"observation": observation}, [len(observation)])
    plain_action = agent.targets["actor"].network(observation)
    noise = (agent.loss.target_action(following) - plain_action)[plain_action.abs() < 0.4]
    expected = (torch.randn(100_000) * 0.4).clamp(-0.5, 0.5).std()
    assert float(noise.std()) == pytest.approx(float(expected), rel=0.03)
    assert noise.abs().max() <= 0.5 + 1e-12 and agent.loss.target_action(following).abs().max() <= 1


# -- soft actor-critic -------------------------------------------------------------------------------------------------


class Scale(nn.Module):
    """Computes mean and standard deviation from our mean and log standard deviation."""

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(observation)
        return mean, log_std.exp()


def _tanh_normal(loc: Tensor, scale: Tensor) -> Distribution:
    return TanhNormal(loc, scale, upscale=1.0, tanh_loc=False, safe_tanh=False)


def with_the_same_noise(agent: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Module]]:
    """Returns actor and critics as TorchRL modules; all normal draws, ours and theirs, give the same numbers."""
    noise = torch.randn(N, 2, dtype=DOUBLE)
    agent.loss.draw = lambda like: noise
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda shape, dtype, device: noise)
    monkeypatch.setattr("torch.distributions.Normal.sample", lambda normal, *_: normal.loc + normal.scale * noise)
    critics = [module(critic, ["observation", "action"], ["state_action_value"]) for critic in agent.critics]
    return probabilistic(Scale(agent.actor), ["loc", "scale"], _tanh_normal), critics


def same_soft(agent: Any, batch: TensorDict, loss: Any) -> tuple[TensorDict, dict[str, Tensor]]:
    """Asserts equal losses of critics and actor; returns all of TorchRL's losses, and the report of our actor's."""
    loss.make_value_estimator(gamma=GAMMA)
    if agent.targets:
        follow(loss, twins(agent))
    loss.log_alpha.data = agent.temperature.log_alpha.detach().clone()
    theirs = loss(batch.clone())
    same_critics(agent, loss, agent.loss.critic_loss(batch)[0], theirs["loss_qvalue"])
    ours, info = agent.loss.actor_loss(batch)
    same(ours, theirs["loss_actor"], agent.actor.parameters())
    return theirs, info


@pytest.mark.parametrize("alpha", [0.25, 1.0])
def test_sac_with_the_same_noise(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, batch = agent_and_batch("sac", False, alpha=alpha)
    modules, options = with_the_same_noise(agent, monkeypatch), {"loss_function": "l2", "delay_qvalue": True}
    loss = SACLoss(*modules, alpha_init=alpha, target_entropy=-2.0, **options)
    theirs, info = same_soft(agent, batch, loss)
    ours = agent.loss.alpha_loss(info["entropy"] - agent.loss.target_entropy)
    torch.testing.assert_close(ours, theirs["loss_alpha"], rtol=0, atol=1e-12)
    grads = (gradients(ours, [agent.temperature.log_alpha]), gradients(theirs["loss_alpha"], [loss.log_alpha]))
    torch.testing.assert_close(*grads, rtol=0, atol=1e-12)


def test_critics_without_targets_with_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares TorchRL's CrossQ, statistics included, when these correct the batch's own in full."""
    agent, batch = agent_and_batch("sac", False, alpha=0.25, critic_norm="batch")
    for layer in [layer for critic in agent.critics for layer in critic.modules() if isinstance(layer, BatchRenorm)]:
        layer.num_batches_tracked.fill_(layer.warmup_steps)
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2.0)
    modules = with_the_same_noise(agent, monkeypatch)
    loss = CrossQLoss(*modules, alpha_init=0.25, target_entropy=-2.0, loss_function="l2")
    loss.qvalue_network.train()
    same_soft(agent, batch, loss)
    for name, stacked in loss.qvalue_network_params.flatten_keys(".").items():
        if "running" in name:
            ours = [critic.get_buffer(name.partition("module.")[2]) for critic in agent.critics]
            torch.testing.assert_close(torch.stack(ours), stacked, rtol=0, atol=1e-12)


def test_tqc_with_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, batch = agent_and_batch("tqc", False, alpha=0.25, drop=2)
    modules = with_the_same_noise(agent, monkeypatch)
    same_soft(agent, batch, TQCLoss(*modules, num_qvalue_nets=2, alpha_init=0.25, target_entropy=-2.0))


@pytest.mark.parametrize("alpha", [0.25, 1.0])
def test_discrete_sac(alpha: float) -> None:
    agent, batch = agent_and_batch("sac", True, alpha=alpha)
    actor = probabilistic(agent.actor, ["logits"], Categorical)
    critics = [module(critic, ["observation"], ["action_value"]) for critic in agent.critics]
    options = {"action_space": "categorical", "num_actions": 4, "loss_function": "l2", "delay_qvalue": True}
    same_soft(agent, batch, DiscreteSACLoss(actor, critics, alpha_init=alpha, target_entropy=0.5, **options))


# -- PPO and A2C: on the same batch, losses and gradients equal those of TorchRL's loss modules ----------------------


class Gaussian(nn.Module):
    """Computes mean and standard deviation from our actor and its parameter."""

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.actor(observation)
        return mean, self.actor.log_std.exp().expand_as(mean)


def _independent_normal(loc: Tensor, scale: Tensor) -> Distribution:
    return Independent(Normal(loc, scale), 1)


def on_policy(name: str, discrete: bool, **options: Any) -> tuple[Any, TensorDict, Any, Any]:
    """Returns an agent that has moved since the batch, the batch, and actor and critic as TorchRL modules."""
    agent, sequences = agent_and_batch(name, discrete, entropy_coefficient=0.015625, **options)
    batch = agent.rollout(sequences[None])
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    keys, distribution = (["logits"], Categorical) if discrete else (["loc", "scale"], _independent_normal)
    actor = probabilistic(agent.actor if discrete else Gaussian(agent.actor), keys, distribution)
    return agent, batch, actor, module(agent.critic, ["observation"], ["state_value"])


def as_theirs(batch: TensorDict) -> TensorDict:
    entries = {
        "observation": batch["observation"],
        "action": batch["action"],
        "action_log_prob": batch["log_prob"],
        "advantage": batch["advantage"][:, None],
        "value_target": batch["return"][:, None],
        "state_value": batch["value"][:, None],
    }
    return TensorDict(entries, batch.batch_size)


def total(losses: TensorDict) -> Tensor:
    return losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("clip_value", [None, 0.0625])
def test_ppo(discrete: bool, clip_value: float | None) -> None:
    agent, batch, actor, critic = on_policy("ppo", discrete, clip=0.125, clip_value=clip_value)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=0.125,
        loss_critic_type="l2",
        critic_coeff=0.5,
        entropy_coeff=0.015625,
        normalize_advantage=False,
        clip_value=clip_value,
    )
    ours, info = agent.objective(batch)
    assert 0 < info["clipped"] < 1
    same(ours, total(loss(as_theirs(batch))), agent.parameters(), 1e-8)


@pytest.mark.parametrize("discrete", [False, True])
def test_a2c(discrete: bool) -> None:
    agent, batch, actor, critic = on_policy("a2c", discrete)
    loss = A2CLoss(actor, critic, loss_critic_type="l2", critic_coeff=0.5, entropy_coeff=0.015625)
    same(agent.objective(batch)[0], total(loss(as_theirs(batch))), agent.parameters())
