"""Exported policies with a recurrent core, whose state the caller passes on."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlstack.adapters.exporting import beside, export_policy
from rlstack.agents import make_agent
from tests.agents.recall import Recall
from tests.exhaustive import exhaustive

HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))
FORMATS = ["torchscript", pytest.param("onnx", marks=pytest.mark.skipif(not HAS_ONNX, reason="needs onnx"))]


def run(path: Path, format: str) -> Any:
    if format == "torchscript":
        return torch.jit.load(path)
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def program(observation: Tensor, memory: Tensor) -> list[Tensor]:
        fed = {"observation": observation.numpy(), "memory": memory.numpy()}
        return [torch.from_numpy(np.asarray(value)) for value in session.run(["action", "next_memory"], fed)]

    return program


@exhaustive("format", FORMATS)
@exhaustive(("name", "kind"), [("ppo", "lstm"), ("dqn", "gru")])
def test_a_program_acts_as_the_policy_for_whole_episodes(name: str, kind: str, format: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    env = Recall(4, delay=2)
    agent = make_agent(name, env, recurrent={"kind": kind, "size": 8, "layers": 2})
    export_policy(agent, tmp_path / "policy", format)
    described = json.loads(beside(tmp_path / "policy").read_text())
    size = described["inputs"][1]["shape"][1]
    assert described["inputs"][1]["name"] == "memory" and "next_memory" in described["memory"]
    program = run(tmp_path / "policy", format)
    rollout = env.rollout(11, agent.policy(explore=False), break_when_any_done=False)
    memory = torch.zeros(4, size)
    for t in range(11):
        action, memory = program(rollout["observation"][:, t], memory)
        assert torch.equal(action, rollout["action"][:, t])
        torch.testing.assert_close(memory, rollout["next", "memory"][:, t])
        memory = memory * ~rollout["next", "done"][:, t]
