"""The value of Rocket's rewards: what is trained, and what counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.rocket.ablation import ALWAYS, EVERYTHING, table, variants, won
from rlstack.envs.rocket.rewards import TERMS


def test_every_variant_lacks_one_group_but_never_the_goals() -> None:
    found = variants()
    own = found.pop(EVERYTHING)
    for name, weights in found.items():
        group = name.removeprefix("without ")
        off = {term for term, (of, _) in TERMS.items() if of == group and term not in ALWAYS}
        assert off and all(weights[term] == 0 for term in off)
        assert {term: weight for term, weight in weights.items() if term not in off} == {
            term: weight for term, weight in own.items() if term not in off
        }


def test_games_of_the_last_quarter_count_however_they_are_logged(tmp_path: Path) -> None:
    rows = ["frames,train/episodes,train/success", "100,50,0.0", "300,30,0.5", "400,10,1.0"]
    (tmp_path / "metrics.csv").write_text("\n".join(rows) + "\n")
    share, low, high = won(tmp_path)
    assert share == pytest.approx(25 / 40) and low < share < high


def test_the_table_names_what_a_group_is_worth() -> None:
    text = table({"won": {EVERYTHING: (0.6, 0.55, 0.65), "without ball": (0.5, 0.45, 0.55)}})
    assert "| without ball | 50.0% (45.0% to 55.0%) | -10.0% |" in text.splitlines()
