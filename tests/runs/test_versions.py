"""What files say about the packages on which results depend."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from rlstack import runs


@pytest.mark.parametrize("nightly", [True, False])
def test_a_nightly_build_counts_as_the_package(nightly: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> str:
        if name != ("torchrl-nightly" if nightly else "torchrl"):
            raise PackageNotFoundError(name)
        return "2026.10.27"

    monkeypatch.setattr(runs, "version", installed)
    assert runs.versions()["torchrl"] == "2026.10.27"


def test_simulators_are_named_if_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> str:
        if name not in {"torch", "mujoco"}:
            raise PackageNotFoundError(name)
        return f"{name} 1.0"

    monkeypatch.setattr(runs, "version", installed)
    found = runs.versions()
    assert set(found) == {"rlstack", "python", "torch", "mujoco"}
    assert found["mujoco"] == "mujoco 1.0"
