"""The terms of a reward along an episode and over a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlstack
from rlstack import envs
from rlstack.config import ConfigError
from rlstack.diagnostics.reward_terms import draw_curves, play_episode, read_curves
from tests.conftest import Command
from tests.refusals import refused

OPTIONS = {"max_seconds": 2.0, "rewards": "dense", "random_states": 1.0}


@pytest.mark.slow
def test_the_terms_of_an_episode_make_up_its_return() -> None:
    env = envs.make("rocket", num_worlds=2)
    agent: Any = rlstack.make_agent("ppo", env, 1000, hidden=[8])
    episode = play_episode(agent.policy(explore=False), "rocket", OPTIONS, seed=1)
    assert set(map(len, episode.terms.values())) == {30}  # two seconds of 15 decisions each, nobody scores
    assert episode.success is False
    # Two cars that stand still on average: the only term with a reward in each step must be present.
    assert episode.terms["speed_to_ball"].any() and not episode.terms["goal"].any()
    assert episode.returned == pytest.approx(sum(values.sum() for values in episode.terms.values()))


@pytest.mark.slow
def test_steps_sum_up_to_what_the_world_says() -> None:
    env: Any = envs.make("rocket", num_worlds=1, **{**OPTIONS, **envs.world_class("rocket").evaluation_options})
    agent: Any = rlstack.make_agent("ppo", env, 1000, hidden=[8])
    policy = agent.policy(explore=False)
    env.set_seed(4)
    root, total = env.reset(), 0.0
    while not bool(root["done"].any()):
        root = env.step(policy(root))["next"]
        total += float(root["agents", "reward"][:, 0].sum())  # blue's only car
    assert play_episode(policy, "rocket", OPTIONS, seed=4).returned == pytest.approx(total, abs=1e-4)


@pytest.mark.slow
def test_given_options_are_kept_and_the_seed_decides_how_it_explores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"env.kick_offs": 0.0, "env.random_states": 1.0, "env.aerials": 0.0, "env.max_seconds": 1.0}
    found = []
    for outside in (0, 1):
        torch.manual_seed(outside)
        found.append(
            rlstack.watch(
                checkpoint="zoo:rocket", show="rewards", policy="explore", seed=3, quiet=True, record="x", **given
            )
        )
    assert not found[0].terms["kick_off"].any()
    assert found[0].returned == found[1].returned


def test_a_world_without_terms_is_refused() -> None:
    env = envs.make("marinenav", num_worlds=1)
    agent: Any = rlstack.make_agent("ppo", env, 1000, hidden=[8])
    refused(ConfigError, "does not tell the terms", play_episode, agent.policy(explore=False), "marinenav", {})


def test_curves_are_read_from_what_was_logged(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("frames,train/episodes,train/reward_goal,train/reward_touch\n10,2,1.5,0.25\n20,,,\n30,1,,0.5\n")
    frames, terms = read_curves(file)
    assert frames.tolist() == [10, 30] and terms["touch"].tolist() == [0.25, 0.5]
    assert terms["goal"][0] == 1.5 and np.isnan(terms["goal"][1])
    draw_curves(frames, terms, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 5000
    refused(ConfigError, "cannot be read", read_curves, tmp_path / "none.csv")
    file.write_text("frames,train/episodes\n10,1\n")
    refused(ConfigError, "no terms", read_curves, file)


@pytest.mark.slow
def test_the_command_leaves_both_plots(rlstack_command: Command, tmp_path: Path) -> None:
    tiny = ["total_frames=64", "log_every=32", "eval.episodes=1", "eval.max_steps=5", "agent.hidden=[8]", "threads=1"]
    tiny += ["env.num_worlds=4", "env.max_seconds=0.2", "agent.steps_per_batch=4", "agent.epochs=1", "logger=csv"]
    trained = rlstack_command("train", "agent=ppo", "env=rocket", "run_dir=run", "device=cpu", *tiny)
    assert trained.status == 0, trained.err
    shown = rlstack_command("watch", "show=rewards", "checkpoint=run", "env.max_seconds=0.2")
    assert shown.status == 0 and "speed_to_ball" in shown.out
    assert {path.name for path in (tmp_path / "run" / "rewards").iterdir()} == {"episode.png", "curves.png"}
    refused = rlstack_command("watch", "show=rewards", "checkpoint=run", "env=arena")
    assert refused.status == 2 and refused.err.startswith("error: env=arena does not fit the agent")
