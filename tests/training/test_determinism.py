"""``deterministic``: what auto decides, what it sets on a GPU, and that it ends with the call of a command."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rlstack.runs.seeding import surroundings_untouched
from rlstack.training import acceleration
from rlstack.training.acceleration import describe_determinism, is_deterministic, set_determinism

DENSE, IMAGES = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Sequential(nn.Conv2d(1, 1, 1)), nn.Linear(2, 2))


def agent(device: str, network: nn.Module) -> Any:
    return SimpleNamespace(device=torch.device(device), networks={"actor": DENSE, "critic": network})


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    memory = torch.utils.deterministic.fill_uninitialized_memory
    with surroundings_untouched():
        yield
    torch.utils.deterministic.fill_uninitialized_memory = memory


@pytest.mark.parametrize(
    ("wanted", "device", "network", "taken", "words"),
    [
        ("auto", "cuda", DENSE, True, "yes (auto: no network convolves)"),
        ("auto", "cuda", IMAGES, False, "no (auto: deterministic convolutions are slow)"),
        (True, "cuda", IMAGES, True, "yes"),
        (False, "cuda", DENSE, False, "no"),
        ("auto", "cpu", DENSE, None, None),
        (True, "cpu", DENSE, None, None),
    ],
)
def test_auto_leaves_only_convolutions_out(
    wanted: Any, device: str, network: nn.Module, taken: bool | None, words: str | None
) -> None:
    assert is_deterministic(wanted, agent(device, network)) is taken
    assert describe_determinism(wanted, agent(device, network)) == words


@pytest.mark.parametrize(
    ("wanted", "device", "before", "mode"),
    [(True, "cuda", 0, 2), ("auto", "cuda", 0, 1), (False, "cuda", 2, 0), (True, "cpu", 0, 0), (False, "cpu", 1, 1)],
)
def test_it_is_set_on_a_gpu_until_the_command_ends(wanted: Any, device: str, before: int, mode: int) -> None:
    """The modes are 0: off, 1: warnings, 2: errors for operations without a deterministic algorithm."""
    torch.set_deterministic_debug_mode(before)
    with surroundings_untouched():
        set_determinism(wanted, agent(device, DENSE))
        assert torch.get_deterministic_debug_mode() == mode
        assert device == "cpu" or not torch.utils.deterministic.fill_uninitialized_memory
    assert torch.get_deterministic_debug_mode() == before


@pytest.mark.parametrize(("wanted", "given"), [(False, {}), ("auto", {}), (True, {"CUBLAS_WORKSPACE_CONFIG": ":16:8"})])
def test_cublas_is_told_before_cuda_starts(wanted: Any, given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration.os, "environ", environment := dict(given))
    acceleration.prepare_cublas(wanted)
    assert environment == (given or ({} if wanted is False else {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}))
