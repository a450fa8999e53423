"""Names of worlds, own worlds, and what a misspelt option says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import envs
from envs import registry
from envs.marinenav.env import MarineNav


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_WORLDS", dict(registry._WORLDS))
    yield


def stand_in(size: int = 1, colour: str = "red") -> Any:
    """A factory in place of a world."""
    return (size, colour)


def open_factory(**options: Any) -> Any:
    """A factory that takes anything."""
    return options


def test_shipped_worlds_are_known() -> None:
    assert "marinenav" in envs.names() and envs.names() == sorted(envs.names())
    assert envs.world_class("marinenav") is MarineNav
    assert isinstance(envs.make("marinenav", num_worlds=2), MarineNav)


def test_a_registered_world_is_made_by_name() -> None:
    envs.register("mine", f"{__name__}:stand_in")
    assert "mine" in envs.names()
    assert envs.make("mine", size=3) == (3, "red")


def test_a_dotted_path_needs_no_registration() -> None:
    assert envs.make(f"{__name__}:stand_in", colour="blue") == (1, "blue")
    assert envs.make(f"{__name__}:open_factory", anything=1) == {"anything": 1}
    assert envs.world_class("envs.marinenav.env:MarineNav") is MarineNav


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("marinnav", {}, "unknown world 'marinnav', did you mean 'marinenav'"),
        ("chess", {}, "unknown world 'chess'; known: .*marinenav"),
        ("marinenav", {"num_robot": 3}, "marinenav: unknown option 'num_robot', did you mean 'num_robots'"),
        ("marinenav", {"xyz": 3}, r"marinenav: unknown option 'xyz' \(allowed: num_worlds, num_robots, "),
    ],
)
def test_a_wrong_name_says_what_is_right(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        envs.make(name, **options)
    assert "\n" not in str(error.value)


def test_a_target_without_class_is_refused() -> None:
    with pytest.raises(ValueError, match=r"target 'package\.module' of world 'mine'"):
        envs.register("mine", "package.module")
    assert "mine" not in envs.names()
