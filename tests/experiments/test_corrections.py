"""The curves of off-policy corrections: each arm runs, the lag is exact, and a picture is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.corrections import curves


def test_late_data_are_those_of_weights_so_many_updates_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """The acting policy's clock shows the age of its weights, in batches of 16 worlds and 16 steps."""
    seen: list[int] = []

    class Spy:
        def __init__(self, env: Any, policy: Any, steps: int) -> None:
            self.made = iter(make(env, policy, steps))
            self.policy = policy

        def __iter__(self) -> Spy:
            return self

        def __next__(self) -> Any:
            seen.append(int(self.policy.frames))
            return next(self.made)

    make = curves.make_collector
    monkeypatch.setattr(curves, "make_collector", Spy)
    monkeypatch.setattr(curves, "evaluate", lambda *_: pytest.fail("not yet"))
    monkeypatch.setitem(curves.ARMS["vtrace"], "late", ("a2c", 2, {"steps_per_batch": 16, "hidden": [8]}))
    monkeypatch.setattr(curves, "POINTS", 1)
    with pytest.raises(pytest.fail.Exception, match="not yet"):
        next(curves.train("vtrace", "late", 0, 1280))
    assert seen == [0, 0, 0, 256, 512]


def test_areas_and_pictures(tmp_path: Path) -> None:
    rows = [
        {"arm": arm, "seed": seed, "frames": 10 * point, "return": float(point + seed)}
        for arm in ("A2C, no lag", "PPO, no lag")
        for seed in (0, 1)
        for point in range(curves.POINTS)
    ]
    told = curves.summary(rows, 1.0)["arms"]["A2C, no lag"]
    assert told["areas"] == [5.5, 6.5] and told["area"] == 6.0 and told["last quarter"] == 10.5  # mean of 9, 10 and 11
    curves.draw(rows, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000
