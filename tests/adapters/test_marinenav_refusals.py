"""Files, envs and options that fit no published agent give one clear line, and nothing runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlstack import envs
from rlstack.adapters.marinenav.agents import published_agent, published_policy, save_published
from rlstack.adapters.marinenav.files import NETWORKS, load_published
from rlstack.config import ConfigError
from tests.adapters.published_networks import CONTINUOUS, acting_network, native, world, write
from tests.exhaustive import exhaustive
from tests.refusals import refused

ACTOR = Path(__file__).resolve().parents[1] / "fixtures/marinenav/AC_IQN_params.npz"


def unreadable(match: str, *arguments: Any, **options: Any) -> None:
    refused(ConfigError, match, load_published, *arguments, **options)


def test_incomplete_and_mixed_directories(tmp_path: Path) -> None:
    unreadable(
        "holds no published agent, needed is one of: actor_network_params.pth, critic_network_params.pth", tmp_path
    )
    save_published(native("SAC"), tmp_path)
    unreadable("are not DQN, needed is one of: ", tmp_path, "DQN")
    (tmp_path / "critic_2_params.pth").unlink()
    unreadable("actor_network_params.pth, critic_1_params.pth are not one agent.*an actor alone", tmp_path)
    unreadable("are not SAC, needed is one of: ", tmp_path, agent_type="SAC")
    unreadable(r"no option 'TD3'.*AC-IQN.*Rainbow", tmp_path, agent_type="TD3")
    unreadable("No such file or directory", tmp_path / "nowhere")


def test_networks_of_different_agents(tmp_path: Path) -> None:
    save_published(native("DDPG"), tmp_path)
    torch.save(acting_network("SAC").state_dict(), tmp_path / "actor_network_params.pth")
    unreadable("actor_network_params.pth, critic_network_params.pth are of different agents", tmp_path)
    save_published(native("DQN"), tmp_path)
    unreadable("holds an agent of type DQN, not IQN", tmp_path / "network_params.pth", "IQN")


def arrays(**changes: Any) -> dict[str, Any]:
    """Returns the arrays of a published actor with some replaced, or left out."""
    with np.load(ACTOR) as file:
        changed = {**file, **{key.replace("__", "."): value for key, value in changes.items()}}
    return {key: value for key, value in changed.items() if value is not None}


WEIGHTS: list[tuple[dict[str, Any], str]] = [
    ({"cos_embedding__weight": np.zeros((256, 64))}, "has also cos_embedding.weight"),
    ({"output_layer__bias": None}, "lacks output_layer.bias .compared with AC-IQN's"),
    ({"output_layer__bias": np.zeros(9), "output_layer__weight": np.zeros((9, 128))}, "9 outputs, not 2"),
    ({"hidden_layer__weight": np.zeros(128)}, r"hidden_layer.weight is float\d+ of shape \(128,\)"),
    ({"hidden_layer__bias": np.zeros(128, dtype=int)}, "hidden_layer.bias is int64"),
    ({"hidden_layer__bias": np.array([None] * 128)}, "not plain data"),
    ({"hidden_layer__bias": np.full(128, np.nan)}, "hidden_layer.bias has numbers that are not finite"),
]


@pytest.mark.parametrize(("changes", "message"), WEIGHTS)
def test_other_weights(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "AC_IQN_params.npz", **arrays(**changes))
    unreadable(f"AC_IQN_params.npz: .*{message}", tmp_path / "AC_IQN_params.npz")


def test_layers_that_do_not_follow_one_another(tmp_path: Path) -> None:
    np.savez(tmp_path / "AC_IQN_params.npz", **arrays(hidden_layer__weight=np.zeros((128, 216))))
    with pytest.raises(ConfigError, match=r"size mismatch for trunk\.0\.weight"):
        published_policy(tmp_path / "AC_IQN_params.npz", world("AC-IQN"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_programs_with_other_weights(tmp_path: Path) -> None:
    torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(2)).save(str(tmp_path / "other.pt"))
    unreadable("other.pt: actor: not the weights .*: lacks .*; has also bias, weight", tmp_path / "other.pt")


@exhaustive("kind", NETWORKS)
def test_envs_and_overrides_that_do_not_fit(kind: str, tmp_path: Path) -> None:
    file = write(tmp_path, kind, acting_network(kind))
    other = "DQN" if kind in CONTINUOUS else "SAC"
    for env, match in (
        (world(other), r"set env\.continuous_actions=(true|false)"),
        (envs.make("gymnasium", id="CartPole-v1"), "needs? the observation"),
    ):
        refused(ConfigError, match, published_policy, file, env)
    options: list[tuple[dict[str, Any], str]] = [
        ({"hidden": [8, 8]}, r"agent.hidden: \[8, 8\] contradicts the published weights"),
        ({"gama": 0.5}, r"agent\.gama: unknown key"),
    ]
    if kind in ("DQN", "DDPG"):
        wrong: Any = {"DQN": {"dueling": True}, "DDPG": {"inputs": "features"}}[kind]
        options.append((wrong, r"network_params\.pth: (network|actor): "))
    for given, match in options:
        with pytest.raises(ConfigError, match=match):
            published_agent(file, world(kind), 1000, agent_type=kind, **given)
