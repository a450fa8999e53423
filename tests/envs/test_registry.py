"""Worlds by their names, and the options that every world takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.envs import registry
from rlstack.envs.marinenav.env import MarineNav
from tests.envs.marinenav.test_env import CURRICULUM
from tests.refusals import refused


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))


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
    places = {"harbour": "worlds:Makers.harbour", "marinenav": "worlds:Makers", "lost": "gone:It"}
    lines = [f"{name} = harbours.{place}" for name, place in places.items()]
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


# -- options of worlds that are impossible: the error names the option, its value and what is allowed ------------------


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *(("arena", {"start_health": health}, r"start_health: .* at most 150") for health in (151, [90, 30])),
    ("arena", {"reward_weights": {"quick": 0.0}}, "reward_weights: 'quick' .*step_reward"),
    ("cartpole", {"max_steps": 0}, "max_steps: 0 is outside"),
    ("marinenav", {"num_robots": 0}, "num_robots=0.*at least one"),
    ("marinenav", {"num_obstacles": -1}, "num_obstacles=-1.*no negative"),
    ("marinenav", {"min_start_goal_dis": 90}, "min_start_goal_dis: 90.* 0 to 70 m"),
    ("marinenav", {"max_steps": -1}, "max_steps: -1"),
    ("marinenav", {"goal_reward": 1e30}, r"goal_reward: 1e\+30 .*\[-1e\+06, 1e\+06\]"),
    ("marinenav", {"num_robots": 100_000}, "num_robots=100000.* 1000 robots"),
    ("marinenav", {"discount": 1.5}, r"discount: 1.5 .*\[0, 1\]"),
    ("marinenav", {"curriculum": CURRICULUM | {"robots": [1, 2, 3]}}, r"curriculum: unknown \['robots'\]; it takes"),
    ("marinenav", {"curriculum": {"num_robots": [1]}}, r"curriculum: missing \['min_start_goal_dis', "),
    ("marinenav", {"curriculum": CURRICULUM | {"num_robots": [1, 2]}}, "curriculum: .*'num_robots': 2"),
    ("marinenav", {"curriculum": CURRICULUM | {"timesteps": [0, 5]}}, "curriculum: .* one entry per level"),
    ("marinenav", {"curriculum": CURRICULUM | {"timesteps": [0, 9, 5]}}, r"timesteps: \[0, 9, 5\] must ascend from 0"),
    ("rocket", {"orange": 4}, "orange: 4 cars.* 1 to 3"),
    ("rocket", {"observation": "pixels"}, "observation: 'pixels' .*rlbot180, compact"),
    ("rocket", {"actions": "keys"}, "actions: 'keys' .*multi, lookup90, box8"),
    ("rocket", {"rewards": "none"}, "rewards: 'none' .*sparse, dense, hybrid"),
    ("rocket", {"reward_weights": {"style": 1.0}}, "reward_weights: 'style' .*goal, "),
    ("rocket", {"kick_offs": 0.0}, "kick_offs, .*weights are 0"),
    ("rocket", {"aerials": -1.0}, "aerials: -1.0"),
    ("rocket", {"tick_skip": 1_000_000_000}, r"tick_skip: 1e\+09 .*\[1, 1200\] ticks"),
    ("rocket", {"max_seconds": 1e300}, r"max_seconds: 1e\+300 is outside"),
    ("echelon", {"red": 11}, r"red: 11 is outside \[1, 10\] mechs"),
    ("echelon", {"reward_scale": 0.0}, r"reward_scale: 0 .*\[1e-06, 1e\+06\]"),
    ("echelon", {"max_steps": 10**18}, r"max_steps: 1e\+18 is outside"),
    ("echelon", {"opponent": "me"}, "opponent: 'me' .*heuristic, veteran, rush, random, policy"),
    ("echelon", {"opponent_mix": {"me": 1.0}}, "opponent_mix: 'me' .*heuristic, veteran, rush, random"),
    ("echelon", {"opponent_mix": {"rush": -1.0}}, "opponent_mix: .*rush, -1.0"),
    ("echelon", {"opponent_mix": {"rush": 0.0}}, "opponent_mix: .*weights are 0"),
    ("echelon", {"opponent": "policy", "opponent_mix": {"rush": 1.0}}, "opponent_mix: bots .*'policy'"),
    ("echelon", {"fire_probability": 1.5}, r"fire_probability: 1.5 .*\[0, 1\]"),
    ("echelon", {"fire_probability": [0.9, 0.2]}, r"fire_probability: \[0.9, 0.2\] .*in order"),
    ("echelon", {"fire_stages": [0.5, 2.0]}, r"fire_stages: 2.0 .*\[0, 1\]"),
    ("echelon", {"visibility": "none"}, "visibility: 'none' .*full, partial"),
    ("echelon", {"actions": "keys"}, "actions: 'keys' .*hybrid, multi, box"),
    ("echelon", {"reward_weights": {"style": 1.0}}, "reward_weights: 'style' .*approach, zone"),
    ("echelon", {"maps": 0}, "maps: 0 "),
    *(("echelon", {"size": size}, f"^size: {size} .* even number from 48 to 128$") for size in (46, 65, 130, 64.0)),
    ("echelon", {"size": 128, "maps": 1025}, r"^maps: 1025 .* 1 to 1024 of size 128$"),
]


@pytest.mark.parametrize(("world", "options", "message"), REFUSED)
def test_impossible_options_are_named(world: str, options: dict[str, Any], message: str) -> None:
    refused(ValueError, message, envs.make, world, **{"num_worlds": 2} | options)


# -- worlds that hide part of their observation ------------------------------------------------------------------------


def pair(**options: Any) -> tuple[Any, Any]:
    made = [envs.make("gymnasium", id="CartPole-v1", num_envs=3, seed=1, **own) for own in ({}, options)]
    return made[0], made[1]


@pytest.mark.parametrize("keep", [[0, 2], [3, 1, 0]])
def test_only_what_is_kept_is_shown(keep: list[int]) -> None:
    whole, partial = pair(observation_keep=keep)
    spec = partial.observation_spec["observation"]
    assert torch.equal(spec.space.high, whole.observation_spec["observation"].space.high[:, keep])
    one, other = whole.reset(), partial.reset()
    for _ in range(60):
        assert torch.equal(other["observation"], one["observation"][:, keep])
        action = torch.randint(2, (3,))
        one, first = whole.step_and_maybe_reset(one.set("action", action))[::-1]
        other, second = partial.step_and_maybe_reset(other.set("action", action))[::-1]
        assert torch.equal(second["next", "observation"], first["next", "observation"][:, keep])
        assert torch.equal(second["next", "done"], first["next", "done"])


def test_frames_are_stacked_of_what_is_shown() -> None:
    _, partial = pair(observation_keep=[0, 2], frame_stack=3)
    assert partial.reset()["observation"].shape == (3, 6)


@pytest.mark.parametrize("keep", [[4], [0, 0], [], [-1], [True], [0.5], "02", 2])
def test_impossible_choices_are_refused(keep: Any) -> None:
    refused(ValueError, "different indices from 0 to 3", pair, observation_keep=keep)


def test_objects_cannot_be_taken_apart() -> None:
    refused(ValueError, "not a vector", envs.make, "marinenav", num_worlds=1, observation_keep=[0])
