"""Each loss as a TorchRL module: updaters, state, keys, devices, TorchRL's own actors and critics."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal
from torchrl.modules import ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
from torchrl.objectives import HardUpdate, SoftUpdate

from rlstack import losses
from rlstack.losses.base import Loss
from rlstack.losses.cloning import CloningLoss
from rlstack.losses.ddpg import DDPGLoss, TD3Loss
from rlstack.losses.dqn import C51Loss, DQNLoss, PQNLoss
from rlstack.losses.ppo import A2CLoss, PolicyGradientLoss, PPOLoss, RNDLoss
from rlstack.losses.quantile import ACIQNLoss, IQNLoss, QRDQNLoss, QuantileLoss, TQCLoss
from rlstack.losses.retrace import RetraceLoss
from rlstack.losses.sac import CategoricalSACLoss, DiscreteSACLoss, SACLoss
from tests.refusals import refused

S, A, N, K = 3, 4, 6, 5
"""Size of an observation, number of choices, size of a batch, number of quantiles or atoms."""


class Net(nn.Module):
    """A linear function of all its inputs, reshaped and scaled by a level ``tau``."""

    def __init__(self, inputs: int, *shape: int, levels: bool = False, split: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, int(torch.tensor(shape).prod()))
        self.shape, self.levels, self.split = shape, levels, split

    def forward(self, *inputs: Tensor) -> Any:
        tau = inputs[-1] if self.levels else None
        out = self.linear(torch.cat(inputs[:-1] if self.levels else inputs, -1)).unflatten(-1, self.shape)
        if tau is not None:
            out = out * tau if self.shape == (1,) else out.unsqueeze(-2) * tau.unsqueeze(-1)
        return out.chunk(2, -1) if self.split else out


class Policy(nn.Module):
    """A distribution over choices."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = Net(S, A)

    def forward(self, observation: Tensor) -> Categorical:
        return Categorical(logits=self.logits(observation))


LOSSES: dict[str, Callable[[], Loss]] = {
    "a2c": lambda: A2CLoss(Policy(), Net(S, 1), entropy_coefficient=0.01),
    "ppo": lambda: PPOLoss(Policy(), Net(S, 1), entropy_coefficient=0.01),
    "dqn": lambda: DQNLoss(Net(S, A)),
    "pqn": lambda: PQNLoss(Net(S, A)),
    "retrace": lambda: RetraceLoss(Net(S, A), epsilon=0.25),
    "c51": lambda: C51Loss(Net(S, A, K), torch.linspace(-1, 1, K)),
    "qrdqn": lambda: QRDQNLoss(Net(S, K, A), num_quantiles=K),
    "iqn": lambda: IQNLoss(Net(S, A, levels=True), num_quantiles=K),
    "ddpg": lambda: DDPGLoss(Net(S, 2), Net(S + 2, 1)),
    "td3": lambda: TD3Loss(Net(S, 2), [Net(S + 2, 1), Net(S + 2, 1)]),
    "sac": lambda: SACLoss(Net(S, 4, split=True), [Net(S + 2, 1), Net(S + 2, 1)], action_size=2),
    "sac categorical": lambda: CategoricalSACLoss(
        Net(S, 4, split=True), [Net(S + 2, K), Net(S + 2, K)], torch.linspace(-1, 1, K), action_size=2
    ),
    "sac discrete": lambda: DiscreteSACLoss(Net(S, A), [Net(S, A), Net(S, A)], action_size=A),
    "tqc": lambda: TQCLoss(Net(S, 4, split=True), [Net(S + 2, K) for _ in range(3)], drop=1, action_size=2),
    "rnd": lambda: RNDLoss(Net(S, K), Net(S, K)),
    "aciqn": lambda: ACIQNLoss(Net(S, 2), Net(S + 2, 1, levels=True)),
}
CHOICES = ("a2c", "ppo", "pqn", "dqn", "retrace", "c51", "qrdqn", "iqn", "sac discrete")
WITH_TARGETS = [name for name in LOSSES if name not in ("a2c", "ppo", "pqn", "rnd")]
everyone = pytest.mark.parametrize("name", LOSSES)
copied = pytest.mark.parametrize("copied", [False, True])


def batch(name: str, dtype: torch.dtype = torch.float32) -> TensorDict:
    """Returns ``N`` transitions, of which the first two end episodes."""
    following = {
        "observation": torch.randn(N, S, dtype=dtype),
        "reward": torch.randn(N, 1, dtype=dtype),
        "terminated": torch.arange(N).unsqueeze(-1) < 2,
    }
    action = torch.randint(A, (N,)) if name in CHOICES else torch.rand(N, 2, dtype=dtype) * 2 - 1
    entries = {"observation": torch.randn(N, S, dtype=dtype), "action": action, "next": following}
    for key in ("action_log_prob", "advantage", "value_target"):
        entries[key] = torch.randn(N, dtype=dtype)
    if name == "retrace":  # three equal steps with random actions
        entries["next"] = {key: value.unsqueeze(1).repeat(1, 3, 1) for key, value in following.items()}
        entries["next"] |= {"done": entries["next"]["terminated"], "action": torch.randint(A, (N, 3))}
        entries["next"]["log_prob"] = torch.full((N, 3), 1 / A, dtype=dtype).log()
    return TensorDict(entries, [N])


@pytest.fixture
def made(name: str) -> tuple[Loss, TensorDict]:
    torch.manual_seed(0)
    return LOSSES[name](), batch(name)


def test_every_loss_is_there() -> None:
    modules = [getattr(losses, module.name) for module in pkgutil.iter_modules(losses.__path__)]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    exported = {value for value in found if issubclass(value, Loss)} - {PolicyGradientLoss, QuantileLoss}
    assert exported == {type(make()) for make in LOSSES.values()} | {Loss}


@copied
@everyone
def test_losses_and_metrics_are_scalars(made: tuple[Loss, TensorDict], copied: bool) -> None:
    loss, data = deepcopy(made[0]) if copied else made[0], made[1]
    out = loss(data)
    assert set(out.keys()) == set(loss.out_keys) and all(value.shape == () for value in out.values())
    trained = {key for key, value in out.items() if value.requires_grad}
    assert trained == {key for key, _ in out.items() if key.startswith("loss_")} and trained
    sum(out[key] for key in trained).backward()
    assert all(parameter.grad is not None for parameter in loss.parameters())
    assert not any(key.startswith("target") for key, _ in loss.named_parameters())


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac", "sac categorical", "tqc", "aciqn"])
def test_neither_the_actor_nor_the_critic_teaches_the_other(made: tuple[Loss, TensorDict]) -> None:
    loss, data = made
    out = loss(data)
    critics = [p for key, p in loss.named_parameters() if key.startswith("critic")]
    alone = torch.autograd.grad(out["loss_critic"], critics, retain_graph=True)
    summed = torch.autograd.grad(sum(value for key, value in out.items() if key.startswith("loss_")), critics)
    torch.testing.assert_close(summed, alone)
    actors = [p for key, p in loss.named_parameters() if key.startswith("actor")]
    unreached = torch.autograd.grad(loss(data)["loss_critic"], actors, allow_unused=True)
    assert actors and all(gradient is None for gradient in unreached)


@copied
@pytest.mark.parametrize("name", WITH_TARGETS)
def test_torchrls_updaters_move_the_targets(made: tuple[Loss, TensorDict], copied: bool) -> None:
    loss = deepcopy(made[0]) if copied else made[0]
    pairs = []
    for held in [key for key in vars(loss) if key.startswith("target_") and isinstance(vars(loss)[key], nn.Module)]:
        online, target = vars(loss)[held.removeprefix("target_")], vars(loss)[held]
        pairs += list(zip(online.parameters(), target.parameters()))
    assert pairs
    updater = SoftUpdate(loss, tau=0.5)
    with torch.no_grad():
        for online, _ in pairs:
            online += 1
    updater.step()
    for online, target in pairs:
        torch.testing.assert_close(target, online - 0.5)
        assert not target.requires_grad
    HardUpdate(loss, value_network_update_interval=1).step()
    assert all(torch.equal(online, target) for online, target in pairs)


@everyone
def test_state_goes_into_another_one_and_copies_are_apart(made: tuple[Loss, TensorDict], name: str) -> None:
    loss, data = made
    other, copy = LOSSES[name](), deepcopy(loss)
    other.load_state_dict(loss.state_dict())
    found = []
    for each in (loss, other, copy):
        torch.manual_seed(1)
        found.append(each(data.clone()))
    assert (found[0] == found[1]).all() and (found[0] == found[2]).all()
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter += 1
    torch.manual_seed(1)
    assert (loss(data.clone()) == found[0]).all()


@everyone
def test_it_can_be_moved(made: tuple[Loss, TensorDict], name: str) -> None:
    loss = made[0].double()
    assert {value.dtype for value in loss.state_dict().values()} == {torch.float64}
    assert loss(batch(name, torch.float64)).to_tensordict()[loss.out_keys[0]].dtype == torch.float64
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.zero_()
    networks = [vars(loss)[key.removesuffix("_params")] for key in loss._modules if not key.startswith("target_")]
    assert networks and all((p == 0).all() for network in networks for p in network.parameters())


@everyone
def test_keys_of_several_agents(made: tuple[Loss, TensorDict]) -> None:
    loss, data = made
    torch.manual_seed(1)
    expected = loss(data.clone())
    moved = TensorDict({"agents": data.exclude("next"), "next": {"agents": data["next"]}}, [N])
    keys = vars(loss.tensor_keys)
    there = {*data.keys(), *data["next"].keys()}
    loss.set_keys(**{key: ("agents", name) for key, name in keys.items() if name in there})
    torch.manual_seed(1)
    assert (loss(moved) == expected).all()
    assert all(key[-2] == "agents" for key in loss.in_keys)
    refused(ValueError, "not an accepted", loss.set_keys, nonsense="x")


@pytest.mark.parametrize("name", WITH_TARGETS)
def test_importance_weighs_entries_and_errors_are_left_for_the_buffer(made: tuple[Loss, TensorDict]) -> None:
    loss, data = made
    weight = torch.zeros(N)
    weight[3] = N
    torch.manual_seed(1)
    loss.draw_levels = (lambda like: torch.full((*like.shape[:-1], 8), 0.3)) if hasattr(loss, "kappa") else None
    loss.draw = lambda like: torch.zeros_like(like)
    if hasattr(loss, "target_noise"):
        loss.target_noise = 0.0
    if hasattr(loss, "num_quantiles"):
        loss.num_quantiles = 8 if not isinstance(loss, QRDQNLoss) else K
        if isinstance(loss, QRDQNLoss):
            del loss.draw_levels
    one = loss(data[3:4].clone())["loss_critic"]
    found = loss(data.set("priority_weight", weight))["loss_critic"]
    torch.testing.assert_close(found, one)
    assert data["td_error"].shape == (N,) and (data["td_error"] >= 0).all() and not data["td_error"].requires_grad


@pytest.mark.parametrize("name", WITH_TARGETS)
def test_what_follows_an_end_does_not_matter(made: tuple[Loss, TensorDict]) -> None:
    loss, data = made
    torch.manual_seed(1)
    expected = loss(data.clone())["loss_critic"]
    data["next", "observation"][:2] = torch.nan
    torch.manual_seed(1)
    torch.testing.assert_close(loss(data)["loss_critic"], expected)


@pytest.mark.parametrize("name", ["dqn", "c51", "qrdqn", "sac", "sac categorical", "ddpg", "aciqn"])
def test_the_batch_may_bring_its_own_discount(made: tuple[Loss, TensorDict]) -> None:
    """TorchRL's n-step returns bring one without a last dimension."""
    loss, data = made
    loss.gamma, results = 0.25, []
    for gamma in (torch.full((N, 1), 0.25), torch.linspace(0, 1, N), torch.linspace(0, 1, N).unsqueeze(-1), None):
        torch.manual_seed(1)
        results.append(loss(data.clone() if gamma is None else data.clone().set("gamma", gamma)).to_dict())
    torch.testing.assert_close(results[0], results[3])
    torch.testing.assert_close(results[1], results[2])


@pytest.mark.parametrize("entry", ["reward", "terminated"])
@pytest.mark.parametrize("name", ["dqn", "c51", "qrdqn"])
def test_rewards_and_ends_that_would_be_broadcast_are_refused(made: tuple[Loss, TensorDict], entry: str) -> None:
    loss, data = made
    data = data[:K]  # as many entries as quantiles
    data["next", entry] = data["next", entry].squeeze(-1)
    refused(ValueError, rf"{entry} has the shape \[5\], \[\.\.\., 1\] is needed", loss, data)


@pytest.mark.parametrize("kind", [A2CLoss, PPOLoss])
def test_log_probabilities_that_would_be_broadcast_are_refused(kind: type[PPOLoss]) -> None:
    class Gaussian(Policy):
        def forward(self, observation: Tensor) -> Any:
            return Normal(self.logits(observation)[..., :1], 1.0)

    data = batch("ppo")
    wrong = ((Policy(), data.clone().set("action", data["action"].unsqueeze(-1))), (Gaussian(), batch("sac")))
    for actor, given in wrong:
        refused(ValueError, "log probabilities have the shape", kind(actor, Net(S, 1)), given)


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_agents_must_be_in_the_batch(made: tuple[Loss, TensorDict]) -> None:
    loss, data = made
    agents = torch.stack((data, data), 1)
    agents.batch_size = [N]
    agents["next"].batch_size = [N]
    refused(ValueError, r"shape \[6, 2(, 1)?\], .* the batch \[6\]; .*rlstack\.flatten_agents", loss, agents)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: SACLoss(Net(S, 4, split=True), [Net(S + 2, 1)], action_size=2), "two critics are needed, got 1"),
        (lambda: SACLoss(Net(S, 4, split=True), [Net(S + 2, 1)] * 2, alpha=0.0, action_size=2), "alpha: 0 is not"),
        (lambda: TQCLoss(Net(S, 4, split=True), [], joint=True, action_size=2), "joint: TQCLoss needs target critics"),
        (
            lambda: DiscreteSACLoss(Net(S, A), [Net(S, A)] * 2, joint=True, action_size=A),
            "joint: DiscreteSACLoss needs target critics",
        ),
        (
            lambda: SACLoss(Net(S, 4, split=True), [Net(S + 2, 1)] * 2, joint_targets=True, action_size=2),
            "joint_targets is for joint=True",
        ),
        (lambda: TD3Loss(Net(S, 2), [Net(S + 2, 1)] * 3), "one critic or two are needed, got 3"),
        (
            lambda: TQCLoss(Net(S, 4, split=True), [Net(S + 2, 2)] * 2, drop=2, action_size=2)(batch("tqc")),
            "drop: 2 quantiles left out per critic leave none of 4",
        ),
        (lambda: QRDQNLoss(Net(S, K, A))(batch("dqn")), "num_quantiles is 8, the network returns 5 per action"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(make: Callable[[], Any], reason: str) -> None:
    refused(ValueError, reason, make)


# -- TorchRL's own modules ---------------------------------------------------------------------------------------------


def seeded(loss: Loss, data: TensorDict) -> TensorDictBase:
    torch.manual_seed(1)
    return loss(data.clone())


def same(loss: Loss, native: Loss, data: TensorDict) -> None:
    expected, found = seeded(loss, data), seeded(native, data)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, msg=key)


def test_a_q_value_actor_and_one_hot_actions() -> None:
    net, data = Net(S, A), batch("dqn")
    actor = QValueActor(net, in_keys=["observation"], spec=None, action_space="one_hot")
    one_hot = data.clone().set("action", nn.functional.one_hot(data["action"], A))
    loss, native = DQNLoss(net), DQNLoss(actor)
    assert torch.equal(loss(data)["loss_critic"], native(one_hot)["loss_critic"])
    seen = QValueActor(net, in_keys=["pixels"], spec=None, action_space="one_hot")
    assert DQNLoss(seen).in_keys[:3] == ["pixels", "action", ("next", "pixels")]


@everyone
def test_a_loss_needs_its_in_keys_and_no_others(made: tuple[Loss, TensorDict]) -> None:
    loss, data = made
    expected = seeded(loss, data)
    optional = {loss.tensor_keys.priority_weight} if "priority_weight" in vars(loss.tensor_keys) else set()
    kept = [key for key in (*loss.in_keys, *optional) if key in data.keys(include_nested=True)]
    assert (seeded(loss, data.select(*kept)) == expected).all()
    for key in loss.in_keys:
        name = key if isinstance(key, str) else key[-1]
        with pytest.raises((KeyError, RuntimeError), match=name):
            loss(data.exclude(key))


def test_deterministic_actors_and_value_operators() -> None:
    net, critics = Net(S, 2), [Net(S + 2, 1), Net(S + 2, 1)]
    actor = TensorDictModule(net, in_keys=["observation"], out_keys=["action"])
    values = [ValueOperator(critic, in_keys=["observation", "action"]) for critic in critics]
    same(TD3Loss(net, critics), TD3Loss(actor, values), batch("td3"))


def test_a_probabilistic_actor_in_ppo() -> None:
    policy, critic = Policy(), Net(S, 1)
    logits = TensorDictModule(policy.logits, in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(logits, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True)
    value = ValueOperator(critic, in_keys=["observation"])
    same(
        PPOLoss(policy, critic, normalize_advantage=True), PPOLoss(actor, value, normalize_advantage=True), batch("ppo")
    )


def test_a_squashed_gaussian_of_torchrl_in_sac() -> None:
    """Its density equals that of our own, which uses another formula."""
    torch.manual_seed(0)
    net, critics, data = Net(S, 4, split=True), [Net(S + 2, 1), Net(S + 2, 1)], batch("sac")

    class Scaled(nn.Module):
        def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
            mean, log_std = net(observation)
            return mean, log_std.exp()

    parameters = TensorDictModule(Scaled(), in_keys=["observation"], out_keys=["loc", "scale"])
    actor = ProbabilisticActor(
        parameters, in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True
    )
    same(SACLoss(net, critics, action_size=2), SACLoss(actor, critics, action_size=2), data)


def test_a_policy_without_a_formula_for_its_entropy() -> None:
    class Squashed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = Net(S, 2)

        def forward(self, observation: Tensor) -> Any:
            return TanhNormal(self.mean(observation), torch.full((N, 2), 0.5))

    data = batch("sac")
    data["action"] *= 0.5
    out = A2CLoss(Squashed(), Net(S, 1), entropy_coefficient=0.1)(data)
    assert torch.isfinite(out["loss_entropy"]) and out["loss_entropy"].requires_grad
    gaussian = Independent(Normal(torch.zeros(N, 2), torch.ones(N, 2)), 1)
    assert torch.equal(losses.ppo.entropy_of(gaussian), gaussian.entropy())


# -- targets -----------------------------------------------------------------------------------------------------------


def test_a_target_that_would_be_broadcast_is_refused() -> None:
    class Squeezed(DQNLoss):
        def target_value(self, tensordict: TensorDictBase) -> Tensor:
            return super().target_value(tensordict).squeeze(-1)  # [N], which with values [N, 1] would make [N, N]

    message = re.escape(f"the target has the shape ({N},), the values ({N}, 1)")
    refused(ValueError, message, Squeezed(Net(S, A)), batch("dqn"))


def test_a_clone_says_what_its_batch_needs_and_takes_it_by_name() -> None:
    """Predictions 2 and 4, actions 1 and 1: (1 + 9) / 2."""
    actor = TensorDictModule(nn.Linear(1, 1, bias=False), ["seen"], ["push"])
    nn.init.constant_(actor.module.weight, 2.0)
    loss = CloningLoss(actor)
    loss.set_keys(action="push")
    assert (loss.in_keys, loss.out_keys) == (["seen", "push"], ["loss_actor"])
    seen, push = torch.tensor([[1.0], [2.0]]), torch.ones(2, 1)
    assert loss(seen=seen, push=push).item() == loss(TensorDict({"seen": seen, "push": push}, [2]))["loss_actor"] == 5
