"""Recorded episodes from beginning to end, tables of single steps, and our own recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlstack.envs.marinenav.env import MarineNav
from rlstack.envs.marinenav.episodes import Config, make_episode
from rlstack.envs.marinenav.noise import PublishedNoise, perception_seeds
from rlstack.envs.marinenav.recording import MarineNavRecorder, MarineNavRecording, view
from tests.conftest import REPO, SHARED
from tests.envs.marinenav.recorded import (
    Table,
    act,
    actions_of,
    actor,
    assert_close,
    build,
    lively_episodes,
    load,
    load_json,
    play,
    robot,
    start_of,
)
from tests.exhaustive import exhaustive
from tests.refusals import refused

FIXTURES = REPO / "tests/fixtures/marinenav"
GOLDEN = SHARED / "golden/marinenav"


COVERED = ("rollout_04", "rollout_13", "rollout_28")
"""Fixtures in which nothing happens that other fixtures or the tables lack."""


def everywhere(name: str) -> list[object]:
    """Returns the fixtures of a name, then the recordings of the full set."""
    here = [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in COVERED else [])
        for path in sorted(FIXTURES.glob(name))
    ]
    assert here, name
    marks, full = [pytest.mark.shared, pytest.mark.slow], sorted(GOLDEN.glob(f"*{name}"))
    return [*here, *(pytest.param(path, id=f"golden-{path.stem}", marks=marks) for path in full)]


@pytest.mark.parametrize("path", everywhere("rollout_*.npz"))
def test_rollout(path: Path) -> None:
    """The world runs freely from the recorded start: errors grow by rounding only. Its recording holds the same."""
    record = load(path)
    env, td = start_of(record)
    recorder = MarineNavRecorder(env, [0], titles=["replay"])
    recorder.add()
    check_start(record, env.state.pose, td["agents"])
    active = torch.ones(len(record["start"]), dtype=torch.bool)
    frozen = [part[0].clone() for part in env.state]
    for t, action in enumerate(actions_of(record)):
        np.testing.assert_array_equal(~active, record["deactivated_before"][t], f"active, step {t}")
        following = act(env, td, action)
        recorder.add()
        check_step(record, t, active, env.state, following)
        for before, now in zip(frozen, env.state):
            assert (now[0, ~active] == before[~active]).all(), f"a deactivated robot moved, step {t}"
        np.testing.assert_array_equal(env.worlds.collided[:, 0], record["collision"][t], f"collision, step {t}")
        np.testing.assert_array_equal(env.worlds.reached[:, 0], record["reach_goal"][t], f"reach_goal, step {t}")
        active = following["agents", "active"][0]
        frozen = [part[0].clone() for part in env.state]
        td = following
    (recording,) = recorder.recordings()
    check_recording(record, recording)
    assert bool(td["episode", "success"]) is recording.success
    assert bool(td["episode", "collision"]) is recording.collision
    assert_close(td["episode", "return"][0], [record["reward"].sum(0).mean()], "return")


def check_start(record: Table, pose: torch.Tensor, agents: object) -> None:
    assert_close(pose[0], record["init_pose"], "initial pose")
    still = not record["reset_mode"] and len(record["cores"])  # the first observation shows the current: not recorded
    own, objects = agents["observation", "self"][0], agents["observation", "objects"][0]  # type: ignore[index]
    columns = [0, 1, 4, 5, 6] if still else slice(None)
    assert_close(own[:, columns], record["init_obs_self"][:, columns], "initial self")
    columns = [0, 1, 4] if still else slice(None)
    assert_close(objects[..., columns], record["init_obs_objects"][..., columns], "initial objects")
    np.testing.assert_array_equal(agents["observation", "mask"][0].sum(-1), record["init_n_objects"])  # type: ignore[index]
    if not still:
        np.testing.assert_array_equal(agents["colregs"][0], record["init_colregs"])  # type: ignore[index]
        assert_close(agents["phi"][0], record["init_phi"], "initial phi")  # type: ignore[index]


def check_step(record: Table, t: int, active: torch.Tensor, state: object, following: object) -> None:
    agents = following["agents"]  # type: ignore[index]
    for name in ("pose", "velocity", "velocity_r", "thrust"):
        assert_close(getattr(state, name)[0, active], record[name][t][active.numpy()], f"{name}, step {t}")
    seen = agents["observation"]
    assert_close(seen["self"][0], record["obs_self"][t], f"self, step {t}")
    assert_close(seen["objects"][0], record["obs_objects"][t], f"objects, step {t}")
    slots = np.arange(5) < record["n_objects"][t][:, None]
    np.testing.assert_array_equal(seen["mask"][0], slots, f"mask, step {t}")
    for name in ("phi", "energy"):
        assert_close(agents[name][0], record[name][t], f"{name}, step {t}")
    assert_close(agents["reward"][0, :, 0], record["reward"][t], f"reward, step {t}")
    for ours, theirs in (("info", "info"), ("colregs", "colregs")):
        np.testing.assert_array_equal(agents[ours][0], record[theirs][t], f"{ours}, step {t}")
    np.testing.assert_array_equal(agents["done"][0, :, 0], record["done"][t], f"done, step {t}")
    np.testing.assert_array_equal(~agents["active"][0], record["deactivated_after"][t], f"active after {t}")
    timed_out = record["info"][t] == 1
    np.testing.assert_array_equal(agents["truncated"][0, :, 0], timed_out, f"truncated, step {t}")
    np.testing.assert_array_equal(agents["terminated"][0, :, 0], record["done"][t] & ~timed_out, f"terminated {t}")
    over = timed_out.any() or record["deactivated_after"][t].all()
    assert bool(following["done"]) == over, f"end of the world, step {t}"  # type: ignore[index]
    assert bool(following["truncated"]) == timed_out.any()  # type: ignore[index]


def check_recording(record: Table, recording: MarineNavRecording) -> None:
    assert recording.title == "replay" and recording.dt == pytest.approx(0.5)
    assert_close(recording.pose, np.concatenate((record["init_pose"][None], record["pose"])), "pose")
    for ours, theirs in (("status", "info"), ("reached", "reach_goal")):
        np.testing.assert_array_equal(getattr(recording, ours)[1:], record[theirs])
    np.testing.assert_array_equal(recording.active[1:], ~record["deactivated_after"])
    np.testing.assert_array_equal(recording.active[0], True)
    for name in ("goal", "start", "obstacles", "cores"):
        assert_close(getattr(recording, name), record[name], name)
    assert_close(recording.perceived[1:], record["obs_objects"], "perceived")
    np.testing.assert_array_equal(recording.perceived_mask[1:].sum(-1), record["n_objects"].clip(0))
    # Who arrives and collides in one step has succeeded, as published.
    assert recording.success == record["reach_goal"][-1].all()


def test_fixtures_cover_what_can_go_wrong() -> None:
    records = [load(path) for path in sorted(FIXTURES.glob("rollout_*.npz"))]
    assert set(np.concatenate([r["info"].ravel() for r in records])) == {0, 1, 2, 3, 4, 5}
    assert any((r["collision"] & r["reach_goal"]).any() for r in records)
    assert any(r["continuous"] and np.abs(r["actions"]).max() > 1.3 for r in records)
    for name in ("noise", "continuous", "reset_mode"):
        assert {int(r[name]) for r in records} == {0, 1}, name
    assert any(len(r["cores"]) and not r["reset_mode"] for r in records)
    assert sum(r["colregs"].sum() for r in records) > 50
    assert max(r["n_objects"].max() for r in records) == 5


# --- tables


@exhaustive("substeps", [1, 10])
@exhaustive("continuous", [False, True])
@exhaustive("path", everywhere("physics_table.npz"))
def test_physics_table(path: Path, continuous: bool, substeps: int) -> None:
    """Random states, thrusts and currents after one substep and after one action; each row is a world."""
    table = load(path)
    rows = np.flatnonzero(table["continuous"] == continuous)
    # The thrust changes by the same amount for any number of substeps per action.
    rates = [float(rate) * 10 / substeps for rate in (0, -500, -1000, 500, 1000)]
    episodes = [
        physics_episode(table, row, N=substeps, left_thrust_change=rates, right_thrust_change=rates) for row in rows
    ]
    env = build(len(rows), 1, continuous_actions=continuous)
    td = env.reset_to(episodes)
    action = torch.from_numpy(table["action_c" if continuous else "action_d"][rows])[:, None]
    act(env, td, action * (10 / substeps) if continuous else action)
    for name in ("pose", "velocity", "velocity_r", "thrust"):
        assert_close(getattr(env.state, name)[:, 0], table[f"{name}{substeps}"][rows], name)


def physics_episode(table: Table, row: int, **changes: object) -> Config:
    x, y, theta = table["pose"][row].tolist()
    left, right = table["thrust"][row].tolist()
    vessel = robot(
        (x, y),
        theta=theta,
        init_velocity_r=table["velocity_r"][row].tolist(),
        init_left_thrust=left,
        init_right_thrust=right,
        **changes,
    )
    return make_episode([vessel], table["cores"][row, : table["n_cores"][row]].tolist())


@exhaustive("path", everywhere("current_table.npz"))
def test_current_table(path: Path) -> None:
    """A vessel at rest in the water drifts with it: its velocity over ground is the current."""
    table = load(path)
    worlds, points = table["query"].shape[:2]
    episodes = [
        make_episode([robot(point) for point in query.tolist()], cores[:count].tolist())
        for query, cores, count in zip(table["query"], table["cores"], table["n_cores"])
    ]
    env = build(worlds, points)
    env.reset_to(episodes)
    assert_close(env.state.velocity, table["velocity"], "current")


# -- The published AC-IQN actor on published episodes has the results of the public environment ----------------------


Results = list[dict[str, Any]]


def configs_of(records: Results, published: Results) -> Results:
    found = {(r["set_seed"], r["level"], r["index"]): r["config"] for r in records}
    return [found[r["set_seed"], r["level"], r["index"]] for r in published]


def check(published: Results, configs: Results, weights: Path, noisy: bool) -> None:
    """Checks all episodes in one batch, by the rules of the published evaluation.

    Lengths and flags are exact. The closed loop amplifies rounding, in one noisy episode most of all: moving its
    robots by 1e-15 m changes its return by 1e-4, while the median over episodes is 1e-14. Positions are rounded to
    1e-14 m, so that this episode ends some millimetres or centimetres elsewhere by another instruction set.
    """
    env = build(len(configs), 5, **MarineNav.evaluation_options | {"perception_noise": noisy})
    if noisy:
        env.set_noise_source(PublishedNoise([perception_seeds(c) for c in configs], dtype=torch.float64))
    td = env.reset_to(configs)
    recorder = MarineNavRecorder(env, range(len(configs)))
    recorder.add()
    ends = play(env, td, actor(weights), watch=recorder.add)
    errors = []
    for result, end, recording in zip(published, ends, recorder.recordings(), strict=True):
        name = f"set {result['set_seed']} level {result['level']} index {result['index']}"
        episode = end["episode"]
        assert int(episode["length"]) == result["length"] == len(recording.pose) - 1, name
        assert bool(episode["success"]) is recording.success is result["success"], name
        assert bool(episode["collision"]) is recording.collision is result["collision"], name
        assert recording.reached[-1, recording.robots].tolist() == result["robot_reach"], name
        assert recording.dt == pytest.approx(0.5)
        assert_close(episode["time"], [result["time"]], f"time, {name}")
        moved = torch.as_tensor(recording.pose[-1, recording.robots]) - torch.tensor(
            result["final_pose"], dtype=torch.float64
        )
        turned = torch.remainder(moved[:, 2] + torch.pi, 2 * torch.pi) - torch.pi
        errors.append(
            [
                abs(float(episode["discounted_return"]) - result["ret"]),
                abs(float(episode["energy"]) / result["energy"] - 1),
                float(moved[:, :2].abs().max()),
                float(turned.abs().max()),
            ]
        )
    worst = torch.tensor(errors, dtype=torch.float64).sort(0).values
    assert (worst[-2 if noisy else -1] < torch.tensor([1e-5, 1e-6, 1e-4, 1e-4])).all(), worst[-3:]
    assert (worst[-1] < 0.1).all(), worst[-3:]
    assert (worst.median(0).values < 1e-9).all()


@exhaustive(("kind", "longest"), [("noisy", 45), ("noisy", 99), ("noise_free", 99)])
def test_published_actor(fixtures_dir: Path, kind: str, longest: int) -> None:
    folder = fixtures_dir / "marinenav"
    published = load_json(folder / "AC_IQN_episodes_253.json.gz")[kind]
    assert len(published) == 30
    published = [record for record in published if record["length"] <= longest]
    assert kind == "noise_free" or any(record["collision"] for record in published)
    configs = configs_of(load_json(folder / "eval_configs_253.json.gz"), published)
    check(published, configs, folder / "AC_IQN_params.npz", noisy=kind == "noisy")


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "noisy"), [("public_eval_noisefree.json", False), ("pretrained_eval_episodes_public.json.gz", True)]
)
def test_published_actor_on_all_episodes(shared_dir: Path, file: str, noisy: bool) -> None:
    folder = shared_dir / "golden/marinenav"
    published = [record for record in load_json(folder / file) if record["agent"] == "AC_IQN"]
    configs = configs_of(load_json(folder / "eval_configs_public.json.gz"), published)
    check(published, configs, shared_dir / "weights/marinenav/AC_IQN_params.npz", noisy)


# -- Recordings of a stepped env ---------------------------------------------------------------------------------------


def test_each_world_is_recorded_up_to_its_end() -> None:
    env = build(4, 5, end_on_collision=True, max_steps=14)
    td = env.reset_to(lively_episodes())
    recorder = MarineNavRecorder(env, [3, 0, 1])
    recorder.add()
    ends: dict[int, int] = {}
    generator = torch.Generator().manual_seed(3)
    for step in range(1, 17):
        td = act(env, td, 2 * torch.rand(4, 5, 2, generator=generator, dtype=torch.float64) - 1)
        recorder.add()
        for world in td["done"][:, 0].nonzero()[:, 0].tolist():
            ends.setdefault(world, step)
    recordings = recorder.recordings()
    assert [len(r.pose) - 1 for r in recordings] == [ends[3], ends[0], ends[1]]
    assert len({*ends.values()}) > 1
    assert [r.title for r in recordings] == ["world 3", "world 0", "world 1"]
    assert [len(r.robots) for r in recordings] == [4, 5, 2]
    assert [len(r.obstacles) for r in recordings] == [3, 7, 1]
    assert [len(r.cores) for r in recordings] == [0, 0, 3]
    assert recordings[0].overview().shape == (270, 240, 3)  # without a current


def test_a_recording_may_consist_of_the_start_alone() -> None:
    env = build(1, 1)
    env.reset_to([make_episode([robot((20.0, 20.0))])])
    recorder = MarineNavRecorder(env, [0])
    refused(ValueError, r"call add\(\) after the reset", recorder.recordings)
    recorder.add()
    (recording,) = recorder.recordings()
    assert recording.pose.shape == (1, 1, 3) and recording.dt == 0.5
    assert not recording.success


def test_a_world_without_robots_is_drawn_and_is_no_success() -> None:
    env = MarineNav(num_worlds=1, num_robots=2, num_obstacles=1, min_start_goal_dis=70.0)  # rarely fits the map
    env.reset()
    assert not env.worlds.present.any()
    recorder = MarineNavRecorder(env, [0])
    recorder.add()
    (recording,) = recorder.recordings()
    assert not recording.success and not recording.collision
    assert recording.animation().draw(0.0).shape == (720, 960, 3)


def test_frames_of_unequal_vessels_have_the_longest_vessel_s_time() -> None:
    slow, quick = robot((20.0, 20.0)), robot((40.0, 40.0), N=4)
    env = build(1, 2)
    td = env.reset_to([make_episode([slow, quick])])
    recorder = MarineNavRecorder(env, [0])
    recorder.add()
    for _ in range(3):
        td = act(env, td, torch.zeros(1, 2, 2, dtype=torch.float64))
        recorder.add()
    assert recorder.recordings()[0].dt == pytest.approx(0.5)


def test_a_chart_grows_when_a_robot_leaves_the_map_but_not_without_end() -> None:
    assert view(np.array([[20.0, 10.0], [30.0, 40.0]]), 3.0) == (57.0, -2.0, 59.0)
    north, _, side = view(np.array([[20.0, 10.0], [1000.0, 40.0]]), 3.0)
    assert (north, side) == (75.0, 77.0)
