"""Names of worlds, own worlds, and errors for misspelt options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.envs import registry
from rlstack.envs.marinenav.env import MarineNav
from tests.refusals import refused


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    yield


def stand_in(size: int = 1, colour: str = "red") -> EnvBase:
    """A factory in place of a world."""
    return (size, colour)  # type: ignore[return-value]


def open_factory(**options: Any) -> EnvBase:
    """A factory that takes any options."""
    return options  # type: ignore[return-value]


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
    assert envs.world_class("rlstack.envs.marinenav.env:MarineNav") is MarineNav


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
    refused(ValueError, message, envs.make, name, **options)


def test_a_target_without_class_is_refused() -> None:
    refused(ValueError, r"target 'package\.module' of world 'mine'", envs.register, "mine", "package.module")
    assert "mine" not in envs.names()


# --- worlds of installed packages


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs a package with three worlds, one under a name of ours and one that does not exist."""
    info = tmp_path / "harbours-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: harbours\nVersion: 1.0\n")
    lines = [
        "harbour = harbours.worlds:Makers.harbour",
        "marinenav = harbours.worlds:Makers",
        "lost = harbours.gone:It",
    ]
    (info / "entry_points.txt").write_text("\n".join(["[rlstack.envs]", *lines]) + "\n")
    (tmp_path / "harbours").mkdir()
    (tmp_path / "harbours" / "__init__.py").write_text("")
    source = "class Makers:\n    @staticmethod\n    def harbour(berths=1):\n        return berths\n"
    (tmp_path / "harbours" / "worlds.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
def test_installed_packages_bring_worlds() -> None:
    assert {"harbour", "lost", "marinenav"} <= set(envs.names())
    assert envs.make("harbour", berths=4) == 4
    assert envs.world_class("marinenav") is MarineNav  # ours wins
    refused(ValueError, r"world 'lost': harbours\.gone:It cannot be imported: No module named", envs.make, "lost")
    refused(ValueError, "unknown world 'harbor', did you mean 'harbour'", envs.make, "harbor")


@pytest.mark.usefixtures("installed")
def test_what_is_registered_wins_over_installed_packages() -> None:
    envs.register("harbour", f"{__name__}:stand_in")
    assert envs.make("harbour") == (1, "red")


def test_without_that_package_its_names_are_unknown() -> None:
    assert "harbour" not in envs.names()


# --- options that every world takes


def wide(action_repeat: int = 7) -> EnvBase:
    """A factory with its own option of that name."""
    return action_repeat  # type: ignore[return-value]


def test_every_world_takes_the_options_of_wrappers_unless_it_has_its_own() -> None:
    assert {"num_robots", "action_repeat", "frame_stack"} <= set(envs.options_of("marinenav"))
    assert envs.options_of("marinenav")["action_repeat"].default == 1
    assert envs.make(f"{__name__}:stand_in", action_repeat=1, frame_stack=1) == (1, "red")
    assert envs.make(f"{__name__}:wide", action_repeat=3) == 3
    assert envs.make(f"{__name__}:open_factory", action_repeat=1) == {}
