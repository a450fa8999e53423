"""Retrace (Munos et al. 2016): examples computed by hand, and windows of steps."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from rlstack.data.flatten import NStepWindows, n_step_windows
from rlstack.losses.retrace import RetraceLoss, greedy_returns, retrace


def column(*values: float) -> Tensor:
    return torch.tensor(values).view(1, -1, 1)


@pytest.mark.parametrize(
    ("done", "terminated", "wanted"),
    [(None, False, 3.0), (0, False, 2.0), (0, True, 1.0), (1, False, 2.375), (1, True, 2.25)],
)
def test_three_steps_by_hand(done: int | None, terminated: bool, wanted: float) -> None:
    """Backwards, discount 1/2: 4 + 8/2 = 8; 2 + (1 + 1 (8 - 3))/2 = 5; 1 + (2 + 1/2 (5 - 1))/2 = 3.

    An episode that ends with step 0 leaves 1 + 2/2, or 1; with step 1: 2 + 1/2 = 2.5 (or 2) there, and so
    1 + (2 + 1/2 (2.5 - 1))/2 (or 2 - 1).
    """
    ends = torch.zeros(1, 3, 1, dtype=torch.bool)
    if done is not None:
        ends[0, done] = True
    value, taken, trace = column(2, 1, 8), column(1, 3, 99), column(0.5, 1, 99)
    found = retrace(0.5, column(1, 2, 4), value, taken, trace, ends, ends & terminated)
    assert found.item() == pytest.approx(wanted)


class Table(nn.Module):
    """Values of two actions in four states, observed as one-hot vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor([[0.0, 1.0], [1.0, 2.0], [3.0, 0.0], [4.0, 8.0]]))

    def forward(self, observation: Tensor) -> Tensor:
        return observation @ self.values


@pytest.mark.parametrize(("epsilon", "target"), [(0.5, 2.96875), (0.0, 2.0)])
def test_the_loss_by_hand(epsilon: float, target: float) -> None:
    """States 0 to 3, actions 0, 0, 0, each with probability 1/2; the best ones are 1, 1, 0, 1.

    A policy that takes them with 3/4 has V = 1.75, 2.25, 7 in states 1 to 3; the traces are (1/4)/(1/2) = 1/2 and
    min(1, (3/4)/(1/2)) = 1. Backwards: 4 + 3.5 = 7.5; 2 + (2.25 + 7.5 - 3)/2 = 5.375; 1 + (1.75 + (5.375 - 1)/2)/2.
    The greedy policy never takes action 0 in state 1: 1 + 2/2.
    """
    states = torch.eye(4)
    ends = torch.zeros(1, 3, 1, dtype=torch.bool)
    following = {
        "observation": states[None, 1:],
        "reward": column(1, 2, 4),
        "done": ends,
        "terminated": ends,
        "action": torch.zeros(1, 3, dtype=torch.int64),
        "log_prob": torch.full((1, 3), 0.5).log(),
    }
    data = {"observation": states[:1], "action": torch.zeros(1, dtype=torch.int64), "next": following}
    out = RetraceLoss(Table(), gamma=0.5, epsilon=epsilon)(TensorDict(data, [1]))
    assert out["target"].item() == pytest.approx(target)
    assert out["loss_critic"].item() == pytest.approx(target - 0.5), "Huber's, of an error beyond one"


@pytest.mark.parametrize(
    ("follows", "done", "reward", "state", "gamma"),
    [
        ((1, 1, 0), None, 1 + 1 + 1, 3, 0.125),
        ((1, 0, 1), None, 1 + 1, 2, 0.25),
        ((0, 1, 1), None, 1, 1, 0.5),
        ((1, 1, 1), 1, 1 + 1, 2, 0.25),
        ((1, 1, 1), 0, 1, 1, 0.5),
    ],
)
def test_returns_end_with_the_greedy_actions(
    follows: tuple[int, ...], done: int | None, reward: float, state: float, gamma: float
) -> None:
    """Rewards 1, 2 and 4 with a discount of 1/2: 1 each, up to the first action that is not greedy."""
    ends = torch.zeros(1, 3, 1, dtype=torch.bool)
    if done is not None:
        ends[0, done] = True
    steps = {"observation": column(1, 2, 3), "reward": column(1, 2, 4), "done": ends, "terminated": ends}
    steps |= {"action": torch.zeros(1, 3, dtype=torch.int64)}
    data = TensorDict({"observation": torch.zeros(1, 1), "next": steps}, [1])
    found = greedy_returns(data, column(*follows).bool(), 0.5)
    assert found["next", "reward"].tolist() == [[reward]] and found["gamma"].tolist() == [[gamma]]
    assert found["next", "observation"].tolist() == [[state]]
    assert found["next", "terminated"].tolist() == [[done is not None]]


def numbered(time: int, ends: tuple[int, ...] = ()) -> TensorDict:
    """Returns a row of steps whose entries are their numbers; the steps in ``ends`` end episodes."""
    count = torch.arange(time, dtype=torch.float32).view(1, time, 1)
    done = torch.zeros(1, time, 1, dtype=torch.bool)
    done[:, list(ends)] = True
    following = {"observation": count + 0.5, "reward": count, "done": done, "terminated": done}
    entries = {"observation": count, "action": count[..., 0].long(), "log_prob": -count[..., 0], "next": following}
    return TensorDict({**entries, "active": torch.ones(1, time, dtype=torch.bool)}, [1, time])


def test_windows_hold_what_followed_and_what_was_done_there() -> None:
    windows = n_step_windows(numbered(5, ends=(1,)), 3)
    assert windows["action"].tolist() == [[0, 1, 2, 3, 4]] and "log_prob" not in windows.keys()  # noqa: SIM118
    assert windows["next", "reward"][0, :, :, 0].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 4], [4, 4, 4]]
    assert windows["next", "observation"][0, 2, :, 0].tolist() == [2.5, 3.5, 4.5]
    assert windows["next", "action"][0].tolist() == [[1, 2, 3], [2, 3, 4], [3, 4, 4], [4, 4, 4], [4, 4, 4]]
    assert windows["next", "log_prob"][0, 0].tolist() == [-1, -2, -3]
    ends = windows["next", "done"][0, :, :, 0].int().tolist()
    assert ends == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 1], [1, 1, 1]]


def test_a_stream_gives_the_windows_of_the_whole() -> None:
    data, step = numbered(9, ends=(4,)), NStepWindows(3, 0.9)
    parts = []
    for piece in data.split([2, 1, 4, 2], 1):
        state, step = step.state_dict(), NStepWindows(3, 0.9)
        step.load_state_dict(state)
        parts.append(step(piece))
    found, whole = torch.cat(parts, 1), n_step_windows(data, 3)[:, :7]
    assert found.shape == (1, 7)
    for key in ("reward", "observation", "terminated", "action", "log_prob"):
        used = slice(0, 2) if key in ("action", "log_prob") else slice(None)  # the last action is not used
        assert torch.equal(found["next", key][:, :, used], whole["next", key][:, :, used])
    assert torch.equal(found["next", "done"][:, :, :2], whole["next", "done"][:, :, :2])
