"""The policies of all agents keep TorchRL's promises, beyond what ``tests/agents/test_policies.py`` checks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tests.agents.test_policies import CARTPOLE, CASES, MARINENAV, made

REMEMBERING = [
    (name, kind, world) for name in ("ppo", "dqn") for kind in ("gru", "lstm") for world in (CARTPOLE, MARINENAV)
]
del REMEMBERING[1::2][2:]


def entries_of(policy: Any, shown: TensorDictBase) -> dict[str, Tensor]:
    """Returns the policy's inputs by the names that TorchRL's ``dispatch`` gives them, a random state among them."""
    entries = {}
    for key in policy.in_keys:
        name = key if isinstance(key, str) else "_".join(key)
        lead = shown[policy.in_keys[0]].shape[: 1 if isinstance(key, str) else 2]
        entries[name] = torch.rand(*lead, policy.size) if name.endswith("memory") else shown[key]
    return entries


def answers(policy: Any, shown: TensorDictBase, entries: dict[str, Tensor]) -> list[Tensor]:
    given = shown.clone()
    for key in policy.in_keys:
        given[key] = entries[key if isinstance(key, str) else "_".join(key)]
    torch.manual_seed(2)
    acted = policy(given)
    return [acted[key] for key in policy.out_keys]


@pytest.mark.parametrize("case", CASES)
def test_a_policy_takes_its_entries_by_name(case: str) -> None:
    env, agent = made(case)
    policy, shown = agent.policy(explore=True), env.reset()
    entries = entries_of(policy, shown)
    expected = answers(policy, shown, entries)
    torch.manual_seed(2)
    found = policy(**entries)
    for ours, theirs in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(TypeError, match="obs"):
        policy(**entries, obs=1)


@pytest.mark.parametrize("case", CASES)
def test_a_policy_in_double_precision_has_no_other(case: str) -> None:
    env, agent = made(case)
    policy, shown = agent.policy(explore=True).double(), env.reset()
    assert {value.dtype for value in policy.state_dict().values() if value.is_floating_point()} <= {torch.float64}
    shown = shown.apply(lambda value: value.double() if value.is_floating_point() else value)
    acted = policy(shown).select(*policy.out_keys)
    wrong = {key: value.dtype for key, value in acted.items(True, True) if value.is_floating_point()}
    assert set(wrong.values()) <= {torch.float64}, wrong
