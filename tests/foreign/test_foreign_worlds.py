"""Worlds keep what environments of TorchRL and Gymnasium promise: checks, transforms, copies and wrappers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torchrl.data import Unbounded
from torchrl.envs import (
    ActionMask,
    CatFrames,
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
from rlstack.envs.faces.gymnasium import SingleWorld, VectorWorld
from rlstack.envs.world import World
from tests.exhaustive import exhaustive

NATIVE = ["arena", "cartpole", "echelon", "marinenav", "rocket"]
FEW: dict[str, dict[str, Any]] = {"echelon": {"maps": 2}}
DOORS: dict[str, dict[str, Any]] = {
    "gymnasium": {"id": "tests.envs.gymnasium_toys:Noisy"},
    "torchrl": {"id": "torchrl.envs:PendulumEnv", "observation_keys": ["th"]},
    "pettingzoo": {"id": "tests.envs.test_pettingzoo:March", "kwargs": {"masks": "info"}},
}
MASKED = {
    **FEW,
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


def played(env: Any, steps: int = 5) -> Any:
    torch.manual_seed(1)
    return env.rollout(steps, break_when_any_done=False, auto_reset=False, tensordict=env.reset())


# -- TorchRL ---------------------------------------------------------------------------------------------------------


@exhaustive("name", [*DOORS, *NATIVE], quick=5)
def test_torchrl_checks_the_specs(name: str) -> None:
    with make(name) as env:
        check_env_specs(env)
        for kind in ("action", "observation", "reward", "done"):
            for spec in (f"{kind}_spec", f"full_{kind}_spec"):
                whole, single = getattr(env, spec), getattr(env, f"{spec}_unbatched")
                assert (2, *single.shape) == whole.shape
                assert single.is_in(single.rand()) and not whole.is_in(single.rand())


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


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "CatFrames": lambda key: CatFrames(N=2, dim=-1, in_keys=[key], reset_key="_reset"),
    "TimeMaxPool": lambda key: TimeMaxPool(in_keys=[key], T=2, reset_key="_reset"),
    "TensorDictPrimer": lambda key: TensorDictPrimer(state=Unbounded((3,)), reset_key="_reset", expand_specs=True),
    "StepCounter": lambda key: StepCounter(),
    "RewardSum": lambda key: RewardSum(),
    "InitTracker": lambda key: InitTracker(),
}


@pytest.mark.parametrize("transform", list(TRANSFORMS))
@pytest.mark.parametrize("name", ["cartpole", "rocket", "pettingzoo", "gymnasium", "torchrl"])
def test_transforms(name: str, transform: str) -> None:
    with make(name) as env:
        transformed = TransformedEnv(env, TRANSFORMS[transform](beside_action(env, "observation")))
        check_env_specs(transformed)


@pytest.mark.parametrize("name", list(MASKED))
def test_actions_under_torchrls_mask_are_allowed_ones(name: str) -> None:
    with make(name, MASKED[name]) as env:
        mask_key, action_key = beside_action(env, "action_mask"), env.action_key
        steps = played(TransformedEnv(env, ActionMask(action_key, mask_key)), 12)
        spec = env.full_action_spec[action_key]
        counts = [int(spec.space.n)] if name != "echelon" else spec.nvec.reshape(-1, spec.shape[-1])[0].tolist()
        action = steps[action_key].reshape(-1, len(counts))
        masks = steps[mask_key].reshape(len(action), -1).split(counts, -1)
        allowed = [part.gather(1, action[:, [place]]) for place, part in enumerate(masks)]
        assert torch.cat(allowed, 1).all() and not steps[mask_key].all()


# -- Gymnasium -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NATIVE)
def test_gymnasium_checks_a_single_world(name: str) -> None:
    check_env(SingleWorld(name, **FEW.get(name, {})), skip_render_check=True)


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
        for action in (env.action_space.sample() for _ in range(3)):
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


@pytest.mark.parametrize("name", ["arena", "cartpole"])
def test_a_vector_of_single_worlds_is_drawn(name: str) -> None:
    vector = SyncVectorEnv([lambda: SingleWorld(name, render_mode="rgb_array")] * 2)
    vector.reset(seed=0)
    pictures = list(vector.render() or ())
    vector.step(vector.action_space.sample())
    pictures += vector.render() or ()
    assert [(str(picture.dtype), picture.ndim) for picture in pictures] == [("uint8", 3)] * 4
    vector.close()
