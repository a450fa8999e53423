"""Offline runs: recorded data become a run like any other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlstack import envs
from rlstack.agents.interface import Interface
from rlstack.config import ConfigError
from rlstack.runs.checkpoint import state_digest
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.loggers import read_metrics
from rlstack.training.recorded import read_recorded
from rlstack.training.run import train
from tests.conftest import Command
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import composed

WORLD = ["env=cartpole", "env.num_worlds=4"]
SMALL = [
    *("total_frames=256", "eval.episodes=2", "eval.max_steps=10", "eval.every=1e9", "logger=csv", "threads=1"),
    *("agent.batch_size=16", "agent.hidden=[8]", "device=cpu", "checkpoint.every=64", "log_every=64"),
]


_RECORDED: list[bytes] = []


@pytest.fixture
def episodes(rlstack_command: Command, tmp_path: Path) -> Path:
    """Returns episodes of random play, which ``watch`` records once."""
    path = tmp_path / "data" / "random.npz"
    if _RECORDED:
        path.parent.mkdir()
        path.write_bytes(_RECORDED[0])
        return path
    ended = rlstack_command(
        "watch", "policy=random", "env=cartpole", "show=numbers", "episodes=3", f"transitions={path}"
    )
    assert ended.status == 0 and "wrote" in ended.out, ended.err
    _RECORDED.append(path.read_bytes())
    return path


def trained(command: Command, run: Path, *words: str) -> dict[str, Any]:
    """Returns the last state of a run."""
    ended = command("train", "agent=discrete_iql", *WORLD, *SMALL, f"run_dir={run}", *words)
    assert ended.status == 0, ended.err
    return RunDirectory(run).checkpoints.load()


def test_watched_episodes_are_whole(episodes: Path) -> None:
    with np.load(episodes) as arrays:
        ends = arrays["next/terminated"][:, 0]
        assert ends.sum() == 3 and ends[-1] and not arrays["next/truncated"].any()
        led, begun = arrays["next/observation"][:-1], arrays["observation"][1:]
        assert (led[~ends[:-1]] == begun[~ends[:-1]]).all()


def test_a_recording_that_stops_is_cut_at_the_end_of_its_file(tmp_path: Path) -> None:
    interface = Interface.of(envs.make("cartpole", num_worlds=1))
    for name, reward in (("a", 1.0), ("b", 100.0)):
        arrays = {key: np.zeros((4, 4), np.float32) for key in ("observation", "next/observation")}
        arrays |= {"action": np.zeros(4, np.int64), "next/reward": np.full((4, 1), reward, np.float32)}
        flags = {f"next/{name}": np.zeros((4, 1), bool) for name in ("terminated", "truncated")}
        np.savez(tmp_path / f"{name}.npz", **arrays, **flags)
    found = read_recorded(str(tmp_path), interface)
    assert found.data["next", "truncated"][:, 0].tolist() == [False, False, False, True] * 2
    assert "8 transitions in 2 episodes" in str(found)


@exhaustive("sampler", ["prioritized", "uniform"])
def test_a_run_ends_alike_with_a_file_or_a_folder_and_if_it_is_resumed_with_the_same_data(
    sampler: str, rlstack_command: Command, episodes: Path, tmp_path: Path
) -> None:
    """A frame is one sampled transition: 256 of them are 16 updates of 16."""
    words = [f"agent.replay.sampler={sampler}", "agent.normalize_observations=true", "agent.normalize_rewards=true"]
    words += ["agent.importance_exponent=0"]  # IQL would ignore the weights
    whole, parts = trained(rlstack_command, tmp_path / "whole", f"data={episodes}", *words), tmp_path / "parts"
    assert whole["frames"] == 256 and whole["agent"]["updates"] == 16 and "replay" not in whole
    about = json.loads((tmp_path / "whole" / "data.json").read_text())
    assert about["sha256"] == whole["data"]["sha256"]
    assert read_metrics(tmp_path / "whole" / "metrics.csv")[-1]["eval/return"] > 0

    assert trained(rlstack_command, parts, f"data={episodes.parent}", *words, "until=128")["frames"] == 128
    recorded = episodes.read_bytes()
    with np.load(episodes) as arrays:
        assert about["transitions"] == len(arrays["action"])
        others = {**arrays, "next/reward": arrays["next/reward"] * 2}
    np.savez(episodes, **others)
    refusal = rlstack_command("train", f"resume={parts}", "until=null").refused()
    assert "is not what the run has learned from (sha256" in refusal
    episodes.write_bytes(recorded)
    ended = rlstack_command("train", f"resume={parts}", "until=null")
    assert ended.status == 0, ended.err
    assert state_digest(RunDirectory(parts).checkpoints.load()) == state_digest(whole)


def test_a_replay_memory_is_data_and_what_was_learned_from_it_goes_on_in_the_world(
    rlstack_command: Command, tmp_path: Path
) -> None:
    online = ["agent.learning_starts=64", "agent.frames_per_update=32", "agent.random_frames=64", "until=64"]
    source = trained(rlstack_command, tmp_path / "online", *online, "agent.buffer_size=1000")
    offline = trained(rlstack_command, tmp_path / "offline", f"data={tmp_path / 'online'}")
    held = source["replay"]["transitions"]["action"]
    assert json.loads((tmp_path / "offline" / "data.json").read_text())["transitions"] == len(held)
    tuned = trained(rlstack_command, tmp_path / "tuned", f"init={tmp_path / 'offline'}", *online)
    for name, value in offline["agent"]["networks"]["loss"].items():
        if torch.is_tensor(value):
            assert torch.equal(value, tuned["agent"]["networks"]["loss"][name]), name


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda arrays: {**arrays, name: change(arrays[name])}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda arrays: {k: arrays[k] for k in arrays if k != "next/reward"},
            "next/reward is missing, it holds action",
        ),
        (lambda arrays: {key: value[:0] for key, value in arrays.items()}, "there is nothing in it"),
        (
            changed("observation", lambda seen: seen[:, :3]),
            r"observation is float32 \[\d+, 3\], the world has \[N, 4\]",
        ),
        (changed("action", lambda taken: taken + 5), r"action [56] in row \d+, the world has 2 discrete actions"),
        (changed("action", lambda taken: -np.eye(6, dtype=int)[5]), "action -1 in row 5, the world has 2 discrete"),
        (changed("action", lambda taken: taken[1:]), "arrays of different lengths: 5, 6"),
        (changed("action", lambda taken: taken * 1.0), "action is float64, the world takes torch.int64"),
        (changed("action", lambda taken: np.array([None] * 6)), "not plain data"),
        (changed("next/reward", lambda reward: reward * np.nan), "next/reward is not finite everywhere"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_data_that_do_not_fit_the_world_are_refused(spoil: Any, message: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    seen, flags = random.normal(size=(6, 4)).astype(np.float32), np.zeros((6, 1), bool)
    arrays = {
        **{"observation": seen, "action": random.integers(2, size=6), "next/observation": seen},
        **{"next/reward": np.ones((6, 1), np.float32), "next/terminated": flags, "next/truncated": ~flags},
    }
    np.savez(tmp_path / "episodes.npz", **spoil(arrays))
    interface = Interface.of(envs.make("cartpole", num_worlds=1))
    told = refused(ConfigError, message, read_recorded, str(tmp_path / "episodes.npz"), interface)
    assert told.startswith(f"data: {tmp_path / 'episodes.npz'}")


def train_refused(folder: Path, message: str, *words: str) -> None:
    plain = composed("agent=discrete_iql", *WORLD, *SMALL, f"run_dir={folder / 'refused'}", *words)
    refused(ConfigError, message, train, plain)
    assert not (folder / "refused").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["agent=torchrl_ppo"], "agent=torchrl_ppo learns from fresh rollouts alone; choose one with a replay buffer"),
        (["data=nothing.npz"], "data: nothing.npz does not exist"),
        (["data=."], "is neither a run nor a folder with recorded episodes"),
        (["agent.batch_size=9_000"], r"data: \d+ transitions are fewer than agent.batch_size=9,000; record more, or"),
        (["imitation.expert=random"], "set imitation or data, not both"),
        (["agent=dqn", "agent.recurrent={kind: gru, size: 8, sequence_length: 8}"], "set agent.recurrent=null"),
        (["curriculum=arena"], "set curriculum=null"),
        (
            ["agent=rainbow_published"],
            "agent=rainbow_published has a replay buffer of its own, .*; choose another agent",
        ),
    ],
)
def test_what_an_offline_run_cannot_do_is_refused(
    words: list[str], message: str, episodes: Path, tmp_path: Path
) -> None:
    train_refused(tmp_path, message, f"data={episodes}", *words)


def test_a_memory_of_longer_returns_asks_for_the_same(rlstack_command: Command, tmp_path: Path) -> None:
    online = ["agent.learning_starts=64", "agent.frames_per_update=32", "agent.n_step=3", "until=64"]
    trained(rlstack_command, tmp_path / "online", *online)
    message = r"holds returns of 3 steps; set agent.n_step=3 agent.gamma=0.99"
    train_refused(tmp_path, message, f"data={tmp_path / 'online'}")
