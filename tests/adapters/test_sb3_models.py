"""Models of Stable-Baselines3: recorded actions, and files that are not such models."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlstack.adapters.sb3.model import SB3Network, load_sb3
from rlstack.adapters.sb3.native import sb3_agent
from rlstack.config import ConfigError
from tests.adapters.small_worlds import Noise, box
from tests.exhaustive import recordings
from tests.refusals import refused

TOLERANCE = 1e-6
"""Of float32: eight times its spacing at 1. Larger numbers are rounded in proportion, and in a CPU's own order."""
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/sb3"
SMALL = ["a2c_multi_default", "dqn_multi_default", "ppo_mlp_box_action"]
MULTI = {"combat_targets": 17, "enemy_count": 1, "mission_progress": 3, "player_state": 7, "spatial_awareness": 4}


def recorded(path: Path) -> dict[str, Tensor]:
    with np.load(path.with_name(path.stem + "_io.npz")) as file:
        return {key: torch.from_numpy(value) for key, value in file.items()}


def answered(network: SB3Network, features: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    outputs, _ = network(features)
    return outputs, network.choose(outputs)


def close(ours: Tensor, theirs: Tensor, steps: int = 1) -> None:
    """Compares up to rounding, which a recurrent state carries through many steps."""
    torch.testing.assert_close(ours, theirs, rtol=steps * TOLERANCE, atol=steps * TOLERANCE)


@recordings("sb3/[adp]*.zip", "sb3/*.zip")
def test_recorded_answers(path: Path) -> None:
    """Compares every recorded action, from normalised and from raw observations."""
    model, answers = load_sb3(path, path.with_name(path.stem + "_vecnormalize.pkl")), recorded(path)
    keys, network = model.observation_keys, model.network
    raw = answers["raw"] if keys is None else {key: answers[f"raw_{key}"] for key in keys}
    norm = answers["norm"] if keys is None else torch.cat([answers[f"norm_{key}"] for key in keys], -1)
    for features in (norm, model.features(raw)):
        outputs, action = answered(network, features)
        if "logits" in outputs:
            close(outputs["logits"], answers["action_net_out"])
            close(outputs["logits"].log_softmax(-1), answers["logits_normalised"])
        for name in {"value", "q", "mean", "log_std"} & set(outputs) & set(answers):
            close(outputs[name], answers[name])
        if "std" in answers:
            close(outputs["log_std"].exp(), answers["std"])
        for index in range(sum(name.startswith("critic") for name in network.parts) if network.squashed else 0):
            close(network.parts[f"critic{index}"](torch.cat((features, action), -1)), answers[f"q{index + 1}"])
        close(action, answers["det_action"])
    assert model.algorithm == path.stem[:3].upper()
    assert not any(value.requires_grad for value in network.parameters()) and not network.training


def test_soft_actor_critic() -> None:
    path = FIXTURES / "sac_small.zip"
    model, answers = load_sb3(path), recorded(path)
    network = model.network
    assert model.algorithm == "SAC" and model.activation == "ReLU"
    features = model.features(answers["raw"])
    outputs, action = answered(network, features)
    close(outputs["mean"], answers["mean"])
    close(outputs["log_std"], answers["log_std"])
    close(action, answers["squashed"])
    assert model.low is not None and model.high is not None
    close(model.low, torch.tensor([-2.0, 0.0]))
    close(model.low + (action + 1) / 2 * (model.high - model.low), answers["det_action"])


def test_recurrent_sequence() -> None:
    path = FIXTURES / "recurrent_ppo_small.zip"
    model, answers = load_sb3(path), recorded(path)
    network = model.network
    assert model.algorithm == "RecurrentPPO" and model.recurrent
    assert len(answers["det_action"].unique()) > 1 and answers["starts"][1:].any()
    memory = network.initial_memory(3)
    for t, features in enumerate(answers["raw"]):
        outputs, memory = network(features, memory, answers["starts"][t])
        # Weights of the action layer are a hundred times as large as those of others.
        close(outputs["logits"].log_softmax(-1) / 100, answers["logits_normalised"][t] / 100, steps=t + 1)
        close(outputs["value"], answers["value"][t], steps=t + 1)
        assert torch.equal(network.choose(outputs), answers["det_action"][t])


def test_what_the_file_says() -> None:
    model = load_sb3(FIXTURES / "ppo_mlp_box_action.zip")
    assert (model.activation, model.action, model.num_timesteps) == ("Tanh", "box", 64)
    assert model.hidden == {"actor": (64, 64), "critic": (64, 64)} and model.observation_shapes == {"": (32,)}
    numbers = {"gamma": 0.99, "learning_rate": 0.0003, "n_steps": 32, "clip_range": 0.2, "gae_lambda": 0.95}
    assert model.hyperparameters.items() >= numbers.items()
    model = load_sb3(FIXTURES / "a2c_multi_default.zip")
    assert model.observation_keys == tuple(MULTI) and model.low is None and model.action == "discrete"
    assert model.observation_shapes == {key: (size,) for key, size in MULTI.items()}


# -- files that are no such models ---------------------------------------------------------------------------------


def rewritten(
    tmp_path: Path,
    name: str,
    weights: dict[str, Tensor | None] | None = None,
    drop: str = "",
    replaced: dict[str, bytes] | None = None,
    compression: int = zipfile.ZIP_STORED,
    **data: Any,
) -> Path:
    """Returns a copy of a fixture with other weights (None: without them), members or settings."""
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(FIXTURES / f"{name}.zip") as source, zipfile.ZipFile(path, "w", compression) as target:
        for member in source.namelist():
            content = source.read(member)
            if member == "data":
                content = json.dumps({**json.loads(content), **data}).encode()
            if member == "policy.pth" and weights:
                state = torch.load(io.BytesIO(content), weights_only=True) | weights
                buffer = io.BytesIO()
                torch.save({key: value for key, value in state.items() if value is not None}, buffer)
                content = buffer.getvalue()
            if member != drop:
                target.writestr(member, (replaced or {}).get(member, content))
    return path


PPO = "ppo_mlp_box_action"
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no weights": ({"drop": "policy.pth"}, "it lacks policy.pth"),
    "no settings": ({"drop": "data"}, "it lacks data"),
    "old": ({"weights": {"mlp_extractor.shared_net.0.weight": torch.zeros(2, 2)}}, "shared_net.*not supported"),
    "unknown": ({"weights": {"action_net.weight": None}}, "none of PPO, A2C, DQN, SAC, RecurrentPPO"),
    "images": ({"weights": {"features_extractor.cnn.0.weight": torch.zeros(2)}}, "only MlpPolicy and MultiInputPolicy"),
    "more": ({"weights": {"extra.weight": torch.zeros(2)}}, "unknown kind: extra.weight"),
    "less": ({"weights": {"value_net.bias": None}}, "lack value_net.bias"),
    "misfit": ({"weights": {"action_net.weight": torch.zeros(2, 9)}}, "do not follow one another"),
    "activation": (
        {"policy_kwargs": {"activation_fn": "<class 'mine.Sine'>"}},
        "activation_fn: .*Sine.*allowed: .*Tanh",
    ),
    "gSDE": ({"use_sde": True}, "gSDE"),
    "action": (
        {"action_space": {":type:": "<class 'gymnasium.spaces.multi_discrete.MultiDiscrete'>"}},
        "MultiDiscrete",
    ),
    "observation": ({"observation_space": {":type:": "<class 'gymnasium.spaces.discrete.Discrete'>"}}, "only vectors"),
    "features": (
        {"observation_space": {":type:": "<class 'gymnasium.spaces.box.Box'>", "_shape": [9]}},
        "9 features, the network takes 32",
    ),
    "deep": ({"replaced": {"data": b"[" * 100_000}}, "a part of the file is broken .nested too deeply"),
    "number": (
        {"gamma": {"value_schedule": "ConstantSchedule(val=1e+e)"}},
        "its settings cannot be read .ValueError: could not convert",
    ),
}


@pytest.mark.parametrize("change, message", FAULTS.values(), ids=FAULTS.keys())
def test_unsuitable_files_are_told_in_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert "model.zip" in refused(ConfigError, message, load_sb3, rewritten(tmp_path, PPO, **change))


def test_no_file_and_no_zip(tmp_path: Path) -> None:
    refused(ConfigError, "cannot be read", load_sb3, tmp_path / "nothing.zip")
    (tmp_path / "text.zip").write_text("hello")
    refused(ConfigError, "not a zip file", load_sb3, tmp_path / "text.zip")


@pytest.mark.parametrize("variables", [b"nothing", {"log_ent_coef": torch.zeros(2)}, {"ent_coef_tensor": [1]}])
def test_a_temperature_that_is_none(variables: Any, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(variables, buffer)
    content = variables if isinstance(variables, bytes) else buffer.getvalue()
    path = rewritten(tmp_path, "sac_small", replaced={"pytorch_variables.pth": content})
    assert load_sb3(path).algorithm == "SAC"  # which acts without it
    with pytest.raises(ConfigError, match=r"model.zip: pytorch_variables.pth: (not a file of|the weight of)"):
        sb3_agent(path, Noise(5, box((-2, 1), (0, 3))))


def test_statistics_of_another_model_are_refused() -> None:
    with pytest.raises(ConfigError, match="statistics are those of 32 features, the network takes 5"):
        load_sb3(FIXTURES / "sac_small.zip", FIXTURES / "ppo_mlp_box_action_vecnormalize.pkl")
