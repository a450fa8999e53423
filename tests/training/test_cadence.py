"""The length of a run, how often it is evaluated and logged, and what it prints about that."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from rlstack.agents.on_policy import OnPolicy
from rlstack.config import ConfigError, build, to_plain
from rlstack.config.groups import compose_config
from rlstack.envs.foundation.work import working
from rlstack.evaluation.evaluator import Evaluation
from rlstack.runs.run_directory import RunDirectory
from rlstack.training import monitor
from rlstack.training.acceleration import Acceleration
from rlstack.training.config import TrainConfig, with_length
from rlstack.training.loggers import read_metrics
from rlstack.training.loop import Training
from rlstack.training.monitor import is_due
from rlstack.training.preflight import check_buildable, few_worlds
from rlstack.training.run import train
from rlstack.training.summary import describe
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import begun, logged

PENDULUM = ("agent=sac", "env=gymnasium", "env.id=Pendulum-v1", "env.num_envs=1")
TOY = ["agent=ppo", "env=cartpole", "env.num_worlds=8", "agent.steps_per_batch=5", "agent.minibatch_size=40"]
TOY += ["agent.epochs=1", "agent.hidden=[8]", "device=cpu", "threads=1", "eval.episodes=1", "logger=csv"]


@cache
def composed(*overrides: str, command: str = "train") -> DictConfig:
    return compose_config(command, overrides)


def plain_config(*overrides: str, **changed: Any) -> dict[str, Any]:
    """Returns the composed configuration with some values, such as ``eval__every=3``, changed after composition."""
    found = deepcopy(composed(*overrides))
    for key, value in changed.items():
        OmegaConf.update(found, key.replace("__", "."), value)
    return to_plain(found)


@exhaustive(
    ("every", "steps", "made", "runs"),  # the seconds of the evaluation after each of ten batches of 10 s
    [
        (None, [3] * 10, [7, 8, 9, 10], 2),  # another run in the process collects and learns meanwhile
        (None, [100] * 10, [10], 1),
        (0.1, [100] * 10, [*range(1, 11)], 1),
        (None, [1] * 10, [*range(1, 11)], 1),
        (None, [3] * 10, [7, 8, 9, 10], 1),
    ],
    quick=3,
)
def test_evaluations_take_at_most_a_fifth_of_the_time(
    every: float | None, steps: list[int], made: list[int], runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, found = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(monitor.time, "monotonic", lambda: seconds.now)

    def learn(self: Any, sequences: Any, frames: int) -> dict[str, Any]:
        seconds.now += 10.0 * runs
        return {}

    def evaluate(self: Training) -> Any:
        with working("evaluating", "episodes", 1) as work:
            for _ in range(steps[self.frames // 40 - 1]):
                seconds.now += 1.0
                work.reach(0)
        found.append(self.frames // 40)
        return Evaluation({"return": torch.ones(1)}, ["all"], "cartpole", {}, 0, "ppo")

    monkeypatch.setattr(OnPolicy, "learn", learn)
    monkeypatch.setattr(Training, "evaluate", evaluate)
    monkeypatch.setattr(Training, "at_once", runs)
    plain = plain_config(*TOY, total_frames=400, run_dir=str(tmp_path / "run"), eval__every=every)
    plain["log_every"] = 40
    train(plain)
    rows = read_metrics(tmp_path / "run" / "metrics.csv")
    assert found == made == [row["frames"] // 40 for row in rows if "eval/return" in row]
    if every is None:
        assert rows[-1]["time/evaluating_seconds"] - steps[-1] <= 0.2 * (rows[-1]["time/seconds"] / runs - steps[-1])
    speeds = [row["time/frames_per_second"] for row in rows if "time/frames_per_second" in row]
    assert speeds == pytest.approx([4.0 / runs] * 10), "a batch of 40 frames in 10 s, whatever evaluations take"


def config(*overrides: str, **changed: Any) -> TrainConfig:
    return build(TrainConfig, with_length(plain_config(*overrides, **changed)))


def cadence(c: TrainConfig) -> tuple[int, float, float, float]:
    return c.total_frames, c.log_every, c.evaluation_every, c.checkpoint.every


# -- length and cadence --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "changed", "expected"),
    [
        (["env=marinenav", "agent=sac"], {}, (15_000_000, 75_000, 1_500_000, 1_500_000)),
        (["env=marinenav"], {}, (54_000_000, 270_000, 5_400_000, 5_400_000)),
        (["env=marinenav"], {"total_frames": 3000}, (3000, 15, 300, 300)),
        (["env=arena", "agent=dqn"], {}, (32_000_000, 160_000, 3_200_000, 3_200_000)),
        (PENDULUM, {"total_frames": 1005}, (1005, 6, 101, 101)),
        (PENDULUM, {"total_frames": 5, "checkpoint__every": 2}, (5, 1, 1, 2)),
        (PENDULUM, {"total_frames": 2e4, "eval__every": 0.5, "log_every": 1e3}, (20_000, 1000, 10_000, 2000)),
        (["experiment=reference/pendulum_sac"], {}, (20_000, 400, 1000, 20_000)),
    ],
)
def test_cadences_follow_the_world_and_the_length(
    overrides: list[str], changed: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert cadence(config(*overrides, **changed)) == expected


@pytest.mark.parametrize(("total", "batch"), [(1000, 8), (1005, 8), (9999, 100)])
def test_a_tenth_makes_ten_evaluations(total: int, batch: int) -> None:
    every = config(*PENDULUM, total_frames=total).evaluation_every
    ends = range(batch, total + batch, batch)
    assert sum(is_due(every, end - batch, end, total) for end in ends) == 10


@pytest.mark.parametrize("env", ["gymnasium", "pettingzoo"])
def test_a_run_in_any_other_world_asks_for_its_length(env: str) -> None:
    with pytest.raises(ConfigError, match=f"^total_frames: missing, since env={env} .* for example total_frames=1e5$"):
        config("agent=ppo", f"env={env}")


def test_a_league_finds_the_length_of_its_world() -> None:
    assert composed("env=rocket", "agent=ppo", command="league_train").total_frames == 24_000_000
    assert composed("agent=ppo", command="league_train").total_frames is None


def test_imitation_alone_needs_no_length() -> None:
    alone = {"imitation__only": True, "imitation__expert": "runs/x", "imitation__frames": 500}
    assert config(*PENDULUM, **alone).total_frames == 500


@pytest.mark.parametrize(("key", "wrong"), [("log_every", 2.5), ("eval.every", 0), ("checkpoint.every", None)])
def test_what_is_neither_frames_nor_a_share_is_refused(key: str, wrong: Any) -> None:
    refused(ConfigError, f"^{key}: ", config, "env=marinenav", **{key.replace(".", "__"): wrong})


# -- what is said before it begins ---------------------------------------------------------------------------------


def test_the_summary_names_what_decides_the_learning(tmp_path: Path) -> None:
    schedule = "++agent.lr_critic={kind: linear, start: 1e-3, end: 1e-5, warmup: 0.1}"
    c = config(
        *("env=marinenav", "agent=sac", "agent.batch_size=2048", "agent.lr_actor=2e-4", schedule),
        *("curriculum=marinenav", "total_frames=1000"),
    )
    lines = describe(c, RunDirectory(tmp_path), "updates", batch=96).splitlines()
    told = {line[:13].strip(): line[15:] for line in lines}
    rounded = "rounded up to 1,056: whole batches of 96 (agent.steps_per_batch)"
    assert told["length"] == f"1,000 frames (agent decisions), {rounded}"
    assert told["batch size"] == "2,048" and told["compiled"] == "updates"
    assert "actor 0.0002" in told["learning rate"]
    assert "critic 0.001 to 1e-05 (linear, warm-up 0.1)" in told["learning rate"]
    assert c.curriculum is not None
    assert told["curriculum"] == f"6 stages: {', '.join(stage.name for stage in c.curriculum.stages)}"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"total_frames": 20_000}, None),
        ({"total_frames": 401_000}, "policy and updates (400,000 of them): about a minute at the beginning"),
        ({"total_frames": 401_000, "compile": False}, None),
        ({"total_frames": 20_000, "compile": True}, "policy and updates (19,000 of them): about a minute"),
    ],
)
def test_what_is_compiled_is_told_before(
    changed: dict[str, Any], told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlstack.training.acceleration.missing_compiler", lambda device: None)
    c = config(*PENDULUM, device="cpu", agent__learning_starts=1000, agent__frames_per_update=1, **changed)
    with few_worlds(c) as env:
        agent = check_buildable(c, env)
        acceleration = Acceleration(c, torch.device("cpu"))
        acceleration.apply(agent)
        described = acceleration.describe(agent)
    assert described is None if told is None else str(described).startswith(told)


@pytest.mark.parametrize(
    ("name", "steps", "recurrent", "reason"),
    [
        ("ppo", 1, None, "collector.steps_per_batch: a rollout of one decision teaches agent=ppo nothing; give "),
        ("ppo", 40, {"kind": "gru", "sequence_length": 64}, "64 steps .* a rollout's 40; give at most 40"),
        ("a2c", 1, None, None),
        ("ppo", 40, {"kind": "gru", "sequence_length": 40}, None),
        ("ppo", 8, {"kind": "gru"}, None),
    ],
)
def test_rollouts_that_are_too_short_are_refused(
    name: str, steps: int, recurrent: dict[str, Any] | None, reason: str | None
) -> None:
    world = ("env=gymnasium", "env.id=CartPole-v1", "env.num_envs=1", "env.workers=0")
    changed = {"agent__steps_per_batch": steps, "agent__recurrent": recurrent}
    c = config(f"agent={name}", *world, total_frames=1000, device="cpu", **changed)
    with few_worlds(c) as env:
        if reason is None:
            check_buildable(c, env)
            return
        refused(ConfigError, reason, check_buildable, c, env)


# -- a run -----------------------------------------------------------------------------------------------------------


def test_rows_evaluations_and_schedules_come_by_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of 400 frames, 40 a batch; the first line on the screen is that of the first batch."""
    lines: list[str] = []
    schedules = ["agent.lr={kind: linear, start: 0.02, end: 0.0}", "agent.clip=0.3"]
    often = ["total_frames=400", "log_every=0.25", "eval.every=0.5", "checkpoint.every=400"]
    monkeypatch.setattr("rlstack.training.progress.Progress._print", lambda self, line: lines.append(line))
    begun(tmp_path / "run", plain_config(*TOY, *often, *schedules)).execute()
    rows = logged(tmp_path / "run")
    assert lines[0].startswith("frames 40 / 400 (10.0%)")
    assert [row["frames"] for row in rows if row["train/updates"]] == ["120", "200", "320", "400"]
    assert [row["frames"] for row in rows if row["eval/return"]] == ["200", "400"]
    rates = [float(row["schedule/lr"]) for row in rows if row["schedule/lr"]]
    assert rates == pytest.approx([0.02 * (1 - share) for share in (0.3, 0.5, 0.8, 1.0)])
    assert {row["schedule/clip"] for row in rows} - {""} == {"0.3"}
    assert "schedule/entropy_coefficient" in rows[0]
