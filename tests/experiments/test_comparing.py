"""Results that are compared with earlier ones, and the tables of the pages."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from experiments import tables
from experiments.benchmarks import speed, timing
from rlstack.training.environment import processor
from tests.refusals import refused


def _row(name: str, median: float, least: float, most: float) -> dict[str, Any]:
    return {"name": name, "num_worlds": 64, "median": median, "least": least, "most": most}


def _options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    timing.add_options(parser)
    return parser.parse_args(arguments)


THEN = {"cpu": "one", "rows": [_row(name, 100, 90, 110) for name in ("same", "noisy", "slow", "a little slower")]}
NOW = {
    "cpu": "one",
    "rows": [
        _row("same", 99, 91, 109),
        _row("noisy", 80, 60, 95),  # the ranges overlap
        _row("slow", 80, 75, 85),
        _row("a little slower", 96, 95, 97),
        _row("new", 1, 1, 1),
    ],
}


def test_a_figure_is_slower_by_more_than_the_tolerance_and_outside_of_both_ranges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "then.json"
    file.write_text(json.dumps(THEN))
    before = timing.earlier(_options("--compare", str(file)))
    assert timing.verdict(NOW, before, fail=True) == 1
    assert capsys.readouterr().out == "slower: slow, 64 worlds: 100.00 -> 80.00 (-20%)\n"
    assert timing.verdict(NOW, before, fail=False) == 0
    assert timing.verdict(THEN, before, fail=True) == 0
    assert "nothing got slower among 4 figures" in capsys.readouterr().out


def test_a_small_change_outside_of_both_ranges_is_not_named() -> None:
    exact = {"x": {"median": 100.0, "least": 99.9, "most": 100.1}}
    assert timing.slower({"x": {"median": 96.0, "least": 95.9, "most": 96.1}}, exact) == []
    assert len(timing.slower({"x": {"median": 94.0, "least": 93.9, "most": 94.1}}, exact)) == 1


def test_peers_are_compared_by_their_ratios() -> None:
    ratio = {"median": 2.0, "least": 1.9, "most": 2.1}
    result = {"work": {"ppo": {"speeds": {"rlstack": ratio}, "ratios": {"other": ratio}}}}
    assert timing.figures(result) == {"ppo beside other": ratio}


def test_another_cpu_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    timing.verdict({**THEN, "cpu": "two"}, THEN, fail=True)
    assert "figures of another CPU: one, now two" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "no json", "[]", "{}", '{"rows": [{"name": "x"}]}', '{"work": {"x": 1}}'])
def test_a_file_that_is_no_result_is_refused_in_one_line(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "file.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SystemExit, match="not the result of a benchmark") as refused:
        timing.earlier(_options("--compare", str(file)))
    assert "\n" not in str(refused.value)


def test_the_speed_of_worlds_is_compared_with_the_file_that_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        speed, "SUBJECTS", [speed.Subject("tiny", lambda worlds: lambda steps: sum(range(9999)), (64,))]
    )
    file = tmp_path / "speed.json"
    file.write_text(json.dumps({"cpu": processor(), "rows": [_row("tiny", 1e15, 1e15, 1e15)]}))
    arguments = ["--only", "tiny", "--out", str(file), "--compare", str(file), "--fail-if-slower"]
    assert speed.main(arguments) == 1 and "slower: tiny, 64 worlds" in capsys.readouterr().out
    assert json.loads(file.read_text())["rows"][0]["median"] < 1e15
    monkeypatch.setattr(speed, "measure", lambda *_: _row("tiny", 1e15, 1e15, 1e15))
    assert speed.main(arguments) == 0


# -- The tables of the experiments' pages agree with their result files ----------------------------------------------


def test_every_table_is_that_of_its_result_file() -> None:
    assert tables.main(["--check"]) == 0


def test_every_known_table_stands_on_one_page_once() -> None:
    pages = "".join(page.read_text() for page in tables.PAGES)
    assert sorted(name for name, _ in tables.MARKED.findall(pages)) == sorted(tables.TABLES)


def test_a_stale_table_is_named_and_rewritten(tmp_path, monkeypatch, capsys) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: soak -->\n| typed by hand |\n<!-- end -->\nafter\n")
    monkeypatch.setattr(tables, "PAGES", [page])
    assert tables.main(["--check"]) == 1 and "soak" in capsys.readouterr().out
    assert tables.main([]) == 0
    lines = page.read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and lines[2].startswith("| world | frames |")


def test_a_table_nobody_makes_is_refused() -> None:
    refused(KeyError, "nothing", tables.rewritten, "<!-- table: nothing -->\n<!-- end -->")
