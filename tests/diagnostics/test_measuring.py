"""Sections, the counts of a GPU's profile, and the comparison of two diagnoses."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlstack.config import ConfigError
from rlstack.diagnostics.measuring import percentiles
from rlstack.diagnostics.report import SCHEMA, changes, lines, read
from rlstack.diagnostics.training import Sections, count_events, places_of


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


@pytest.fixture
def clock() -> Hands:
    return Hands()


def sections(clock: Any) -> Sections:
    return Sections(clock)


def test_a_section_is_without_those_inside(clock: Hands) -> None:
    kitchen = Kitchen(clock)
    with sections(clock) as watched:
        watched.watch(kitchen, "cook", "cooking")
        watched.watch(Kitchen, "chop", "chopping")
        kitchen.cook()  # before the measurement begins: not counted
        watched.begin()
        clock.now += 100
        assert kitchen.cook() == "soup"
        assert watched.end() == {"other": 100, "cooking": 3, "chopping": 10}
    assert "cook" not in vars(kitchen) and Kitchen.chop.__qualname__ == "Kitchen.chop"
    assert not hasattr(Kitchen.chop, "__wrapped__")


def test_a_whole_section_keeps_those_inside(clock: Hands) -> None:
    kitchen = Kitchen(clock)
    with sections(clock) as watched:
        watched.watch(kitchen, "cook", "cooking", whole=True)
        watched.watch(kitchen, "chop", "chopping")
        watched.begin()
        kitchen.cook()
        kitchen.chop()
        assert watched.end() == {"cooking": 13, "chopping": 10, "other": 0}


def test_an_error_leaves_its_section_and_puts_functions_back(clock: Hands) -> None:
    original: Callable[..., Any] = json.loads
    with sections(clock) as watched:
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
    assert places_of(caught) == {"tests/diagnostics/test_measuring.py:12": 3}


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
    assert rows["collect.learn s per million frames"] == pytest.approx(0.5), (
        "twice as many frames in four times the time"
    )
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
    with pytest.raises(ConfigError) as caught:
        read(file)
    message = str(caught.value)
    assert message.startswith(f"compare: {file} ") and needle in message and "\n" not in message
