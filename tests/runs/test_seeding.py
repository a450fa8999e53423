"""States of all random generators, on machines with various numbers of GPUs."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from rlstack.runs.seeding import restore_rng, rng_state


@pytest.mark.parametrize("here", [0, 1, 3])
def test_generators_go_on_with_as_many_gpus_as_there_are(here: int, monkeypatch: pytest.MonkeyPatch) -> None:
    state, set_to = {**rng_state(), "cuda": ["first", "second"]}, {}
    drawn = [random.random(), np.random.random(), float(torch.rand(()))]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: here)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda own, gpu: set_to.update({gpu: own}))
    restore_rng(state)
    assert [random.random(), np.random.random(), float(torch.rand(()))] == drawn
    assert set_to == dict(enumerate(["first", "second"][:here]))
