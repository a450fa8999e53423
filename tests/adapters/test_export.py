"""Greedy policies as programs that run without rlstack."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded

import rlstack
from rlstack import envs
from rlstack.adapters import exporting
from rlstack.adapters.exporting import beside, deterministic, export_policy, random_inputs
from rlstack.agents import make_agent
from rlstack.config import ConfigError, to_plain
from rlstack.evaluation.evaluator import evaluate
from rlstack.runs.checkpoint import write_checkpoint
from tests.agents.recall import Recall
from tests.agents.small_agents import CASES, Decisions, Detour, plain, small
from tests.exhaustive import exhaustive
from tests.refusals import refused

FORMATS = ("torchscript", "export", "onnx")
PLAYED = ("torchscript", "onnx")
"""Formats that are kinds of agents from elsewhere, too."""
DICT = Composite({"b": Bounded(-2.0, 2.0, shape=(3,)), "a": Unbounded((2, 2)), "n": Categorical(5, shape=())})


@pytest.fixture(autouse=True)
def packages(request: pytest.FixtureRequest) -> None:
    if "onnx" in request.node.name:
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")


def marinenav(discrete: bool) -> Any:
    return envs.make("marinenav", num_worlds=2, continuous_actions=not discrete)


def settled(agent: Any) -> Any:
    """Returns an agent with observation statistics that change its actions."""
    observation, _ = random_inputs(agent.interface, 64)
    if agent.normalizer is not None:
        agent.normalizer.update(observation)
    return agent


def answers(path: Path, format: str, inputs: list[Tensor]) -> Any:
    """Runs the file as a user without rlstack would; returns the action, and the next memory of a recurrent one."""
    if format == "torchscript":
        return torch.jit.load(str(path))(*inputs)
    if format == "export":
        return torch.export.load(str(path)).module()(*inputs)
    if format == "aoti":
        return torch._inductor.aoti_load_package(str(path))(*inputs)
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    names = [entry["name"] for entry in json.loads(beside(path).read_text())["inputs"]]
    fed = {name: part.numpy() for name, part in zip(names, inputs)}
    outputs = [torch.from_numpy(np.asarray(value)) for value in session.run(None, fed)]
    return outputs if "memory" in names else outputs[0]


def check(agent: Any, path: Path, format: str, count: int = 5) -> dict[str, Any]:
    """Exports an agent, and compares the file with the agent's own decisions."""
    exported = export_policy(agent, path, format, frames=12)
    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name, f"{path.name}.json"]
    content = json.loads(beside(path).read_text())
    observation, mask = random_inputs(agent.interface, count, seed=1)
    names = [entry["name"] for entry in content["inputs"] if entry["name"] != "action_mask"]
    leaves = [observation if name == "observation" else observation[name] for name in names]
    inputs = [*leaves, *([] if mask is None else [mask])]
    assert [entry["dtype"] for entry in content["inputs"]] == [str(part.dtype)[6:] for part in inputs]
    action = answers(path, format, inputs)
    with deterministic(agent):
        expected = agent.policy(explore=False).action(observation, mask)
    torch.testing.assert_close(action, expected, atol=2e-5, rtol=0)
    assert action.shape[1:] == torch.Size(content["output"]["shape"][1:]) and exported.description == content
    return content


@exhaustive("format", FORMATS)
@exhaustive(("name", "discrete"), CASES)
def test_every_agent_in_marinenav(name: str, discrete: bool, format: str, tmp_path: Path) -> None:
    candidates = {"candidates": 4} if name == "acqn" else {}
    env = marinenav(discrete)
    for folder in ("features", "statistics"):
        (tmp_path / folder).mkdir()
    check(small(env, name=name, **candidates), tmp_path / "features" / "policy", format)  # the world's own scaling
    agent = settled(small(env, name=name, inputs="raw", normalize_observations=True, **candidates))
    content = check(agent, tmp_path / "statistics" / "policy", format)
    assert [entry["name"] for entry in content["inputs"]] == ["self", "objects", "mask"]
    assert content["frames"] == 12 and content["output"]["kind"] == ("discrete" if discrete else "continuous")
    assert all(p.requires_grad for p in agent.parameters())


@pytest.mark.parametrize("name", ["arena", "rocket"])
def test_features_of_other_worlds_in_onnx(name: str, tmp_path: Path) -> None:
    check(small(envs.make(name, num_worlds=2), name="ppo"), tmp_path / "onnx", "onnx")


@exhaustive("format", FORMATS)
@exhaustive(
    ("name", "observation", "action", "masked"),
    [
        ("ppo", DICT, MultiCategorical([2, 3, 4]), True),
        ("rainbow", Bounded(-2.0, 2.0, shape=(3,)), Categorical(4, shape=()), True),
        ("iqn", Bounded(-2.0, 2.0, shape=(3,)), Categorical(4, shape=()), True),
        ("sac", DICT, Bounded(-3.0, 1.0, shape=(2,)), False),
        ("dqn", DICT, Categorical(4, shape=(1,)), False),
        ("dqn", Bounded(0, 255, shape=(36, 36, 2), dtype=torch.uint8), Categorical(4, shape=()), False),
    ],
)
def test_other_observations_and_masks(
    name: str, observation: TensorSpec, action: TensorSpec, masked: bool, format: str, tmp_path: Path
) -> None:
    env: Any = Decisions(observation, action, masked)
    content = check(settled(small(env, name=name)), tmp_path / "policy", format)
    assert (content["inputs"][-1]["name"] == "action_mask") == masked


def test_attention_in_onnx(tmp_path: Path) -> None:
    seen = Composite({"objects": Unbounded((6, 4)), "there": Bounded(0.0, 1.0, shape=(6,))})
    encoders = {"objects": {"kind": "attention", "hidden": [8], "mask": "there"}}
    env: Any = Decisions(seen, Bounded(-1.0, 1.0, shape=(2,)))
    check(make_agent("ppo", env, hidden=[8], encoders=encoders), tmp_path / "policy", "onnx", count=7)


def test_names_of_inputs_in_onnx(tmp_path: Path) -> None:
    """A number is no name there, the action has a name already, and an input without use does not exist."""
    seen = Composite({"0": Unbounded(2), "action": Unbounded(3), "unused": Unbounded(4), "memory": Unbounded(5)})
    env: Any = Decisions(seen, Bounded(-1.0, 1.0, shape=(2,)))
    agent = make_agent("ppo", env, hidden=[8], policy_gain=1.0, encoders={"unused": {"kind": "skip"}})
    exported = export_policy(agent, tmp_path / "policy", "onnx")
    observation, _ = random_inputs(agent.interface, 5)
    inputs = [observation[name] for name in ("0", "action", "memory")]
    names = [entry["name"] for entry in exported.description["inputs"]]
    assert names == ["observation.0", "observation.action", "observation.memory"]
    expected = agent.policy(explore=False).action(observation)
    torch.testing.assert_close(answers(tmp_path / "policy", "onnx", inputs), expected, atol=2e-5, rtol=0)


def test_an_input_without_use_need_not_be_given_to_onnx_later(tmp_path: Path) -> None:
    env: Any = Decisions(DICT, Bounded(-1.0, 1.0, shape=(2,)))
    agent = make_agent("ppo", env, hidden=[8], policy_gain=1.0, encoders={"a": {"kind": "skip"}})
    export_policy(agent, tmp_path / "policy", "onnx")
    seen = env.draw(5)
    action = rlstack.make_agent("legacy", env, kind="onnx", path=str(tmp_path / "policy")).policy(explore=False)(seen)
    torch.testing.assert_close(action["action"], agent.policy(explore=False)(seen)["action"], atol=2e-5, rtol=0)


class OfDict(nn.Module):
    """A network of observations (and actions) that are dicts."""

    def __init__(self, inputs: dict[str, Any], outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(sum(math.prod(np.atleast_1d(size)) for size in inputs.values()), outputs)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return self.layer(torch.cat([part.flatten(1) for part in x.values()], -1))


@exhaustive("format", FORMATS)
@pytest.mark.parametrize(("name", "discrete"), [("dqn", True), ("acqn", False)])
def test_a_network_of_the_user_s_for_a_dict(name: str, discrete: bool, format: str, tmp_path: Path) -> None:
    seen = Composite({"b": Bounded(-2.0, 2.0, shape=(3,)), "a": Unbounded((2, 2))})
    env: Any = Decisions(seen, Categorical(4, shape=()) if discrete else Bounded(-1.0, 1.0, shape=(2,)))
    check(make_agent(name, env, network=f"{__name__}:OfDict"), tmp_path / "policy", format)


@exhaustive("format", FORMATS)
@pytest.mark.parametrize(("name", "discrete"), [("torchrl_ppo", True), ("torchrl_sac", False)])
def test_a_loss_of_torchrl_in_a_world_of_dicts(name: str, discrete: bool, format: str, tmp_path: Path) -> None:
    env: Any = Decisions(DICT, Categorical(4, shape=()) if discrete else Bounded(-3.0, 1.0, shape=(2,)))
    check(make_agent(name, env, hidden=[8]), tmp_path / "policy", format)


class OfThree(nn.Module):
    """A network that counts its rows in Python, which a trace cannot follow."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs + 1, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.cat((x, torch.zeros(len(x), 1)), -1))


@pytest.mark.parametrize("format", PLAYED)
def test_a_program_for_a_fixed_number_of_rows_is_not_kept(format: str, tmp_path: Path) -> None:
    agent = make_agent("dqn", plain(discrete=True), network=f"{__name__}:OfThree")
    message = rf"^format={format}: cannot express this agent.*its program fails for 1000 rows or for one: \w+: .+"
    refused(ConfigError, message, export_policy, agent, tmp_path / "policy", format)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [("iqn", {"act_levels": "random"}, "evenly spaced"), ("sac", {"greedy": "sample"}, "most probable")],
)
def test_what_is_random_is_left_out_and_told(name: str, options: dict[str, Any], word: str, tmp_path: Path) -> None:
    agent = small(plain(discrete=True), name=name, **options)
    assert word in check(agent, tmp_path / "policy.pt", "torchscript")["note"]
    assert agent.config == small(plain(discrete=True), name=name, **options).config


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_program_is_compiled(tmp_path: Path) -> None:
    check(small(plain(discrete=False), name="ppo"), tmp_path / "policy.pt2", "aoti")


@pytest.mark.parametrize(
    ("format", "error", "message"),
    [
        ("aoti", "No working C++ compiler found", "format=aoti: .* C.. com"),
        ("onnx", "no such operator\nand more", r"cannot express .*RuntimeError: no such operator\)$"),
    ],
)
def test_what_cannot_be_written_is_one_line_and_leaves_nothing(
    format: str, error: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = {"aoti": "torch._inductor.aoti_compile_and_package", "onnx": "torch.onnx.export"}[format]
    monkeypatch.setattr(writer, Mock(side_effect=RuntimeError(error)))
    agent = small(plain(discrete=False), name="ppo")
    refused(ConfigError, message, export_policy, agent, tmp_path / "policy.pt2", format)
    assert not list(tmp_path.iterdir())


@exhaustive("format", PLAYED)
def test_it_comes_back_as_an_agent_from_elsewhere(format: str, tmp_path: Path) -> None:
    agent = small(Detour(), name="td3")
    export_policy(agent, tmp_path / "policy", format)
    tables = [
        evaluate(policy, "tests.agents.small_agents:Detour", {}, 4, 0).table()
        for policy in (
            agent.policy(explore=False),
            rlstack.load_policy(f"{format}:{tmp_path / 'policy'}", Detour()),
            rlstack.make_agent("legacy", Detour(), kind=format, path=str(tmp_path / "policy")).policy(explore=False),
        )
    ]
    assert tables[0][0]["return"] == pytest.approx(tables[1][0]["return"], abs=1e-5) and tables[1] == tables[2]


@pytest.mark.parametrize("format", PLAYED)
def test_masks_come_back_too(format: str, tmp_path: Path) -> None:
    env: Any = Decisions(Bounded(-2.0, 2.0, shape=(3,)), Categorical(4, shape=()), masked=True)
    agent = small(env, name="dqn")
    with torch.no_grad():
        agent.network.output.bias[0] = 100.0  # what is never legal
    export_policy(agent, tmp_path / "policy", format)
    again = rlstack.make_agent("legacy", env, kind=format, path=str(tmp_path / "policy"))
    seen = env.draw(64)
    action = again.policy(explore=False)(seen.clone())["action"]
    assert torch.equal(action, agent.policy(explore=False)(seen)["action"]) and (action > 0).all()


# -- mistakes ----------------------------------------------------------------------------------------------------


GRU = {"kind": "gru", "size": 4}


@pytest.mark.parametrize(
    ("discrete", "recurrent", "spoiled", "does"),
    [(True, None, 0, "acts"), (False, None, 0, "acts"), (False, GRU, 0, "acts"), (False, GRU, 1, "remembers")],
)
def test_a_program_that_does_otherwise_is_not_kept(
    discrete: bool, recurrent: Any, spoiled: int, does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = exporting.write_program

    def other(module: Any, format: str) -> Any:
        content, program = written(module, format)

        def in_every_other_row(inputs: Any) -> Any:
            odd = torch.arange(len(inputs[0])) % 2
            outputs = [*program(inputs)] if recurrent else [program(inputs)]
            outputs[spoiled] = (outputs[0] + odd) % 4 if discrete else outputs[spoiled] + 2e-5 * odd[:, None]
            return tuple(outputs) if recurrent else outputs[0]

        return content, in_every_other_row

    monkeypatch.setattr(exporting, "write_program", other)
    agent, message = small(plain(discrete), name="ppo", recurrent=recurrent), rf"{does} otherwise than .* \d+ of 1000 "
    refused(ConfigError, message, export_policy, agent, tmp_path / "policy.pt")
    assert list(tmp_path.iterdir()) == []


def test_rounding_may_decide_what_is_remembered_in_onnx(tmp_path: Path) -> None:
    env = envs.make("echelon", num_worlds=2, blue=1, red=1, maps=2)  # whose observations have 346 numbers up to 467
    agent = make_agent("ppo", env, hidden=[8], recurrent={"kind": "gru", "size": 8})
    export_policy(agent, tmp_path / "policy.onnx", "onnx")


def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = small(plain(True), name="dqn")
    message = "format: 'pickle' is unknown, allowed: torchscript, export, aoti, onnx"
    refused(ConfigError, message, export_policy, agent, tmp_path / "x", "pickle")
    (tmp_path / "file").touch()
    refused(ConfigError, r"out: .* cannot be written", export_policy, agent, tmp_path / "file/x")
    refused(ConfigError, r"out: .* is a folder", export_policy, agent, tmp_path)
    foreign = rlstack.make_agent("legacy", plain(True), kind="callable", path="tests.small_run:still")  # type: ignore[arg-type]
    refused(ConfigError, "Legacy cannot be exported", export_policy, foreign, tmp_path / "x")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    message = "format=onnx needs the extra 'export': pip install "
    refused(ConfigError, message, export_policy, agent, tmp_path / "x", "onnx")


@pytest.mark.parametrize("failing", ["policy", "policy.json"])
def test_a_failure_leaves_what_was_there(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = os.fsync

    def full(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if "partial" in name and name.endswith(".json") == failing.endswith(".json"):
            raise OSError(28, "No space left on device")
        synced(descriptor)

    (tmp_path / "policy").write_text("old")
    (tmp_path / "policy.json").write_text("older")
    monkeypatch.setattr(os, "fsync", full)
    message = r"out: .*policy cannot be written \(No space left on device\)$"
    refused(ConfigError, message, export_policy, small(plain(True), name="dqn"), tmp_path / "policy")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"policy": "old", "policy.json": "older"}


# -- rlstack convert ------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    agent = small(marinenav(False), name="acqn")
    config = {"agent": to_plain(agent.config), "env": {"name": "marinenav", "num_worlds": 2}, "total_frames": 10}
    write_checkpoint(tmp_path / "ours.pt", {"frames": 7, "agent": agent.state_dict(), "config": config}, 7)
    return tmp_path / "ours.pt"


def test_the_command(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rlstack.convert(f"checkpoint={checkpoint}", "++agent.candidates=4")
    path = checkpoint.parent / "exports/ours_policy.pt"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "input self: float32 ['batch', 7]" and lines[-1] == f"wrote {path} and {path}.json"
    assert json.loads(beside(path).read_text())["frames"] == 7
    refused(ConfigError, "checkpoint=", rlstack.convert)


@pytest.mark.slow
def test_the_program_needs_no_rlstack(checkpoint: Path, tmp_path: Path) -> None:
    rlstack.convert(f"checkpoint={checkpoint}", f"out={tmp_path / 'policy.pt'}")
    code = (
        "import sys, torch; p = torch.jit.load('policy.pt');"
        "print(p(torch.zeros(7, 7), torch.zeros(7, 5, 5), torch.zeros(7, 5).bool()).shape, 'rlstack' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout == "torch.Size([7, 2]) False\n"


# -- a recurrent core, whose state the caller passes on ----------------------------------------------------------


@exhaustive("format", PLAYED)
@exhaustive(("name", "kind"), [("ppo", "lstm"), ("dqn", "gru")])
def test_a_program_acts_as_the_policy_for_whole_episodes(name: str, kind: str, format: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    env = Recall(4, delay=2)
    agent = make_agent(name, env, recurrent={"kind": kind, "size": 8, "layers": 2})
    export_policy(agent, tmp_path / "policy", format)
    described = json.loads(beside(tmp_path / "policy").read_text())
    size = described["inputs"][1]["shape"][1]
    assert described["inputs"][1]["name"] == "memory" and "next_memory" in described["memory"]
    rollout = env.rollout(11, agent.policy(explore=False), break_when_any_done=False)
    memory = torch.zeros(4, size)
    for t in range(11):
        action, memory = answers(tmp_path / "policy", format, [rollout["observation"][:, t], memory])
        assert torch.equal(action, rollout["action"][:, t])
        torch.testing.assert_close(memory, rollout["next", "memory"][:, t])
        memory = memory * ~rollout["next", "done"][:, t]
