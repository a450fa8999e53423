"""Worlds that restart without a check of which have ended: the GPU's code path, on a CPU."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

from rlstack import envs
from rlstack.envs.foundation import tensors
from rlstack.envs.foundation.tensors import chosen, put_where
from rlstack.envs.pool import StartPool
from tests.exhaustive import exhaustive

_WORLDS: dict[str, dict[str, Any]] = {
    "cartpole": {"num_worlds": 5, "max_steps": 6},
    "marinenav": {"num_worlds": 5, "max_steps": 6},
    "arena": {"num_worlds": 5, "max_steps": 6},
    "rocket": {"num_worlds": 3, "max_seconds": 0.4},
    "echelon": {"num_worlds": 3, "blue": 1, "red": 1, "max_steps": 6, "maps": 4},
}


class Numbered:
    """Initial states that are numbers: how often some have been made before."""

    def __init__(self, count: int, made: int) -> None:
        self.count, self.made = count, made

    def __len__(self) -> int:
        return self.count

    def saved(self) -> dict[str, Any]:
        return {"made": self.made}


def test_initial_states_are_taken_in_turn_and_made_anew_when_more_than_half_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StartPool, "EVERY", 3)
    made: list[int] = []

    def make(count: int) -> Numbered:
        made.append(count)
        return Numbered(count, len(made))

    pool: Any = StartPool(make, lambda saved, device: saved, size=4)
    ended, none = torch.tensor([False, True, True]), torch.zeros(3, dtype=torch.bool)

    def places(mask: torch.Tensor) -> tuple[int, list[int]]:
        opening, found = pool.take_where(mask)
        return opening.made, found[mask].tolist()

    assert [places(ended), places(ended), places(ended)] == [(1, [0, 1]), (1, [2, 3]), (1, [0, 1])]
    assert [places(ended), places(none), places(none)] == [(1, [2, 3]), (1, []), (1, [])], "six of four were used"
    assert [places(none), places(none), places(ended)] == [(2, []), (2, []), (2, [0, 1])], "which is known later"
    assert [places(ended), places(none), places(none)] == [(2, [2, 3]), (2, []), (2, [])], "two of four"
    pool.make_ready(3, calls=5, device=torch.device("cpu"))
    assert made == [4, 4] and [places(ended)[0] for _ in range(5)] == [2] * 5, "none is made in between"
    assert places(ended)[0] == 3, "four of four, seen before the last five"
    assert [places(ended)[0] for _ in range(5)] == [3] * 5
    resumed: Any = StartPool(make, lambda saved, device: Numbered(4, saved["made"]), size=4)
    resumed.load_state_dict(pool.state_dict(), None)
    assert [places(ended)[0], resumed.take_where(ended)[0].made] == [4, 5], "both make new ones at once"


def test_only_ended_worlds_are_overwritten() -> None:
    ended, places = torch.tensor([True, False, True]), torch.tensor([1, 9, 0]) % 2
    state, fresh = {"a": torch.tensor([[1.0, 2.0, 3.0]])}, {"a": torch.tensor([[10.0, 20.0]])}
    kept = state["a"]
    put_where(ended, state.items(), fresh.items(), places)
    assert kept.tolist() == [[20.0, 2.0, 10.0]], "in place"
    new = chosen(ended, torch.tensor([[1, 1], [2, 2]]), places, torch.tensor([[0, 0], [5, 5], [0, 0]]))
    assert new.tolist() == [[2, 2], [5, 5], [1, 1]]


@exhaustive("name", _WORLDS)
def test_worlds_end_and_begin_anew_by_themselves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "FREE", set())
    torch.manual_seed(0)
    env = envs.make(name, **_WORLDS[name], seed=3)
    root, ends = env.reset(), 0
    length = torch.zeros(env.num_worlds)
    for _ in range(20):
        step, root = env.step_and_maybe_reset(env.rand_action(root))
        following = step["next"]
        done = following["done"][:, 0]
        length = length + 1
        torch.testing.assert_close(following["episode", "length"].view(env.num_worlds, -1)[:, 0].float(), length)
        length = torch.where(done, 0.0, length)
        assert not root["done"].any() and not root["terminated"].any()
        group = "agents" in root.keys()  # noqa: SIM118
        seen, shown = (part["agents", "observation"] if group else part["observation"] for part in (following, root))
        parts = [(seen, shown)] if isinstance(seen, torch.Tensor) else [(seen[key], shown[key]) for key in seen.keys()]  # noqa: SIM118
        assert all(torch.equal(old[~done], new[~done]) for old, new in parts), "who goes on is left alone"
        assert not done.any() or not all(torch.equal(old[done], new[done]) for old, new in parts)
        ends += int(done.sum())
    assert ends >= 2 * env.num_worlds


def test_given_episodes_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "FREE", set())
    configs, _ = envs.world_hooks("marinenav").evaluation_set(1, 0)
    env = envs.make("marinenav", num_worlds=len(configs), max_steps=3, perception_noise=False)
    root = env.reset_to(configs)
    first = root["agents", "observation"].clone()
    for step in range(4):
        env.make_ready(1)
        _, root = env.step_and_maybe_reset(env.rand_action(root))
        shown = root["agents", "observation"]
        assert all(torch.equal(first[key], shown[key]) for key in first.keys()) == (step == 3)  # noqa: SIM118


@exhaustive("name", _WORLDS)
@pytest.mark.parametrize("every", [StartPool.EVERY, 6])  # calls before new initial states are made
def test_loaded_worlds_go_on_bit_for_bit(name: str, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "FREE", set())
    monkeypatch.setattr(StartPool, "EVERY", every)
    first, second = (envs.make(name, **_WORLDS[name], seed=3) for _ in range(2))

    def goes_on(env: Any, root: Any) -> Any:
        torch.manual_seed(0)
        steps = []
        for _ in range(10):
            step, root = env.step_and_maybe_reset(env.rand_action(root))
            steps.append(step)
        return root, torch.stack(steps)

    root, _ = goes_on(first, first.reset())
    second.load_state_dict(deepcopy(first.state_dict()))
    (_, wanted), (_, found) = goes_on(first, root), goes_on(second, second.reset())
    for key, value in wanted["next"].items(include_nested=True, leaves_only=True):
        assert torch.equal(found["next"][key], value), key
    assert wanted["next", "done"].any()


def test_numbers_that_a_recording_reads_are_never_freed() -> None:
    few, cpu = tensors.counting(3, torch.int64, torch.device("cpu")), torch.device("cpu")
    assert tensors.counting(5000, torch.int64, cpu).tolist() == list(range(5000))
    assert tensors.counting(3, torch.int64, cpu).data_ptr() == few.data_ptr()
