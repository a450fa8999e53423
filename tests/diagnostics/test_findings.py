"""The verdict's rules, on made-up measurements."""

from __future__ import annotations

from typing import Any

import pytest

from rlstack.diagnostics.diagnosis import best_setting, shares, verdict, whole_gain


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


def test_the_gain_of_a_part_is_less_than_its_own() -> None:
    assert whole_gain(1.0, 3.0) == pytest.approx(3.0)
    assert whole_gain(0.5, 2.0) == pytest.approx(4 / 3)  # 1 s becomes 0.75 s
    assert whole_gain(0.0, 100.0) == 1.0


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
    assert list(proposals(found)) == [
        "agent.batch_size=1024 agent.frames_per_update=2",
        "agent.frames_per_update=1",
    ] or list(proposals(found)) == ["agent.frames_per_update=1", "agent.batch_size=1024 agent.frames_per_update=2"]


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
        "env.num_worlds=256": pytest.approx(whole_gain(0.4, 3.0)),
        "log_every=4000": pytest.approx(whole_gain(0.3, 4.0)),
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
