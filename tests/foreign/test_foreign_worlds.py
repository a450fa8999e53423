"""What TorchRL promises of worlds and policies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Unbounded
from torchrl.envs import (
    ActionMask,
    CatFrames,
    Compose,
    EnvBase,
    InitTracker,
    RewardSum,
    StepCounter,
    TensorDictPrimer,
    TimeMaxPool,
    TransformedEnv,
)
from torchrl.envs.utils import check_env_specs

from rlstack import envs
from rlstack.agents import make_agent
from rlstack.envs.faces.gymnasium import SingleWorld, VectorWorld
from rlstack.envs.world import World
from tests.agents.test_policies import CARTPOLE, EVERY_KIND, KINDS, MARINENAV, MEMORY, made
from tests.exhaustive import exhaustive

NATIVE = ["arena", "cartpole", "echelon", "marinenav", "rocket"]
FEW: dict[str, dict[str, Any]] = {"echelon": {"maps": 2}, "rocket": {"tick_skip": 1}}
DOORS: dict[str, dict[str, Any]] = {
    "gymnasium": {"id": "tests.envs.gymnasium_toys:Noisy"},
    "torchrl": {"id": "torchrl.envs:PendulumEnv", "observation_keys": ["th"]},
    "pettingzoo": {"id": "tests.envs.test_pettingzoo:March", "kwargs": {"masks": "info"}},
}
MASKED = {
    "echelon": FEW["echelon"],
    "gymnasium": {"id": "tests.envs.gymnasium_toys:Masked"},
    "pettingzoo": {"id": "tests.envs.test_pettingzoo:March", "kwargs": {"masks": "info"}},
}
EVERY = [*NATIVE, *DOORS]


def make(name: str, options: dict[str, Any] | None = None, **more: Any) -> World:
    if name == "pettingzoo":
        pytest.importorskip("pettingzoo")
    size = "num_envs" if name in DOORS else "num_worlds"
    usual = {**FEW, **DOORS}.get(name, {})
    return cast("World", envs.make(name, **{size: 2}, **(usual if options is None else options), **more))


def beside_action(env: EnvBase, name: str) -> Any:
    key = env.action_key
    return (*key[:-1], name) if isinstance(key, tuple) else name


def played(env: Any, steps: int = 2) -> Any:
    torch.manual_seed(1)
    return env.rollout(steps, break_when_any_done=False, auto_reset=False, tensordict=env.reset())


# -- TorchRL ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_a_world_that_has_made_a_step_can_be_copied(name: str) -> None:
    """A copy continues as its world does; one of a simulator begins new episodes, as a loaded state does."""
    with make(name) as env:
        played(env)
        state = env.state_dict()
        with copy.deepcopy(env) as copied, pickle.loads(pickle.dumps(env)) as pickled:
            if not env.saves_episodes:
                env.load_state_dict(state)
            following = played(env)
            for other in (copied, pickled):
                assert other is not env and (following == played(other)).all()


@pytest.mark.parametrize("name", ["cartpole", "rocket", "pettingzoo", "gymnasium", "torchrl"])
def test_transforms(name: str) -> None:
    with make(name) as env:
        keys = [beside_action(env, "observation")]
        transforms = (
            CatFrames(N=2, dim=-1, in_keys=keys, reset_key="_reset"),
            TimeMaxPool(in_keys=keys, T=2, reset_key="_reset"),
            TensorDictPrimer(state=Unbounded((3,)), reset_key="_reset", expand_specs=True),
            *(StepCounter(), RewardSum(), InitTracker()),
        )
        check_env_specs(TransformedEnv(env, Compose(*transforms)))


@pytest.mark.parametrize("name", list(MASKED))
def test_actions_under_torchrls_mask_are_allowed_ones(name: str) -> None:
    with make(name, MASKED[name]) as env:
        mask_key, action_key = beside_action(env, "action_mask"), env.action_key
        steps = played(TransformedEnv(env, ActionMask(action_key, mask_key)), 6)
        spec = env.full_action_spec[action_key]
        counts = [int(spec.space.n)] if name != "echelon" else spec.nvec.reshape(-1, spec.shape[-1])[0].tolist()
        action = steps[action_key].reshape(-1, len(counts))
        masks = steps[mask_key].reshape(len(action), -1).split(counts, -1)
        allowed = [part.gather(1, action[:, [place]]) for place, part in enumerate(masks)]
        assert torch.cat(allowed, 1).all() and not steps[mask_key].all()


# -- Gymnasium -------------------------------------------------------------------------------------------------------


@exhaustive(
    ("face", "name"),
    [(SingleWorld, "echelon"), (VectorWorld, "arena"), *product((SingleWorld, VectorWorld), NATIVE)],
    quick=2,
)
def test_a_face_is_pickled_before_and_within_an_episode(face: Any, name: str) -> None:
    env = face(name, **FEW.get(name, {}))
    for _ in range(2):
        other = pickle.loads(pickle.dumps(env))
        assert data_equivalence(env.reset(seed=3), other.reset(seed=3), exact=True)
        env.action_space.seed(0)
        for action in (env.action_space.sample() for _ in range(2)):
            assert data_equivalence(env.step(action), other.step(action), exact=True)


def test_parallel_environments_are_pickled() -> None:
    pytest.importorskip("pettingzoo")
    env = envs.parallel_env("rocket")
    env.reset(seed=0)
    other = pickle.loads(pickle.dumps(env))
    assert data_equivalence(env.reset(seed=3), other.reset(seed=3), exact=True)
    actions = {agent: env.action_space(agent).sample() for agent in env.agents}
    assert data_equivalence(env.step(actions), other.step(actions), exact=True)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_gymnasium_records_the_statistics_of_a_vector(mode: str) -> None:
    env = RecordEpisodeStatistics(VectorWorld("cartpole", 3, mode, max_steps=4))
    env.reset(seed=0)
    for _ in range(3):
        assert "episode" not in env.step(np.array([0, 1, 0]))[-1]
    info = env.step(np.array([1, 0, 1]))[-1]
    assert info["episode"]["l"].tolist() == [4, 4, 4] and info["episode"]["r"].tolist() == [4.0, 4.0, 4.0]
    assert info["statistics"]["l"].tolist() == [4, 4, 4] and info["_statistics"].all()


# -- the policies of all agents keep what TorchRL's modules promise, beyond what ``test_policies.py`` of agents checks


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


@exhaustive("case", EVERY_KIND, quick=len(KINDS))
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


@exhaustive("case", EVERY_KIND, quick=len(KINDS))
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
@exhaustive(
    ("name", "world", "kind"),
    [("ppo", CARTPOLE, "lstm"), ("ppo", MARINENAV, "gru"), ("ppo", CARTPOLE, "gru"), ("dqn", CARTPOLE, "gru")],
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
