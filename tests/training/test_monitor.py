"""Statistics of a run between two log lines."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from rlstack.data.devices import indexed
from rlstack.training.monitor import Monitor


def batch(done: list[list[bool]], returns: list[list[float]], success: list[list[bool]]) -> TensorDict:
    """Returns a batch ``[W, T]``; only statistics at the end of an episode count."""
    episode = {"return": torch.tensor(returns)[..., None], "success": torch.tensor(success)}
    size = torch.tensor(done).shape
    following = TensorDict({"done": torch.tensor(done)[..., None], "episode": TensorDict(episode, size)}, size)
    return TensorDict({"next": following}, size)


def test_means_are_those_of_finished_episodes() -> None:
    monitor, nan = Monitor(), float("nan")
    monitor.observe(batch([[True, False], [False, True]], [[3.0, nan], [nan, 5.0]], [[True, True], [False, False]]), {})
    monitor.observe(batch([[False, True]], [[9.0, 1.0]], [[False, True]]), {"loss/critic": torch.tensor(0.25)})
    assert isinstance(monitor._sums, Tensor), "read off the device at a flush only"
    resumed = Monitor()
    resumed.load_state_dict(monitor.state_dict())
    for each in (monitor, resumed):
        found = each.flush()
        assert (found["train/episodes"], found["train/return"], found["loss/critic"]) == (3, 3, 0.25)
        assert found["train/success"] == pytest.approx(2 / 3)
        assert found["train/success_low"] < 2 / 3 < found["train/success_high"]
        assert each.flush() == {"loss/critic": 0.25}


def test_a_gpu_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert indexed("cuda") == torch.device("cuda:3") and indexed("cuda:1") == torch.device("cuda:1")
    assert indexed("cpu") == torch.device("cpu")
