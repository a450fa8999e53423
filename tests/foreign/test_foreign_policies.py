"""The policies of all agents keep what TorchRL's modules promise, beyond what ``test_policies.py`` of agents checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.envs import StepCounter, TransformedEnv

from rlstack import envs
from rlstack.agents import make_agent
from tests.agents.test_policies import CARTPOLE, KINDS, MARINENAV, MEMORY, made
from tests.exhaustive import exhaustive


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


@pytest.mark.parametrize("case", KINDS)
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


@pytest.mark.parametrize("case", KINDS)
def test_a_policy_in_double_precision_has_no_other(case: str) -> None:
    env, agent = made(case)
    policy, shown = agent.policy(explore=False).double(), env.reset()
    assert {value.dtype for value in policy.state_dict().values() if value.is_floating_point()} <= {torch.float64}
    shown = shown.apply(lambda value: value.double() if value.is_floating_point() else value)
    acted = policy(shown).select(*policy.out_keys)
    wrong = {key: value.dtype for key, value in acted.items(True, True) if value.is_floating_point()}
    assert set(wrong.values()) <= {torch.float64}, wrong


class Outputs(nn.Module):
    """A policy as a module of tensors, which traces take."""

    def __init__(self, policy: Any, names: Sequence[str]) -> None:
        super().__init__()
        self.policy, self.names = policy, names

    def forward(self, *inputs: Tensor) -> Any:
        return self.policy(**dict(zip(self.names, inputs)))


def traced(policy: Any, entries: dict[str, Tensor]) -> Any:
    return torch.jit.trace(Outputs(policy, list(entries)), tuple(entries.values()), check_trace=False)


def exported(policy: Any, entries: dict[str, Tensor]) -> Any:
    program = torch.export.export(policy, args=(), kwargs=entries).module()
    return lambda *inputs: program(**dict(zip(entries, inputs)))


def mapped(policy: Any, entries: dict[str, Tensor]) -> Any:
    return torch.vmap(lambda *inputs: policy(**dict(zip(entries, inputs))))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("changed", [traced, exported, mapped])
@pytest.mark.parametrize(
    ("name", "world", "kind"),
    [("ppo", CARTPOLE, "gru"), ("ppo", CARTPOLE, "lstm"), ("dqn", CARTPOLE, "gru"), ("ppo", MARINENAV, "gru")],
)
def test_a_recurrent_policy_as_a_program_takes_and_returns_its_state(
    name: str, world: tuple[str, dict[str, Any]], kind: str, changed: Callable[..., Any]
) -> None:
    env = envs.make(world[0], seed=1, **world[1])
    policy = make_agent(name, env, recurrent={**MEMORY["recurrent"], "kind": kind}).policy(explore=False)
    shown = env.reset()
    entries = entries_of(policy, shown)
    program = changed(policy, entries)
    for _ in range(2):
        entries = entries_of(policy, shown)
        with torch.no_grad():  # which traces leave out
            found = program(*entries.values())
        for ours, theirs in zip(found, answers(policy, shown, entries), strict=True):
            torch.testing.assert_close(ours, theirs)


def unlike_a_world(kind: str = "gru") -> tuple[Any, Any]:
    """Returns an env that does not pass on a policy's recurrent state, and such a policy."""
    env = TransformedEnv(envs.make(CARTPOLE[0], seed=1, **CARTPOLE[1]), StepCounter())
    torch.manual_seed(0)
    return env, make_agent("ppo", env, recurrent={**MEMORY["recurrent"], "kind": kind}).policy(explore=False)


def broken(policy: Any, shown: TensorDictBase) -> None:
    with pytest.raises(RuntimeError):
        policy(TensorDict({"observation": shown["observation"][:1, :2]}, [1]))


def mapping(policy: Any, shown: TensorDictBase) -> None:
    torch.vmap(lambda observation: policy(observation=observation))(shown["observation"])


def exporting(policy: Any, shown: TensorDictBase) -> None:
    with pytest.raises(Exception, match="recurrent state is to be given under 'memory'"):
        torch.export.export(policy, args=(), kwargs={"observation": shown["observation"]})


def differentiating(policy: Any, shown: TensorDictBase) -> None:
    torch.func.grad(lambda observation: policy(observation=observation)[1].sum())(shown["observation"])


@exhaustive("kind", ["gru", "lstm"])
@pytest.mark.parametrize("between", [broken, mapping, exporting, differentiating])
def test_what_happens_between_two_steps_leaves_no_trace(between: Callable[..., None], kind: str) -> None:
    found = []
    for interrupted in (False, True):
        env, policy = unlike_a_world(kind)
        torch.manual_seed(1)
        shown = env.reset()
        for _ in range(4):
            env.step(policy(shown))
            if interrupted:
                between(policy, shown)
            shown = env.step_mdp(shown)
        found.append(policy(shown)["memory"])
    assert found[0].any() and torch.equal(*found)
