"""The environment on the original simulator equals the torch world in every respect, and survives crashes."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torchrl.envs import check_env_specs

from rlstack.envs.rocket.actions import chosen_for
from rlstack.envs.rocket.env import Rocket
from tests.envs.rocket.fields import act, build, first_matches, put
from tests.envs.test_gymnasium_failures import pids
from tests.exhaustive import exhaustive
from tests.refusals import refused

MIXED = {"kick_offs": 0.4, "random_states": 0.3, "aerials": 0.3}
installed = pytest.mark.skipif(importlib.util.find_spec("RocketSim") is None, reason="needs the extra rocketsim")
pytestmark = pytest.mark.usefixtures("own_meshes")


@pytest.fixture
def simulated() -> Iterator[Any]:
    """Makes worlds of the simulator, and closes them at the end."""
    made: list[Rocket] = []

    def make(worlds: int, **options: Any) -> Rocket:
        made.append(build(worlds, backend="rocketsim", **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


# -- the same world ----------------------------------------------------------------------------------------------------


@installed
def test_specs(simulated: Any) -> None:
    check_env_specs(simulated(2, blue=2, orange=1, tick_skip=4, actions="box8", **MIXED))


@installed
@exhaustive(
    ("options", "steps"),
    [
        ({}, 11),
        ({"blue": 1, "orange": 2, "observation": "compact"}, 20),
        ({"dtype": torch.float64, "ramps": False}, 20),
    ],
)
def test_the_same_actions_lead_to_the_same(simulated: Any, options: dict[str, Any], steps: int) -> None:
    """Covers up to a second of random driving, boosting and jumping: all observations and rewards."""
    options = {**options, **MIXED, "seed": 3}
    worlds = (build(12, **options), simulated(12, **options))
    roots = [env.reset() for env in worlds]
    assert torch.equal(roots[0]["agents", "observation"], roots[1]["agents", "observation"])
    generator = torch.Generator().manual_seed(1)
    together = torch.ones(12, dtype=torch.bool)  # worlds in which no car has left the path of its twin
    for step in range(steps):
        if step % 4 == 0:
            wanted = torch.randint(0, 5, (8, worlds[0].starts.cars, 12), generator=generator) / 2 - 1
            wanted[0] = wanted[0].abs()
            wanted[5:] = (wanted[5:] > 0.5).float()
        ours, theirs = roots = [act(env, root, wanted) for env, root in zip(worlds, roots)]
        apart = (ours["agents", "observation"] - theirs["agents", "observation"]).abs().amax(-1)
        rewards = (ours["agents", "reward"] - theirs["agents", "reward"]).abs()
        # Some cars begin within each other; pads may be equally near; later cars tumble on their roofs.
        assert apart.median() < 1e-5 and rewards.median() < 1e-6
        near, most = (1e-4, 0.85) if step < 12 else (0.01, 0.8)
        assert (apart < near).float().mean() > most and (rewards < near).float().mean() > most
        for name in ("done", "terminated", "truncated"):
            assert torch.equal(ours[name], theirs[name])
        assert torch.equal(ours["agents", "active"], theirs["agents", "active"])
        together &= (apart < 0.01).all(-1)
    assert together.float().mean() > 0.5
    for name in ("length", "time", "touches_blue", "boost_collected_blue", "boost_collected_orange"):
        counted = theirs["episode", name][together], ours["episode", name][together]
        torch.testing.assert_close(*counted, rtol=0, atol=1e-3)


@pytest.mark.slow
@installed
def test_goals_end_matches_which_restart_alone(simulated: Any) -> None:
    for env in (build(3, rewards="sparse"), simulated(3, rewards="sparse", workers=2)):
        root = env.reset()
        put(env, 1, position=[0.0, -5000.0, 200.0], velocity=[0.0, -3000.0, 0.0])
        root["agents", "action"] = chosen_for("multi", torch.zeros(8, 2, 3))
        for _ in range(3):
            root, following = env.step_and_maybe_reset(root)
            if root["next", "done"].any():
                break
            root = following.set(("agents", "action"), root["agents", "action"])
        after = root["next"]
        assert after["terminated"][:, 0].tolist() == [False, True, False] and not after["truncated"].any()
        assert after["agents", "reward"][1, :, 0].tolist() == [-10, 10]
        assert after["episode", "goals_against"][:, 0].tolist() == [0, 1, 0]
        assert following["episode", "length"][1] == 0
        opened = act(env, following)
        assert env.worlds.world.clock.tolist() == [24, 8, 24] and not opened["done"].any()
        assert opened["agents", "observation"][1, 0, 22:25].tolist() == pytest.approx([0, 0, 93.15 / 4096])
        entries = [entry for _, entry in env.worlds.items()]  # which restarts overwrite
        assert len({entry.data_ptr() for entry in entries}) == len(entries)
        assert not any(0 in entry.stride() for entry in entries)


@pytest.mark.slow
@installed
def test_demolitions_and_returns_are_the_same(simulated: Any) -> None:
    seen = []
    for env in (build(1, observation="compact"), simulated(1, observation="compact")):
        root = env.reset()
        cars = {
            "position": [[-1700.0, -1200.0], [500.0] * 2, [17.0] * 2],
            "velocity": [[2290.0, 0.0], [0.0] * 2, [0.0] * 2],
        }
        put(env, 0, {**cars, "rotation": torch.eye(3)[..., None].repeat(1, 1, 2).tolist()})
        wanted = torch.zeros(8, 2, 1)
        wanted[0, 0], wanted[6, 0] = 1.0, 1.0
        rows = []
        for step in range(52):
            root = act(env, root, wanted if step < 5 else None)
            rows.append(root["agents", "observation"][0, 1])
        seen.append(torch.stack(rows))
        assert root["episode", "demos_blue"] == 1 and not root["episode", "demos_orange"]
    away = seen[0][:, 21] == 1
    assert away.sum() == 45 and torch.equal(away, seen[1][:, 21] == 1)
    assert not seen[1][away, 3:9].any()
    torch.testing.assert_close(seen[0][:, :22], seen[1][:, :22], rtol=0, atol=1e-3)


@pytest.mark.slow
@installed
def test_a_seed_decides_everything_whatever_the_workers(simulated: Any) -> None:
    runs = []
    for workers in (1, 2):
        torch.manual_seed(0)
        runs.append(simulated(3, seed=1, workers=workers, **MIXED).rollout(12, break_when_any_done=False))
    assert (runs[0] == runs[1]).all()


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@installed
def test_a_lost_worker_costs_its_own_matches_only(simulated: Any) -> None:
    env = simulated(4, workers=2, **MIXED)
    assert not pids(), "nothing starts before the first step"
    root = act(env, env.reset())
    first, second = pids()
    os.kill(second, signal.SIGKILL)
    before = root["agents", "observation"].clone()
    root["agents", "action"] = env.full_action_spec["agents", "action"].rand()
    with pytest.warns(RuntimeWarning, match=r"worker 1 of 2 \(matches 2 to 3\): .*; it is replaced"):
        root, following = env.step_and_maybe_reset(root)
    after = root["next"]
    assert after["truncated"][:, 0].tolist() == [False, False, True, True] and not after["terminated"].any()
    torch.testing.assert_close(after["agents", "observation"][2:, :, :18], before[2:, :, :18])
    assert not torch.equal(after["agents", "observation"][:2], before[:2])
    assert env.worker_failures == 1 and pids()[0] == first and pids()[1] != second
    assert following["episode", "length"][:, 0].tolist() == [2, 2, 0, 0]
    following = act(env, following)
    assert not following["done"].any() and env.worlds.world.clock.tolist() == [24, 24, 8, 8]


@installed
def test_bad_meshes_are_told(simulated: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "soccar").mkdir()
    (tmp_path / "soccar/field.cmf").write_bytes(b"\x01\x00")
    monkeypatch.setenv("RS_COLLISION_MESHES", str(tmp_path))
    env = simulated(1)
    refused(RuntimeError, r"worker 0 of 1 \(matches 0 to 0\) cannot begin: ", act, env, env.reset())


@pytest.mark.slow
@installed
def test_a_closed_world_takes_its_workers_along(simulated: Any) -> None:
    env = simulated(2, workers=5)
    root = act(env, env.reset())
    assert len(pids()) == 2
    env.close()
    assert not pids()
    refused(RuntimeError, "closed", act, env, root)


@pytest.mark.slow
@installed
def test_a_restored_world_begins_new_matches(simulated: Any) -> None:
    env, other = simulated(3, **MIXED), simulated(3, seed=9, **MIXED)
    assert not env.saves_episodes and build(1).saves_episodes
    env.rollout(5)
    saved, starts = env.state_dict(), []
    for one in (env, other):
        one.load_state_dict(saved)
        root = one.reset()
        assert not root["episode", "length"].any()
        starts.append(act(one, root))
    assert (starts[0] == starts[1]).all() and (starts[0]["episode", "length"] == 1).all()


# -- options -----------------------------------------------------------------------------------------------------------


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "RocketSim" else found(name))
    refused(ValueError, r"^backend: rocketsim needs the extra 'rocketsim': pip install ", build, 1, backend="rocketsim")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "bullet"}, "backend: 'bullet' is unknown, allowed: torch, rocketsim"),
        ({"workers": -1}, "workers: -1 is not a number of processes"),
        ({"backend": "rocketsim", "compiled": True}, "compiled: only the torch backend has anything to compile"),
    ],
)
def test_impossible_options_are_told(options: dict[str, Any], message: str) -> None:
    refused(ValueError, message, build, 1, **options)


# -- play --------------------------------------------------------------------------------------------------------------


@installed
@pytest.mark.slow
def test_the_player_of_rules_scores_as_often(simulated: Any) -> None:
    """Plays rules against rules from random states, as there are only five kick-offs; returns figures of matches."""
    matches, results = 64, []
    options = {"kick_offs": 0.0, "random_states": 1.0, "max_seconds": 20.0, "observation": "compact"}
    for env in (build(matches, **options), simulated(matches, workers=2, **options)):
        env.reset()
        first = first_matches(env)
        touches = (first["touches_blue"] + first["touches_orange"]) / first["time"]
        results.append([float(row.mean()) for row in (first["goals_for"], first["goals_against"], touches)])
    (ours_for, ours_against, ours_touches), (theirs_for, theirs_against, theirs_touches) = results
    # Three standard errors of a difference of two shares of 64.
    assert abs(ours_for - theirs_for) < 0.25 and abs(ours_against - theirs_against) < 0.25
    assert 0.8 < ours_touches / theirs_touches < 1.25
    assert ours_for + ours_against > 0.2
