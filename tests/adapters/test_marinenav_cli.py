"""The published trainer's command line: its configuration, its folders and its files."""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlstack
from rlstack.adapters.marinenav.__main__ import PublishedFiles, Trial, folders, main, read_trials, train_together
from rlstack.adapters.marinenav.agents import NETWORKS, load_published, network_of, published_agent
from rlstack.adapters.marinenav.evaluations import read_evaluations
from rlstack.config import ConfigError, build
from rlstack.config.errors import RunError
from rlstack.envs.marinenav.episodes import load_episodes
from rlstack.runs.checkpoint import CheckpointStore
from rlstack.runs.loading import LoadedRun
from rlstack.training.config import TrainConfig
from rlstack.training.loop import Training
from tests.envs.marinenav.recorded import load_json
from tests.exhaustive import exhaustive
from tests.refusals import refused_line
from tests.small_run import logged

ROOT = Path(__file__).parents[2]
RELEASED = ROOT / "tests/fixtures/marinenav/AC_IQN_params.npz"
PUBLISHED = {"num_robots": [3, 4, 5, 5, 5, 5], "num_cores": [0] * 6, "num_obstacles": [0, 0, 0, 2, 3, 4]}
PUBLISHED["min_start_goal_dis"] = [30, 35, 40, 40, 40, 40]
LEVELS = {"num_robots": [2, 3], "num_cores": [0, 1], "num_obstacles": [0, 2], "min_start_goal_dis": [30.0, 35]}
CONFIG: dict[str, Any] = {
    "seed": [9],
    "total_timesteps": 48,
    "eval_freq": 16,
    "save_dir": "out",
    "training_schedule": {"timesteps": [0, 30], **LEVELS},
    "eval_schedule": {"num_episodes": [2, 1], **LEVELS},
    "imitation_learning": False,
    "agent_type": "AC-IQN",
}
ACTOR = {"actor_network_params.pth", "actor_constructor_params.json"}
CRITIC = {"critic_network_params.pth", "critic_constructor_params.json"}
CRITICS = {f"critic_{k}_{name}" for k in (1, 2) for name in ("params.pth", "constructor_params.json")}
NETWORK = {"network_params.pth", "constructor_params.json"}
NETWORK_FILES = {"AC-IQN": ACTOR | CRITIC, "DDPG": ACTOR | CRITIC, "SAC": ACTOR | CRITICS}
NETWORK_FILES |= dict.fromkeys(("IQN", "DQN", "Rainbow"), NETWORK)


WRITTEN = {"trial_config.json", "eval_configs.json", "evaluations.npz", "config.yaml", "metrics.csv", "checkpoints"}
WRITTEN |= {"environment.json", "manifest.json"}


def write(folder: Path, usual: dict[str, Any] = CONFIG, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({key: value for key, value in (usual | changes).items() if value is not ...}))
    return path


def trained(folder: Path) -> Path:
    """Returns the one folder of trials in ``folder/out``."""
    (training,) = (folder / "out").iterdir()
    return training


def shorten(monkeypatch: pytest.MonkeyPatch, max_steps: int, changes: dict[str, dict[str, Any]]) -> None:
    """Changes the options of every trial's run, and ends evaluation episodes after so many steps."""
    full = Trial.train_config

    def train_config(self: Trial, device: str, expert: str | None = None) -> dict[str, Any]:
        plain = full(self, device, expert)
        for group, options in changes.items():
            plain[group] |= options
        return plain

    monkeypatch.setattr(Trial, "train_config", train_config)
    monkeypatch.setattr("rlstack.adapters.marinenav.__main__.MAX_STEPS", max_steps)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Starts learning after 20 steps and ends evaluation episodes after 12, in a temporary folder."""
    shorten(monkeypatch, 12, {"agent": {"learning_starts": 20, "batch_size": 8, "buffer_size": 200}})
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- the configuration


@pytest.mark.slow
def test_the_published_configuration_is_the_published_training(tmp_path: Path) -> None:
    timesteps = [0, 1000000, 2000000, 3000000, 4000000, 5000000]
    path = write(
        tmp_path,
        total_timesteps=6000000,
        eval_freq=60000,
        training_schedule={"timesteps": timesteps, **PUBLISHED},
        eval_schedule={"num_episodes": [10] * 6, **PUBLISHED},
        agent_type=["AC-IQN", "IQN", "DDPG", "DQN", "SAC", "Rainbow"],
    )
    trials = read_trials(path)
    assert [trial.agent_type for trial in trials] == ["AC-IQN", "IQN", "DDPG", "DQN", "SAC", "Rainbow"]
    for trial in trials:
        config = build(TrainConfig, trial.train_config("cpu"))
        assert (config.total_frames, config.eval.every, config.seed) == (6000000, 60000, 9)
        assert (config.collector.count, config.collector.steps_per_batch) == ("env_steps", 4)
        assert config.env["curriculum"] == {"timesteps": timesteps, **PUBLISHED}
        assert (config.env["num_worlds"], config.env["timeout_is_terminal"]) == (1, True)
        assert config.env["continuous_actions"] == (trial.agent_type in ("AC-IQN", "DDPG", "SAC"))
        assert config.agent["learning_starts"] == 2000 and config.agent["frames_per_update"] == 4
        assert config.agent["name"] == trial.agent_type.lower().replace("ac-iqn", "acqn") + "_published"


def test_the_evaluation_episodes_are_the_published_ones(fixtures_dir: Path, tmp_path: Path) -> None:
    records = load_json(fixtures_dir / "marinenav/eval_configs_253.json.gz")
    (trial,) = read_trials(write(tmp_path, eval_schedule={"num_episodes": [10] * 6, **PUBLISHED}))
    configs, levels = trial.eval_schedule.episodes()
    assert levels == [str(level) for level in range(6) for _ in range(10)]
    for record in records:
        assert configs[record["eval_id"]] == record["config"]
    (trial,) = read_trials(write(tmp_path))  # of 2 episodes and 1
    assert trial.eval_schedule.episodes()[1] == ["0", "0", "1"]


def test_every_list_outside_of_the_schedules_spans_the_grid(tmp_path: Path) -> None:
    trials = read_trials(write(tmp_path, seed=[3, 4], agent_type=["DQN", "SAC"], save_dir=str(tmp_path / "out")))
    assert [(trial.seed, trial.agent_type) for trial in trials] == [(3, "DQN"), (3, "SAC"), (4, "DQN"), (4, "SAC")]
    places = folders(trials, "2026-01-31-12-00-00")
    assert {place.parent for place in places} == {tmp_path / "out/training_2026-01-31-12-00-00"}
    assert [place.name for place in places] == ["seed_3", "seed_3_1", "seed_4", "seed_4_1"]
    (trial,) = read_trials(write(tmp_path, seed=5, imitation_learning=..., total_timesteps=6e6))
    assert (trial.seed, trial.total_timesteps, trial.imitation_learning, trial.load_model) == (5, 6000000, False, None)
    places[0].mkdir(parents=True)
    assert folders(trials, "2026-01-31-12-00-00")[0].parent.name == "training_2026-01-31-12-00-00_1"


def changed(group: str, **values: Any) -> dict[str, Any]:
    return {group: CONFIG[group] | values}


@pytest.mark.parametrize(
    ("changes", "needles"),
    [
        ({"sede": 1}, ["sede", "unknown", "seed"]),
        ({"eval_freq": ...}, ["eval_freq", "missing"]),
        ({"seed": "nine"}, ["seed", "a whole number", "nine"]),
        ({"seed": []}, ["seed", "empty"]),
        ({"total_timesteps": 0}, ["total_timesteps", "0"]),
        ({"agent_type": "PPO"}, ["agent_type", "'AC-IQN'", "'Rainbow'", "PPO"]),
        ({"imitation_learning": True}, ["imitation_learning", "-I/--imitate <expert>"]),
        ({"imitation_learning": "no"}, ["imitation_learning", "true or false"]),
        ({"load_model": "nowhere"}, ["load_model", "nowhere"]),
        ({"load_model": str(RELEASED), "agent_type": "DQN"}, ["load_model", "type AC-IQN or DDPG, not DQN"]),
        ({"save_dir": "config.json/x"}, ["cannot be made", "config.json/x"]),
        (changed("training_schedule", num_robots=[2]), ["training_schedule", "num_robots 1", "num_cores 2"]),
        (changed("training_schedule", timesteps=[5, 30]), ["training_schedule", "ascend from 0"]),
        (changed("training_schedule", num_robots=[2, 0]), ["training_schedule.num_robots[1]", "0"]),
        (changed("training_schedule", levels=[1, 2]), ["training_schedule.levels", "unknown"]),
        (changed("eval_schedule", num_episodes=10), ["eval_schedule.num_episodes", "list"]),
        (changed("eval_schedule", min_start_goal_dis=[30, 300]), ["eval_schedule.min_start_goal_dis[1]", "300"]),
        (changed("eval_schedule", min_start_goal_dis=[30, 70]), ["eval_schedule", "no robot could be placed"]),
    ],
)
def test_a_mistake_is_one_clear_line_and_leaves_nothing(
    changes: dict[str, Any], needles: list[str], small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused_line(capsys, main, "-C", str(write(small, **changes)))
    assert not [needle for needle in needles if needle not in line], line
    assert [path.name for path in small.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("arguments", "needle"),
    [
        ([], "-C"),
        (["-C", "none.json"], "none.json"),
        (["-C", "config.json", "-P", "0"], "-P"),
        (["-C", "config.json", "-P", "two"], "-P"),
        (["-C", "config.json", "-D", "tpu"], "device"),
        (["-C", "config.json", "-X"], "-X"),
        (["-C", "text"], "not valid JSON"),
        (["-R", "."], "trial_config.json"),
        (["-R", ".", "-C", "config.json"], "-R"),
        (["-C", "config.json", "-I", "marinenav:weights"], "-I/--imitate: there is nothing to imitate for"),
        (["-R", ".", "-I", "marinenav:weights"], "-I/--imitate: with -R"),
    ],
)
def test_a_mistake_on_the_command_line(
    arguments: list[str], needle: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(small)
    (small / "text").write_text("seed: 9")
    assert needle in refused_line(capsys, main, *arguments)


# --- a training


def run_of(folder: Path, agent_type: str) -> LoadedRun:
    """Returns the run that a trial's folder is, whose last networks the published files hold."""
    run = rlstack.load(folder)
    read_back = published_agent(folder, run.make_env())
    for part in NETWORKS[agent_type]:
        ours, theirs = network_of(run.agent, part).state_dict(), network_of(read_back, part).state_dict()
        assert all(torch.equal(theirs[name], value) for name, value in ours.items())
    return run


@pytest.mark.slow
@pytest.mark.parametrize("agent_type", sorted(NETWORK_FILES))
def test_a_training_leaves_the_published_files(agent_type: str, small: Path) -> None:
    main(["-C", str(write(small, agent_type=agent_type))])
    assert trained(small).name.startswith("training_20")
    folder = trained(small) / "seed_9"
    assert {path.name for path in folder.iterdir()} == WRITTEN | NETWORK_FILES[agent_type] | {"evaluations"}
    assert json.loads((folder / "trial_config.json").read_text()) == CONFIG | {"seed": 9, "agent_type": agent_type}

    recorded = read_evaluations(folder / "evaluations.npz")
    assert recorded.timesteps == [20, 32, 48]  # 16 is before learning starts
    for episodes in recorded.episodes:
        assert [len(episode.robots) for episode in episodes] == [2, 2, 3]
        for robot in (robot for episode in episodes for robot in episode.robots):
            assert robot.action.shape == ((12,) if NETWORK_FILES[agent_type] is NETWORK else (12, 2))
            assert len(robot.trajectory) == 13 and np.abs(robot.trajectory).sum() > 0
    configs = load_episodes(folder / "eval_configs.json")
    for episode, config in zip(recorded.episodes[0], configs, strict=True):
        assert len(config["env"]["cores"]["Gamma"]) == len(config["env"]["obstacles"]["r"]) // 2
        for robot, start, history in zip(episode.robots, config["robots"]["start"], config["robots"]["trajectory"]):
            assert robot.trajectory[0].tolist() == history[0]
            assert robot.trajectory[0, :2].tolist() == start

    returns = [float(row["eval/return"]) for row in logged(folder) if row["eval/return"]]
    assert returns == pytest.approx([row["return"] for row in recorded.summary()], rel=1e-6)
    run = run_of(folder, agent_type)
    assert run.frames == 48 and run.agent.updates == 8  # after 20, 24, ..., 48 steps


@pytest.mark.slow
def test_a_training_may_begin_with_published_networks(small: Path) -> None:
    main(["-C", str(write(small, total_timesteps=20))])
    trained(small).rename(small / "given")
    given = small / "given/seed_9"
    main(["-C", str(write(small, seed=[4], total_timesteps=20, load_model=str(given)))])
    second = trained(small) / "seed_4"
    assert json.loads((second / "trial_config.json").read_text())["load_model"] == str(given)
    one, other = (load_published(folder).arrays["actor"] for folder in (given, second))
    for name, values in one.items():  # one update with learning rate 1e-4 lies between them
        assert np.abs(values - other[name]).max() < 1e-3, name


# --- going on


@pytest.mark.slow
def test_an_interrupted_training_goes_on_to_the_same_end(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, judge = write(small), PublishedFiles.evaluate
    main(["-C", str(path)])
    trained(small).rename(small / "straight")

    def evaluate(self: PublishedFiles, training: Training) -> Any:
        if training.frames == 32:
            raise KeyboardInterrupt
        return judge(self, training)

    monkeypatch.setattr(PublishedFiles, "evaluate", evaluate)
    with pytest.raises(SystemExit) as stopped:
        main(["-C", str(path)])
    assert stopped.value.code == 130
    assert read_evaluations(trained(small) / "seed_9/evaluations.npz").timesteps == [20]
    monkeypatch.setattr(PublishedFiles, "evaluate", judge)
    main(["-R", str(trained(small))])
    for name in ("evaluations.npz", "actor_network_params.pth", "critic_network_params.pth"):
        one, other = small / "straight/seed_9" / name, trained(small) / "seed_9" / name
        assert one.read_bytes() == other.read_bytes(), name
    refused_line(capsys, main, "-R", str(trained(small) / "seed_9"))


@pytest.mark.slow
def test_of_a_grid_only_unfinished_trials_go_on(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["-C", str(write(small, seed=[1, 2], total_timesteps=20))])
    for checkpoint in (trained(small) / "seed_2/checkpoints").iterdir():
        checkpoint.unlink()
    capsys.readouterr()
    main(["-R", str(trained(small))])
    printed = capsys.readouterr().out
    assert "seed_2" in printed and "seed_1" not in printed
    assert CheckpointStore(trained(small) / "seed_2/checkpoints").latest() is not None


# --- several at once


PRETEND = {
    "ends_well": "open('metrics.csv', 'w').write('frames,eval/success\\n8,0.75\\n')",
    "errs": "import sys; sys.exit(print('error: load_model: gone', file=sys.stderr) or 2)",
    "dies": "import os; os._exit(3)",
}


def test_a_trial_that_fails_does_not_end_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [tmp_path / name for name in ("errs", "dies", "ends_well")]
    for place in places:
        place.mkdir()

    def argv(place: Path) -> list[str]:
        return [sys.executable, "-c", f"import os; os.chdir({str(place)!r}); {PRETEND[place.name]}"]

    with pytest.raises((ConfigError, RunError), match=r"(errs|dies): "):  # whichever was first
        train_together(places, 2, argv)
    printed = capsys.readouterr().out
    assert f"{places[2]}: finished, success 0.750" in printed
    assert f"{places[0]}: failed, load_model: gone" in printed
    assert f"{places[1]}: failed, its process ended with status 3" in printed


@pytest.mark.slow
def test_two_at_once_by_the_published_numbers_stopped_and_gone_on_with(tmp_path: Path) -> None:
    schedule = {key: values[:1] for key, values in CONFIG["eval_schedule"].items()}
    write(tmp_path, seed=[1, 2], total_timesteps=2100, eval_freq=1000, eval_schedule=schedule | {"num_episodes": [1]})
    arguments = [sys.executable, "-m", "rlstack.adapters.marinenav", "-P", "2", "-D", "cpu"]
    options: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "text": True}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a child would ignore what a shell's "&" ignores
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    first = subprocess.Popen([*arguments, "-C", "config.json"], **piped, **options)
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 240
    while len(list(tmp_path.glob("out/*/*/eval_configs.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does
    printed, errors = first.communicate(timeout=240)
    assert (first.returncode, errors) == (130, "interrupted\n")
    assert printed.count("stopped") == 2 and f"-R {trained(tmp_path).relative_to(tmp_path)}" in printed

    second = subprocess.run([*arguments, "-R", str(trained(tmp_path))], capture_output=True, timeout=600, **options)
    assert (second.returncode, second.stderr) == (0, "")
    assert second.stdout.count("finished, success") == 2
    for seed in (1, 2):
        folder = trained(tmp_path) / f"seed_{seed}"
        assert read_evaluations(folder / "evaluations.npz").timesteps == [2000, 2100]
        assert "resuming at" in (folder / "output.txt").read_text()


# --- imitation_learning: whom a trial imitates, and what it writes


SMALL_LEVELS = {"num_robots": [1, 2], "num_cores": [0, 0], "num_obstacles": [0, 1], "min_start_goal_dis": [30.0, 35.0]}
CLONED: dict[str, Any] = CONFIG | {
    **{"seed": 9, "total_timesteps": 24, "eval_freq": 24, "imitation_learning": True},
    "training_schedule": {"timesteps": [0, 1000], **SMALL_LEVELS},
    "eval_schedule": {"num_episodes": [1, 1], **SMALL_LEVELS},
}


@pytest.fixture
def cloning(small: Path, monkeypatch: pytest.MonkeyPatch, fixtures_dir: Path) -> Path:
    """Clones 400 decisions and ends evaluation episodes after 6 steps, in a folder with copies of the fixtures."""
    changes = {"agent": {"learning_starts": 8, "buffer_size": 100}}
    changes["imitation"] = {"frames": 400, "epochs": 20, "batch_size": 32}
    shorten(monkeypatch, 6, changes)
    for name in ("AC_IQN_params.npz", "evaluations_example.npz"):
        shutil.copy(fixtures_dir / "marinenav" / name, small)
    return small


def write_cloning(folder: Path, **changes: Any) -> str:
    return str(write(folder, CLONED, **changes))


def trials(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("*/*"))


def imitation_metrics(trial: Path) -> dict[str, float]:
    row = logged(trial)[0]
    return {key: float(row[key]) for key in row if key.startswith("imitation/") and row[key]}


@pytest.mark.slow
def test_a_trial_clones_the_published_actor_on_every_level(cloning: Path) -> None:
    """The second level begins after 1,000 env steps of a trial of reinforcement learning."""
    main(["-C", write_cloning(cloning, agent_type="DDPG"), "-I", "marinenav:AC_IQN_params.npz"])
    (trial,) = trials(cloning)
    assert {path.name for path in trial.iterdir()} == WRITTEN | ACTOR | CRITIC | {"evaluations", "allowed.json"}
    assert json.loads((trial / "trial_config.json").read_text()) == CLONED | {"agent_type": "DDPG"}
    recorded = read_evaluations(trial / "evaluations.npz")
    assert recorded.timesteps == [0] and [len(episode.robots) for episode in recorded.episodes[0]] == [1, 2]
    assert imitation_metrics(trial)["imitation/frames"] == 400
    world = run_of(trial, "DDPG").make_env(num_worlds=32)
    assert set(world.reset()["episode", "level"].flatten().tolist()) == {0, 1}


@pytest.mark.slow
def test_a_trial_clones_recorded_episodes(cloning: Path) -> None:
    main(["-C", write_cloning(cloning, agent_type="SAC"), "-I", "evaluations_example.npz"])
    (trial,) = trials(cloning)
    recorded = read_evaluations("evaluations_example.npz").episodes[-1]
    decisions = sum(len(robot.action) for episode in recorded if episode.success for robot in episode.robots)
    assert imitation_metrics(trial)["imitation/frames"] == decisions
    assert (trial / "actor_network_params.pth").exists() and (trial / "critic_2_params.pth").exists()


@pytest.mark.slow
def test_of_a_grid_only_some_trials_imitate(cloning: Path) -> None:
    main(["-C", write_cloning(cloning, imitation_learning=[True, False]), "-I", "marinenav:AC_IQN_params.npz"])
    clone, learner = trials(cloning)
    for trial, imitates in ((clone, True), (learner, False)):
        assert json.loads((trial / "trial_config.json").read_text())["imitation_learning"] == imitates
    assert read_evaluations(clone / "evaluations.npz").timesteps == [0]
    assert read_evaluations(learner / "evaluations.npz").timesteps == [8, 24]
    assert imitation_metrics(clone) and not imitation_metrics(learner)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "calls"),  # of the first trial, which then also plays the beginnings of its episodes
    [("rlstack.training.imitation.clone", 1), ("rlstack.adapters.marinenav.__main__.play_episodes", 2)],
)
def test_an_interrupted_cloning_goes_on_to_the_same_end(
    place: str, calls: int, cloning: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two trials is interrupted while it learns, or is evaluated, and ends like the first."""
    work, done = pkgutil.resolve_name(place), []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if len(done) == calls:
            raise KeyboardInterrupt
        done.append(place)
        return work(*arguments, **options)

    monkeypatch.setattr(place, interrupted)
    with pytest.raises(SystemExit) as stopped:
        main(["-C", write_cloning(cloning, seed=[9, 9]), "-I", "evaluations_example.npz"])
    assert stopped.value.code == 130
    monkeypatch.setattr(place, work)
    straight, other = trials(cloning)
    assert not (other / "evaluations.npz").exists()
    before = (straight / "metrics.csv").read_bytes()
    main(["-R", str(straight.parent)])
    assert (straight / "metrics.csv").read_bytes() == before
    for name in ("evaluations.npz", "actor_network_params.pth"):
        assert (straight / name).read_bytes() == (other / name).read_bytes(), name
    assert load_published(other).arrays.keys() == {"actor", "critic"}


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
        ("SAC", "marinenav:nowhere.npz", ["nowhere.npz"]),
    ],
)
def test_an_expert_that_does_not_fit_is_one_clear_line(
    agent_type: Any, expert: str, needles: list[str], cloning: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused_line(capsys, main, "-C", write_cloning(cloning, agent_type=agent_type), "-I", expert)
    assert line.startswith("error: -I/--imitate")
    assert not [needle for needle in needles if needle not in line], line
    assert not (cloning / "out").exists()
