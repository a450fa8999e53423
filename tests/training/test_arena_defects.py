"""Defects of the Arena game's own training stack that rlstack does not have, where no other test shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import rlstack
from rlstack import envs
from rlstack.adapters.arena.agents import arena_agent, arena_policy, save_arena
from rlstack.config import build, load_group
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.curriculum import Curriculum
from rlstack.training.stages import CurriculumConfig
from tests.adapters.small_worlds import Noise
from tests.exhaustive import exhaustive
from tests.small_run import begun, composed
from tests.training.test_progress import Stream

SMALL = [
    *("agent=ppo", "agent.hidden=[16,16]", "agent.minibatch_size=32", "agent.epochs=1"),
    *("agent.normalize_observations=true", "agent.normalize_rewards=true"),
    *("logger=csv", "threads=1", "device=cpu", "log_every=100", "eval.episodes=2", "eval.every=100_000"),
]
CARTPOLE = ["env=gymnasium", "env.id=CartPole-v1"]


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
    agent: Any = rlstack.make_agent("ppo_published", env, 1000, hidden=[16, 16, 8], minibatch_size=32, epochs=1)
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
    short = ["agent.steps_per_batch=16", "total_frames=256", "log_every=1"]
    begun(tmp_path / "run", composed(*SMALL, *CARTPOLE, *short)).execute()
    assert "frames/s" in screen.getvalue() and "100.0%" in screen.getvalue()
    assert RunDirectory(tmp_path / "run").checkpoints.latest() is not None


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
