"""Our parts in scripts of plain TorchRL."""

from __future__ import annotations

from pathlib import Path

from experiments.plain_torchrl import iqn


def test_iqn_with_our_loss_and_our_replay_learns_in_a_script_of_torchrl() -> None:
    """At random a pole stands for 22 steps, and greedily, before anything is learned, for 9."""
    assert len(Path(iqn.__file__).read_text().splitlines()) <= 40
    returns = iqn.train(frames=2000, start=100)
    assert 1950 <= sum(returns) <= 2000  # but for the last episode
    assert sum(returns[-5:]) / 5 > 40
