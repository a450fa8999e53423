"""Policies by one name, ``kind:path``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rlstack
from rlstack import envs
from rlstack.adapters.sb3.model import load_sb3
from rlstack.agents.foreign import KINDS, load_policy, parse
from rlstack.config import ConfigError
from rlstack.runs.checkpoint import write_checkpoint
from tests.adapters.small_worlds import Noise, box
from tests.refusals import refused

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


class LeftRight:
    """A policy that reads the first feature only."""

    def act(self, state: Any, eps: float) -> int:
        return int(state[0] > 0)


left_right = LeftRight()


def act(source: str, env: Any, **options: Any) -> tuple[Tensor, Tensor]:
    td = env.reset()
    return td["observation"], load_policy(source, env, **options)(td)["action"]


def test_sb3_with_and_without_statistics() -> None:
    zipped, statistics = FIXTURES / "sb3/ppo_mlp_box_action.zip", FIXTURES / "sb3/ppo_mlp_box_action_vecnormalize.pkl"
    env = Noise(32, box((-1, 1), (-1, 1)))
    seen, raw = act(f"sb3:{zipped}", env)
    network: Any = load_sb3(zipped).network
    torch.testing.assert_close(raw, network(seen)[0]["mean"].clamp(-1, 1))
    seen, scaled = act(f"sb3:{zipped}", env, vecnormalize=str(statistics))
    model = load_sb3(zipped, statistics)
    torch.testing.assert_close(scaled, network(model.features(seen))[0]["mean"].clamp(-1, 1))


def test_a_callable_with_a_protocol() -> None:
    seen, action = act("callable:tests.adapters.test_loading:left_right", Noise(5, 2, num_worlds=32))
    assert torch.equal(action, (seen[:, 0] > 0).long()) and len(action.unique()) == 2


@pytest.mark.parametrize("prefix", ["", "rlstack:"])
def test_a_checkpoint_of_ours(prefix: str, tmp_path: Path) -> None:
    env = envs.make("marinenav", num_worlds=2)
    agent = rlstack.make_agent("ppo", env, hidden=[8], steps_per_batch=2)
    from rlstack.config import to_plain

    config = {"agent": to_plain(agent.config), "env": {"name": "marinenav", "num_worlds": 1}, "total_frames": 1e1}
    state = {"frames": 7, "agent": agent.state_dict(), "config": config}
    write_checkpoint(tmp_path / "ours.pt", state, 7)
    td = env.reset()
    ours = agent.policy(explore=False)(td.clone())["agents", "action"]
    loaded = load_policy(f"{prefix}{tmp_path / 'ours.pt'}", env)(td)["agents", "action"]
    assert torch.equal(ours, loaded)
    other = envs.make("marinenav", num_worlds=1, continuous_actions=False)
    refused(ConfigError, "does not fit the env: action is Categorical", load_policy, str(tmp_path / "ours.pt"), other)


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


def test_only_the_first_colon_counts() -> None:
    assert parse("callable:package.module:thing") == ("callable", "package.module:thing")
