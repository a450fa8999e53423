"""The whole loop on a few small worlds: it runs, resumes bit for bit, and leaves a complete run directory."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

import rlstack
from rlstack.agents.acqn import ACQN
from rlstack.config import ConfigError, build
from rlstack.envs.cartpole.env import CartPole
from rlstack.envs.foundation.work import working
from rlstack.runs.checkpoint import state_digest
from rlstack.runs.run_directory import RunDirectory
from rlstack.runs.worlds import build_world
from rlstack.training.config import TrainConfig
from rlstack.training.preflight import check_batch, check_buildable, few_worlds, self_check
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import SMALL_RUN, begun, composed, logged, reopened

SMALL = [
    *SMALL_RUN,
    "total_frames=1200",
    "log_every=100",
    "eval.every=500",
    "checkpoint.every=600",
    "checkpoint.keep=5",
    "agent.hidden=[16,16]",
    "agent.buffer_size=400",  # smaller than the run: the replay wraps around
]


def plain_config(*overrides: str) -> dict[str, Any]:
    """Returns the composed configuration of a small run."""
    return composed(*SMALL, *overrides)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "straight"
    begun(folder, plain_config()).execute()
    return folder


def test_a_run_leaves_everything_in_its_directory(finished: Path) -> None:
    assert (finished / "config.yaml").is_file()
    assert {path.name for path in finished.iterdir()} == {"config.yaml", "metrics.csv", "checkpoints", "evaluations"}
    checkpoints = sorted((finished / "checkpoints").glob("checkpoint_*.pt"))
    assert len(checkpoints) >= 2
    assert (finished / "checkpoints" / "best.pt").is_file()
    refused(ConfigError, "complete", reopened(finished, plain_config()).restore)
    refused(ConfigError, "already holds a run", RunDirectory.create, finished, "x", 1)
    rows = logged(finished)
    frames = [int(float(row["frames"])) for row in rows]
    assert frames == sorted(frames) and frames[-1] >= 1200
    assert float(rows[-2]["train/updates"] or rows[-1]["train/updates"]) > 5
    assert any(row["eval/success"] for row in rows)


def test_another_seed_gives_another_run_which_ends_where_it_says(finished: Path, tmp_path: Path) -> None:
    plain = plain_config("seed=1", "until=500")
    begun(tmp_path / "other", plain).execute()
    refused(ConfigError, "until", reopened(tmp_path / "other", plain).restore)
    rows = logged(tmp_path / "other")
    assert rows and rows != logged(finished)[: len(rows)]


@exhaustive("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_saves_between_batches_and_goes_on(finished: Path, tmp_path: Path, number: int) -> None:
    plain = plain_config("eval.every=1200", "checkpoint.every=1200")
    training = begun(tmp_path / "run", plain)
    learn, handler = training.agent.learn, signal.getsignal(number)

    def interrupted(sequences: Any, frames: int) -> Any:
        metrics = learn(sequences, frames)
        if frames > 400:
            os.kill(os.getpid(), number)  # in the middle of an iteration
        return metrics

    training.agent.learn = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        training.execute()
    assert signal.getsignal(number) is handler
    saved = RunDirectory(tmp_path / "run").checkpoints.latest()
    assert saved is not None and 400 < int(saved.stem.split("_")[1]) < 600
    resumed = reopened(tmp_path / "run", plain)
    resumed.restore()
    resumed.execute()
    ends = [RunDirectory(run).checkpoints.load()["agent"] for run in (tmp_path / "run", finished)]
    assert state_digest({"agent": ends[0]}) == state_digest({"agent": ends[1]})


def test_an_evaluation_is_left_at_once(tmp_path: Path, capsys: Any) -> None:
    """Everything learned is saved, up to the last frame."""
    training = begun(tmp_path / "run", plain_config("total_frames=200", "eval.every=100"))

    def interrupted() -> Any:
        with working("evaluating", "episodes", 2) as work:
            os.kill(os.getpid(), signal.SIGINT)
            work.reach(1)
            raise AssertionError("it goes on")

    training.evaluate = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        training.execute()
    saved = RunDirectory(tmp_path / "run").checkpoints.latest()
    assert saved is not None and int(saved.stem.split("_")[1]) == training.frames >= 100
    output = capsys.readouterr().out
    assert f"saved {saved.name}; continue with: rlstack train resume=" in output
    shown = [line for line in output.splitlines() if line.startswith("frames ")][-1]
    assert shown.startswith(f"frames {training.frames:,} /")
    assert not list((tmp_path / "run" / "evaluations").glob("*"))


@pytest.mark.parametrize("what", ["nowhere", "empty"])
def test_load_of_nothing_is_one_clear_line(tmp_path: Path, what: str) -> None:
    (tmp_path / "empty").mkdir()
    refused(ConfigError, what, rlstack.load, tmp_path / what)


def checked(plain: dict[str, Any], run: RunDirectory) -> list[str]:
    config = build(TrainConfig, plain)
    with few_worlds(config) as env:
        return self_check(config, run, env, check_buildable(config, env))


def test_self_check_gives_a_line_a_check_and_leaves_no_trace(tmp_path: Path) -> None:
    plain = plain_config()
    run = RunDirectory.create(tmp_path / "run", "test", 1)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    lines = checked(plain, run)
    assert [line.split()[1] for line in lines] == ["specs:", "forward:", "update:", "checkpoint:"]
    assert all(line.startswith("[OK] ") for line in lines)
    assert torch.equal(torch.get_rng_state(), before)
    assert list(run.path.iterdir()) == []


def test_the_self_check_also_acts_greedily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ACQN, "exploit", lambda self, observation, mask=None: observation["self"][..., :2] * torch.nan)
    run = RunDirectory.create(tmp_path / "run", "test", 1)
    refused(ConfigError, r"self-check forward failed: .*actions are not finite", checked, plain_config(), run)


def test_the_self_check_tells_of_an_environment_of_the_older_kind(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", "test", 1)
    env = "env.id=tests.envs.gymnasium_toys:Old"
    plain = composed("agent=ppo", "env=gymnasium", env, "env.workers=0", "total_frames=64", "device=cpu")
    message = r"^env: tests\.envs\.gymnasium_toys:Old: step 1 of an episode does not fit"
    refused(ConfigError, message, checked, plain, run)


class MistakenCartPole(CartPole):
    def __init__(self, *args: Any, mistake: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.mistake = mistake

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        if self.mistake == "broken":
            raise KeyError("here")
        given = super()._advance(tensordict)
        if self.mistake == "no flag":
            del given["truncated"]
        if self.mistake == "surplus":
            given["speed"] = given["reward"]
        return given.set("reward", given["reward"][:, 0]) if self.mistake == "reward" else given

    def _current(self, **more: torch.Tensor) -> TensorDict:
        given = super()._current(**more)
        if self.mistake == "not a number":
            given["observation"][1, 2] = torch.nan
        if self.mistake == "no statistic":
            del given["episode", "length"]
        return given.set("observation", given["observation"].double()) if self.mistake == "observation" else given


@exhaustive(
    ("mistake", "told"),
    [
        ("reward", r"step gives reward \[64\] of torch.float32, the spec says \[64, 1\] of"),
        ("observation", r"reset gives observation \[64, 4\] of torch.float64, the spec says .* of torch.float32"),
        ("not a number", "MistakenCartPole: reset: observation is nan in world 1, step 0"),
        ("no flag", "MistakenCartPole: step does not return 'truncated', which the specs declare$"),
        ("no statistic", r"MistakenCartPole: reset does not return \('episode', 'length'\), which the specs declare$"),
        ("surplus", "MistakenCartPole: step returns 'speed', which the specs do not declare$"),
        ("broken", r"KeyError: 'here' \(test_loop.py, line \d+\)"),
    ],
)
def test_the_self_check_tells_what_is_wrong_with_a_world(tmp_path: Path, mistake: str, told: str) -> None:
    world = [f"env.name={__name__}:MistakenCartPole", f"+env.mistake={mistake}", f"allow=[{__name__}]"]
    plain = composed("agent=ppo", "env=own", *world, "total_frames=64", "device=cpu")
    run = RunDirectory.create(tmp_path / "run", "test", 1)
    refused(ConfigError, f"self-check specs failed: .*{told}", checked, plain, run)


def test_every_experiment_keeps_its_own_values() -> None:
    plain = composed("experiment=marinenav_published", "seed=4")
    config = build(TrainConfig, plain)
    assert (config.agent["name"], config.total_frames, config.seed) == ("acqn_published", 6_000_000, 4)
    assert (config.eval.every, config.eval.episodes, config.eval.seed) == (60_000, 10, 253)
    assert (config.collector.count, config.collector.steps_per_batch) == ("env_steps", 4)
    assert config.env["num_worlds"] == 1 and config.env["timeout_is_terminal"] is True


@exhaustive("env", ["gymnasium", "pettingzoo"])
def test_small_environments_get_small_numbers(env: str) -> None:
    """The values of agent=acqn are those of MarineNav's recipe; an experiment overrides them."""
    agent = composed("agent=acqn", f"env={env}")["agent"]
    marinenav = composed("agent=acqn", "env=marinenav")["agent"]
    reference = composed("experiment=reference/pendulum_acqn")["agent"]
    names = ("frames_per_update", "learning_starts", "lr_actor", "candidates")
    assert [agent[name] for name in names] == [1, 1000, 1e-3, 1]
    assert (marinenav["frames_per_update"], marinenav["candidates"]) == (1200, 16)
    assert (reference["gamma"], reference["hidden"]) == (0.98, [64, 64])


def test_debug_names_what_is_not_finite() -> None:
    plain = plain_config()
    training_env = build_world(plain["env"])
    action = training_env.rollout(3, break_when_any_done=False)
    check_batch(action, training_env, 0)
    action["next", "agents", "reward"][2, 1, 0] = float("nan")
    message = r"next.agents.reward is not finite in world 2, step 1 after frame 70"
    refused(ConfigError, message, check_batch, action, training_env, 70)
