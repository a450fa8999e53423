"""Policies from elsewhere: callables, objects, and files by one name, ``kind:path``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.data import MultiCategorical, OneHot
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.adapters.protocols import callable_policy
from rlstack.adapters.scripted import onnx_policy, torchscript_policy
from rlstack.agents.legacy import KINDS, load_policy
from rlstack.config import ConfigError
from rlstack.envs.foundation.packages import found
from tests.adapters.small_worlds import Noise, box
from tests.refusals import refused

TWO = box((-1, 1), (0, 2))


def sign_of_first(observation: Any) -> Any:
    """A policy that returns 0 or 1, batched, for numpy and torch alike."""
    return (observation[..., 0] > 0) * 1


class Acting:
    """A policy that takes one observation at a time, as MarineNav's agents do."""

    def act(self, state: Any, eps: float) -> int:
        assert state.shape == (5,) and eps == 0.0
        return int(state[0] > 0)


class Predicting:
    def predict(self, observation: Any) -> Any:
        assert isinstance(observation, np.ndarray)
        return sign_of_first(observation)


class PredictingTwo(Predicting):
    def predict(self, observation: Any) -> Any:
        return super().predict(observation), None


class Linear(nn.Module):
    """A policy that takes tensors and returns two scores."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        assert isinstance(observation, torch.Tensor)
        return observation[..., :1].sign().long().clamp(min=0)


FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "function": (sign_of_first, {}),
    "function of tensors": (lambda observation: observation[..., 0].gt(0).long(), {}),
    "tensors asked for": (lambda observation: observation[..., 0].gt(0).long(), {"arrays": "torch"}),
    "one at a time": (lambda observation: int(observation[0] > 0), {"batched": False}),
    "list": (lambda observation: [int(value) for value in observation[:, 0] > 0], {}),
    "module": (Linear(), {}),
    "act": (Acting(), {}),
    "predict": (Predicting(), {}),
    "predict with state": (PredictingTwo(), {}),
}


@pytest.mark.parametrize("agents", [None, 2])
@pytest.mark.parametrize("obj, options", FORMS.values(), ids=FORMS.keys())
def test_every_form_acts_in_every_layout(obj: Any, options: dict[str, Any], agents: int | None) -> None:
    env = Noise(5, 2, num_worlds=6, agents=agents)
    policy, td = callable_policy(obj, env, **options), env.reset()
    place = td if agents is None else td["agents"]
    policy(td)
    assert torch.equal(place["action"], (place["observation"][..., 0] > 0).long())
    env.rollout(3, policy, break_when_any_done=False)


def test_forms_by_name() -> None:
    class All(Predicting, Acting):
        def __call__(self, observation: Any) -> Any:
            return np.zeros(len(observation), dtype=np.int64)

    env, td = Noise(5, 2, num_worlds=64), Noise(5, 2, num_worlds=64).reset()
    expected = (td["observation"][:, 0] > 0).long()
    for name, action in {"auto": expected, "predict": expected, "act": expected, "callable": 0 * expected}.items():
        assert torch.equal(callable_policy(All(), env, name)(td)["action"], action)  # type: ignore[arg-type]
    for obj, name in ((Acting(), "predict"), (Predicting(), "act"), (Predicting(), "callable")):
        refused(ConfigError, f"it offers no {name}", callable_policy, obj, env, name)  # type: ignore[arg-type]


def test_continuous_actions_and_one_hot_ones() -> None:
    env, td = Noise(5, TWO, num_worlds=3), Noise(5, TWO, num_worlds=3).reset()
    action = callable_policy(lambda observation: np.full((len(observation), 2), 0.5), env)(td)["action"]
    assert action.dtype == torch.float32 and (action == 0.5).all() and action.shape == (3, 2)
    env = Noise(5, OneHot(4), num_worlds=3)
    assert callable_policy(lambda o: np.full(len(o), 2), env)(env.reset())["action"].tolist() == [[0, 0, 1, 0]] * 3
    assert callable_policy(lambda o: np.eye(4)[[1] * len(o)], env)(env.reset())["action"].tolist() == [[0, 1, 0, 0]] * 3


def test_structured_observations_are_dicts() -> None:
    env = envs.make("marinenav", num_worlds=3, num_robots=2)

    def single(observation: dict[str, np.ndarray]) -> list[float]:
        shapes = {key: value.shape for key, value in observation.items()}
        assert shapes == {"self": (7,), "objects": (5, 5), "mask": (5,)}
        return [float(np.tanh(observation["self"][0])), 0.0]

    td = callable_policy(single, env, batched=False)(env.reset())
    expected = td["agents", "observation", "self"][..., 0].tanh()
    torch.testing.assert_close(td["agents", "action"][..., 0], expected)


def test_a_memory_is_handed_back_and_begins_anew() -> None:
    class Counting:
        """A policy whose action is the number of steps of the episode so far, at most 9."""

        def predict(self, observation: Any, state: Any = None, episode_start: Any = None) -> Any:
            count = np.zeros(len(observation), dtype=np.int64) if state is None else np.where(episode_start, 0, state)
            return count, np.minimum(count + 1, 9)

    env = Noise(5, 10, num_worlds=3)
    policy = callable_policy(Counting(), env)
    for _ in range(2):
        action = env.rollout(8, policy, break_when_any_done=False)["action"]
        assert action.tolist() == [[t % (3 + w) for t in range(8)] for w in range(3)]


def test_deterministic_predictions_are_asked_for() -> None:
    class Sampling:
        def predict(self, observation: Any, deterministic: bool = False) -> Any:
            return np.full(len(observation), int(deterministic))

    env = Noise(5, 2)
    assert callable_policy(Sampling(), env)(env.reset())["action"].tolist() == [1, 1, 1]


class Silent:
    pass


FAULTS: list[tuple[Any, Any, dict[str, Any], str]] = [
    (Silent(), 4, {}, r"Silent is not a policy: it offers no predict\(obs\), act\(state, eps\) or call"),
    (Acting, 4, {}, "it is a class, an instance is needed"),
    (Acting(), 4, {"protocol": "other"}, "'other' is unknown, allowed: auto, predict, act, callable"),
    (lambda o: np.zeros((len(o), 3)), TWO, {"arrays": "numpy"}, r"actions of shape \(3, 3\), the env takes \(3, 2\)"),
    (lambda o: np.zeros(7, dtype=int), 4, {"arrays": "numpy"}, r"actions of shape \(7,\), the env takes \(3,\)"),
    (lambda o: np.zeros((len(o), 2), dtype=int), TWO, {"arrays": "numpy"}, r"torch.int64, the env takes torch.float32"),
    (lambda o: np.full(len(o), 0.5), 4, {"arrays": "numpy"}, "fractions as actions, the env takes indices below 4"),
    (lambda o: np.full(len(o), 4), 4, {"arrays": "numpy"}, r"actions in \[4, 4\], the env takes \[0, 3\]"),
    (lambda o: np.full((len(o), 2), -0.5), TWO, {"arrays": "numpy"}, r"actions in \[-0.5, -0.5\], the env takes"),
    (lambda o: np.full((len(o), 2), np.nan), TWO, {"arrays": "numpy"}, "not a finite number"),
    (lambda o: "left", 4, {"arrays": "numpy"}, "not an array of numbers"),
    (lambda o: o["self"], 4, {"arrays": "numpy"}, "fails on a vector of shape .*IndexError"),
    (lambda o: o.nothing, 4, {}, "with numpy arrays, .*AttributeError.*with torch arrays, .*AttributeError"),
]


@pytest.mark.parametrize("obj, action, options, message", FAULTS)
def test_what_does_not_fit_is_told_in_one_line(obj: Any, action: Any, options: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, callable_policy, obj, Noise(5, action), **options)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([[3, 0, 1], [4, 0, 1]], r"actions in \[0, 4\], the env takes \[0, 3\]"),
        ([[3, 0, 1], [0, -1, 1]], r"actions in \[-1, 1\], the env takes \[0, 3\]"),
        ([[3, 0, 1]], r"<lambda>: fails on a vector of shape \(5,\): StopIteration"),
    ],
)
@pytest.mark.parametrize("one_hot", [False, True])
def test_every_answer_is_checked(answers: list[list[int]], message: str, one_hot: bool) -> None:
    left = iter(answers)
    env = Noise(5, OneHot(4) if one_hot else 4)
    policy = callable_policy(lambda _: np.array(next(left)), env, arrays="numpy")
    refused(ConfigError, message, policy, env.reset())


def test_several_choices_are_checked_too() -> None:
    env = Noise(5, MultiCategorical([2, 3]))
    callable_policy(lambda o: np.tile([1, 2], (len(o), 1)), env)
    with pytest.raises(ConfigError, match=r"actions in \[1, 2\], the env takes"):
        callable_policy(lambda o: np.tile([2, 1], (len(o), 1)), env)


def test_trying_leaves_the_generator_and_the_observations_alone() -> None:
    seen: list[Any] = []

    def scribble(observation: Any) -> Any:
        seen.append(observation.copy())
        observation[:] = 0
        return np.zeros(len(observation), dtype=np.int64)

    env = Noise(5, 4)
    state, td = torch.get_rng_state(), env.reset()
    shown: TensorDictBase = td.clone()
    callable_policy(scribble, env, arrays="numpy")(td)
    callable_policy(scribble, env, arrays="numpy")
    np.testing.assert_array_equal(seen[0], seen[-1])  # what it is tried on is always the same
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(td["observation"], shown["observation"])


def test_loading_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strangers_policy.py").write_text(
        "class Agents:\n    best = max\nclass Computed:\n    it = property(lambda self: 1 / 0)\ncomputed = Computed()\n"
    )
    (tmp_path / "strangers_end.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "strangers_mistake.py").write_text("raise OSError('no licence')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert found("strangers_policy:Agents.best") is max
    for path, message in {
        "strangers_policy": "not of the form 'package.module:attribute'",
        "strangers_policy:": "not of the form",
        "strangers_policy:agents": "has no 'agents'; it has Agents, Computed, computed",
        "no_such_module:x": "no_such_module:x cannot be imported: No module named 'no_such_module'",
        "strangers_mistake:x": "OSError: no licence",
        "strangers_end:x": r"strangers_end:x cannot be imported: SystemExit: 3 \(strangers_end.py, line 1\)",
        "math:pi.x": "float has no 'x'",
        "strangers_policy:computed.it": r"it cannot be had \(ZeroDivisionError: division by zero\)",
    }.items():
        refused(ConfigError, message, callable_policy, path, Noise(5, 4))
    sys.modules.pop("strangers_policy", None)


# -- Policies by one name, ``kind:path`` -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("nowhere", {}, f"'nowhere' does not exist; .* one of the kinds {', '.join(KINDS)}"),
        ("sb4:x.zip", {}, "kind: no option 'sb4', did you mean 'sb3'"),
        ("sb3:", {}, "nothing behind the kind, expected sb3:path"),
        ("sb3:nothing.zip", {}, "nothing.zip: cannot be read"),
        ("sb3:x.zip", {"agent_type": "IQN"}, "sb3.agent_type: unknown key, allowed: deterministic, vecnormalize"),
        ("onnx:nothing.onnx", {}, "nothing.onnx: no such file"),
        ("rlstack:nowhere", {}, "checkpoint: nowhere does not exist"),
    ],
)
def test_mistakes_are_one_line(source: str, options: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, load_policy, source, Noise(), **options)


# -- TorchScript and ONNX files ----------------------------------------------------------------------------------


pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore::FutureWarning")

KEYS = {"near": 2, "far": 3}  # the env lists them as far, near: the order of their names
SQUARE = box((-1, 1), (-1, 1))


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
    env = Noise(5, SQUARE, agents=agents)
    observation, action = seen_and_done(env, torchscript_policy(saved(module, tmp_path), env), agents)
    torch.testing.assert_close(action, observation[..., :2].tanh())
    assert action.dtype == torch.float32


@pytest.mark.parametrize("agents", [None, 2])
@pytest.mark.parametrize("module", [Parts(), OneTuple(), OneList(), OneDict()])
def test_structured_observation(module: nn.Module, agents: int | None, tmp_path: Path) -> None:
    env = Noise(dict(sorted(KEYS.items())), SQUARE, agents=agents)
    observation, action = seen_and_done(env, torchscript_policy(saved(module, tmp_path), env), agents)
    expected = torch.stack((observation["far"][..., 0], observation["near"][..., 0]), -1).tanh()
    torch.testing.assert_close(action, expected)


@pytest.mark.parametrize("module", [Scores(), Index()])
@pytest.mark.parametrize("one_hot", [False, True])
def test_discrete_actions(module: nn.Module, one_hot: bool, tmp_path: Path) -> None:
    env = Noise(5, OneHot(4) if one_hot else 4, num_worlds=32)
    observation, action = seen_and_done(env, torchscript_policy(saved(module, tmp_path), env), None)
    assert torch.equal(action.long().argmax(-1) if one_hot else action, observation[:, :4].argmax(-1))
    assert env.full_action_spec["action"].is_in(action)


GRAPH_FAULTS: list[tuple[nn.Module, Any, Any, str]] = [
    (Parts(), 5, SQUARE, r"forward takes first: Tensor, second: Tensor; the env shows 1 tensor \(a flat observation\)"),
    (Flat(), KEYS, SQUARE, r"forward takes observation: Tensor; the env shows 2 tensors"),
    (Flat(), 1, SQUARE, r"actions of shape \(3, 1\), the env takes \(3, 2\)"),
    (Scores(), 5, 3, "fractions as actions, the env takes indices below 3"),
    (Scores(), 5, SQUARE, r"actions of shape \(3, 4\), the env takes \(3, 2\)"),
    (nn.Linear(7, 2), 5, SQUARE, r"fails on a vector of shape \(5,\): RuntimeError"),
]


@pytest.mark.parametrize("module, observation, action, message", GRAPH_FAULTS)
def test_graphs_that_do_not_fit(module: nn.Module, observation: Any, action: Any, message: str, tmp_path: Path) -> None:
    caught = refused(ConfigError, message, torchscript_policy, saved(module, tmp_path), Noise(observation, action))
    assert "policy.pt" in caught


class NoForward(nn.Module):
    @torch.jit.export
    def other(self, observation: Tensor) -> Tensor:
        return observation


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.pt: a program without a forward"):
        torchscript_policy(saved(NoForward(), tmp_path), Noise())
    refused(ConfigError, "no such file", torchscript_policy, tmp_path / "nothing.pt", Noise())
    (tmp_path / "text.pt").write_text("hello")
    refused(ConfigError, "not a TorchScript file", torchscript_policy, tmp_path / "text.pt", Noise())


# -- ONNX ----------------------------------------------------------------------------------------------------------


def graph(tmp_path: Path, inputs: dict[str, int]) -> Path:
    """Returns tanh of the first feature of each input, joined, or of the first two of a single input."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kinds = onnx.helper, onnx.TensorProto
    constants = {"begin": [0], "end": [1 if len(inputs) > 1 else 2], "axis": [1]}
    nodes = [helper.make_node("Slice", [name, "begin", "end", "axis"], [f"{name}_cut"]) for name in inputs]
    nodes.append(helper.make_node("Concat", [f"{name}_cut" for name in inputs], ["joined"], axis=1))
    nodes.append(helper.make_node("Tanh", ["joined"], ["action"]))
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
    env = Noise(5, SQUARE, agents=agents)
    observation, action = seen_and_done(env, onnx_policy(graph(tmp_path, {"obs": 5}), env), agents)
    torch.testing.assert_close(action, observation[..., :2].tanh())


@pytest.mark.parametrize("inputs", [{"near": 2, "far": 3}, {"in_0": 3, "in_1": 2}])
def test_onnx_inputs_go_by_name_or_else_in_order(inputs: dict[str, int], tmp_path: Path) -> None:
    env = Noise({"far": 3, "near": 2}, SQUARE)
    observation, action = seen_and_done(env, onnx_policy(graph(tmp_path, inputs), env), None)
    order = ["near", "far"] if "near" in inputs else ["far", "near"]
    torch.testing.assert_close(action, torch.stack([observation[key][:, 0] for key in order], -1).tanh())


def test_onnx_that_does_not_fit(tmp_path: Path) -> None:
    path = graph(tmp_path, {"a": 2, "b": 3})
    refused(ConfigError, "takes a, b; the env shows a flat observation", onnx_policy, path, Noise(5, SQUARE))
    refused(ConfigError, r"fails on .*'far': \(2,\)", onnx_policy, path, Noise({"far": 2, "near": 2}, SQUARE))
    path.write_text("hello")
    refused(ConfigError, "not an ONNX file", onnx_policy, path, Noise(5, SQUARE))
    refused(ConfigError, "no such file", onnx_policy, tmp_path / "nothing.onnx", Noise(5, SQUARE))


def test_onnx_without_its_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    (tmp_path / "policy.onnx").touch()
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match="a policy in ONNX needs the extra 'export': pip install "):
        onnx_policy(tmp_path / "policy.onnx", Noise(5, SQUARE))
