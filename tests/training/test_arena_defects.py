"""Defects of the Arena game's own training stack that rlstack does not have: one test for each."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode

import rlstack
from rlstack import envs
from rlstack.adapters.arena.agents import arena_agent, arena_policy, save_arena
from rlstack.config import build, load_group
from rlstack.evaluation.evaluator import evaluate
from rlstack.runs.checkpoint import read_checkpoint
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.curriculum import Curriculum
from rlstack.training.loop import Training
from rlstack.training.stages import CurriculumConfig
from tests.adapters.small_worlds import Noise
from tests.exhaustive import exhaustive
from tests.small_run import begun, composed, reopened
from tests.training.test_progress import Stream

SMALL = [
    *("agent=ppo", "agent.hidden=[16,16]", "agent.minibatch_size=32", "agent.epochs=1"),
    *("agent.normalize_observations=true", "agent.normalize_rewards=true"),
    *("logger=csv", "threads=1", "device=cpu", "log_every=100", "eval.episodes=2", "eval.every=100_000"),
]
CARTPOLE = ["env=gymnasium", "env.id=CartPole-v1"]
SHIPS = ["env=marinenav", "env.num_worlds=8", "env.max_steps=6", "agent.inputs=raw", "curriculum=marinenav"]


def training(folder: Path, *overrides: str, resume: bool = False) -> Training:
    """Returns the configuration of a small run of PPO."""
    plain = composed(*SMALL, *overrides)
    return reopened(folder, plain) if resume else begun(folder, plain)


def cartpole(num_envs: int = 3, **options: Any) -> Any:
    return envs.make("gymnasium", id="CartPole-v1", num_envs=num_envs, **options)


def agent_for(env: Any, name: str = "ppo", **options: Any) -> Any:
    torch.manual_seed(0)
    small = {"hidden": [16, 16, 8][: 3 if "shared_layers" in options else 2], "minibatch_size": 32, "epochs": 1}
    return rlstack.make_agent(name, env, 1000, **{**small, **options})


def batches(env: Any, agent: Any, steps: int, count: int) -> list[TensorDict]:
    collector = rlstack.make_collector(env, agent.policy(explore=True), steps, env.num_worlds * steps * count)
    return list(collector)


def test_b1_the_record_of_a_training_leaves_the_final_model_alone(tmp_path: Path) -> None:
    """The original wrote the record over the model's own file."""
    agent = rlstack.make_agent("ppo_published", Noise(32, 6))
    path = tmp_path / "run_final.pt"
    files = save_arena(agent, path)
    assert len(files) == len(set(files)) == 4
    assert json.loads((tmp_path / "run_final_training_state.json").read_text())["model_path"] == str(path)
    seen = Noise(32, 6).reset()
    one, other = (each(seen.clone())["action"] for each in (agent.policy(False), arena_policy(path, Noise(32, 6))))
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["ppo", "ppo_published"])
def test_b2_one_world_gives_numbers_and_evaluation_moves_no_statistics(name: str) -> None:
    env = cartpole(1)
    agent = agent_for(env, name, normalize_observations=True, normalize_rewards=True, shared_layers=0)
    for number, batch in enumerate(batches(env, agent, 1, 40)):  # statistics move after every single observation
        metrics = agent.learn(rlstack.flatten_agents(batch, None), number + 1)
        assert all(torch.isfinite(torch.as_tensor(value)) for value in metrics.values())
        assert torch.isfinite(agent.normalized(batch["observation"])).all()
    before = {key: value.clone() for key, value in agent.normalizer.state_dict().items()}
    policy = agent.policy(explore=False)
    evaluate(policy, "gymnasium", {"id": "CartPole-v1"}, episodes=1, seed=0, max_steps=20)
    assert all(torch.equal(value, before[key]) for key, value in agent.normalizer.state_dict().items())
    assert float(agent.normalizer.moments[0].count) == 40


def test_b3_a_rollout_goes_on_where_the_one_before_ended() -> None:
    """The original reset all worlds, and continued from the observations of before."""
    env = cartpole(4)
    agent = agent_for(env, normalize_observations=True)
    rollouts = batches(env, agent, 5, 12)
    for number, (first, second) in enumerate(itertools.pairwise(rollouts)):
        agent.learn(rlstack.flatten_agents(first, None), 20 * (number + 1))
        going_on = ~first["next", "done"][:, -1, 0]
        assert torch.equal(second["observation"][going_on, 0], first["next", "observation"][going_on, -1])
        later, earlier = (part["next", "episode", "length"][going_on] for part in (second, first))
        assert torch.equal(later[:, 0], earlier[:, -1] + 1), "the count of steps goes on, too"
    longest = max(float(batch["next", "episode", "length"].max()) for batch in rollouts)
    assert longest > 5, "episodes are longer than a rollout"
    assert float(agent.normalizer.moments[0].count) == 11 * 20, "no observation counts twice"


@pytest.mark.slow
def test_b4_what_a_stage_asks_for_is_told_by_the_game() -> None:
    """The original always reported no damage to the curriculum, so that no training could pass its second stage."""
    env: Any = envs.make("arena", num_worlds=24, style=2, max_steps=250)
    second = load_group("curriculum", "arena")["stages"][1]["advance"]
    assert set(second) <= {"episodes", *env.observation_spec["episode"].keys()}
    asked = {"episodes": 24, "damage_dealt": {"min": 1}, "damage_taken": {"min": 1}}
    stages = [{"name": "first", "advance": asked}, {"name": "second"}]
    course = Curriculum(build(CurriculumConfig, {"window": 24, "forget": True, "stages": stages}), env)
    course.observe(env.rollout(250, break_when_any_done=False))
    assert course.check(1) and env.stage == 1


def test_b5_statistics_of_a_file_act_and_learn_in_single_precision(tmp_path: Path) -> None:
    """The original read the statistics from JSON in double precision, which the network refused."""
    env = Noise(32, 6, 8)
    agent = agent_for(env, "ppo_published", shared_layers=2)
    rollout = env.rollout(4, agent.policy(explore=True), break_when_any_done=False)
    agent.learn(rlstack.flatten_agents(rollout, None), 32)
    save_arena(agent, tmp_path / "x.pt")
    again: Any = arena_agent(tmp_path / "x.pt", env, minibatch_size=32, epochs=1)
    assert again.normalized(rollout["observation"]).dtype == torch.float32
    seen = rollout[:, 0].exclude("next")
    assert torch.equal(again.policy(False)(seen.clone())["action"], agent.policy(False)(seen.clone())["action"])
    metrics = again.learn(rlstack.flatten_agents(rollout, None), 64)
    assert torch.isfinite(torch.as_tensor(metrics["loss/total"]))


def test_b6_the_display_lasts_from_before_the_first_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original's display failed before the first iteration ended, so that no checkpoint was ever written."""
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Stream("utf-8", terminal=True)
    monkeypatch.setattr("sys.stdout", screen)
    training(tmp_path / "run", *CARTPOLE, "agent.steps_per_batch=16", "total_frames=256", "log_every=1").execute()
    assert "frames/s" in screen.getvalue() and "100.0%" in screen.getvalue()
    assert RunDirectory(tmp_path / "run").checkpoints.latest() is not None


@pytest.mark.parametrize("kind", ["linear", "cosine", "exponential"])
def test_b7_learning_rates_fall(kind: str) -> None:
    """The original's learning rate ran from the end of its schedule to the beginning."""
    env = Noise(4, 3, 10)
    agent = agent_for(env, lr={"kind": kind, "start": 1e-3, "end": 1e-4})
    rates = [agent.optimizer.lr]
    for frames in (250, 500, 750, 1000):
        rollout = env.rollout(5, agent.policy(explore=True), break_when_any_done=False)
        agent.learn(rlstack.flatten_agents(rollout, None), frames)
        rates.append(agent.optimizer.lr)
    assert rates == sorted(rates, reverse=True) and len(set(rates)) == 5
    assert rates[0] == pytest.approx(1e-3) and rates[-1] == pytest.approx(1e-4)


def test_b8_checkpoints_do_not_wait_for_round_numbers(tmp_path: Path) -> None:
    """The original saved only where the number of steps, which grows by whole rollouts, hit a multiple."""
    options = ["collector.steps_per_batch=9", "total_frames=1000", "checkpoint.every=100", "checkpoint.keep=99"]
    training(tmp_path / "run", *CARTPOLE, *options).execute()
    steps = sorted(int(path.stem.split("_")[1]) for path in (tmp_path / "run/checkpoints").glob("checkpoint_*.pt"))
    assert all(count % 72 == 0 for count in steps) and not any(count % 100 == 0 for count in steps)
    assert [count // 100 for count in steps] == list(range(1, 11))


def test_b9_who_evaluates_builds_the_network_that_was_trained(tmp_path: Path) -> None:
    """The original built a network of other widths, with the actions of the other style."""
    run = training(tmp_path / "run", *CARTPOLE, "agent.hidden=[24,12,6]", "agent.shared_layers=1", "total_frames=200")
    run.execute()
    loaded = rlstack.load(tmp_path / "run")
    for one, other in zip(loaded.agent.parameters(), run.agent.parameters(), strict=True):
        assert torch.equal(one, other)
    for actions in (5, 6):
        env = Noise(32, actions, 50)
        agent = rlstack.make_agent("ppo_published", env, hidden=[24, 12, 6])
        save_arena(agent, tmp_path / "x.pt")
        seen = env.reset()
        policy = rlstack.load_policy(f"arena:{tmp_path / 'x.pt'}", env)
        assert torch.equal(policy(seen.clone())["action"], agent.policy(False)(seen.clone())["action"])


def test_b10_a_time_out_is_no_end() -> None:
    """The batch holds the true last observation, whose value stands for what would have followed."""
    env = cartpole(4, max_steps=6)
    agent = agent_for(env, gae_lambda=0.0, gamma=0.5)
    (batch,) = batches(env, agent, 20, 1)
    late, over = (batch["next", name][..., 0] for name in ("truncated", "terminated"))
    late = late & ~over
    assert late[:, :-1].any() and not (over & late).any()
    begun = batch["observation"][:, 1:][late[:, :-1]]
    last = batch["next", "observation"][:, :-1][late[:, :-1]]
    assert begun.abs().max() < 0.05 < last.abs().max(), "a new episode has begun, yet the old one's end is shown"
    found = agent.rollout(rlstack.flatten_agents(batch, None)).view(4, 20)
    with torch.no_grad():
        value, following = (agent.critic(seen)[..., 0] for seen in (batch["observation"], batch["next", "observation"]))
    expected = batch["next", "reward"][..., 0] + 0.5 * following * ~over - value
    torch.testing.assert_close(found["advantage"], expected, rtol=0, atol=1e-5)


class Operations(TorchDispatchMode):
    """Counts operations, whatever their size."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@exhaustive("name", ["arena", "marinenav"])
def test_b11_a_step_is_no_loop_over_worlds(name: str) -> None:
    """64 worlds need as many operations as 4, except for those that run in few worlds at a time."""
    counts = {}
    for worlds in (4, 64):
        env: Any = envs.make(name, num_worlds=worlds, max_steps=50)
        td = env.rand_action(env.reset())
        env.step(td.clone())
        with Operations() as seen:
            for _ in range(20):
                _, td = env.step_and_maybe_reset(env.rand_action(td))
        counts[worlds] = seen.count
    assert counts[64] < 3 * counts[4] and counts[4] > 100


@pytest.mark.slow
def test_b12_a_stage_that_begins_as_the_run_is_stopped(tmp_path: Path) -> None:
    """The checkpoint holds the stage, and all worlds of the resumed run are in it."""
    stages = "curriculum.advance.any=[{frames: {min: 300}}]"
    options = [*SHIPS, stages, "total_frames=5000", "agent.steps_per_batch=8", "checkpoint.every=100_000"]
    run = training(tmp_path / "run", *options)
    curriculum = run.hook(Curriculum)
    assert curriculum is not None
    check = curriculum.check

    def stopped(frames: int) -> bool:
        if check(frames):
            os.kill(os.getpid(), signal.SIGINT)
            return True
        return False

    curriculum.check = stopped  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    latest = RunDirectory(tmp_path / "run").checkpoints.latest()
    assert latest is not None and read_checkpoint(latest)["curriculum"]["stage"] == 1
    resumed = training(tmp_path / "run", *options, resume=True)
    resumed.restore()
    world: Any = resumed.env
    reached = resumed.hook(Curriculum)
    assert reached is not None and reached.stage == 1
    levels = world.rollout(20, break_when_any_done=False)["next", "episode", "level"][..., 0]
    assert levels.shape[0] == 8 and (levels[:, -1] == 1).all()
