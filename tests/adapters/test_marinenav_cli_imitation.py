"""The published trainer's command line with ``imitation_learning: true``: whom a trial imitates, and what it writes."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlstack
from rlstack import envs
from rlstack.adapters.marinenav.__main__ import Trial, main
from rlstack.adapters.marinenav.evaluations import read_evaluations
from rlstack.adapters.marinenav.files import load_published
from rlstack.runs.checkpoint import CheckpointStore
from rlstack.training.imitation import Imitation
from tests.exhaustive import exhaustive
from tests.refusals import refused_line

LEVELS = {"num_robots": [1, 2], "num_cores": [0, 0], "num_obstacles": [0, 1], "min_start_goal_dis": [30.0, 35.0]}
CONFIG: dict[str, Any] = {
    "seed": 9,
    "total_timesteps": 24,
    "eval_freq": 24,
    "save_dir": "out",
    "training_schedule": {"timesteps": [0, 1000], **LEVELS},
    "eval_schedule": {"num_episodes": [1, 1], **LEVELS},
    "agent_type": "AC-IQN",
    "imitation_learning": True,
}
FILES = {"trial_config.json", "eval_configs.json", "evaluations.npz", "config.yaml", "metrics.csv", "checkpoints"}
FILES |= {"environment.json", "manifest.json"}
NETWORKS = {
    f"{part}_{name}" for part in ("actor", "critic") for name in ("network_params.pth", "constructor_params.json")
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fixtures_dir: Path) -> Path:
    """Clones 400 decisions and ends evaluation episodes after 6 steps, in a folder with copies of the fixtures."""
    full = Trial.train_config

    def train_config(self: Trial, device: str, expert: str | None = None) -> dict[str, Any]:
        plain = full(self, device, expert)
        plain["agent"] |= {"learning_starts": 8, "batch_size": 8, "buffer_size": 100}
        plain["imitation"] |= {"frames": 400, "epochs": 20, "batch_size": 32}
        return plain

    monkeypatch.setattr(Trial, "train_config", train_config)
    monkeypatch.setattr("rlstack.adapters.marinenav.__main__.MAX_STEPS", 6)
    monkeypatch.chdir(tmp_path)
    for name in ("AC_IQN_params.npz", "evaluations_example.npz"):
        shutil.copy(fixtures_dir / "marinenav" / name, tmp_path)
    return tmp_path


def write(folder: Path, **changes: Any) -> str:
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return str(folder / "config.json")


def trials(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("*/*"))


def imitation_metrics(trial: Path) -> dict[str, float]:
    with open(trial / "metrics.csv", newline="") as file:
        (row, *_) = csv.DictReader(file)
    return {key: float(row[key]) for key in row if key.startswith("imitation/") and row[key]}


@pytest.mark.slow
def test_a_trial_clones_the_published_actor(small: Path) -> None:
    main(["-C", write(small, agent_type="DDPG"), "-I", "marinenav:AC_IQN_params.npz"])
    (trial,) = trials(small)
    assert {path.name for path in trial.iterdir()} == FILES | NETWORKS | {"evaluations", "allowed.json"}
    assert json.loads((trial / "trial_config.json").read_text()) == CONFIG | {"agent_type": "DDPG"}
    found = read_evaluations(trial / "evaluations.npz")
    assert found.timesteps == [0]
    assert [len(episode.robots) for episode in found.episodes[0]] == [1, 2]

    assert imitation_metrics(trial)["imitation/frames"] == 400


@pytest.mark.slow
def test_the_files_it_writes_act_more_like_the_expert_than_an_agent_that_learnt_nothing(small: Path) -> None:
    for name, changes in (("clone", {}), ("untrained", {"imitation_learning": False, "total_timesteps": 4})):
        expert = ["-I", "marinenav:AC_IQN_params.npz"] if name == "clone" else []
        main(["-C", write(small, save_dir=name, **changes), *expert])
    env = envs.make("marinenav", num_worlds=24, num_robots=2, num_obstacles=1, seed=5)
    expert_acts = rlstack.load_policy("marinenav:AC_IQN_params.npz", env)
    rollout = env.rollout(40, expert_acts, break_when_any_done=False)
    active, wanted = rollout["agents", "active"], rollout["agents", "action"].clone()

    def error(folder: str) -> float:
        (trial,) = (small / folder).glob("*/*")
        policy = rlstack.load_policy(f"marinenav:{trial}", env)
        found = policy(rollout.clone())["agents", "action"]
        return float((found - wanted)[active].square().mean())

    assert error("clone") < 0.75 * error("untrained")


@pytest.mark.slow
def test_the_expert_acts_on_every_level(small: Path) -> None:
    """The second expert begins after 1,000 env steps of a trial of reinforcement learning."""
    main(["-C", write(small), "-I", "marinenav:AC_IQN_params.npz"])
    world = rlstack.load(trials(small)[0]).make_env(num_worlds=32)
    assert set(world.reset()["episode", "level"].flatten().tolist()) == {0, 1}


@pytest.mark.slow
def test_a_trial_clones_recorded_episodes(small: Path) -> None:
    main(["-C", write(small, agent_type="SAC"), "-I", "evaluations_example.npz"])
    (trial,) = trials(small)
    recorded = read_evaluations("evaluations_example.npz").episodes[-1]
    decisions = sum(len(robot.action) for episode in recorded if episode.success for robot in episode.robots)
    assert imitation_metrics(trial)["imitation/frames"] == decisions
    assert (trial / "actor_network_params.pth").exists() and (trial / "critic_2_params.pth").exists()


@pytest.mark.slow
def test_of_a_grid_only_some_trials_imitate(small: Path) -> None:
    main(["-C", write(small, imitation_learning=[True, False]), "-I", "marinenav:AC_IQN_params.npz"])
    clone, learner = trials(small)
    assert [
        json.loads((trial / "trial_config.json").read_text())["imitation_learning"] for trial in (clone, learner)
    ] == [True, False]
    assert read_evaluations(clone / "evaluations.npz").timesteps == [0]
    assert read_evaluations(learner / "evaluations.npz").timesteps == [8, 24]
    assert imitation_metrics(clone) and not imitation_metrics(learner)


@pytest.mark.slow
def test_an_interrupted_cloning_is_done_anew(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two trials is interrupted and resumed, and ends like the first."""

    def interrupted(self: Imitation, agent: Any) -> dict[str, float]:
        if not CheckpointStore(trials(small)[0] / "checkpoints").latest():
            return learn(self, agent)
        raise KeyboardInterrupt

    learn = Imitation.learn
    monkeypatch.setattr(Imitation, "learn", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main(["-C", write(small, seed=[9, 9]), "-I", "evaluations_example.npz"])
    assert stopped.value.code == 130
    monkeypatch.setattr(Imitation, "learn", learn)
    straight, other = trials(small)
    assert not (other / "evaluations.npz").exists()
    before = (straight / "metrics.csv").read_bytes()
    main(["-R", str(straight.parent)])
    assert (straight / "metrics.csv").read_bytes() == before
    for name in ("evaluations.npz", "actor_network_params.pth"):
        assert (straight / name).read_bytes() == (other / name).read_bytes(), name
    assert load_published(other).arrays.keys() == {"actor", "critic"}
    with pytest.raises(SystemExit) as stopped:
        main(["-R", str(straight.parent)])
    assert stopped.value.code == 2


@exhaustive(
    ("agent_type", "expert", "needles"),
    [
        ("DQN", "marinenav:AC_IQN_params.npz", ["DQN cannot imitate marinenav:AC_IQN_params.npz: ", "continuous"]),
        (
            ["SAC", "IQN"],
            "evaluations_example.npz",
            ["IQN cannot imitate evaluations_example.npz: ", "action is float64", "int64"],
        ),
        ("SAC", "nowhere.npz", ["nowhere.npz does not exist"]),
        ("SAC", "nowhere", ["'nowhere' does not exist"]),
        ("SAC", "marinenav:nowhere.npz", ["nowhere.npz"]),
        ("SAC", "tensorflow:model", ["kind", "sb3"]),
        ("SAC", "AC_IQN_params.npz", ["AC_IQN_params.npz", "observation/"]),
        ("SAC", "other.npz", ["other.npz", "observation/"]),
    ],
)
def test_an_expert_that_does_not_fit_is_one_clear_line(
    agent_type: Any, expert: str, needles: list[str], small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(small / "other.npz", observation=np.zeros((20, 3)), action=np.zeros((20, 2)))
    line = refused_line(capsys, main, "-C", write(small, agent_type=agent_type), "-I", expert)
    assert line.startswith("error: -I/--imitate")
    assert not [needle for needle in needles if needle not in line], line
    assert not (small / "out").exists()
