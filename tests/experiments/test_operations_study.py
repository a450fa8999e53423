"""The count of operations of steps and updates."""

from __future__ import annotations

import pytest
import torch

from experiments.benchmarks import operations


def test_views_are_free_and_a_backward_pass_is_counted() -> None:
    weight = torch.ones(3, requires_grad=True)
    with operations.Operations() as counted:
        value = (weight.view(3, 1)[1:] * 2.0).sum()  # a product and a sum
    assert counted.number == 2
    with operations.Operations() as counted:
        value.backward()
    assert counted.number > 0


def test_the_table_has_both_columns() -> None:
    result = {
        "steps": {"cartpole": 27.0},
        "updates": {"sac": 1234.4},
        "earlier": {"commit": "50b0caa1ff", "steps": {"cartpole": 49.0}, "updates": {}},
    }
    assert operations.table(result).splitlines() == [
        "| | operations, commit 50b0caa1 | operations now |",
        "|---|---|---|",
        "| a step of `cartpole` | 49 | 27 |",
        "| an update of `sac` |  | 1,234 |",
    ]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(SystemExit, match="chess: neither a world nor an agent; known: rocket, "):
        operations.main(["chess"])
