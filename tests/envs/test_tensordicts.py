"""Tensordicts made without checks equal those of TensorDict's own constructor."""

from __future__ import annotations

import torch
from tensordict import TensorDict

from rlstack.envs.foundation.tensors import unchecked


def test_unchecked_tensordicts_are_as_others() -> None:
    cpu = torch.device("cpu")
    inner = {"x": torch.rand(2, 3, 4), "flag": torch.ones(2, 3, 1, dtype=torch.bool)}
    ours = unchecked({"agents": unchecked(inner, (2, 3), cpu), "y": torch.arange(2)}, torch.Size([2]), cpu)
    theirs = TensorDict({"agents": TensorDict(inner, [2, 3], cpu), "y": torch.arange(2)}, [2], cpu)
    assert (ours.batch_size, ours.device) == (theirs.batch_size, theirs.device)
    assert ours["agents"].batch_size == theirs["agents"].batch_size
    assert set(ours.keys(True, True)) == set(theirs.keys(True, True)) and (ours == theirs).all()
    assert torch.equal(ours[1]["agents", "x"], theirs[1]["agents", "x"]) and torch.stack([ours, ours]).shape == (2, 2)
    assert unchecked({}, (5,)).device is None


def test_they_can_be_written_to_like_others() -> None:
    made = unchecked({"x": torch.zeros(3)}, (3,))
    made.set("z", torch.ones(3))
    assert set(made.keys()) == {"x", "z"}
