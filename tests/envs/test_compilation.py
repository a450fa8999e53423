"""The guards that compiled functions check before a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from envs.compilation import Compiled


def shifted(value: torch.Tensor, table: dict[str, Any]) -> torch.Tensor:
    return value + table["shift"]


@pytest.mark.parametrize("constants", [(), (1,)])
def test_constants_are_taken_as_they_were_at_first(constants: tuple[int, ...]) -> None:
    quick, table = Compiled(shifted, "a sum", "eager", constants, dynamic=False), {"shift": 1.0}
    assert quick(torch.zeros(2), table).tolist() == [1, 1]
    table["shift"] = 2.0
    assert quick(torch.zeros(2), table).tolist() == ([1, 1] if constants else [2, 2])


def test_what_varies_is_still_compared() -> None:
    quick, table = Compiled(shifted, "a sum", "eager", (1,), dynamic=False), {"shift": torch.ones(1)}
    assert quick(torch.zeros(2), table).tolist() == [1, 1]
    assert quick(torch.zeros(3), table).tolist() == [1, 1, 1]
    assert quick(torch.zeros(1, dtype=torch.float64), table).dtype == torch.float64
