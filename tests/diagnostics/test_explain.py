"""What keeps agents from learning: the metrics, the checks, and runs that are spoiled on purpose."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import nn
from torchrl.data import MultiCategorical

import rlstack
from experiments.explain import spoiled
from experiments.explain.study import explained
from rlstack import envs
from rlstack.agents import build_agent, completed
from rlstack.agents.off_policy import OffPolicy, OffPolicyConfig
from rlstack.agents.ppo import PPO
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.diagnostics import checks
from rlstack.diagnostics.checks import paired
from rlstack.diagnostics.evidence import (
    EPISODES,
    Evidence,
    greedy_normalizes,
    no_effect,
    play,
    returns_that_followed,
)
from rlstack.diagnostics.signs import Activity, discounted, dormant_units, effective_rank, one_line, signs
from rlstack.reporting import document
from rlstack.training.hooks import Hook
from tests.adapters.small_worlds import Noise
from tests.agents.recall import Recall
from tests.refusals import refused

SMALL: dict[str, Any] = {"hidden": [16, 16]}
MANY = 48
"""Worlds, so that a few steps give the episodes that are wanted."""


def cartpole() -> Any:
    return envs.make("cartpole", num_worlds=MANY)


def evidence_of(agent: Any, env: Any, frames: int = 5000, config: dict[str, Any] | None = None) -> Evidence:
    """Returns the evidence about an agent that has not been trained, without files."""
    policies = {"explored": agent.policy(True), "greedy": agent.policy(False), "random": env.rand_action}
    rollouts = {name: play(env, policy, agent.interface.group, 1.0) for name, policy in policies.items()}
    options = {"agent": vars(agent.config), "env": {"num_worlds": 8}, "total_frames": 10_000, **(config or {})}
    return Evidence(options, [], agent, frames, **rollouts)


def first(evidence: Evidence) -> str | None:
    found = checks.findings(evidence)
    return found[0].name if found else None


# -- metrics -------------------------------------------------------------------------------------------------------


def test_returns_within_a_batch_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    reward, values = (torch.randn(3, 9, generator=generator, dtype=torch.float64) for _ in range(2))
    done = torch.rand(3, 9, generator=generator) < 0.3
    terminated = done & (torch.rand(3, 9, generator=generator) < 0.5)
    found, counted = discounted(reward, done, terminated, 0.9, values[:, -1])
    for row in range(3):
        total, known = float(values[row, -1]), True
        for step in reversed(range(8)):
            ends, dies = bool(done[row, step]), bool(terminated[row, step])
            total, known = (0.0, dies) if ends else (total, known)
            total = float(reward[row, step]) + 0.9 * total
            assert bool(counted[row, step]) is known
            if known:
                assert float(found[row, step]) == pytest.approx(total, abs=1e-12)
    assert not counted[:, -1].any()


def test_dormant_units_and_rank() -> None:
    assert dormant_units(torch.tensor([1.0, 1.0, 0.01, 0.0])).tolist() == [False, False, True, True]
    assert dormant_units(torch.zeros(2)).tolist() == [True, True]
    assert effective_rank(torch.eye(5)) == 5
    assert effective_rank(torch.ones(6, 4)) == 1


def test_activity_sees_a_network_of_ones_own_and_not_the_squashing_of_actions() -> None:
    env = spoiled.Reach(2)
    agent = rlstack.make_agent("sac", env, 1000, **SMALL)
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 2), nn.Tanh())
    nn.init.constant_(network[0].bias, -50.0)
    nn.init.constant_(network[2].bias, 50.0)
    with torch.no_grad(), Activity(agent) as activity:
        network(torch.rand(10, 3))
    shares = {name: float(value) for name, value in activity.shares().items()}
    assert shares == {"network/dormant_units": pytest.approx(8 / 13), "network/saturated_units": 1.0}


class Dropping(nn.Module):
    """A network that draws in training, and keeps running statistics."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.parts(observation.reshape(-1, 4)).reshape(*observation.shape[:-1], 1)


def test_metrics_leave_no_trace_in_a_run() -> None:
    env = envs.make("cartpole", num_worlds=4)
    agent = rlstack.make_agent("ppo", env, 1000, **SMALL)
    agent.critic = agent.networks["critic"] = Dropping()
    sequences = flatten_agents(next(iter(make_collector(env, agent.policy(True), 8))), None)
    before = {name: value.clone() for name, value in agent.critic.state_dict().items()}
    drawn = torch.get_rng_state()
    found = signs(agent, sequences, agent.policy(False))
    assert {"value/explained_variance", "network/saturated_units", "policy/kl", "data/rewarded"} <= set(found)
    assert float(found["policy/kl"]) == pytest.approx(0, abs=1e-6) and float(found["data/rewarded"]) == 1
    assert torch.equal(drawn, torch.get_rng_state()) and agent.critic.training
    assert all(torch.equal(value, before[name]) for name, value in agent.critic.state_dict().items())


@pytest.mark.parametrize("name", ["ppo", "a2c", "sac", "td3", "tqc", "acqn"])
def test_every_algorithm_has_the_metrics_of_its_values(name: str) -> None:
    env = spoiled.Reach(4)
    agent = rlstack.make_agent(name, env, 1000, **(SMALL if name != "acqn" else {}))
    collector = iter(make_collector(env, agent.policy(True), 2))
    for _ in range(25):
        sequences = flatten_agents(next(collector), None)
        if hasattr(agent, "extend"):
            agent.extend(sequences)
    found = signs(agent, sequences, agent.policy(False))
    assert {"value/explained_variance", "value/bias", "policy/at_bounds", "data/largest_input"} <= set(found)
    assert all(math.isfinite(float(value)) for value in found.values()), found


class Watching(Hook):
    """Remembers what the panel of a run says about the learning."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_iteration(self, training: Any) -> None:
        self.told.append(training.progress.rows["warning"]())


def test_a_run_logs_them_and_its_panel_says_what_is_plainly_wrong(tmp_path: Path) -> None:
    watching = Watching()
    run = rlstack.train(
        *("agent=experiments.explain.spoiled:DeadDQN", "env=cartpole", "env.num_worlds=4", "total_frames=400"),
        *("agent.learning_starts=50", "logger=csv", "device=cpu", "log_every=100", "eval.episodes=1"),
        f"run_dir={tmp_path / 'run'}",
        hooks=[watching],
        quiet=True,
    )
    logged = [row for row in run.metrics if "network/dormant_units" in row]
    assert len(logged) >= 4 and all(row["network/dormant_units"] == 1 for row in logged)
    assert watching.told[0] == "" and "100% of the networks' units are dormant" in watching.told[-1]


def test_one_line_is_for_what_is_plainly_wrong() -> None:
    assert one_line({"policy/kl": 0.02, "network/dormant_units": 0.4, "policy/clipped": 0.3}) is None
    assert "KL divergence of 3" in str(one_line({"policy/kl": 3.0}))


# -- evidence ------------------------------------------------------------------------------------------------------


def test_returns_that_followed_are_known_up_to_the_end_of_an_episode() -> None:
    env = envs.make("cartpole", num_worlds=8)
    agent = rlstack.make_agent("ppo", env, 1000, gamma=0.5)
    rollout = play(env, env.rand_action, None, 1.0)
    returns, known = returns_that_followed(agent, rollout.sequences)
    lengths = [episode.length for episode in rollout.episodes]
    assert min(lengths) > 5 and all(episode.terminated and episode.rewarded for episode in rollout.episodes)
    begin = int(rollout.sequences.get(("next", "done"))[0, :, 0].nonzero()[0])  # of rewards of 1
    assert known[0, : begin + 1].all()
    assert returns[0, begin].item() == 1 and returns[0, begin - 2].item() == 1 + 0.5 + 0.25


def test_levels_without_effect() -> None:
    for one_sided in (False, True):
        env = spoiled.Reach(4, one_sided=one_sided)
        interface = rlstack.make_agent("ppo", env, 1000, **SMALL).interface
        assert no_effect(env, interface) == ({0: (-1.0, 0.0), 1: (-1.0, 0.0)} if one_sided else {})


@pytest.mark.parametrize("forgets", [False, True])
def test_whether_the_greedy_policy_normalizes(forgets: bool) -> None:
    env = spoiled.Reach(4, offset=5.0)
    config = {**SMALL, "normalize_observations": True, "policy_gain": 1.0}
    agent: Any = rlstack.make_agent("ppo", env, 1000, **config)
    if forgets:
        agent = spoiled.RawGreedyPPO(*agent.recipe()[1:], torch.device("cpu"))
    assert isinstance(agent, PPO)
    sequences = flatten_agents(next(iter(make_collector(env, agent.policy(True), 8))), None)
    agent.normalizer.update(sequences.get("observation").flatten(0, 1))
    before = agent.normalizer.moments[0].mean.clone()
    assert greedy_normalizes(agent, sequences) is not forgets
    assert torch.equal(before, agent.normalizer.moments[0].mean)


def test_a_rollout_goes_on_until_enough_agents_have_ended_not_until_they_have_been_absent() -> None:
    """Agents that have left stay done, as long as the others of their world go on."""
    env = envs.make("marinenav", num_worlds=16, max_steps=30)
    rollout = play(env, env.rand_action, "agents", 20.0)
    assert len(rollout.episodes) >= EPISODES


# -- checks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "world", "options", "cause"),
    [
        ("ppo", lambda: spoiled.OneSidedMask(MANY), {}, "masks"),
        ("ppo", lambda: spoiled.NoTermination(MANY), {}, "terminations"),
        ("ppo", lambda: spoiled.LimitIsDeath(MANY, max_steps=15), {}, "time_limits"),
        ("dqn", lambda: spoiled.TinyRewards(MANY), {}, "reward_scale"),
        ("ppo", cartpole, {"lr": 1.0}, "learning_rate"),
        ("ppo", cartpole, {"gamma": 0.3}, "horizon"),
        ("ppo", lambda: spoiled.Reach(MANY), {"initial_std": 1e-6}, "exploration"),
        ("ppo", lambda: spoiled.Reach(MANY, offset=300.0), {"normalize_observations": True}, "normalizer"),
        ("ppo", cartpole, {}, None),
        ("dqn", cartpole, {}, None),
        ("sac", lambda: spoiled.Reach(MANY), {}, None),
    ],
)
def test_causes_in_the_set_up_and_the_world_need_no_training(
    agent: str, world: Any, options: dict[str, Any], cause: str | None
) -> None:
    env = world()
    made = rlstack.make_agent(agent, env, 10_000, **SMALL, **options)
    made.updates = 100
    found = [finding for finding in checks.findings(evidence_of(made, env)) if finding.severity == checks.FAULT]
    assert [finding.name for finding in found[:1]] == ([] if cause is None else [cause])
    assert all(finding.measured and finding.usual and finding.source and finding.change for finding in found)


def test_transitions_are_drawn_from_a_replay_buffer_and_rollouts_come_in_batches() -> None:
    env = cartpole()
    ppo, dqn = (rlstack.make_agent(name, env, 10_000, **SMALL) for name in ("ppo", "dqn"))
    ppo.updates = dqn.updates = 100
    few = evidence_of(ppo, env, config={"total_frames": 10 * 8 * ppo.config.steps_per_batch})  # in 8 worlds
    few.learned = False
    assert few.facts()["batches"] == 10 and "drawn" not in few.facts()
    (finding,) = [finding for finding in checks.findings(few) if finding.name == "few_updates"]
    assert finding.measured == f"10 batches of {ppo.config.steps_per_batch} steps in 8 worlds"
    facts = evidence_of(dqn, env, frames=5000).facts()
    assert facts["drawn"] == 100 * dqn.config.batch_size / 5000 and "batches" not in facts


def test_a_frame_that_is_a_step_of_a_world_holds_a_decision_of_each_agent() -> None:
    env = envs.make("marinenav", num_worlds=2, max_steps=10)
    ppo, sac = (rlstack.make_agent(name, env, 10_000) for name in ("ppo", "sac"))
    sac.updates = 100
    config = {"collector": {"count": "env_steps", "steps_per_batch": 4}, "total_frames": 960}
    facts = evidence_of(ppo, env, config=config).facts()
    assert facts["batches"] == 960 / (4 * 8) and facts["steps"] == 4  # in 8 worlds
    drawn = evidence_of(sac, env, frames=200, config=config).facts()["drawn"]
    assert drawn == 100 * sac.config.batch_size / (200 * ppo.interface.agents) and ppo.interface.agents > 1


def test_how_often_recorded_data_are_drawn_is_not_told_by_frames_that_are_draws() -> None:
    env = cartpole()
    agent = rlstack.make_agent("dqn", env, 10_000, normalize_observations=True, **SMALL)
    agent.updates = 100
    agent.normalizer.update(env.rollout(40).get("observation")[0])  # 5000 frames draw each many times
    evidence = evidence_of(agent, env, config={"data": "recorded.npz"})
    assert not {"drawn", "normalizer_share"} & evidence.facts().keys()
    assert "normalizer" not in [finding.name for finding in checks.findings(evidence)]


def test_without_an_end_nothing_is_said_about_values_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlstack.diagnostics.evidence.MOST_STEPS", 20)
    facts = {}
    for limit in (10, 30):
        env = spoiled.Reach(MANY, max_steps=limit)
        facts[limit] = evidence_of(rlstack.make_agent("ppo", env, 10_000, gamma=1.0, **SMALL), env).facts()
    assert facts[10]["unbounded"] == 1 and facts[10]["ends"] > 0
    assert "unbounded" not in facts[30] and facts[30]["ends"] == 0


def test_values_that_count_a_bonus_are_not_compared_with_returns_without_it() -> None:
    env, judged = cartpole(), {"explained", "bias", "agreement"}
    plain, curious = (rlstack.make_agent("ppo", env, 10_000, rnd=rnd, **SMALL) for rnd in (None, {"coefficient": 1.0}))
    assert judged <= evidence_of(plain, env).facts().keys()
    assert judged.isdisjoint(evidence_of(curious, env).facts())


def test_choices_of_several_parts_are_compared_as_a_whole() -> None:
    env = Noise(4, MultiCategorical([3, 4], shape=(2,)), num_worlds=MANY)
    agent: Any = rlstack.make_agent("ppo", env, 10_000, **SMALL)
    for parameter in agent.actor.parameters():
        nn.init.zeros_(parameter)
    list(agent.actor.parameters())[-1].data[[1, 6]] = 5.0  # always the second of three and the last of four
    evidence = evidence_of(agent, env)
    facts = evidence.facts()
    assert facts["same_choice"] == 1
    assert facts["compared_decisions"] == MANY * min(evidence.explored.sequences.shape[1], 32)


def test_the_greatest_entropy_is_that_of_what_the_masks_allow() -> None:
    """In this world two of four choices are always allowed."""
    env = Recall(MANY, masked=True)
    evidence = evidence_of(rlstack.make_agent("ppo", env, 10_000, **SMALL), env)
    evidence.rows = [{"frames": 1000.0, "policy/entropy": 0.3}]
    facts = evidence.facts()
    assert facts["most_entropy"] == pytest.approx(math.log(2))
    assert facts["entropy_share"] == pytest.approx(0.3 / math.log(2))
    assert facts["single_choice"] == 0 and facts["never_legal"] == 0


def test_symptoms_of_an_agent_that_is_better_than_chance_are_left_out() -> None:
    env = cartpole()
    evidence = evidence_of(rlstack.make_agent("ppo", env, 10_000, **SMALL), env)
    evidence.rows = [{"frames": 1000.0 * k, "policy/kl": 5.0} for k in range(1, 5)]
    evidence.learned = False
    assert "policy_change" in [finding.name for finding in checks.findings(evidence)]
    evidence.learned = True
    assert first(evidence) is None


def test_the_spread_of_actions_at_its_bound_and_the_size_of_advantages() -> None:
    env = spoiled.Reach(MANY)
    agent: Any = rlstack.make_agent("sac", env, 10_000, **SMALL)
    assert evidence_of(agent, env).facts()["std_at_bounds"] == 0
    nn.init.constant_(agent.actor.log_std.bias, -50.0)
    evidence = evidence_of(agent, env)
    evidence.learned = False
    assert "std_at_bounds" in [finding.name for finding in checks.findings(evidence)]
    remembers = rlstack.make_agent("sac", env, 10_000, recurrent={"kind": "gru", "size": 8}, **SMALL)
    assert "std_at_bounds" not in evidence_of(remembers, env).facts()
    facts = evidence_of(rlstack.make_agent("ppo", env, 10_000, gamma=0.5, **SMALL), env).facts()
    assert facts["std_at_bounds"] == 0 and facts["advantage_std"] > 0 and 0 < facts["agreement"] <= 1


def test_an_algorithm_that_tells_nothing_is_explained_as_far_as_it_goes() -> None:
    env = cartpole()
    agent = rlstack.make_agent("torchrl_ppo", env, 10_000, lr=0.5)
    assert agent.predicted_returns(None) is None and agent.log_ratios(None) is None
    assert first(evidence_of(agent, env)) == "learning_rate"


class Own(OffPolicy):
    """An algorithm from scratch, which keeps its network under a name of its own and predicts no returns."""

    Config = OffPolicyConfig
    ACTIONS = ("choice",)

    def build(self) -> None:
        self.mine = self.add_network("mine", nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))

    def exploit(self, observation: Any, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.mine(observation).argmax(-1)

    def explore(self, observation: Any, mask: torch.Tensor | None = None) -> torch.Tensor:
        return torch.distributions.Categorical(logits=self.mine(observation)).sample()

    def update(self, batch: Any) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("dead", [False, True])
def test_an_algorithm_from_scratch_is_explained_and_measured_without_a_line_of_its_own(dead: bool) -> None:
    env = cartpole()
    agent: Any = build_agent(completed({"name": "own", "algorithm": f"{__name__}:Own"}), env, 10_000)
    agent.updates = 100
    if dead:
        nn.init.constant_(agent.mine[0].bias, -50.0)
    evidence = evidence_of(agent, env)
    faults = [finding.name for finding in checks.findings(evidence) if finding.severity == checks.FAULT]
    assert faults == (["dormant"] if dead else [])
    assert (float(signs(agent, evidence.explored.sequences, agent.policy(False))["network/dormant_units"]) == 1) is dead


# -- command -------------------------------------------------------------------------------------------------------


def test_pairs_give_an_interval_of_students_t() -> None:
    before, after = [1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 3.5, 6.0]
    gains = [new - old for old, new in zip(before, after)]
    interval = stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    found = paired({"agent.lr": 1e-3}, before, after, 500)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.helps is (True if interval.low > 0 else None) and "4 pairs of 500 frames" in str(found)


@pytest.mark.slow
def test_the_command_explains_tries_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    rlstack.train(
        *("agent=ppo", "env=cartpole", "env.num_worlds=8", "agent.lr=1.0", "agent.hidden=[8]", "total_frames=4096"),
        *("agent.steps_per_batch=64", "logger=csv", "device=cpu", "eval.episodes=1", f"run_dir={run}"),
    )
    found = rlstack.explain(run, "try=true", minutes=0.05, seeds=2)
    told, printed = json.loads((run / "explanation.json").read_text()), capsys.readouterr().out
    assert found[0].name == told["findings"][0]["name"] == "learning_rate"
    assert told["trial"]["options"] == {"agent.lr": 3e-4} and len(told["trial"]["after"]) == 2
    assert "1. The learning rate is far from the usual" in printed and "tried agent.lr=0.0003" in printed
    page = document.render(document.report(run))
    assert "The learning rate is far from the usual" in page
    (run / "explanation.json").write_text("{")
    assert any("explanation.json" in note for _, note in document.report(run).notes)


def test_a_run_is_needed(tmp_path: Path) -> None:
    assert "run: " in refused(rlstack.ConfigError, ".", rlstack.explain)
    assert refused(rlstack.ConfigError, ".", rlstack.explain, str(tmp_path / "nowhere")).startswith("run: ")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*spoiled.SPOILED, *spoiled.HEALTHY])
def test_the_cause_is_the_first_finding(name: str, tmp_path: Path) -> None:
    row = explained(name, tmp_path)
    wanted = [row["wanted"]] if name in spoiled.SPOILED else []
    assert row["found"][:1] == wanted, row
    assert row["seconds"] < 60
