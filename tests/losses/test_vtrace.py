"""V-trace (Espeholt et al. 2018): examples computed by hand, and its values for on-policy data."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlstack.losses.ppo import estimate, vtrace

DOUBLE = torch.float64
REWARD, VALUE, LAST = [2.0, 1.0, -1.0, 4.0], [2.0, 1.0, 3.0, 0.0], 2.0
"""For four steps: rewards, values of their states, and the value of the state after them; the discount is 1/2."""


def sequence(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE).view(1, -1, 1)


def four_steps(ratios: list[float], clips: tuple[float, float], decay: float = 1.0, **ends: int) -> list[list[float]]:
    """Returns advantages and targets; ``done`` is the last step of an episode, ``terminated`` whether it terminates."""
    done, following = torch.zeros(1, 4, 1, dtype=torch.bool), sequence([*VALUE[1:], LAST])
    if "done" in ends:
        done[0, ends["done"]] = True
        following[0, ends["done"]] = 8.0
    terminated = done & ends.get("terminated", False)
    log_ratio = sequence(ratios).log()
    found = vtrace(0.5, decay, *clips, log_ratio, sequence(VALUE), following, sequence(REWARD), done, terminated)
    return [part.flatten().tolist() for part in found]


def test_four_steps_by_hand() -> None:
    """``delta = .5, .75, -4, 1.25``, each times its bounded ratio ``1, .5, 1, .25`` already.

    Backwards, ``v - V = delta + .5 c (v' - V')``: 1.25; -4 + .625 = -3.375; .75 + .25 (-3.375) = -.09375;
    .5 - .046875 = .453125. With c = rho the advantage ``rho (r + .5 v' - V)`` is the same.
    """
    advantage, target = four_steps([2.0, 0.5, 4.0, 0.25], (1.0, 1.0))
    assert advantage == pytest.approx([0.453125, -0.09375, -3.375, 1.25])
    assert target == pytest.approx([2.453125, 0.90625, -0.375, 1.25])


def test_bounds_and_decay_by_hand() -> None:
    """``rho = 2, .5, 1, .25``, ``c = .5, .25, .5, .125``: ``v - V`` is 1.25; -4 + .25 * 1.25; .75 - .125 * 3.6875;
    1 + .25 * .2890625."""
    advantage, target = four_steps([4.0, 0.5, 1.0, 0.25], (2.0, 1.0), 0.5)
    assert target == pytest.approx([2 + 1.072265625, 1.2890625, -0.6875, 1.25])
    assert advantage == pytest.approx([2 * 0.64453125, 0.5 * -0.34375, -3.375, 1.25])


@pytest.mark.parametrize(("terminated", "second"), [(True, 0.0), (False, 2.0)])
def test_an_episode_that_ends_has_nothing_of_the_next_one(terminated: bool, second: float) -> None:
    """An episode ends with step 1, whose error is ``.5 (1 - 1)``; cut off before a state of value 8 ``.5 (1 + 4 - 1)``.

    Step 0: ``2 (2 + .5 - 2) + .25`` times that.
    """
    advantage, target = four_steps([4.0, 0.5, 1.0, 0.25], (2.0, 1.0), 0.5, done=1, terminated=terminated)
    assert target == pytest.approx([2 + 1 + 0.25 * second, 1 + second, -0.6875, 1.25])
    assert advantage == pytest.approx([2 * (2 + 0.5 * (1 + second) - 2), second, -3.375, 1.25])


def test_of_the_present_policy_it_is_the_return_of_generalised_advantages() -> None:
    torch.manual_seed(0)
    value, last, reward = torch.randn(3, 7, 1), torch.randn(3, 1, 1), torch.randn(3, 7, 1)
    done, same = torch.zeros(3, 7, 1, dtype=torch.bool), torch.zeros(3, 7, 1)
    told = value, torch.cat((value[:, 1:], last), 1), reward, done, done
    for decay in (1.0, 0.9):
        advantage, target = vtrace(0.9, decay, 1.0, 1.0, same, *told)
        wanted_advantage, wanted = estimate(0.9, decay, *told)
        torch.testing.assert_close(target, wanted)
        if decay == 1.0:
            torch.testing.assert_close(advantage, wanted_advantage)


@pytest.mark.parametrize(("gamma", "decay"), [(0.9, 0.0), (0.0, 0.9), (1e-3, 1e-6), (0.9, 0.5)])
def test_advantages_of_long_sequences_are_those_of_short_ones(gamma: float, decay: float) -> None:
    """Also where the trace vanishes; checked against the recursion of Schulman et al. 2016."""
    torch.manual_seed(0)
    value, following, reward = (torch.randn(3, 130, 1, dtype=torch.float64) for _ in range(3))
    done = torch.rand(3, 130, 1) < 0.1
    found, _ = estimate(gamma, decay, value, following, reward, done, done)
    running, wanted = torch.zeros(3, 1, dtype=torch.float64), torch.zeros_like(value)
    for t in reversed(range(130)):
        goes_on = (~done[:, t]).double()
        running = reward[:, t] + gamma * goes_on * following[:, t] - value[:, t] + gamma * decay * goes_on * running
        wanted[:, t] = running
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("trace", [1e-4, 0.1, 0.29, 0.31])
def test_long_sequences_lose_no_term_with_a_small_trace(trace: float) -> None:
    zeros, never = torch.zeros(1, 65, 1, dtype=torch.float64), torch.zeros(1, 65, 1, dtype=torch.bool)
    advantage, _ = estimate(1.0, trace, zeros, zeros, zeros + 10.0, never, never)
    assert advantage[0, 0].item() == pytest.approx(10 * (1 - trace**65) / (1 - trace), rel=1e-6)  # a geometric series
