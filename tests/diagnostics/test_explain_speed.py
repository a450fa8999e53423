"""``rlstack explain speed``: its command, its measurements and its findings."""

from __future__ import annotations

import itertools
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlstack.training.loop
from rlstack.config import ConfigError, to_plain
from rlstack.config.allowed import granting
from rlstack.config.groups import compose_config
from rlstack.data.flatten import flatten_agents
from rlstack.diagnostics.diagnosis import best_setting, shares, verdict
from rlstack.diagnostics.measuring import DeviceClock, MeasuredTraining, percentiles
from rlstack.diagnostics.report import SCHEMA, changes, lines, read
from rlstack.diagnostics.training import Sections, count_events, places_of
from rlstack.explain import SpeedConfig, prepare, speed
from rlstack.training.loggers import MetricLogger
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import SMALL_RUN, composed

QUICK = ["seconds=0.01", "clock=cpu", "threads=1", "device=cpu", "logger=csv", "log_every=1"]
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
def test_a_policy_from_elsewhere_acts_but_does_not_learn(tmp_path: Path) -> None:
    elsewhere = ["agent=legacy", "+agent.kind=callable", "+agent.path=tests.small_run:still"]
    options = [*elsewhere, *ON_POLICY[1:4], "collector.steps_per_batch=4", f"output={tmp_path}"]
    diagnose(*options)
    assert list(result(tmp_path)["tests"]) == ["env", "inference"]
    refused(ConfigError, "not trained here; allowed for it: all, env, inference", diagnose, *options, "test=learn")


def test_a_loss_of_torchrl_is_measured(tmp_path: Path) -> None:
    options = ["agent=torchrl_ppo", *ON_POLICY[1:]]
    diagnose(*options, "test=learn", "plots=false", f"output={tmp_path}")
    learn = result(tmp_path)["tests"]["learn"]
    assert learn["matrix_products"]["mflop"] > 0 and learn["ms_per_update"] > 0


def test_learning_from_recorded_data_is_measured(tmp_path: Path) -> None:
    """An update for each batch drawn: the 8 updates of an iteration draw 8 times 16 transitions."""
    seen, flags = np.zeros((65, 4), np.float32), np.zeros((64, 1), dtype=bool)
    arrays = {"observation": seen[:-1], "next/observation": seen[1:], "action": np.arange(64) % 2}
    arrays |= {"next/reward": np.ones((64, 1)), "next/terminated": flags, "next/truncated": flags}
    np.savez(tmp_path / "data.npz", **arrays)
    options = ["agent=dqn", *ON_POLICY[1:4], "agent.batch_size=16", "agent.hidden=[8]", f"data={tmp_path / 'data.npz'}"]
    for test in ("learn", "collect"):
        diagnose(*options, f"test={test}", "plots=false", f"output={tmp_path / test}")
    assert result(tmp_path / "learn")["tests"]["learn"]["batch"] == 16
    collected = result(tmp_path / "collect")
    assert collected["tests"]["collect"]["frames_per_iteration"] == 8 * 16
    assert "frames_per_update" not in str(collected["verdict"])


def prepared(*overrides: str) -> MeasuredTraining:
    plain = composed("agent=ppo", "device=cpu", *overrides)
    return prepare(SpeedConfig("env", 0.02, "cpu", None, None, False), plain)


def test_processes_that_a_world_does_not_start_are_no_hindrance() -> None:
    """The torch backend of Rocket runs in this process, for any number of the simulator's processes."""
    subject = prepared("env=rocket", "env.num_worlds=2")
    assert subject.processes == 0 and subject.config.env["workers"] == 1


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


# -- sections, the counts of a GPU's profile, and the comparison of two diagnoses --------------------------------------


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Kitchen:
    def __init__(self, clock: Hands) -> None:
        self.clock = clock

    def cook(self) -> str:
        self.clock.now += 1
        self.chop()
        self.clock.now += 2
        return "soup"

    def chop(self) -> None:
        self.clock.now += 10


def test_a_section_is_without_those_inside() -> None:
    clock = Hands()
    kitchen = Kitchen(clock)
    with Sections(clock) as watched:
        watched.watch(kitchen, "cook", "cooking")
        watched.watch(Kitchen, "chop", "chopping")
        kitchen.cook()  # before the measurement begins: not counted
        watched.begin()
        clock.now += 100
        assert kitchen.cook() == "soup"
        assert watched.end() == {"other": 100, "cooking": 3, "chopping": 10}
    assert "cook" not in vars(kitchen) and Kitchen.chop.__qualname__ == "Kitchen.chop"
    assert not hasattr(Kitchen.chop, "__wrapped__")


def test_a_whole_section_keeps_those_inside() -> None:
    clock = Hands()
    kitchen = Kitchen(clock)
    with Sections(clock) as watched:
        watched.watch(kitchen, "cook", "cooking", whole=True)
        watched.watch(kitchen, "chop", "chopping")
        watched.begin()
        kitchen.cook()
        kitchen.chop()
        assert watched.end() == {"cooking": 13, "chopping": 10, "other": 0}


def test_an_error_leaves_its_section_and_puts_functions_back() -> None:
    clock, original = Hands(), json.loads
    with Sections(clock) as watched:
        watched.watch_named("json:loads", "reading")
        watched.begin()
        with pytest.raises(json.JSONDecodeError):
            json.loads("{")
        clock.now += 5
        assert watched.end() == {"reading": 0, "other": 5}
    assert json.loads is original


def test_percentiles_are_in_milliseconds() -> None:
    found = percentiles([0.001] * 98 + [0.101] * 2)
    assert found["mean_ms"] == pytest.approx(3.0) and found["p95_ms"] == pytest.approx(1.0)
    assert found["p99_ms"] == pytest.approx(101.0)


def test_events_of_a_profile() -> None:
    events = [
        *[("Memcpy HtoD (Pageable -> Device)", True), ("Memcpy DtoH (Device -> Pinned)", True)],
        *[("Memcpy DtoD (Device -> Device)", True), ("Memset (Device)", True)],
        *[("cudaStreamSynchronize", False), ("cudaDeviceSynchronize", False), ("cudaLaunchKernel", False)],
        *[("void some_kernel<float>()", True), ("aten::add", False)],
    ]
    counted = {"copies_to_gpu": 1, "copies_from_gpu": 1, "synchronisations": 2, "kernels": 1}
    assert count_events(events) == counted


def test_where_a_program_waits() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            warnings.warn_explicit("called a synchronizing CUDA operation", UserWarning, __file__, 12)
        told = "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"
        warnings.warn(told, stacklevel=1)  # torch's own, the first time that the mode is set
    assert places_of(caught) == {"tests/diagnostics/test_explain_speed.py:12": 3}


def made_up(steps: float, took: float, frames: float, worlds: int = 8) -> dict[str, Any]:
    collect = {"frames_per_second": 5.0, "frames_per_iteration": frames, "parts_seconds": {"learn": took}}
    return {
        "schema": SCHEMA,
        "subject": {"env": "some"},
        "config": {"env": {"num_worlds": worlds}},
        "tests": {"env": {"steps_per_second": steps, "ms_per_step": 1e3 / steps}, "collect": collect},
    }


def test_what_is_quicker_and_slower() -> None:
    rows = {row["name"]: row["ratio"] for row in changes(made_up(200.0, 4.0, 2000.0), made_up(100.0, 1.0, 1000.0))}
    assert rows["env.steps_per_second"] == 2.0 and rows["env.ms_per_step"] == 2.0
    assert rows["collect.learn s per million frames"] == pytest.approx(0.5)  # twice the frames in four times the time
    text = "\n".join(lines(made_up(200.0, 4.0, 2000.0, worlds=16), made_up(100.0, 1.0, 1000.0), "old.json"))
    assert "not the same: env.num_worlds 8 -> 16" in text
    assert "2.00 times better" in text and "2.00 times worse" in text and "about the same (1.00)" in text


@pytest.mark.parametrize(
    ("content", "needle"),
    [
        (None, "No such file"),
        ("{", "JSON"),
        ("[]", "not a whole diagnosis"),
        ('{"schema": "rlstack.diagnosis/0"}', "schema is 'rlstack.diagnosis/0', not 'rlstack.diagnosis/1'"),
        (f'{{"schema": "{SCHEMA}"}}', "tests"),
    ],
)
def test_other_files_are_refused_in_one_line(content: str | None, needle: str, tmp_path: Path) -> None:
    file = tmp_path / "before.json"
    if content is not None:
        file.write_text(content)
    assert needle in refused(ConfigError, f"^compare: {file} ", read, file)


# -- the verdict's rules, on made-up measurements ----------------------------------------------------------------------


def diagnosis(parts: dict[str, float] | None = None, **tests: Any) -> dict[str, Any]:
    """Returns a diagnosis of an on-policy agent in 64 worlds on a CPU with 4 cores."""
    if parts is not None:
        tests["collect"] = {"parts_seconds": parts}
    return {
        "subject": {"num_worlds": 64, "size_option": "num_worlds", "device": "cpu", "threads": 4, "clock": "wall"},
        "machine": {"cores": 4, "gpu": None, "cpu_share": 1.0},
        "config": {
            "agent": {"minibatch_size": 256, "epochs": 2},
            "env": {"num_worlds": 64},
            "collector": {"steps_per_batch": 8},
            "log_every": 1000,
        },
        "tests": tests,
    }


def worlds(*rates: float) -> dict[str, Any]:
    """Returns steps per second of 16, 64, 256, ... worlds."""
    counts = [16 * 4**k for k in range(len(rates))]
    sweep = [{"num_worlds": count, "steps_per_second": rate} for count, rate in zip(counts, rates)]
    return {"num_worlds": 64, "ms_per_step": 1.0, "sweep": sweep}


def updates(*rates: float) -> dict[str, Any]:
    """Returns samples per second of updates of 64, 256, 1024, ... samples."""
    sweep = [{"batch": 64 * 4**k, "samples_per_second": rate} for k, rate in enumerate(rates)]
    return {"batch": 257, "sweep": sweep}


def proposals(found: dict[str, Any]) -> dict[str, float | None]:
    return {finding.option: finding.gain for finding in verdict(found) if finding.option}


def test_parts_of_the_simulation_are_one() -> None:
    found = shares({"simulate": 2.0, "observe": 1.0, "reset": 1.0, "learn": 3.0, "policy": 1.0})
    assert list(found.items()) == [("simulation", 0.5), ("learn", 0.375), ("policy", 0.125)]


def test_the_smallest_setting_that_is_nearly_best() -> None:
    points = [{"n": 1, "r": 10.0}, {"n": 4, "r": 20.0}, {"n": 16, "r": 38.0}, {"n": 64, "r": 40.0}]
    assert best_setting(points, "n", "r", 4) == (points[2], 1.9)
    assert best_setting(points, "n", "r", 64) is None
    assert best_setting(points, "n", "r", 2) is None, "the present setting is not among them"


def test_slow_worlds_ask_for_more_of_them() -> None:
    found = diagnosis({"simulate": 6.0, "observe": 2.0, "learn": 2.0}, env=worlds(50.0, 100.0, 390.0, 400.0))
    first, *_ = verdict(found)
    assert first.text == "bottleneck: stepping the worlds takes 80% of an iteration"
    assert proposals(found) == {"env.num_worlds=256": pytest.approx(1 / (0.2 + 0.8 / 3.9))}


def test_worlds_that_do_not_matter_are_left_alone() -> None:
    found = diagnosis({"simulate": 0.1, "learn": 9.9}, env=worlds(50.0, 100.0, 390.0, 400.0), learn=updates(9.0, 9.0))
    assert proposals(found) == {}


def test_what_was_not_measured_has_no_gain() -> None:
    found = diagnosis({"simulate": 9.0, "learn": 1.0}, env=worlds(99.0, 100.0) | {"ms_per_step": 64.0})
    found["config"]["env"] |= {"compiled": False, "workers": 0}
    assert proposals(found) == {"env.compiled=true": None, "env.workers=4": None}
    found["tests"]["env"]["ms_per_step"] = 0.5  # 8 us for each world: another process would be slower
    assert proposals(found) == {"env.compiled=true": None}


def test_small_updates_ask_for_larger_ones() -> None:
    found = diagnosis({"simulate": 1.0, "learn": 9.0}, learn=updates(1.0, 2.0, 4.0, 4.1))
    first, second = verdict(found)
    assert first.text == "bottleneck: learning takes 90% of an iteration"
    assert second.option == "agent.minibatch_size=1024" and second.learns_otherwise
    assert second.gain == pytest.approx(1 / (0.1 + 0.9 / 2))


def test_replayed_batches_keep_their_samples_per_frame() -> None:
    found = diagnosis({"simulate": 4.0, "learn": 6.0}, learn=updates(1.0, 2.0, 4.0))
    found["config"]["agent"] = {"batch_size": 256, "frames_per_update": 0.5}
    assert set(proposals(found)) == {"agent.batch_size=1024 agent.frames_per_update=2", "agent.frames_per_update=1"}


def test_changes_that_learn_the_same_come_first() -> None:
    found = diagnosis({"simulate": 4.0, "learn": 6.0}, env=worlds(1.0, 1.0, 1.5), learn=updates(1.0, 2.0, 8.0))
    assert list(proposals(found)) == ["env.num_worlds=256", "agent.minibatch_size=1024"]


def test_threads_by_what_they_do_for_both_sides() -> None:
    slower = [{"threads": 1, "per_second": 2.0}, {"threads": 4, "per_second": 1.0}]
    faster = [{"threads": 1, "per_second": 1.0}, {"threads": 4, "per_second": 1.3}]
    found = diagnosis({"simulate": 8.0, "learn": 2.0}, env=worlds(1.0, 1.0) | {"threads": slower}, learn={"sweep": []})
    found["tests"]["learn"] |= {"batch": 1, "threads": faster}
    # 0.8 becomes 0.4, 0.2 becomes 0.26
    assert proposals(found) == {"threads=1": pytest.approx(1 / 0.66)}
    found["tests"]["collect"]["parts_seconds"] = {"simulate": 2.0, "learn": 8.0}
    assert proposals(found) == {}


def test_no_single_bottleneck() -> None:
    first, *_ = verdict(diagnosis({"simulate": 4.0, "learn": 3.5, "policy": 2.5}))
    assert first.text.startswith("no single bottleneck: stepping the worlds takes 40%")


def test_storing_logging_and_acting() -> None:
    acting = [{"batch": 64, "decisions_per_second": 1.0}, {"batch": 256, "decisions_per_second": 3.0}]
    found = diagnosis(
        {"store": 3.0, "log": 3.0, "policy": 4.0}, inference={"batch": 64, "sweep": acting}, env=worlds(1.0, 1.0, 1.0)
    )
    assert proposals(found) == {
        "env.num_worlds=256": pytest.approx(1 / (0.6 + 0.4 / 3)),
        "log_every=4000": pytest.approx(1 / (0.7 + 0.3 / 4)),
        "collector.steps_per_batch=32": None,
    }


def test_updates_that_are_matrix_products_are_told_of() -> None:
    found = diagnosis({"simulate": 1.0, "learn": 9.0}, learn=updates(1.0) | {"matrix_products": {"share": 0.62}})
    assert any("matrix products are an unavoidable 62%" in finding.text for finding in verdict(found))
    found["tests"]["learn"]["matrix_products"] = {"share": 0.2}
    assert not any("matrix products" in finding.text for finding in verdict(found))


def test_gpus() -> None:
    found = diagnosis({"learn": 1.0})
    found["machine"]["gpu"] = "some GPU"
    assert proposals(found) == {"device=cuda": None}
    found["subject"]["device"] = "cuda:0"
    found["tests"]["gpu"] = {
        "gpu_percent": 8.0,
        "step": {"synchronisations": 20.0, "waits_at": {"envs/some.py:7": 19.0}},
        "update": {"synchronisations": 0.0, "waits_at": {}},
    }
    texts = [finding.text for finding in verdict(found)]
    assert any("busy 8 %" in text for text in texts)
    assert any("waits for the GPU 20 times in a step, most often at envs/some.py:7" in text for text in texts)


def test_a_busy_machine_is_told() -> None:
    found = diagnosis({"learn": 1.0})
    found["machine"]["cpu_share"] = 0.3
    assert any("30% of a core" in finding.text for finding in verdict(found))
    found["subject"]["clock"] = "cpu"
    assert not any("of a core" in finding.text for finding in verdict(found))


def test_one_test_alone_has_a_verdict_too() -> None:
    assert proposals(diagnosis(env=worlds(50.0, 100.0, 390.0))) == {"env.num_worlds=256": None}
    assert proposals(diagnosis(learn=updates(1.0, 2.0, 8.0))) == {"agent.minibatch_size=1024": None}
    assert verdict(diagnosis(gpu={"note": "the device is cpu", "available": False})) == []
