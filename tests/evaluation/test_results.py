"""The result of an evaluation: its numbers, its file and its table."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path

import pytest
import torch

from rlstack.evaluation.figures import saved_figure
from rlstack.evaluation.results import Evaluation
from rlstack.evaluation.statistics import wilson_interval
from rlstack.evaluation.table import print_rows
from tests.evaluation.scripted import play


@pytest.fixture
def result() -> Evaluation:
    return play(["arrives", "collides", "rests"], max_steps=40, record=1, name="full ahead")


def test_intervals_are_wilsons(result: Evaluation) -> None:
    summary = result.summary()
    assert summary["eval/success"] == pytest.approx(1 / 3)
    assert (summary["eval/success_low"], summary["eval/success_high"]) == wilson_interval(1, 3)
    assert summary["eval/success_levelarrives"] == 1.0 and summary["eval/success_levelrests"] == 0.0


def test_json_round_trip(result: Evaluation, tmp_path: Path) -> None:
    path = tmp_path / "new" / "evaluation.json"
    result.save(path)
    assert [file.name for file in path.parent.iterdir()] == ["evaluation.json"]
    back = Evaluation.from_json(path.read_text())
    assert back.table() == result.table() and back.summary() == result.summary()
    assert back.to_json() == result.to_json()
    assert (back.cut, back.max_steps) == (result.cut, 40) and result.cut == 1
    assert (back.levels, back.seed, back.policy, back.world) == (result.levels, 0, "full ahead", "marinenav")
    content = json.loads(path.read_text())
    assert content["options"]["dtype"] == "float64" and content["options"]["collision_penalty"] == -5.0
    assert set(content["summary"]) <= {f"eval/{name}" for name in content["definitions"]} | {
        f"eval/success_level{level}" for level in result.levels
    }
    with pytest.raises(ValueError, match="not an evaluation"):
        Evaluation.from_json("[]")


def test_the_better_one_wins_more_then_by_more_and_nan_is_never_better() -> None:
    def of(**columns: list[float]) -> list[float]:
        columns = {"return": [0.0, 0.0], **columns}
        values = {name: torch.tensor(column, dtype=torch.float64) for name, column in columns.items()}
        return Evaluation(values, ["all"] * 2, "any", {}, 0).rank("margin")

    ranks = [
        of(success=[0.0, 1.0], margin=[900.0, 900.0]),
        of(success=[1.0, 1.0], margin=[1.0, 2.0]),
        of(success=[1.0, 1.0], margin=[1.0, 3.0]),
    ]
    assert ranks[0] < ranks[1] < ranks[2]
    lost = of(**{"return": [math.nan, 1.0]})
    assert lost > [] and of(**{"return": [-5.0, -5.0]}) > lost


def test_recordings_are_the_episodes(result: Evaluation) -> None:
    assert list(result.recordings) == [0, 1, 2]
    for index, recording in result.recordings.items():
        assert len(recording.pose) == result.episodes["length"][index] + 1
        assert recording.success == bool(result.episodes["success"][index])
    assert result.recordings[1].title == "level collides, episode 1"


def test_many_statistics_have_rows_of_their_own(result: Evaluation) -> None:
    for index in range(20):
        result.episodes[f"part{index}"] = torch.full_like(result.episodes["return"], index)
    text = io.StringIO()
    result.print_table(text)
    head, *_, last = text.getvalue().splitlines()
    assert "part0" not in head and len(head) < 120 and last.split() == ["part19", *["19.000"] * 4]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_words_are_folded_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("TERM", "xterm")
    terminal, row = Terminal(), {"run": "long_" * 12, "score": 1.0, "state": "interrupted " * 4}
    print_rows([row, row], terminal)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert max(map(len, lines)) <= 70 and len(lines) > 4
    assert "".join(line.split()[0] for line in lines[2 : 2 + (len(lines) - 2) // 2]) == row["run"]


def test_a_table_shows_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    terminal, name = Terminal(), "pp[/o] [red]x :smile:"
    print_rows([{"[agent]": name, "[b]": "[1, 2]", "c": "\x1b[2J"}], terminal)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert [line.split("  ") for line in shown.splitlines()][-1][0].strip() == name
    assert all(part in shown for part in ("[agent]", "[b]", "[1, 2]")) and "\x1b" not in shown


def test_a_figure_takes_no_name_for_a_formula(tmp_path: Path) -> None:
    name = r"$\wrong$"
    with saved_figure(tmp_path / "a.png", name) as (axes,):
        axes.plot([0, 1], label=name)
        axes.annotate(name, (0, 0))
        axes.set_title(name)


def test_table_as_text(result: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    plain, terminal = io.StringIO(), Terminal()
    result.print_table(plain)
    result.print_table(terminal)
    lines = plain.getvalue().splitlines()
    assert plain.getvalue().isascii() and len({len(line) for line in lines}) == 1
    assert lines[0].split()[:3] == ["level", "episodes", "success"]
    assert lines[-1].split()[:3] == ["all", "3", "0.333"]
    low, high = wilson_interval(1, 3)
    assert all(text in terminal.getvalue() for text in ("collision", "0.333", f"{low:.3f}-{high:.3f}", "\x1b["))
