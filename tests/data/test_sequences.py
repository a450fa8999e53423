"""Sequences cut for recurrent agents."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rlstack.data.flatten import Windows, cut, episode_starts
from rlstack.data.replay import make_replay


def stream(rows: int, steps: int, first: int = 0, dead: tuple[int, ...] = ()) -> TensorDict:
    """Returns steps numbered ``100 r + t`` in row r; each seventh ends an episode; steps in ``dead`` are inactive."""
    time = torch.arange(first, first + steps)
    number = (torch.arange(rows)[:, None] * 100 + time).float()
    done = (time % 7 == 6).expand(rows, -1)[..., None]
    active = torch.tensor([t not in dead for t in time.tolist()]).expand(rows, -1)
    following = {"observation": number[..., None] + 1, "done": done, "memory": number[..., None] + 0.6}
    entries = {"observation": number[..., None], "active": active, "memory": number[..., None] + 0.5}
    return TensorDict({**entries, "next": TensorDict(following, [rows, steps])}, [rows, steps])


def test_episodes_start_after_an_end_and_after_an_absence() -> None:
    starts = episode_starts(stream(2, 10, first=4, dead=(8, 9)))
    assert starts.shape == (2, 10)
    assert starts[1].nonzero()[:, 0].tolist() == [3, 5, 6], "after step 6, and after steps 8 and 9"
    assert episode_starts(stream(2, 1)).tolist() == [[False], [False]]


@pytest.mark.parametrize(("steps", "length"), [(12, 4), (10, 4), (3, 8)])
def test_cutting_keeps_every_step_once(steps: int, length: int) -> None:
    parts = cut(stream(3, steps), length)
    assert parts.shape == (3 * -(-steps // length), length)
    kept = parts["observation"][parts["active"]][:, 0]
    assert kept.tolist() == stream(3, steps)["observation"].flatten().tolist()


@pytest.mark.parametrize("burn_in", [0, 3])
@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("batch", [1, 5, 50])
def test_every_step_is_learned_from_once(burn_in: int, after: int, batch: int) -> None:
    windows, found = Windows(burn_in, 5, after), []
    for first in range(0, 50, batch):
        found.append(windows(stream(2, batch, first)))
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
        windows(stream(2, 9))
    state = resumed.state_dict()
    again = Windows(2, 4, 1)
    again.load_state_dict(state)
    one, other = straight(stream(2, 6, first=9)), again(stream(2, 6, first=9))
    assert len(one) and (one == other).all()
    again.clear()
    assert len(again(stream(2, 6, first=20))) == 0


def test_windows_with_nothing_to_learn_from_are_left_out() -> None:
    found = Windows(2, 4, 0)(stream(1, 14, dead=(6, 7, 8, 9)))
    assert found["observation"][:, 2, 0].tolist() == [2, 10]


def test_a_short_call_by_itself_is_filled_up() -> None:
    found = Windows(0, 8, 2, carry=False)(stream(2, 3))
    assert found["active"].sum(1).tolist() == [3, 3] and found["active"].shape == (2, 10)


def test_a_replay_of_windows_counts_steps() -> None:
    replay = make_replay(40, 12, steps=4)
    windows = Windows(0, 4, 0)
    replay.extend(windows(stream(2, 8)))
    assert len(replay) == 16 and replay.sample()["observation"].shape == (3, 4, 1)
    replay.extend(windows(stream(2, 60, first=8)))
    assert len(replay) == 40
