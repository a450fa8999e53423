"""Figures of matplotlib as files."""

from __future__ import annotations

from pathlib import Path

import imageio.v2 as imageio
import pytest

from rlstack.evaluation.figures import saved_figure


def test_panels_stand_in_rows_below_a_title(tmp_path: Path) -> None:
    with saved_figure(tmp_path / "a.png", "title", 3, 2, (2.0, 1.5)) as panels:
        panels[0].plot([1, 2], label="line")
    assert len(panels) == 3 and panels[0].get_legend() is not None and panels[1].get_legend() is None
    assert imageio.imread(tmp_path / "a.png").shape[:2] == (360, 480)  # two rows of two, 120 pixels an inch


def test_an_error_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), saved_figure(tmp_path / "a.png", "title"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []
