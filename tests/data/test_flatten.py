"""Batches as sequences of agents, returns of several steps, and windows of sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor

from rlstack.data.flatten import NStep, Windows, cut, episode_starts, flatten_agents, n_step_returns, transitions
from rlstack.data.replay import make_replay

W, T, A = 2, 3, 2


def number(w: int, t: int, a: int) -> float:
    return 100.0 * w + 10.0 * t + a


def handmade() -> TensorDict:
    """Returns ``[W, T]`` with agents; each number encodes its world, time and agent."""
    where = torch.tensor([[[number(w, t, a) for a in range(A)] for t in range(T)] for w in range(W)])
    bools = torch.zeros(W, T, A, 1, dtype=torch.bool)
    terminated = bools.clone()
    terminated[0, 1, 1] = True
    agents = {
        "observation": {"self": where[..., None] + torch.tensor([0.1, 0.2]), "mask": where[..., None] > 50},
        "action": -where[..., None],
        "active": where != number(0, 2, 1),
        "energy": where,
    }
    following = {
        "observation": {"self": where[..., None] + torch.tensor([0.3, 0.4]), "mask": where[..., None] > 60},
        "reward": where[..., None] + 0.5,
        "terminated": terminated,
        "truncated": bools,
        "done": terminated,
        "active": ~terminated[..., 0],
    }
    world_done = torch.zeros(W, T, 1, dtype=torch.bool)
    world_done[1, 0] = True
    lead = [W, T, A]
    return TensorDict(
        {
            "agents": TensorDict(agents, lead),
            "done": torch.zeros(W, T, 1, dtype=torch.bool),
            "next": {"agents": TensorDict(following, lead), "done": world_done, "terminated": world_done},
        },
        [W, T],
    )


def test_every_value_lands_at_its_agent_and_time() -> None:
    batch = handmade()
    original, flat = batch.clone(), flatten_agents(batch)
    assert flat.shape == (W * A, T)
    assert set(flat.keys()) == {"observation", "action", "active", "next"}
    assert set(flat["next"].keys()) == {"observation", "reward", "terminated", "done", "active"}
    for w in range(W):
        for a in range(A):
            for t in range(T):
                row, n = w * A + a, number(w, t, a)
                entry = flat[row, t]
                assert entry["observation", "self"].tolist() == pytest.approx([n + 0.1, n + 0.2])
                assert entry["observation", "mask"].tolist() == [n > 50]
                assert entry["action"].tolist() == [-n]
                assert entry["active"].item() == ((w, t, a) != (0, 2, 1))
                assert entry["next", "observation", "self"].tolist() == pytest.approx([n + 0.3, n + 0.4])
                assert entry["next", "observation", "mask"].tolist() == [n > 60]
                assert entry["next", "reward"].tolist() == [n + 0.5]
                assert entry["next", "terminated"].tolist() == [(w, t, a) == (0, 1, 1)]
                assert entry["next", "active"].item() == ((w, t, a) != (0, 1, 1))
                assert entry["next", "done"].tolist() == [(w, t, a) == (0, 1, 1) or (w, t) == (1, 0)]
    assert (batch == original).all()


@pytest.mark.parametrize("lead", [(4, 5), (5,), (2, 2, 5)])
def test_single_agent(lead: tuple[int, ...]) -> None:
    ends = {name: torch.rand(*lead, 1) < 0.3 for name in ("done", "terminated", "truncated")}
    here = {"observation": torch.randn(*lead, 3), "action": torch.randn(*lead, 2), **ends}
    after = {"observation": torch.randn(*lead, 3), "reward": torch.randn(*lead, 1), **ends}
    batch = TensorDict({**here, "next": after}, lead)
    flat, worlds = flatten_agents(batch, None), 4 if len(lead) > 1 else 1
    assert (flatten_agents(batch) == flat).all()
    assert flat.shape == (worlds, 5) and flat["active"].all()
    assert torch.equal(flat["action"], here["action"].reshape(worlds, 5, 2))
    assert set(flat["next"].keys()) == {"observation", "reward", "terminated", "done"}
    for key in list(flat["next"].keys()):
        assert torch.equal(flat["next", key], after[key].reshape(worlds, 5, -1))


@pytest.mark.parametrize("group", [None, "agents"])
def test_whole_rewards_of_a_world_that_counts_are_discounted_as_fractions(group: str | None) -> None:
    """Three rewards of 7, each worth half of the one before: 7 + 3.5 + 1.75."""
    never = torch.zeros(1, 4, 1, dtype=torch.bool)
    seen = torch.zeros(1, 4, 1)
    after = {"observation": seen, "reward": torch.full((1, 4, 1), 7), "done": never, "terminated": never}
    batch = TensorDict({"action": seen, "next": after}, [1, 4])
    if group is not None:
        agents = batch.apply(lambda entry: entry.unsqueeze(2), batch_size=[1, 4, 1])
        here = agents.exclude("next").set("active", torch.ones(1, 4, 1, dtype=torch.bool))
        batch = TensorDict({group: here, "next": {group: agents["next"], "done": never}}, [1, 4])
    three = n_step_returns(flatten_agents(batch, group), 3, 0.5)
    assert three["next", "reward"].flatten().tolist() == [12.25, 12.25, 10.5, 7.0]
    assert three["gamma"].flatten().tolist() == [0.125, 0.125, 0.25, 0.5]
    assert batch.get(("next", "reward") if group is None else ("next", group, "reward")).dtype == torch.int64


def sequences(reward: Tensor, done: Tensor, terminated: Tensor, active: Tensor | None = None) -> TensorDict:
    """``[B, T]``; the next observation of entry (b, t) is 1000 b + t."""
    batch, time = reward.shape
    place = 1000.0 * torch.arange(batch)[:, None] + torch.arange(time)
    following = {
        "observation": place[..., None].to(reward.dtype),
        "reward": reward[..., None],
        "terminated": terminated[..., None],
        "done": done[..., None],
    }
    entries: dict[str, Any] = {"observation": place[..., None] - 0.5, "action": place[..., None] * 2, "next": following}
    entries["active"] = torch.ones(batch, time, dtype=torch.bool) if active is None else active
    return TensorDict(entries, [batch, time])


def slowly(reward: list[float], done: list[bool], start: int, n: int, gamma: float) -> tuple[float, float, int]:
    """Returns, for one entry of a sequence, the n-step return, the bootstrap's discount and the last step's index."""
    total, discount, last = 0.0, 1.0, start
    for k in range(n):
        last = start + k
        total += discount * reward[last]
        discount *= gamma
        if done[last] or last == len(reward) - 1:
            break
    return total, discount, last


def stream(seed: int, batch: int, time: int, ends: float) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    reward = torch.randn(batch, time, dtype=torch.float64, generator=generator)
    done = torch.rand(batch, time, generator=generator) < ends
    terminated = done & (torch.rand(batch, time, generator=generator) < 0.5)
    return sequences(reward, done, terminated, torch.rand(batch, time, generator=generator) < 0.8)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(1, 4),
    time=st.integers(1, 9),
    n=st.integers(1, 12),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    ends=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
)
def test_n_step_equals_the_loop(seed: int, batch: int, time: int, n: int, gamma: float, ends: float) -> None:
    data = stream(seed, batch, time, ends)
    original, result = data.clone(), n_step_returns(data, n, gamma)
    reward, done, terminated = (data["next", name][..., 0] for name in ("reward", "done", "terminated"))
    for b in range(batch):
        for t in range(time):
            total, discount, last = slowly(reward[b].tolist(), done[b].tolist(), t, n, gamma)
            entry = result[b, t]
            assert entry["next", "reward"].item() == pytest.approx(total, abs=1e-12)
            assert entry["gamma"].item() == pytest.approx(discount, abs=1e-12)
            assert entry["next", "observation"].item() == 1000 * b + last
            assert entry["next", "terminated"].item() == terminated[b, last]
            assert entry["next", "done"].item() == done[b, last]
            assert entry["observation"].item() == 1000 * b + t - 0.5
            assert entry["action"].item() == 2 * (1000 * b + t)
    assert (data == original).all() and "gamma" not in set(data.keys())


def test_inactive_entries_are_dropped_and_never_summed() -> None:
    """An agent is deactivated at t = 1 while its world goes on; the world restarts at t = 4."""
    done = torch.tensor([[False, True, True, True, False, False]])
    active = torch.tensor([[True, True, False, False, True, True]])
    reward = torch.tensor([[1.0, 2.0, 1e9, 1e9, 3.0, 4.0]])
    flat = transitions(n_step_returns(sequences(reward, done, done, active), 4, 1.0))
    assert flat.shape == (4,) and "active" not in set(flat.keys())
    assert flat["observation"][:, 0].tolist() == [-0.5, 0.5, 3.5, 4.5]
    assert flat["next", "reward"][:, 0].tolist() == [3.0, 2.0, 7.0, 4.0]
    assert flat["next", "observation"][:, 0].tolist() == [1.0, 1.0, 5.0, 5.0]
    assert flat["next", "terminated"][:, 0].tolist() == [True, True, False, False]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(1, 3),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    n=st.integers(2, 6),
    ends=st.sampled_from([0.0, 0.2, 0.6]),
    saved_after=st.integers(0, 5),
)
def test_returns_of_a_stream_do_not_depend_on_how_it_is_cut(
    seed: int, batch: int, sizes: list[int], n: int, ends: float, saved_after: int
) -> None:
    """Each step but the last n - 1 is returned once, in order, with the return over n steps or to the episode's end."""
    data, step = stream(seed, batch, sum(sizes), ends), NStep(n, 0.9)
    found = []
    for k, part in enumerate(data.split(sizes, 1)):
        found.append(step(part))
        assert found[-1].shape[1] == 0 or found[-1].shape[1] <= part.shape[1] + n
        if k == saved_after:  # another object continues from its state
            state, step = step.state_dict(), NStep(n, 0.9)
            step.load_state_dict(state)
    result = torch.cat(found, 1)
    assert result.shape[1] == max(sum(sizes) - n + 1, 0)
    assert (result == n_step_returns(data, n, 0.9)[:, : result.shape[1]]).all()


def test_what_waits_has_no_transitions_yet_and_may_be_forgotten() -> None:
    data, step = stream(0, 2, 6, 0.0), NStep(3, 0.9)
    waiting = step(data[:, :2])
    assert waiting.shape == (2, 0)
    assert len(transitions(waiting, everyone=True)) == len(transitions(waiting)) == 0
    step.clear()
    assert step(data[:, 4:]).shape == (2, 0) and step.state_dict()["waiting"]["observation"].shape == (2, 2, 1)
    assert NStep(3, 0.9).state_dict() == {} and NStep(1, 0.9)(data) is data, "a single step waits for nothing"


@pytest.mark.parametrize("group", [None, "agents"])
def test_a_batch_without_a_device_stays_where_its_tensors_are(group: str | None) -> None:
    def entries(*lead: int) -> TensorDict:
        flags = torch.zeros(*lead, 1, dtype=torch.bool, device="meta")
        values = torch.zeros(*lead, 1, device="meta")
        more = {"active": flags[..., 0]} if group else {}
        return TensorDict({"observation": values, "action": values, "reward": values, "done": flags, **more}, lead)

    batch = entries(2, 3).exclude("active")
    batch["next"] = batch.clone()
    if group:
        batch[group], batch["next", group] = entries(2, 3, 4), entries(2, 3, 4)
    assert batch.device is None
    flat = flatten_agents(batch, group)
    assert flat.device == torch.device("meta")
    assert {value.device.type for value in flat.values(True, True)} == {"meta"}


# -- sequences cut for recurrent agents --------------------------------------------------------------------------------


def decisions(rows: int, steps: int, first: int = 0, dead: tuple[int, ...] = ()) -> TensorDict:
    """Returns steps numbered ``100 r + t`` in row r; each seventh ends an episode; steps in ``dead`` are inactive."""
    time = torch.arange(first, first + steps)
    number = (torch.arange(rows)[:, None] * 100 + time).float()
    done = (time % 7 == 6).expand(rows, -1)[..., None]
    active = torch.tensor([t not in dead for t in time.tolist()]).expand(rows, -1)
    following = {"observation": number[..., None] + 1, "done": done, "memory": number[..., None] + 0.6}
    entries = {"observation": number[..., None], "active": active, "memory": number[..., None] + 0.5}
    return TensorDict({**entries, "next": TensorDict(following, [rows, steps])}, [rows, steps])


def test_episodes_start_after_an_end_and_after_an_absence() -> None:
    starts = episode_starts(decisions(2, 10, first=4, dead=(8, 9)))
    assert starts.shape == (2, 10)
    assert starts[1].nonzero()[:, 0].tolist() == [3, 5, 6], "after step 6, and after steps 8 and 9"
    assert episode_starts(decisions(2, 1)).tolist() == [[False], [False]]


@pytest.mark.parametrize(("steps", "length"), [(12, 4), (10, 4), (3, 8)])
def test_cutting_keeps_every_step_once(steps: int, length: int) -> None:
    parts = cut(decisions(3, steps), length)
    assert parts.shape == (3 * -(-steps // length), length)
    kept = parts["observation"][parts["active"]][:, 0]
    assert kept.tolist() == decisions(3, steps)["observation"].flatten().tolist()


@pytest.mark.parametrize("burn_in", [0, 3])
@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("batch", [1, 5, 50])
def test_every_step_is_learned_from_once(burn_in: int, after: int, batch: int) -> None:
    windows, found = Windows(burn_in, 5, after), []
    for first in range(0, 50, batch):
        found.append(windows(decisions(2, batch, first)))
    made = torch.cat(found)
    assert made["observation"].shape[1:] == (burn_in + 5 + after, 1)
    assert torch.equal(made["memory"], made["observation"][:, 0] + 0.5), "that of the first step"
    assert made["next"].get("memory", None) is None
    steps = made["observation"][..., 0]
    assert (steps.diff(dim=1) == 1).all()
    learned = steps[:, burn_in : burn_in + 5]
    last = (50 - after - burn_in) // 5 * 5 + burn_in
    for row in (0, 1):
        own = learned[learned[:, 0] // 100 == row].flatten().sort().values
        assert own.tolist() == [100 * row + t for t in range(burn_in, last)]
    wanted = steps.long() % 100 % 7 == 0
    wanted[:, 0] = False  # unknown at the beginning of a call, and not needed: the recurrent state is stored with it
    assert torch.equal(made["starts"][:, 1:], wanted[:, 1:])


def test_what_waits_goes_on_after_a_checkpoint() -> None:
    straight, resumed = Windows(2, 4, 1), Windows(2, 4, 1)
    for windows in (straight, resumed):
        windows(decisions(2, 9))
    state = resumed.state_dict()
    again = Windows(2, 4, 1)
    again.load_state_dict(state)
    one, other = straight(decisions(2, 6, first=9)), again(decisions(2, 6, first=9))
    assert len(one) and (one == other).all()
    again.clear()
    assert len(again(decisions(2, 6, first=20))) == 0


def test_windows_with_nothing_to_learn_from_are_left_out() -> None:
    found = Windows(2, 4, 0)(decisions(1, 14, dead=(6, 7, 8, 9)))
    assert found["observation"][:, 2, 0].tolist() == [2, 10]


def test_a_short_call_by_itself_is_filled_up() -> None:
    found = Windows(0, 8, 2, carry=False)(decisions(2, 3))
    assert found["active"].sum(1).tolist() == [3, 3] and found["active"].shape == (2, 10)


def test_a_replay_of_windows_counts_steps() -> None:
    replay = make_replay(40, 12, steps=4)
    windows = Windows(0, 4, 0)
    replay.extend(windows(decisions(2, 8)))
    assert len(replay) == 16 and replay.sample()["observation"].shape == (3, 4, 1)
    replay.extend(windows(decisions(2, 60, first=8)))
    assert len(replay) == 40
