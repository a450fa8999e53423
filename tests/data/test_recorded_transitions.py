"""Transitions recorded while a policy acts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict

from rlstack.data.recordings import TransitionRecorder, continuous, episode_lengths, in_rows, save_arrays
from tests.refusals import refused


def stepped(now: int, done: list[bool], active: list[list[int]], after: list[list[int]]) -> TensorDict:
    """Returns a step of two worlds of two agents; each observation is 100 world + 10 agent + time."""
    number = torch.tensor([[0.0, 10.0], [100.0, 110.0]]).unsqueeze(-1)
    there, then = (torch.tensor(value, dtype=torch.bool) for value in (active, after))
    left = (there & ~then).unsqueeze(-1)
    agents = {"observation": number + now + 1, "reward": number + now, "done": left, "terminated": left, "active": then}
    ended = torch.tensor(done).unsqueeze(-1)
    following = {"agents": agents, "done": ended, "terminated": torch.zeros_like(ended)}
    here = {"observation": number + now, "action": number, "active": there}
    whole = TensorDict({"agents": here, "next": following}, [2])
    for part in (whole, whole["next"]):
        part["agents"].batch_size = [2, 2]
    return whole


def recorded() -> TensorDict:
    """Records world 0, whose agent 1 is done after step 0, and world 1, cut after step 1 and not wanted in step 2."""
    recorder, everyone = TransitionRecorder("agents"), [[1, 1], [1, 1]]
    recorder.add(stepped(0, [False, False], everyone, [[1, 0], [1, 1]]), torch.tensor([True, True]))
    recorder.add(stepped(1, [False, True], [[1, 0], [1, 1]], [[1, 0], [1, 1]]), torch.tensor([True, True]))
    recorder.add(stepped(2, [False, False], [[1, 0], [1, 1]], [[1, 0], [1, 1]]), torch.tensor([True, False]))
    return recorder.transitions()


def test_rows_stand_agent_by_agent_in_the_order_of_time() -> None:
    found = recorded()
    assert found["observation"][:, 0].tolist() == [0, 1, 2, 10, 100, 101, 110, 111]
    assert found["next", "observation"][:, 0].tolist() == [1, 2, 3, 11, 101, 102, 111, 112]
    assert found["next", "reward"][:, 0].tolist() == [0, 1, 2, 10, 100, 101, 110, 111]


def test_an_episode_is_terminated_or_cut_where_it_ends() -> None:
    following = recorded()["next"]
    assert following["terminated"][:, 0].nonzero().flatten().tolist() == [3]
    assert following["truncated"][:, 0].nonzero().flatten().tolist() == [2, 5, 7]
    assert episode_lengths(following["terminated"] | following["truncated"]) == [3, 1, 2, 2]


def test_what_is_added_later_continues_nothing() -> None:
    recorder = TransitionRecorder("agents")
    for _ in range(2):
        recorder.add(stepped(0, [False, False], [[1, 0], [0, 0]], [[1, 0], [0, 0]]), torch.tensor([True, True]))
        recorder.end()
    assert recorder.transitions()["next", "truncated"].all()
    refused(ValueError, "nothing was recorded", TransitionRecorder(None).transitions)


def test_a_file_holds_plain_arrays(tmp_path: Path) -> None:
    save_arrays(tmp_path / "episodes.npz", recorded())
    with np.load(tmp_path / "episodes.npz", allow_pickle=False) as arrays:
        names = {"observation", "action", "next/observation", "next/reward", "next/terminated", "next/truncated"}
        assert set(arrays.files) == names
        assert arrays["next/reward"].shape == (8, 1)


def test_episodes_are_continuous_where_each_decision_is_made_where_the_last_one_led() -> None:
    found = recorded()
    assert continuous(found)
    found["observation"][1] += 1e-6
    assert not continuous(found)


def test_rewards_stand_a_row_for_each_episode() -> None:
    found = recorded()
    found["next", "done"] = found["next", "terminated"] | found["next", "truncated"]
    rows = in_rows(found)
    assert rows["next", "reward"][..., 0].tolist() == [[0, 1, 2], [10, 0, 0], [100, 101, 0], [110, 111, 0]]
    assert rows["active"].sum(1).tolist() == [3, 1, 2, 2]
