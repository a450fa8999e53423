"""The guards that compiled functions check before a call."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from rlstack.envs.foundation.compilation import Compiled, CompiledColumns


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


class Pair(NamedTuple):
    sums: torch.Tensor
    flags: tuple[torch.Tensor, ...]


@pytest.mark.parametrize("count", [1, 3, 4, 11])
def test_columns_are_computed_some_at_a_time(count: int) -> None:
    calls: list[tuple[int, ...]] = []

    def summed(offset: float, value: torch.Tensor, others: tuple[torch.Tensor, torch.Tensor]) -> Pair:
        calls.append((value.shape[-1], others[1].shape[-1]))
        return Pair(value.sum(0) + others[0] + offset, (others[1],))

    columns = CompiledColumns(summed, "sums", 4)
    columns._compiled = summed  # type: ignore[assignment]
    value, other, flags = torch.randn(3, count), torch.randn(count), torch.arange(count) > 1
    found = columns(2.0, value, (other, flags))
    assert found.sums.tolist() == (value.sum(0) + other + 2.0).tolist() and found.flags[0].tolist() == flags.tolist()
    assert calls == [(4, 4)] * -(-count // 4)
