"""``rlstack explain speed`` on tiny worlds: measurements, output, files and errors."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

import rlstack.training.loop
from rlstack.config import ConfigError, to_plain
from rlstack.config.allowed import granting
from rlstack.config.groups import compose_config
from rlstack.data.flatten import flatten_agents
from rlstack.diagnostics.measuring import DeviceClock, MeasuredTraining
from rlstack.explain import SpeedConfig, prepare, speed
from rlstack.training.loggers import MetricLogger
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import SMALL_RUN, composed

QUICK = ["seconds=0.02", "clock=cpu", "threads=1", "device=cpu", "logger=csv", "log_every=1"]
ON_POLICY = [
    *["agent=ppo", "env=gymnasium", "env.id=CartPole-v1", "env.num_envs=2"],
    *["agent.steps_per_batch=16", "agent.minibatch_size=8", "agent.epochs=2", "agent.hidden=[8]"],
    "agent.max_grad_norm=1e-3",  # so that every gradient is clipped
]
OFF_POLICY = ["agent=acqn", "env=marinenav", *SMALL_RUN[:2], *SMALL_RUN[4:8], "agent.hidden=[8, 8]"]
OFF_POLICY += ["agent.max_grad_norm_critic=1e-3"]


@pytest.fixture(autouse=True)
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes each reading advance the clock by a millisecond, so that measurements do not depend on other load."""
    looks = itertools.count()
    monkeypatch.setattr(DeviceClock, "__call__", lambda self: 1e-3 * next(looks))


def diagnose(*overrides: str) -> None:
    cfg = compose_config("explain_speed", [*QUICK, *overrides])
    with granting(to_plain(cfg)):
        speed(cfg)


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "diagnosis.json").read_text())


@exhaustive("options", [ON_POLICY, OFF_POLICY], ids=["on-policy", "off-policy"])
def test_every_test(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    logged: list[Any] = []
    log = MetricLogger.log
    monkeypatch.setattr(MetricLogger, "log", lambda self, frames, row: (logged.append(row), log(self, frames, row)))
    diagnose(*options, "output=out")
    found, printed = result(tmp_path / "out"), capsys.readouterr().out
    tests = found["tests"]
    assert list(tests) == ["env", "inference", "learn", "collect", "gpu"]

    worlds = tests["env"]
    assert worlds["num_worlds"] in [point["num_worlds"] for point in worlds["sweep"]]
    assert len({point["num_worlds"] for point in worlds["sweep"]}) >= 3
    assert worlds["steps_per_second"] == pytest.approx(1e3 * worlds["num_worlds"] / worlds["ms_per_step"])
    assert ("real_time_factor" in worlds) == (options is OFF_POLICY)

    for point in (tests["inference"], *tests["inference"]["sweep"]):
        assert point["mean_ms"] > 0 and point["p95_ms"] <= point["p99_ms"]
        assert point["decisions"] == point["batch"] * (1 if options is ON_POLICY else 5)

    learn = tests["learn"]
    assert learn["batch"] == (8 if options is ON_POLICY else 64)
    assert list(learn["parts_ms"])[1:] == ["backward", "optimiser"] and min(list(learn["parts_ms"].values())[1:]) > 0
    assert sum(learn["parts_ms"].values()) == pytest.approx(1e3 / learn["updates_per_second"])

    products = learn["matrix_products"]
    assert products["ms"] == pytest.approx(products["mflop"] / products["gflops"], rel=0.01)
    assert products["share"] == pytest.approx(products["ms"] / learn["ms_per_update"])
    assert products["mflop"] > 0 and "matrix products: " in printed

    collect = tests["collect"]
    parts = collect["parts_seconds"]
    assert all(parts[name] > 0 for name in ("simulate", "observe", "policy", "store", "learn", "log"))
    assert sum(parts.values()) == pytest.approx(collect["seconds_per_iteration"], rel=0.05)
    if options is ON_POLICY:
        assert collect["frames_per_iteration"] == 2 * 16
    assert any(row["system/memory_mb"] > 50 and row["system/frames_per_second"] > 0 for row in logged)

    assert "nothing to measure" in tests["gpu"]["note"]
    assert found["verdict"] and "of an iteration" in found["verdict"][0]["text"]
    assert printed.isascii() and "verdict" in printed and f"wrote {Path('out/diagnosis.png')}" in printed
    assert (tmp_path / "out" / "diagnosis.png").read_bytes().startswith(b"\x89PNG")
    assert os.listdir(tmp_path) == ["out"], "the training's own folder is gone"
    assert rlstack.training.loop.flatten_agents is flatten_agents, "what was watched is put back"


def test_one_test_and_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("before", "after"):
        compare = [] if name == "before" else [f"compare={tmp_path / 'before' / 'diagnosis.json'}"]
        diagnose(*ON_POLICY, "test=inference", "plots=false", f"output={tmp_path / name}", *compare)
    assert os.listdir(tmp_path / "after") == ["diagnosis.json"]
    assert list(result(tmp_path / "after")["tests"]) == ["inference"]
    printed = capsys.readouterr().out
    assert printed.count("compared with") == 1 and "inference.mean_ms" in printed.partition("compared with")[2]


def test_samples_of_sequences_are_their_steps(tmp_path: Path) -> None:
    memory = "agent.recurrent={kind: lstm, size: 4, layers: 1, sequence_length: 8, burn_in: 0}"
    options = ["agent=dqn", *ON_POLICY[1:4], memory, "agent.batch_size=32", "agent.hidden=[8]"]
    diagnose(*options, "test=learn", "plots=false", f"output={tmp_path}")
    learn = result(tmp_path)["tests"]["learn"]
    assert learn["batch"] == 32 and 32 in [point["batch"] for point in learn["sweep"]]


@pytest.mark.slow
def test_a_policy_from_elsewhere_acts_but_does_not_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = ["agent=legacy", "+agent.kind=callable", "+agent.path=tests.diagnostics.still:still"]
    options = [*elsewhere, *ON_POLICY[1:4], "collector.steps_per_batch=4", f"output={tmp_path}"]
    diagnose(*options)
    assert list(result(tmp_path)["tests"]) == ["env", "inference"]
    with pytest.raises(ConfigError, match="not trained here; allowed for it: all, env, inference"):
        diagnose(*options, "test=learn")


def test_a_loss_of_torchrl_is_measured(tmp_path: Path) -> None:
    options = ["agent=torchrl_ppo", *ON_POLICY[1:]]
    diagnose(*options, "test=learn", f"output={tmp_path / 'out'}")
    learn = result(tmp_path / "out")["tests"]["learn"]
    assert learn["matrix_products"]["mflop"] > 0 and learn["ms_per_update"] > 0


def prepared(*overrides: str) -> MeasuredTraining:
    plain = composed("agent=ppo", "device=cpu", *overrides)
    return prepare(SpeedConfig("env", 0.02, "cpu", None, None, False), plain)


def test_processes_that_a_world_does_not_start_are_no_hindrance() -> None:
    """The torch backend of Rocket runs in this process, for any number of the simulator's processes."""
    subject = prepared("env=rocket", "env.num_worlds=2")
    assert subject.processes == 0 and subject.sweeps and subject.config.env["workers"] == 1


def test_worlds_whose_number_stands_nowhere_are_counted() -> None:
    subject = prepared("env=torchrl", "env.id=envs.cartpole.env:CartPole", "+env.kwargs.num_worlds=3")
    assert (subject.num_worlds, subject.size_option) == (3, "num_envs")


@pytest.mark.parametrize(
    ("argument", "needle"),
    [
        ("test=everything", "test: "),
        ("seconds=0", "seconds: 0"),
        ("clock=sun", "clock: "),
        ("env.workers=2", "clock: cpu cannot see"),
        ("compare=nowhere.json", "compare: nowhere.json"),
        ("resume=runs/some", "resume: "),
        ("agent.minibatch_size=0", "agent.minibatch_size"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    argument: str, needle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert needle in refused(ConfigError, ".", diagnose, *ON_POLICY, argument)
    assert os.listdir(tmp_path) == []


def test_an_interrupted_diagnosis_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rlstack.diagnostics.diagnosis.diagnose", interrupted)
    with pytest.raises(KeyboardInterrupt):
        diagnose(*ON_POLICY, f"output={tmp_path / 'out'}")
    assert os.listdir(tmp_path) == []
