"""A step as a GPU computes it: few operations, each of which is a kernel there, and all of which can be recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from experiments.benchmarks.operations import Operations
from rlstack import envs
from rlstack.config import load_group
from rlstack.envs.arena.events import draw_everywhere
from rlstack.envs.arena.rules import NEVER
from rlstack.envs.arena.simulation import advance_densely
from rlstack.envs.foundation import tensors
from rlstack.envs.marinenav.simulation import begin_anew
from tests.exhaustive import exhaustive
from tests.host_waits import HostWaits

_LEVELS = load_group("env", "marinenav")["curriculum"]
_CASES: list[Any] = [
    ("cartpole", 30, {}),
    ("marinenav", 500, {}),
    ("marinenav", 500, {"curriculum": _LEVELS, "end_on_collision": True}),
    ("marinenav", 560, {"continuous_actions": False, "timeout_is_terminal": True, "measure_safety": True}),
    ("marinenav", 720, {"num_cores": 3, "perception_noise": False}),  # a current at every substep
    ("arena", 500, {"style": 2, "observation": "dict", "start_phases": [0, 2, 4], "start_health": [20, 150]}),
    ("arena", 500, {"timeout_is_terminal": True, "reward_weights": {"quick_kill": 0.0}}),
    ("rocket", 3_700, {"max_seconds": 0.02, "tick_skip": 2}),
    pytest.param("rocket", 12_350, {"max_seconds": 0.1}, marks=pytest.mark.slow),
    pytest.param("rocket", 12_350, {"max_seconds": 0.1, "team_size": 2}, marks=pytest.mark.slow),
    pytest.param("echelon", 2550, {}, marks=pytest.mark.slow),
    ("echelon", 2450, {"opponent": "policy", "visibility": "partial", "actions": "hybrid"}),
    ("echelon", 2650, {"blue": 7, "red": 6, "opponent_mix": {"rush": 1.0, "random": 1.0}, "actions": "box"}),
]


@pytest.mark.parametrize(("name", "most", "options"), _CASES)
def test_a_step_is_few_operations_none_of_which_waits(
    name: str, most: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "FREE", set())
    size: dict[str, Any] = {} if name == "rocket" else {"max_steps": 2}
    env = envs.make(name, num_worlds=6, seed=0, **size, **({"maps": 2} if name == "echelon" else {}), **options)
    for stage in range(0, env.num_stages, 3) or (None,):
        if stage is not None:
            env.set_stage(stage)
        root = env.rand_action(env.reset())
        _, root = env.step_and_maybe_reset(root)
        env.make_ready(10)
        ends = 0
        for _ in range(2):
            root = env.rand_action(root)
            with Operations() as operations, HostWaits() as waits:
                step, root = env.step_and_maybe_reset(root)
            assert not waits.places
            assert operations.number <= most
            ends += int(step["next", "done"].sum())
        assert ends >= env.num_worlds


def test_worlds_go_on_where_random_numbers_have_another_form() -> None:
    """A GPU's generator has 16 bytes, a CPU's thousands."""
    env, again, other = (envs.make("cartpole", num_worlds=2, seed=seed) for seed in range(3))
    shown = env.reset()["observation"]
    state = env.state_dict()
    for world, first in ((env, 3), (again, 3), (other, 4)):
        world.load_state_dict({**state, "generator": torch.tensor([first, *[0] * 15], dtype=torch.uint8)})
        assert torch.equal(world.reset()["observation"], shown)
    begun, same, different = (world.reset()["observation"] for world in (env, again, other))
    assert torch.equal(begun, same) and not torch.equal(begun, different)


def test_an_arena_from_a_cpu_has_room_for_all_shots_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    env: Any = envs.make("arena", num_worlds=8, start_phases=[4])
    env.reset()
    state = env.state_dict()
    monkeypatch.setattr(tensors, "FREE", set())
    loaded: Any = envs.make("arena", num_worlds=8, start_phases=[4])
    loaded.load_state_dict(state)
    root, lost = loaded.reset(), 0.0
    for _ in range(80):
        root["action"] = torch.zeros(8, dtype=torch.int64)
        _, root = loaded.step_and_maybe_reset(root)
        lost += float(loaded.worlds.overflow.sum())
    assert lost == 0 and (loaded.worlds.bullet_ends < NEVER).sum(0).max() > 4  # more than a CPU begins with


@pytest.mark.slow
@pytest.mark.parametrize("style", [1, 2])
def test_arenas_dense_step_is_one_graph(style: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "FREE", set())
    env: Any = envs.make("arena", num_worlds=4, seed=0, style=style, start_phases=[0, 4])
    action = env.rand_action(env.reset())["action"]
    given = env.worlds, action, env.rules, env._tables, draw_everywhere(env.worlds, env._draws, env.rules)
    compiled = torch.compile(advance_densely, backend="aot_eager", fullgraph=True)
    (state, outcome), (wanted, expected) = compiled(*given), advance_densely(*given)
    torch.testing.assert_close(dict(state.items()), dict(wanted.items()))
    torch.testing.assert_close(outcome, expected)


@pytest.mark.slow
def test_ended_worlds_begin_as_others_and_the_rest_go_on() -> None:
    """In one graph, as it is compiled; plain code does it in every other test of MarineNav."""
    worlds: list[Any] = [envs.make("marinenav", num_worlds=3, seed=seed) for seed in (0, 1)]
    old, new = (dict(env.reset()["agents"].flatten_keys().items()) for env in worlds)
    before, fresh = (dict(env.worlds.map(torch.clone).items()) for env in worlds)
    begin = torch.compile(begin_anew, backend="eager", fullgraph=True)
    ended, places = torch.tensor([True, False, True]), torch.tensor([2, 1, 0])
    state, shown = begin(worlds[0].worlds, old, worlds[1].worlds, new, ended, places)
    for name, value in state.items():
        assert torch.equal(value, torch.stack([fresh[name][..., 2], before[name][..., 1], fresh[name][..., 0]], -1))
    for name, value in shown.items():
        assert torch.equal(value, torch.stack([new[name][2], old[name][1], new[name][0]]))


@exhaustive("name", ["arena", "marinenav"])
def test_a_step_is_no_loop_over_worlds(name: str) -> None:
    """64 worlds need as many operations as 4, except for those that run in few worlds at a time."""
    counts = {}
    for worlds in (4, 64):
        env: Any = envs.make(name, num_worlds=worlds, max_steps=50)
        td = env.rand_action(env.reset())
        env.step(td.clone())
        with Operations() as seen:
            for _ in range(10):
                _, td = env.step_and_maybe_reset(env.rand_action(td))
        counts[worlds] = seen.number
    assert counts[64] < 3 * counts[4] and counts[4] > 100
