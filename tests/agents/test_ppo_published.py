"""PPO against updates, advantages and learning rates recorded from the Arena game's own training stack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Bounded, Categorical

from rlstack.agents import make_agent
from rlstack.config.schedules import make_schedule
from tests.agents.arena_recordings import Recording, parameters, published_agent, world
from tests.agents.small_agents import Decisions, plain, small
from tests.exhaustive import recordings

TOLERANCE = 1e-6
"""Theirs and ours are computed in float32, to eight times its spacing; losses are means of a few thousand terms."""


# -- updates -----------------------------------------------------------------------------------------------------


@recordings("arena_training/ppo_update_[12].npz", "golden/arena/training/ppo_update_*.npz", least=4)
def test_recorded_updates(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first recording clips values; the second stops after one of eight epochs."""
    recording = Recording(path)
    agent, orders = published_agent(recording), iter(recording["perms"])
    monkeypatch.setattr(torch, "randperm", lambda count, generator=None, device=None: next(orders))
    metrics = agent.update(recording.batch())
    assert next(orders, None) is None, "as many epochs as recorded"
    theirs = {name.removeprefix("train/"): value for name, value in recording.text("stats").items()}
    ours = {
        "policy_loss": metrics["loss/policy"],
        "value_loss": metrics["loss/value"] / 2,
        "entropy_loss": metrics["policy/entropy"],
        "total_loss": metrics["loss/total"],
        "approx_kl": metrics["policy/kl"],
        "clip_fraction": metrics["policy/clipped"],
        "learning_rate": agent.optimizer.lr,
    }
    assert {name: float(value) for name, value in ours.items()} == pytest.approx(theirs, abs=TOLERANCE, rel=TOLERANCE)
    for name, parameter in parameters(agent).items():
        after, rows = recording.after(name)
        torch.testing.assert_close(parameter.detach()[rows], after, rtol=2e-7, atol=2e-7)
    batch = recording.batch()
    with torch.no_grad():
        distribution, values = agent.policy_and_value(batch)
    expected = recording["logits_after"].log_softmax(-1)
    torch.testing.assert_close(distribution.log_probs[0], expected, rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(values, recording["values_after"], rtol=TOLERANCE, atol=TOLERANCE)


def test_an_update_stops_at_the_mean_over_all_minibatches() -> None:
    """The published rule stops by the mean; ours by the last minibatch's divergence."""
    env = plain(discrete=True)
    for name, stops in (("ppo_published", 3), ("ppo", 1)):
        agent = small(env, name=name, epochs=5, minibatch_size=10, target_kl=0.5)
        distances = iter([0.0, 0.9, 0.0, 0.9, 1.0, 1.0] + [0.0] * 4)  # means so far: 0.45, 0.45, 0.63

        def minimize(objective: Any, batch: Any, distances: Any = distances) -> Any:
            kl = torch.tensor(next(distances))
            return kl, kl, dict.fromkeys(("policy", "value", "entropy", "clipped"), kl) | {"kl": kl}

        agent.optimizer.minimize = minimize
        agent.update(agent.rollout(env.experience(agent, 1, 20)))
        assert agent.updates == 2 * stops


def test_a_whole_rollout_is_normalised_once_and_stays_as_it_was() -> None:
    env, seen = plain(discrete=True), []
    agent = small(env, name="ppo", epochs=1, minibatch_size=10, normalize_over="rollout")
    agent.optimizer.minimize = lambda loss, part, real=agent.optimizer.minimize: (seen.append(part), real(loss, part))[
        1
    ]
    batch = agent.rollout(env.experience(agent, 1, 40))
    before = batch["advantage"].clone()
    agent.update(batch)
    advantage = torch.cat([part["advantage"] for part in seen])
    assert abs(float(advantage.mean())) < 1e-6 and float(advantage.std()) == pytest.approx(1)
    assert all(abs(float(part["advantage"].mean())) > 1e-3 for part in seen)
    assert torch.equal(batch["advantage"], before)


# -- the network -------------------------------------------------------------------------------------------------


def test_the_published_network() -> None:
    for actions, size in ((6, 58_311), (5, 58_246)):
        agent: Any = make_agent("ppo_published", world(actions=actions), 1000)  # type: ignore[arg-type]
        assert sum(parameter.numel() for parameter in agent.parameters()) == size
        for name, parameter in parameters(agent).items():
            if name.endswith("bias"):
                assert not parameter.any()
                continue
            small_side = parameter if parameter.shape[0] <= parameter.shape[1] else parameter.T
            expected = 2 * torch.eye(len(small_side))  # rows are orthogonal, of length sqrt 2
            torch.testing.assert_close((small_side @ small_side.T).detach(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["ppo", "a2c"])
@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize(("shared", "tensors"), [(2, 12), (3, 10)])
def test_shared_layers_are_trained_by_both_losses(name: str, discrete: bool, shared: int, tensors: int) -> None:
    agent = small(plain(discrete), name=name, hidden=[8, 6, 4], shared_layers=shared)
    assert agent.actor.encoder is agent.critic.encoder
    parameters = {id(parameter) for parameter in agent.parameters()}
    assert len(parameters) == len(agent.parameters()) == tensors + (not discrete)
    batch = TensorDict({"observation": torch.randn(7, 3)}, [7])
    distribution, value = agent.policy_and_value(batch)
    torch.testing.assert_close(value, agent.critic(batch["observation"])[:, 0])
    alone, taken = agent.distribution(batch["observation"]), distribution.mode()
    taken = taken if discrete else taken.detach() + 0.5  # at its mode a Gaussian does not change with its mean
    torch.testing.assert_close(distribution.log_prob(taken), alone.log_prob(taken))
    trunk = list(agent.actor.encoder.parameters())
    for output in (value.sum(), distribution.log_prob(taken).sum()):
        gradients = torch.autograd.grad(output, trunk, retain_graph=True)
        assert all(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("shared", [0, 1])
def test_shared_layers_run_once_in_a_loss(shared: int) -> None:
    agent = small(plain(discrete=True), name="ppo", hidden=[8, 4], shared_layers=shared)
    calls: list[int] = []
    for network in {id(net): net for net in (agent.actor.encoder, agent.critic.encoder)}.values():
        network.forward = lambda seen, forward=network.forward: (calls.append(1), forward(seen))[1]
    agent.update_once(plain(discrete=True).experience(agent, 1, 8))
    assert agent.updates == 2  # two epochs of one minibatch
    rollout = len(calls) - agent.updates * (1 if shared else 2)
    assert rollout in (3, 2)  # acting, values, and values of what follows the ends


def test_a_sampling_policy_plays_by_its_probabilities() -> None:
    env = Decisions(Bounded(-1.0, 1.0, shape=(3,)), Categorical(4, shape=()), masked=True)
    for greedy, kinds in (("mode", 1), ("sample", 3)):
        agent = small(env, name="ppo", greedy=greedy)
        seen = env.draw(500)
        seen["observation"] = seen["observation"][:1].expand(500, 3)
        acted = agent.policy(explore=False)(seen)
        assert len(acted["action"].unique()) == kinds and "log_prob" not in acted.keys()  # noqa: SIM118


# -- advantages --------------------------------------------------------------------------------------------------


@recordings("arena_training/gae_0.npz", "golden/arena/training/gae_*.npz", least=2)
def test_recorded_advantages(path: Path) -> None:
    """Uses the agent's own rollout, in which an observation is its own value."""
    recording = Recording(path)
    values, done = recording["values"].T[..., None], recording["dones"].T[..., None]
    env: Any = Decisions(Bounded(-9.0, 9.0, shape=(1,)), Categorical(2, shape=()))
    agent: Any = make_agent(
        "ppo", env, 1000, gamma=float(recording["gamma"]), gae_lambda=float(recording["lam"]), inputs="raw"
    )
    agent.critic = nn.Identity()
    following = torch.cat((values[:, 1:], recording["next_value"][:, None, None]), 1)
    data = env.experience(agent, *values.shape[:2])
    data["observation"], reward = values, recording["rewards"].T[..., None]
    data["next"].update({"observation": following, "reward": reward, "done": done, "terminated": done})
    batch = agent.rollout(data).view(data.shape)
    for ours, theirs in (("advantage", "advantages"), ("return", "returns")):
        torch.testing.assert_close(batch[ours].T, recording[theirs], rtol=0, atol=1e-5)


# -- learning rates ----------------------------------------------------------------------------------------------

RUN = 10_000


def schedule_of(theirs: dict[str, Any]) -> Any:
    """Returns a recorded schedule in our form."""
    kind, start = theirs["type"], theirs["lr_start"]
    if kind == "constant":  # takes neither an end nor a warm-up
        return make_schedule(start, RUN)
    config = {"kind": kind, "start": start, "end": 0.1 * start if theirs["lr_end"] is None else theirs["lr_end"]}
    if kind == "exponential":  # nor this one a warm-up
        config["factor"] = 0.1
    else:
        config |= {"warmup": theirs["warmup"], "warmup_start": config["end"]}
    return make_schedule(config, RUN)


@recordings("arena_training/lr_schedules.json", "golden/arena/training/lr_schedules.json")
def test_recorded_learning_rates(path: Path) -> None:
    recorded = json.loads(path.read_text())
    assert {entry["type"] for entry in recorded} == {"constant", "linear", "exponential", "cosine"}
    assert any(entry["warmup"] for entry in recorded)
    for entry in recorded:
        schedule = schedule_of(entry)
        for remaining, lr in entry["by_progress_remaining"].items():
            assert schedule(round((1 - float(remaining)) * RUN)) == pytest.approx(lr, rel=1e-12, abs=0), entry
