"""A step as a GPU makes it: of few operations, and none that a CUDA graph cannot record."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlstack import envs
from rlstack.envs import waiting
from tests.host_waits import asks_the_host


class Counted(TorchDispatchMode):
    """Counts operations, except views, each of which a GPU starts at least one kernel for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not asks_the_host(function, args), function
        returned = function._schema.returns
        self.count += not (returned and returned[0].alias_info and not returned[0].alias_info.is_write)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"opponent": "policy", "visibility": "partial", "actions": "hybrid"},
        {"blue": 7, "red": 6, "opponent_mix": {"rush": 1.0, "veteran": 1.0, "random": 1.0}, "actions": "box"},
    ],
)
def test_a_step_is_recordable_and_of_few_operations(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FREE", set())
    env = envs.make("echelon", num_worlds=2, maps=2, max_steps=2, **options)
    root = env.rand_action(env.step_and_maybe_reset(env.rand_action(env.reset()))[1])
    with Counted() as counted:
        stepped, _ = env.step_and_maybe_reset(root)
    assert stepped["next", "done"].all() and torch.isfinite(stepped["next", "agents", "reward"]).all()
    assert counted.count <= 3000
