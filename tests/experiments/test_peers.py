"""The comparison with peers, at tiny sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from experiments.benchmarks import peers
from experiments.benchmarks.reference_ppo import ReferencePPO


def test_everyone_is_measured_in_turns_and_who_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.PACKAGES, "vmas", "no_such_module")
    monkeypatch.setitem(peers.PACKAGES, "pufferlib", "json")
    calls: list[tuple[str, int]] = []

    def way(name: str) -> Callable[[], peers.Train]:
        def train(steps: int) -> None:
            calls.append((name, steps))
            sum(range(100_000))

        return lambda: train

    work = peers.Work(
        "play", 8, {"rlstack": way("rlstack"), "other": way("other"), "vmas": way("vmas"), "pufferlib": None}
    )
    result = peers.compare(work, rounds=2)
    assert calls == [("rlstack", 2), ("other", 2), ("other", 8), ("rlstack", 8), ("rlstack", 8), ("other", 8)]
    assert result["absent"] == {"vmas": "not installed", "pufferlib": "not measured"}
    assert set(result["speeds"]) == {"rlstack", "other"} and set(result["ratios"]) == {"other"}
    ratio = result["ratios"]["other"]
    assert ratio["least"] <= ratio["median"] <= ratio["most"]
    assert [line.split()[1] for line in peers.lines("x", result)] == ["rlstack", "other", "vmas", "pufferlib"]


def test_unknown_work_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.main(["chess"])
    assert "unknown work chess; known: ppo, ppo_compiled, dqn" in capsys.readouterr().err


@pytest.mark.parametrize("way", [peers.our_steps, peers.gymnasium_steps])
def test_worlds_are_stepped(way: Callable[[], peers.Train]) -> None:
    way()(2 * peers.WORLDS)


@pytest.mark.slow
def test_the_reference_learns() -> None:
    """It has correct advantages for a rollout of one long episode, and its policy improves."""
    torch.manual_seed(0)
    reference = ReferencePPO("CartPole-v1", num_envs=4, steps=64, epochs=4, lr=2e-3)
    seen, _, _, advantage, target = reference.collect()
    assert seen.shape == (256, 4) and advantage.shape == target.shape == (256,)
    lengths = []
    for _ in range(12):
        _, _, _, _, target = (rollout := reference.collect())
        reference.learn(*rollout)
        lengths.append(float(target.mean()))
    assert lengths[-1] > lengths[0] + 10
