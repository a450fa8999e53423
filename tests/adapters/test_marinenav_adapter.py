"""The published actors take the recorded actions; anything else gives a clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rlstack import envs
from rlstack.adapters.marinenav import load_published_actor, published_policy
from rlstack.agents.interface import Interface
from rlstack.config import ConfigError
from tests.refusals import refused


@pytest.fixture
def weights(fixtures_dir: Path) -> Path:
    return fixtures_dir / "marinenav/AC_IQN_params.npz"


def check(params: Path, recorded: Path) -> None:
    with np.load(recorded) as file:
        keys = {"self": "self_state", "objects": "objects", "mask": "mask"}
        observation = TensorDict({ours: torch.from_numpy(file[theirs]) for ours, theirs in keys.items()}, [32])
        expected = torch.from_numpy(file["action"])
    actor = load_published_actor(params).double()
    torch.testing.assert_close(actor(observation), expected, rtol=0, atol=1e-9)
    assert not any(parameter.requires_grad for parameter in actor.parameters())


def test_recorded_actions(weights: Path, fixtures_dir: Path) -> None:
    check(weights, fixtures_dir / "losses/AC_IQN_io_public.npz")


@pytest.mark.shared
@pytest.mark.parametrize("name", ["AC_IQN", "DDPG"])
def test_all_recorded_actions(name: str, shared_dir: Path) -> None:
    folder = shared_dir / "weights/marinenav"
    recordings = sorted(folder.glob(f"{name}_io_*.npz"))
    assert recordings
    for path in recordings:
        check(folder / f"{name}_params.npz", path)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_acts_in_marinenav(weights: Path, dtype: torch.dtype) -> None:
    env = envs.make("marinenav", num_worlds=64, num_robots=3, num_obstacles=0, min_start_goal_dis=30.0, dtype=dtype)
    policy = published_policy(weights, env)
    td = policy(env.reset())
    assert td["agents", "action"].shape == (64, 3, 2) and td["agents", "action"].dtype == dtype
    if dtype == torch.float32:
        batch = env.rollout(120, policy, break_when_any_done=False)
        done = batch["next", "done"][..., 0]
        assert done.sum() >= 64
        assert batch["next", "episode", "success"][done].mean() > 0.8


def test_arrays_do_as_well_and_an_interface_sets_the_dtype(weights: Path) -> None:
    with np.load(weights) as file:
        arrays = {name: values.astype(np.float64) for name, values in file.items()}
    interface = Interface.of(envs.make("marinenav", num_worlds=1))
    actor, plain = load_published_actor(arrays, interface), load_published_actor(arrays)
    assert actor.output.weight.dtype == torch.float32 and plain.output.weight.dtype == torch.float64
    torch.testing.assert_close(actor.output.weight.double(), plain.output.weight, rtol=1e-6, atol=1e-7)
    arrays["output_layer.bias"][:] = 7
    assert (actor.output.bias != 7).all(), "the caller's arrays are copied"


def changed(arrays: dict[str, Any], **changes: Any) -> dict[str, Any]:
    merged = {**arrays, **{key.replace("__", "."): value for key, value in changes.items()}}
    return {key: value for key, value in merged.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cos_embedding__weight": np.zeros((256, 64))}, "has also cos_embedding.weight"),
        ({"output_layer__bias": None}, "lacks output_layer.bias"),
        (
            {"output_layer__bias": np.zeros(25), "output_layer__weight": np.zeros((25, 128))},
            "holds an agent of type DQN, not AC-IQN",
        ),
        ({"hidden_layer__weight": np.zeros((128, 216))}, "size mismatch for trunk.0.weight"),
        ({"hidden_layer__weight": np.zeros(128)}, r"hidden_layer.weight is float\d+ of shape \(128,\)"),
        ({"hidden_layer__bias": np.zeros(128, dtype=int)}, "hidden_layer.bias is int64"),
        ({"hidden_layer__bias": np.array([None] * 128)}, "not plain data"),
    ],
)
def test_other_weights_are_one_clear_line(weights: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with np.load(weights) as file:
        arrays = changed(dict(file.items()), **changes)
    path = tmp_path / "other.npz"
    np.savez(path, **arrays)
    assert refused(ConfigError, message, load_published_actor, path).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("name", "content"), [("empty.npz", b""), ("text.npz", b"no weights"), ("cut.npz", b"PK\x03\x04")]
)
def test_other_files_are_one_clear_line(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    refused(ConfigError, name, load_published_actor, path)
    refused(ConfigError, "No such file", load_published_actor, tmp_path / "nowhere.npz")
    np.save(tmp_path / "array.npy", np.zeros(3))
    refused(ConfigError, "not an npz file", load_published_actor, tmp_path / "array.npy")


def test_an_env_it_cannot_act_in_is_refused(weights: Path) -> None:
    with pytest.raises(ConfigError, match=r"set env\.continuous_actions=true"):
        published_policy(weights, envs.make("marinenav", num_worlds=1, continuous_actions=False))
