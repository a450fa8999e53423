"""The AC-IQN agent: when it learns, how it explores, that it goes on exactly, and that returns improve."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

import envs
from rlstack.adapters.marinenav import ACTOR_NAMES, CRITIC_NAMES, published_state
from rlstack.agents import Agent, make_agent
from rlstack.collection.collector import make_collector
from rlstack.collection.flatten import flatten_agents
from rlstack.config import ConfigError

SMALL: dict[str, Any] = {
    "self_features": 8,
    "object_features": [4],
    "hidden": [16, 16],
    "batch_size": 16,
    "buffer_size": 1000,
    "learning_starts": 0,
    "frames_per_update": 10,
    "n_step": 2,
}


class Detour(EnvBase):
    """Two decisions an episode: the first pays its action at once and costs 1.5 times as much after the second.

    Who looks one step ahead chooses 1, who looks to the end chooses -1. Observation ``[phase, debt]``, action
    ``[1]``; the second action is best at 0.5.
    """

    def __init__(self, num_worlds: int = 32, low: float = -1.0, discrete: bool = False) -> None:
        super().__init__(batch_size=[num_worlds])
        lead = (num_worlds,)
        self.observation_spec = Composite({"observation": Unbounded((*lead, 2))}, shape=lead)
        action = Categorical(3, shape=lead) if discrete else Bounded(low, 1.0, shape=(*lead, 1))
        self.action_spec = Composite({"action": action}, shape=lead)
        self.reward_spec = Composite({"reward": Unbounded((*lead, 1))}, shape=lead)
        ends = {name: Binary(1, shape=(*lead, 1), dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        self.done_spec = Composite(ends, shape=lead)
        self.phase, self.debt = torch.zeros(lead), torch.zeros(lead)

    def _observe(self) -> TensorDict:
        return TensorDict({"observation": torch.stack((self.phase, self.debt), -1)}, self.batch_size)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        chosen = torch.ones_like(self.phase, dtype=torch.bool) if mask is None else mask.reshape(-1)
        self.phase, self.debt = (torch.where(chosen, 0.0, value) for value in (self.phase, self.debt))
        return self._observe()

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        action = tensordict["action"][:, 0]
        first = self.phase == 0
        reward = torch.where(first, action, -1.5 * self.debt - (action - 0.5).square())
        self.phase, self.debt = self.phase + 1, torch.where(first, action, self.debt)
        done = ~first[:, None]
        ends = {"done": done, "terminated": done, "truncated": torch.zeros_like(done)}
        return self._observe().update({"reward": reward[:, None], **ends})

    def _set_seed(self, seed: int | None) -> None:
        pass


def small(env: EnvBase | None = None, total_frames: int = 1000, name: str = "acqn", **overrides: Any) -> Any:
    torch.manual_seed(0)
    env = Detour() if env is None else env
    return make_agent(name, env, total_frames, **{**SMALL, **overrides})


def sequences(frames: int) -> TensorDict:
    """``frames`` decisions of one made-up world."""
    following = {
        "observation": torch.randn(1, frames, 2),
        "reward": torch.randn(1, frames, 1),
        "terminated": torch.zeros(1, frames, 1, dtype=torch.bool),
        "done": torch.zeros(1, frames, 1, dtype=torch.bool),
    }
    entries = {
        "observation": torch.randn(1, frames, 2),
        "action": torch.rand(1, frames, 1) * 2 - 1,
        "active": torch.ones(1, frames, dtype=torch.bool),
        "next": following,
    }
    return TensorDict(entries, [1, frames])


def copies(values: list[Tensor]) -> list[Tensor]:
    return [value.detach().clone() for value in values]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(map(torch.equal, a, b))


def targets(agent: Any) -> list[Tensor]:
    params = (agent.loss.target_actor_network_params, agent.loss.target_critic_network_params)
    return [value for part in params for value in part.values(True, True)]


# -- when it learns ----------------------------------------------------------------------------------------------------


def test_nothing_is_learned_before_learning_starts() -> None:
    agent = small(learning_starts=100)
    before, frames = copies(agent.parameters()), 0
    while frames + 20 < 100:
        frames += 20
        assert agent.learn(sequences(20), frames) == {}
    assert agent.updates == 0 and equal(before, agent.parameters()) and len(agent.replay) == 80
    assert agent.learn(sequences(20), 100)
    assert agent.updates > 0 and not equal(before, agent.parameters())


def test_nothing_is_learned_before_a_batch_is_there() -> None:
    agent = small()
    assert agent.learn(sequences(15), 15) == {} and agent.updates == 0
    assert agent.learn(sequences(10), 25) and agent.updates == 1


@pytest.mark.parametrize(
    ("per_update", "sizes"),
    [
        (10, [16, 24, 7, 3, 1, 9, 55, 5, 40]),
        (10, [20] + [1] * 100),  # 0.1 ten times is not 1
        (3, [18, *[1] * 31, 50]),
        (7, [16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 100]),
        (0.5, [16, 1, 2, 5]),
        (1400, [16, 1383, 1, 1400, 2799, 1]),
    ],
)
def test_updates_follow_the_frames_exactly(per_update: float, sizes: list[int]) -> None:
    agent = small(frames_per_update=per_update, num_quantiles=1)
    frames = 0
    for size in sizes:
        frames += size
        metrics = agent.learn(sequences(size), frames)
        assert agent.updates == frames // per_update
        if size >= per_update:
            assert {"loss/critic", "loss/actor"} <= set(metrics)


def test_targets_follow_every_so_many_frames() -> None:
    agent = small(target_tau=1.0, target_every=40)
    old = copies(targets(agent))
    for frames in range(20, 201, 20):
        agent.learn(sequences(20), frames)
        new = copies(targets(agent))
        if frames % 40 == 0:
            online = [value for name in ("actor", "critic") for value in _online(agent, name)]
            assert equal(new, copies(online))
        else:
            assert equal(new, old)
        old = new


def _online(agent: Any, name: str) -> list[Tensor]:
    return list(getattr(agent.loss, f"{name}_network_params").values(True, True))


def test_several_target_updates_may_be_due_in_one_batch() -> None:
    agent, seen = small(target_tau=1.0, target_every=40), []
    agent.target_updater.step = lambda: seen.append(agent.updates)
    agent.learn(sequences(205), 205)
    agent.learn(sequences(36), 241)
    assert agent.updates == 24 and seen == [4, 8, 12, 16, 20, 24]


def test_targets_keep_to_multiples_when_updates_fall_between() -> None:
    agent, seen = small(target_tau=1.0, target_every=40, frames_per_update=30), []
    agent.target_updater.step = lambda: seen.append(30 * agent.updates)
    for frames in range(30, 301, 30):
        agent.learn(sequences(30), frames)
    assert seen == [60, 90, 120, 180, 210, 240, 300]


def test_targets_are_moving_averages() -> None:
    agent = small(target_tau=0.1, target_every=None, frames_per_update=20)
    old = copies(targets(agent))
    agent.learn(sequences(20), 20)
    assert agent.updates == 1
    online = [value for name in ("actor", "critic") for value in _online(agent, name)]
    for average, before, value in zip(targets(agent), old, online):
        torch.testing.assert_close(average, 0.9 * before + 0.1 * value.detach())


def test_schedules_drive_what_they_should() -> None:
    lr = {"kind": "linear", "start": 1.0e-2, "end": 0.0, "duration": 1.0}
    agent = small(total_frames=1000, lr_actor=lr, lr_critic=5.0e-3, epsilon=lr, noise_scale=lr)

    def state() -> list[float]:
        rates = [agent.optimizers[name].param_groups[0]["lr"] for name in ("actor", "critic")]
        return [*rates, agent._epsilon, agent._noise_scale]

    assert state() == pytest.approx([1e-2, 5e-3, 1e-2, 1e-2])
    agent.learn(sequences(250), 250)
    assert state() == pytest.approx([7.5e-3, 5e-3, 7.5e-3, 7.5e-3])
    before = copies(_online(agent, "actor"))
    agent.learn(sequences(750), 1000)
    assert state() == pytest.approx([0, 5e-3, 0, 0])
    assert equal(before, copies(_online(agent, "actor"))), "a learning rate of 0 moves nothing"


def test_the_published_recipe_reproduces_recorded_updates(fixtures_dir: Path) -> None:
    """Optimisers, clipping and order of the whole agent, not of the losses alone."""
    with np.load(fixtures_dir / "losses/public_AC_IQN.npz") as file:
        data = {key: torch.from_numpy(value) for key, value in file.items() if value.ndim}
    env = envs.make("marinenav", num_worlds=1, dtype=torch.float64)
    sizes = {"self_features": 6, "object_features": [4], "hidden": [12, 12], "batch_size": 16, "buffer_size": 16}
    agent: Any = make_agent("acqn_published", env, 1000, **sizes)
    for name, names in (("actor", ACTOR_NAMES), ("critic", CRITIC_NAMES)):
        for ours, theirs in ((f"{name}_network_params", "local0"), (f"target_{name}_network_params", "target0")):
            start = f"{theirs}/{name}/"
            arrays = {key.removeprefix(start): v.numpy() for key, v in data.items() if key.startswith(start)}
            for key, value in published_state(arrays, names).items():
                getattr(agent.loss, ours)[tuple(key.split("."))].data.copy_(value)
    draws = iter(data[f"step{k}/rand{i}"] for k in range(3) for i in range(3))
    agent.loss.draw_levels = lambda like: next(draws)
    following = {
        "observation": {key: data[f"next_{key}"] for key in ("self", "objects", "mask")},
        "reward": data["reward"][:, None],
        "terminated": data["done"][:, None] > 0.5,
    }
    here = {key: data[key] for key in ("self", "objects", "mask")}
    batch = TensorDict({"observation": here, "action": data["action"], "next": following}, [16])
    for k in range(3):
        metrics = agent.update(batch)
        ours = torch.stack([metrics[key] for key in ("grad/critic", "grad/actor")])
        torch.testing.assert_close(ours, data[f"step{k}/gradnorm"], rtol=0, atol=1e-9)
    for name, names in (("actor", ACTOR_NAMES), ("critic", CRITIC_NAMES)):
        start = f"step2/local/{name}/"
        arrays = {key.removeprefix(start): v.numpy() for key, v in data.items() if key.startswith(start)}
        for key, value in published_state(arrays, names).items():
            found = getattr(agent.loss, f"{name}_network_params")[tuple(key.split("."))].data
            torch.testing.assert_close(found, value, rtol=0, atol=1e-9)


# -- how it acts -------------------------------------------------------------------------------------------------------


def act(agent: Agent, observation: Tensor, explore: bool) -> Tensor:
    td = TensorDict({"observation": observation}, observation.shape[:1])
    return agent.policy(explore)(td)["action"]


def test_epsilon_one_is_uniform() -> None:
    agent = small(epsilon=1.0)
    actions = act(agent, torch.zeros(5000, 2), explore=True)
    assert stats.kstest(actions[:, 0].numpy(), stats.uniform(-1, 2).cdf).pvalue > 1e-3


def test_every_agent_of_a_world_explores_on_its_own() -> None:
    env = envs.make("marinenav", num_worlds=500, num_robots=2)
    agent = small(env, epsilon=0.3, noise_high=0.0, noise_low=0.0)
    td = env.reset()
    greedy = agent.loss.act(td["agents", "observation"])
    taken = agent.policy(explore=True)(td)["agents", "action"]
    assert taken.shape == (500, 2, 2) and taken.abs().max() <= 1
    random = taken != greedy
    assert torch.equal(random[..., 0], random[..., 1]), "an action is random as a whole"
    share = random[..., 0].double().mean(0)
    assert ((share - 0.3).abs() < 0.09).all()
    both = random[..., 0].all(-1).double().mean()
    assert abs(float(both) - 0.09) < 0.05


def test_without_noise_exploring_is_greedy() -> None:
    for agent in (
        small(epsilon=0.0, noise_low=0.0, noise_high=0.0, greedy_actor="online"),
        small(epsilon=0.0, noise_scale=0.0, greedy_actor="online"),
    ):
        observation = torch.randn(40, 2)
        assert torch.equal(act(agent, observation, True), act(agent, observation, False))


def test_noise_is_log_spaced_over_the_worlds() -> None:
    agent = small(epsilon=0.0, noise_low=0.001, noise_high=0.1, noise_scale=0.5, output_scale=1e-6)
    for parameter in _online(agent, "actor"):
        parameter.data.zero_()
    draws = act(agent, torch.zeros(5, 4000, 2), explore=True)[..., 0]
    expected = 0.5 * torch.logspace(-3, -1, 5)
    torch.testing.assert_close(draws.std(1), expected, rtol=0.06, atol=0)
    assert (draws.mean(1).abs() < expected / 10).all()


def test_an_unbatched_env_gets_one_noise_size() -> None:
    agent = small(epsilon=0.0, noise_low=0.3, noise_high=0.5)
    draws = torch.stack([agent._noise_sizes(1, torch.zeros(1))])
    assert float(draws) == pytest.approx(0.3)
    action = agent.policy(explore=True)(TensorDict({"observation": torch.zeros(2)}, []))["action"]
    assert action.shape == (1,)


def test_greedy_actor_is_the_one_asked_for() -> None:
    observation = torch.randn(6, 2)
    for which in ("online", "target"):
        agent = small(greedy_actor=which, target_tau=0.01)
        policy = agent.policy(explore=False)
        for frames in (50, 100):
            agent.learn(sequences(50), frames)
        expected = agent.loss.act(observation, target=which == "target")
        other = agent.loss.act(observation, target=which != "target")
        taken = policy(TensorDict({"observation": observation}, [6]))["action"]  # built before the updates
        assert torch.equal(taken, expected) and not torch.equal(taken, other)
        assert not taken.requires_grad


# -- checkpoints -------------------------------------------------------------------------------------------------------


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("target_every", [None, 60])
def test_a_restored_agent_goes_on_exactly(target_every: int | None) -> None:
    agent = small(target_every=target_every, frames_per_update=7)
    for frames in (33, 66, 99):
        agent.learn(sequences(33), frames)
    saved, rng = through_a_file({"agent": agent.state_dict(), "replay": agent.replay_state()}), torch.get_rng_state()
    other = small(target_every=target_every, frames_per_update=7)
    other.learn(sequences(50), 50)
    other.load_state_dict(saved["agent"])
    other.load_replay_state(saved["replay"])
    outcomes = []
    for each in (agent, other):
        torch.set_rng_state(rng)
        metrics = [each.learn(sequences(33), frames) for frames in (132, 165)]
        actions = act(each, torch.randn(8, 2), True)
        numbers = [torch.as_tensor(value) for step in metrics for value in step.values()]
        outcomes.append([*numbers, actions, *copies(each.parameters()), *copies(targets(each))])
    assert agent.updates == other.updates == 165 // 7
    assert equal(*outcomes)


def test_an_agent_restored_from_memory_shares_nothing() -> None:
    agent, twin = small(), small()
    agent.learn(sequences(50), 50)
    twin.load_state_dict(agent.state_dict())
    twin.load_replay_state(agent.replay_state())
    before = through_a_file({"agent": agent.state_dict(), "replay": agent.replay_state()})
    twin.learn(sequences(50), 100)
    after = through_a_file({"agent": agent.state_dict(), "replay": agent.replay_state()})

    def leaves(state: Any) -> list[Any]:
        if isinstance(state, dict):
            return [leaf for value in state.values() for leaf in leaves(value)]
        return [leaf for value in state for leaf in leaves(value)] if isinstance(state, list) else [state]

    for old, new in zip(leaves(before), leaves(after), strict=True):
        assert torch.equal(torch.as_tensor(old), torch.as_tensor(new)) if isinstance(old, Tensor) else old == new


# -- what it refuses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"gama": 0.9}, r"agent.gama: unknown key, did you mean 'gamma'\?"),
        ({"batch_size": "many"}, "agent.batch_size: expected int, got 'many'"),
        ({"gamma": 1.5}, "agent.gamma: 1.5 is outside"),
        ({"target_tau": 0.0}, "agent.target_tau: 0.0 is outside"),
        ({"frames_per_update": 0}, "agent.frames_per_update: 0.0 is outside"),
        ({"critic": "gate"}, "agent.critic: did you mean 'gated'"),
        ({"batch_size": 2000}, "agent: batch_size 2000 is larger than buffer_size 1000"),
        ({"noise_low": 1.0}, "agent: noise_low 1.0 is above noise_high"),
        ({"critic": "gated", "hidden": [8, 4]}, "critic=gated has two hidden layers of one width"),
        ({"lr_actor": {"kind": "constant"}}, "agent.lr_actor: kind 'constant' takes only start and warmup"),
        ({"algorithm": "acqm"}, "did you mean 'acqn'"),
        ({"algorithm": "no.such.module:Agent"}, "agent.algorithm: 'no.such.module:Agent' cannot be imported"),
        ({"algorithm": "rlstack.agents.acqn:Nothing"}, "cannot be imported: .*no attribute 'Nothing'"),
    ],
)
def test_mistakes_in_the_configuration_are_one_line(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        small(**overrides)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Detour(discrete=True), "agent=acqn needs continuous actions, the env has Categorical actions"),
        (Detour(low=-2.0), r"agent=acqn acts in \[-1, 1\], the env's actions have other bounds"),
        (envs.make("marinenav", num_worlds=1, continuous_actions=False), "set env.continuous_actions=true"),
    ],
)
def test_an_env_it_cannot_act_on_is_one_line(env: EnvBase, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        small(env)
    assert "\n" not in str(error.value)


# -- that it learns ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"n_step": 1}, -1.0),  # through the critic's bootstrap
        ({"n_step": 1, "gamma": 0.0, "squash": "arctan"}, 1.0),  # who does not look ahead takes the reward at once
        pytest.param({"n_step": 2, "lr_actor": 5e-4}, -1.0, marks=pytest.mark.slow),  # through the summed rewards
        pytest.param(
            {"n_step": 1, "critic": "gated", "shared_levels": False, "squash": "arctan", "lr_actor": 3e-3},
            -1.0,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_it_finds_the_action_of_the_highest_return(options: dict[str, Any], first: float) -> None:
    env, total = Detour(32), 5120
    agent = small(env, total, **{**LEARNER, **options})
    frames = 0
    for batch in make_collector(env, agent.policy(explore=True), 4, total_frames=total):
        flat = flatten_agents(batch, None)
        frames += int(flat["active"].sum())
        agent.learn(flat, frames)
    assert frames == total
    greedy = env.rollout(2, agent.policy(explore=False))["action"][0, :, 0]
    assert abs(float(greedy[0]) - first) < 0.3
    assert abs(float(greedy[1]) - 0.5) < 0.3


LEARNER: dict[str, Any] = {
    "self_features": 32,
    "hidden": [32, 32],
    "gamma": 1.0,
    "num_quantiles": 8,
    "target_tau": 0.1,
    "target_noise": 0.05,
    "batch_size": 128,
    "buffer_size": 10_000,
    "learning_starts": 500,
    "frames_per_update": 12,
    "lr_actor": 1e-3,
    "lr_critic": 3e-3,
    "epsilon": 0.2,
    "noise_low": 0.1,
    "noise_high": 0.5,
}
