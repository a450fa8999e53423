"""What worlds stand on: waiting initial states, states handed on between steps, compiled functions, tensordicts."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from rlstack import envs
from rlstack.envs.foundation import tensors
from rlstack.envs.foundation.compilation import Compiled, CompiledColumns
from rlstack.envs.foundation.tensors import chosen, put_where, unchecked
from rlstack.envs.states import StartPool
from tests.agents.recall import Recall
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


# -- A policy's recurrent state persists within its episode, for all ways to step the world --------------------------


class Counting:
    """A policy whose recurrent state counts its steps in the episode; it records the states that it receives."""

    def __init__(self, env: Any, key: Any = "memory") -> None:
        self.env, self.key, self.found = env, key, []
        self.lead = env.full_action_spec[key[:-1]].shape if isinstance(key, tuple) else env.batch_size

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        memory = tensordict.get(self.key, None)
        memory = torch.zeros(*self.lead, 1) if memory is None else memory
        self.found.append(memory[..., 0].clone())
        key = self.key if isinstance(self.key, tuple) else (self.key,)
        tensordict.set(self.key, memory).set(("next", *key), memory + 1)
        return self.env.rand_action(tensordict)


def by_hand(env: Any, policy: Counting, steps: int) -> None:
    tensordict = env.reset()
    for _ in range(steps):
        tensordict = env.maybe_reset(env.step_mdp(env.step(policy(tensordict))))


def quickly(env: Any, policy: Counting, steps: int) -> None:
    tensordict = env.reset()
    for _ in range(steps):
        _, tensordict = env.step_and_maybe_reset(policy(tensordict))


def rollout(env: Any, policy: Counting, steps: int) -> None:
    env.rollout(steps, policy, break_when_any_done=False)


def recall() -> Any:
    return Recall(3, delay=2)


def short_cartpole() -> Any:
    return envs.make("gymnasium", id="CartPole-v1", num_envs=3, max_steps=4)


def repeated_cartpole() -> Any:
    return envs.make("gymnasium", id="CartPole-v1", num_envs=3, max_steps=8, action_repeat=2, observation_keep=[0])


LENGTHS = {recall: [4, 5, 4], short_cartpole: [4] * 3, repeated_cartpole: [4] * 3}


@pytest.mark.parametrize("make", list(LENGTHS))
@pytest.mark.parametrize("step", [by_hand, quickly, rollout])
def test_memories_go_on_and_end_with_their_episodes(make: Any, step: Any) -> None:
    env = make()
    policy = Counting(env)
    step(env, policy, 14)
    for row, length in enumerate(LENGTHS[make]):
        assert [int(found[row]) for found in policy.found] == [t % length for t in range(14)]


@pytest.mark.parametrize("step", [by_hand, quickly, rollout])
def test_an_agents_memory_ends_with_its_own_episode(step: Any) -> None:
    env = envs.make("marinenav", num_worlds=2, num_robots=2, num_obstacles=0, max_steps=5, curriculum=None)
    policy = Counting(env, ("agents", "memory"))
    step(env, policy, 12)
    for t, found in enumerate(policy.found):
        assert (found == t % 6).all(), "the sixth step is too late"


def test_without_a_memory_nothing_is_handed_on() -> None:
    rollout = recall().rollout(9, break_when_any_done=False)
    assert rollout.get("memory", None) is None and rollout["next"].get("memory", None) is None


# -- The guards that compiled functions check before a call ----------------------------------------------------------


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


# -- Tensordicts made without checks equal those of TensorDict's own constructor -------------------------------------


def test_unchecked_tensordicts_are_as_others() -> None:
    cpu = torch.device("cpu")
    inner = {"x": torch.rand(2, 3, 4), "flag": torch.ones(2, 3, 1, dtype=torch.bool)}
    ours = unchecked({"agents": unchecked(inner, (2, 3), cpu), "y": torch.arange(2)}, torch.Size([2]), cpu)
    theirs = TensorDict({"agents": TensorDict(inner, [2, 3], cpu), "y": torch.arange(2)}, [2], cpu)
    assert (ours.batch_size, ours.device) == (theirs.batch_size, theirs.device)
    assert ours["agents"].batch_size == theirs["agents"].batch_size
    assert set(ours.keys(True, True)) == set(theirs.keys(True, True)) and (ours == theirs).all()
    assert torch.equal(ours[1]["agents", "x"], theirs[1]["agents", "x"]) and torch.stack([ours, ours]).shape == (2, 2)
    assert unchecked({}, (5,)).device is None and "z" in ours.set("z", torch.ones(2)).keys()  # noqa: SIM118
