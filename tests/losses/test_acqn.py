"""AC-IQN's losses compared with recorded updates of the reference learner."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from rlstack.adapters.marinenav.agents import ACTOR_NAMES, CRITIC_NAMES, published_state
from rlstack.losses.quantile import ACIQNLoss
from rlstack.networks.actors import DeterministicActor
from rlstack.networks.encoders import FlatEncoder, ObjectSetEncoder
from rlstack.networks.quantile import LateQuantileCritic, QuantileCritic
from tests.exhaustive import recordings
from tests.losses.recordings import Recording

pytestmark = pytest.mark.filterwarnings("ignore:No target network updater:UserWarning")

TOLERANCE = 1e-9
NAMES = {"actor": ACTOR_NAMES, "critic": CRITIC_NAMES}


class Pair(Recording):
    """A recording of AC-IQN's actor and critic."""

    def state(self, prefix: str, network: str) -> dict[str, Tensor]:
        """Returns the parameters of ``"actor"`` or ``"critic"`` under our names."""
        return published_state(self.under(f"{prefix}/{network}/"), NAMES[network])

    def network(self, prefix: str, name: str) -> nn.Module:
        encoder = ObjectSetEncoder(7, 5, 5, 6, (4,))
        network = DeterministicActor(encoder, 2, (12, 12)) if name == "actor" else QuantileCritic(encoder, 2, 12)
        network.double().load_state_dict(self.state(prefix, name))
        return network

    def loss(self) -> ACIQNLoss:
        loss = ACIQNLoss(self.network("local0", "actor"), self.network("local0", "critic"))
        for name in NAMES:
            target = TensorDict.from_module(self.network("target0", name)).data
            getattr(loss, f"target_{name}_network_params").data.update_(target)
        return loss


def flat(params: TensorDict) -> dict[str, Tensor]:
    return {".".join(key) if isinstance(key, tuple) else key: value for key, value in params.items(True, True)}


@recordings("losses/public_AC_IQN.npz", "golden/marinenav/losses/*_AC_IQN.npz")
def test_recorded_updates(path: Path) -> None:
    recording = Pair(path)
    loss, batch = recording.loss(), recording.batch()
    original = batch.clone()
    parameters = {name: list(getattr(loss, f"{name}_network_params").values(True, True)) for name in NAMES}
    optimizers = {name: torch.optim.Adam(parameters[name], lr=1e-4) for name in NAMES}

    def update(name: str, value: Tensor) -> Tensor:
        optimizers[name].zero_grad()
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters[name], 0.5)
        optimizers[name].step()
        return torch.stack((value.detach(), norm))

    for k in range(3):
        levels = [recording[f"step{k}/rand{i}"] for i in range(3)]
        critic = update("critic", loss.critic_loss(batch, tau=levels[1], tau_target=levels[0])[0])
        actor = update("actor", loss.actor_loss(batch, tau=levels[2])[0])
        norms = recording[f"step{k}/gradnorm"]
        expected = torch.stack((recording[f"step{k}/loss0"], norms[0], recording[f"step{k}/loss1"], norms[1]))
        torch.testing.assert_close(torch.cat((critic, actor)), expected, rtol=0, atol=TOLERANCE)
    for name in NAMES:
        online, target = flat(getattr(loss, f"{name}_network_params")), recording.state("step2/local", name)
        assert online.keys() == target.keys()
        for key, value in target.items():
            torch.testing.assert_close(online[key].detach(), value, rtol=0, atol=TOLERANCE)
        kept = flat(getattr(loss, f"target_{name}_network_params"))
        for key, value in recording.state("target0", name).items():
            assert torch.equal(kept[key], value)
    assert (batch == original).all()


@pytest.fixture
def recording(fixtures_dir: Path) -> Pair:
    return Pair(fixtures_dir / "losses/public_AC_IQN.npz")


def test_targets_are_copies_that_no_gradient_reaches(recording: Pair) -> None:
    loss, batch = recording.loss(), recording.batch()
    for _ in range(2):  # to_module() must restore this state after each use
        losses = loss(batch)
        (losses["loss_critic"] + losses["loss_actor"]).backward()
        for name in NAMES:
            online = flat(getattr(loss, f"{name}_network_params"))
            target = flat(getattr(loss, f"target_{name}_network_params"))
            assert online.keys() == target.keys()
            for key, value in target.items():
                assert not value.requires_grad and value.grad is None
                assert value.data_ptr() != online[key].data_ptr()
                assert online[key].requires_grad and online[key].grad is not None


def test_critic_loss_leaves_the_actor_alone(recording: Pair) -> None:
    loss, batch = recording.loss(), recording.batch()
    loss.critic_loss(batch)[0].backward()
    assert all(value.grad is None for value in loss.actor_network_params.values(True, True))
    assert all(value.grad is not None for value in loss.critic_network_params.values(True, True))


def test_levels_are_drawn_target_first(recording: Pair) -> None:
    loss, batch = recording.loss(), recording.batch()
    torch.manual_seed(3)
    drawn = loss.critic_loss(batch)[0]
    torch.manual_seed(3)
    tau_target, tau = (torch.rand(16, 8, dtype=torch.float64) for _ in range(2))
    assert torch.equal(drawn, loss.critic_loss(batch, tau, tau_target)[0])


def test_terminated_entries_take_the_reward_alone(recording: Pair) -> None:
    loss, batch = recording.loss(), recording.batch()
    done = torch.arange(16)[:, None] < 5
    batch["next", "terminated"] = done
    target = loss.target_quantiles(batch, torch.rand(16, 8, dtype=torch.float64))
    assert torch.equal(target[:5], batch["next", "reward"][:5].expand(5, 8))
    assert (target[5:] != batch["next", "reward"][5:]).all()


def test_the_batch_may_bring_its_own_discount(recording: Pair) -> None:
    loss, batch = recording.loss(), recording.batch()
    batch["next", "terminated"] = torch.zeros(16, 1, dtype=torch.bool)
    tau = torch.rand(16, 8, dtype=torch.float64)
    own, reward = loss.target_quantiles(batch, tau), batch["next", "reward"]
    gamma = torch.linspace(0, 1, 16, dtype=torch.float64)[:, None]
    given = loss.target_quantiles(batch.copy().set("gamma", gamma), tau)
    torch.testing.assert_close(given, reward + gamma * (own - reward) / 0.99)


def test_low_precision_reaches_neither_discounts_nor_levels() -> None:
    actor, critic = DeterministicActor(FlatEncoder(3), 1, (4,)), LateQuantileCritic(FlatEncoder(3), 1, (4,))
    loss, seen = ACIQNLoss(actor, critic, gamma=0.995), []
    loss.quantiles = lambda tensordict, action, tau, target=False: seen.append(tau) or torch.full_like(tau, 1000.0)
    following = {"observation": torch.rand(7, 3), "reward": torch.ones(7, 1), "terminated": torch.zeros(7, 1).bool()}
    batch = TensorDict({"observation": torch.rand(7, 3), "action": torch.rand(7, 1), "next": following}, [7])
    with torch.autocast("cpu", torch.bfloat16):
        assert actor(batch["observation"]).dtype == torch.bfloat16
        torch.testing.assert_close(loss.target_quantiles(batch, torch.rand(7, 8)), torch.full((7, 8), 996.0))
        loss.actor_loss(batch)
    assert seen[-1].dtype == torch.float32


def test_shared_levels_are_stratified() -> None:
    actor, critic = DeterministicActor(FlatEncoder(3), 1, (4,)), LateQuantileCritic(FlatEncoder(3), 1, (4,))
    loss = ACIQNLoss(actor, critic, num_quantiles=10, shared_levels=True)
    for _ in range(20):
        levels = loss.draw_levels(torch.empty(7, 1))
        assert levels.shape == (1, 10)
        assert torch.equal((levels[0] * 10).floor(), torch.arange(10.0))
    entries = {"observation": torch.rand(7, 3), "action": torch.rand(7, 1)}
    following = {"observation": torch.rand(7, 3), "reward": torch.rand(7, 1), "terminated": torch.rand(7, 1) > 0.5}
    batch = TensorDict({**entries, "next": following}, batch_size=[7])
    repeated = levels.expand(7, 10)
    for shared, full in (
        (loss.critic_loss(batch, levels, levels)[0], loss.critic_loss(batch, repeated, repeated)[0]),
        (loss.actor_loss(batch, levels)[0], loss.actor_loss(batch, repeated)[0]),
    ):
        torch.testing.assert_close(shared, full)


def test_target_noise_is_clipped_and_of_the_given_size() -> None:
    class Identity(nn.Module):
        def forward(self, observation: Tensor) -> Tensor:
            return observation * self.one

    class ActionAsValue(Identity):
        def forward(self, observation: Tensor, action: Tensor, tau: Tensor) -> Tensor:
            return (self.one * action).expand(-1, tau.shape[-1])

    def parametrised(module: nn.Module) -> nn.Module:
        module.one = nn.Parameter(torch.ones(()))
        return module

    loss = ACIQNLoss(parametrised(Identity()), parametrised(ActionAsValue()), gamma=1.0, target_noise=0.1)
    count = 20_000
    where = torch.zeros(count, 1)
    where[-1000:] = 0.95
    following = {"observation": where, "reward": torch.zeros(count, 1), "terminated": torch.zeros(count, 1).bool()}
    batch = TensorDict({"action": where, "observation": where, "next": following}, batch_size=[count])
    smoothed = loss.target_quantiles(batch, torch.rand(count, 2))
    inner = smoothed[:-1000, 0]
    assert inner.abs().max() == pytest.approx(0.2) and abs(float(inner.mean())) < 0.005
    assert float(inner.std()) == pytest.approx(0.0938, abs=0.003)  # of a normal clipped at two deviations: 0.938
    assert smoothed.max() == 1.0
