"""TorchScript and ONNX files as policies."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchrl.data import OneHot
from torchrl.envs import EnvBase

from rlstack.adapters.scripted import onnx_policy, torchscript_policy
from rlstack.config import ConfigError
from tests.adapters.small_worlds import Noise, box
from tests.refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore::FutureWarning")

KEYS = {"near": 2, "far": 3}  # the env lists them as far, near: the order of their names
TWO = box((-1, 1), (-1, 1))


class Flat(nn.Module):
    def forward(self, observation: Tensor) -> Tensor:
        return observation[:, :2].tanh()


class Scores(nn.Module):
    def forward(self, observation: Tensor) -> Tensor:
        return observation[:, :4] * 2


class Index(nn.Module):
    def forward(self, observation: Tensor) -> Tensor:
        return observation[:, :4].argmax(-1)


class Parts(nn.Module):
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.stack((first[:, 0], second[:, 0]), -1).tanh()


class OneTuple(nn.Module):
    def forward(self, parts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.stack((parts[0][:, 0], parts[1][:, 0]), -1).tanh(), parts[0]


class OneList(nn.Module):
    def forward(self, parts: list[Tensor]) -> Tensor:
        return torch.stack((parts[0][:, 0], parts[1][:, 0]), -1).tanh()


class OneDict(nn.Module):
    def forward(self, parts: dict[str, Tensor]) -> Tensor:
        return torch.stack((parts["far"][:, 0], parts["near"][:, 0]), -1).tanh()


class Double(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, observation: Tensor) -> Tensor:
        return (observation[:, :2] * self.scale).tanh()


def saved(module: nn.Module, tmp_path: Path) -> Path:
    path = tmp_path / "policy.pt"
    torch.jit.save(torch.jit.script(module), str(path))
    return path


def seen_and_done(env: EnvBase, policy: Any, agents: int | None) -> tuple[Any, Tensor]:
    td = policy(env.reset())
    place = td if agents is None else td["agents"]
    return place["observation"], place["action"]


@pytest.mark.parametrize("agents", [None, 2])
@pytest.mark.parametrize("module", [Flat(), Double()])
def test_flat_observation(module: nn.Module, agents: int | None, tmp_path: Path) -> None:
    env = Noise(5, TWO, agents=agents)
    observation, action = seen_and_done(env, torchscript_policy(saved(module, tmp_path), env), agents)
    torch.testing.assert_close(action, observation[..., :2].tanh())
    assert action.dtype == torch.float32


@pytest.mark.parametrize("agents", [None, 2])
@pytest.mark.parametrize("module", [Parts(), OneTuple(), OneList(), OneDict()])
def test_structured_observation(module: nn.Module, agents: int | None, tmp_path: Path) -> None:
    env = Noise(dict(sorted(KEYS.items())), TWO, agents=agents)
    observation, action = seen_and_done(env, torchscript_policy(saved(module, tmp_path), env), agents)
    expected = torch.stack((observation["far"][..., 0], observation["near"][..., 0]), -1).tanh()
    torch.testing.assert_close(action, expected)


@pytest.mark.parametrize("module", [Scores(), Index()])
@pytest.mark.parametrize("one_hot", [False, True])
def test_discrete_actions(module: nn.Module, one_hot: bool, tmp_path: Path) -> None:
    env = Noise(5, OneHot(4) if one_hot else 4, num_worlds=32)
    observation, action = seen_and_done(env, torchscript_policy(saved(module, tmp_path), env), None)
    best = observation[:, :4].argmax(-1)
    assert torch.equal(action.long().argmax(-1) if one_hot else action, best)
    assert env.full_action_spec["action"].is_in(action)


FAULTS: list[tuple[nn.Module, Any, Any, str]] = [
    (Parts(), 5, TWO, r"forward takes first: Tensor, second: Tensor; the env shows 1 tensor \(a flat observation\)"),
    (Flat(), KEYS, TWO, r"forward takes observation: Tensor; the env shows 2 tensors"),
    (Flat(), 1, TWO, r"actions of shape \(3, 1\), the env takes \(3, 2\)"),
    (Scores(), 5, 3, "fractions as actions, the env takes indices below 3"),
    (Scores(), 5, TWO, r"actions of shape \(3, 4\), the env takes \(3, 2\)"),
    (nn.Linear(7, 2), 5, TWO, r"fails on a vector of shape \(5,\): RuntimeError"),
]


@pytest.mark.parametrize("module, observation, action, message", FAULTS)
def test_graphs_that_do_not_fit(module: nn.Module, observation: Any, action: Any, message: str, tmp_path: Path) -> None:
    caught = refused(ConfigError, message, torchscript_policy, saved(module, tmp_path), Noise(observation, action))
    assert "policy.pt" in caught


class NoForward(nn.Module):
    @torch.jit.export
    def other(self, observation: Tensor) -> Tensor:
        return observation


class OfThree(nn.Module):
    def forward(self, observation: Tensor) -> Tensor:
        return observation[:, :2].tanh() * torch.ones(3, 2)


def test_a_program_that_fails_later(tmp_path: Path) -> None:
    policy = torchscript_policy(saved(OfThree(), tmp_path), Noise(5, TWO, num_worlds=3))
    with pytest.raises(ConfigError, match=r"policy.pt: fails on a vector of shape \(5,\): RuntimeError"):
        policy(Noise(5, TWO, num_worlds=7).reset())


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.pt: a program without a forward"):
        torchscript_policy(saved(NoForward(), tmp_path), Noise())
    refused(ConfigError, "no such file", torchscript_policy, tmp_path / "nothing.pt", Noise())
    (tmp_path / "text.pt").write_text("hello")
    refused(ConfigError, "not a TorchScript file", torchscript_policy, tmp_path / "text.pt", Noise())


# -- ONNX ----------------------------------------------------------------------------------------------------------


def graph(tmp_path: Path, inputs: dict[str, int], kind: str = "tanh") -> Path:
    """Returns tanh of the first feature of each input, joined; or, for one input, its first four features as scores."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kinds = onnx.helper, onnx.TensorProto
    constants = {"begin": [0], "end": [4 if kind == "scores" else 1 if len(inputs) > 1 else 2], "axis": [1]}
    nodes = [helper.make_node("Slice", [name, "begin", "end", "axis"], [f"{name}_cut"]) for name in inputs]
    nodes.append(helper.make_node("Concat", [f"{name}_cut" for name in inputs], ["joined"], axis=1))
    nodes.append(helper.make_node("Identity" if kind == "scores" else "Tanh", ["joined"], ["action"]))
    made = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info(name, kinds.FLOAT, ["batch", size]) for name, size in inputs.items()],
        [helper.make_tensor_value_info("action", kinds.FLOAT, ["batch", None])],
        [helper.make_tensor(name, kinds.INT64, [1], value) for name, value in constants.items()],
    )
    path = tmp_path / "policy.onnx"
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path


@pytest.mark.parametrize("agents", [None, 2])
def test_onnx_of_a_flat_observation(agents: int | None, tmp_path: Path) -> None:
    env = Noise(5, TWO, agents=agents)
    observation, action = seen_and_done(env, onnx_policy(graph(tmp_path, {"obs": 5}), env), agents)
    torch.testing.assert_close(action, observation[..., :2].tanh())


@pytest.mark.parametrize("inputs", [{"near": 2, "far": 3}, {"in_0": 3, "in_1": 2}])
def test_onnx_inputs_go_by_name_or_else_in_order(inputs: dict[str, int], tmp_path: Path) -> None:
    env = Noise({"far": 3, "near": 2}, TWO)
    observation, action = seen_and_done(env, onnx_policy(graph(tmp_path, inputs), env), None)
    order = ["near", "far"] if "near" in inputs else ["far", "near"]
    torch.testing.assert_close(action, torch.stack([observation[key][:, 0] for key in order], -1).tanh())


def test_onnx_scores(tmp_path: Path) -> None:
    env = Noise(5, 4, num_worlds=32)
    observation, action = seen_and_done(env, onnx_policy(graph(tmp_path, {"obs": 5}, "scores"), env), None)
    assert torch.equal(action, observation[:, :4].argmax(-1))


def test_onnx_that_does_not_fit(tmp_path: Path) -> None:
    path = graph(tmp_path, {"a": 2, "b": 3})
    refused(ConfigError, "takes a, b; the env shows a flat observation", onnx_policy, path, Noise(5, TWO))
    refused(ConfigError, r"fails on .*'far': \(2,\)", onnx_policy, path, Noise({"far": 2, "near": 2}, TWO))
    path.write_text("hello")
    refused(ConfigError, "not an ONNX file", onnx_policy, path, Noise(5, TWO))
    refused(ConfigError, "no such file", onnx_policy, tmp_path / "nothing.onnx", Noise(5, TWO))


def test_onnx_without_its_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    (tmp_path / "policy.onnx").touch()
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match="a policy in ONNX needs the extra 'export': pip install "):
        onnx_policy(tmp_path / "policy.onnx", Noise(5, TWO))
