"""Recordings of the Arena game's own training stack, and our PPO with the weights that they begin from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded, Categorical

from rlstack.agents import make_agent
from tests.agents.small_agents import Decisions

PLACES = {
    "shared_net.0": ("actor", "encoder.layers.0"),
    "shared_net.2": ("actor", "encoder.layers.2"),
    "actor.0": ("actor", "trunk.0"),
    "actor.2": ("actor", "output"),
    "critic.0": ("critic", "trunk.0"),
    "critic.2": ("critic", "output"),
}
"""Where their layers stand in our networks."""


class Recording:
    """A recorded ``.npz`` file.

    Tensors by their recorded names; ``rows`` says which rows of an array that was recorded whole are kept.
    """

    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            self.arrays = dict(file.items())

    def __getitem__(self, key: str) -> Tensor:
        return torch.as_tensor(self.arrays[key])

    def text(self, key: str) -> Any:
        """Returns the JSON text stored under a name."""
        return json.loads(str(self.arrays[key]))

    def after(self, name: str) -> tuple[Tensor, slice]:
        """Returns a parameter after the update, and which of its rows were recorded."""
        key = f"after.{name}"
        return (self[key], slice(None)) if key in self.arrays else (self[f"{key}::16"], slice(None, None, 16))

    def batch(self) -> TensorDict:
        """Returns the rollout in the form that our PPO reads."""
        theirs = {
            "observation": "obs",
            "action": "actions",
            "log_prob": "logprobs",
            "value": "values",
            "advantage": "advantages",
            "return": "returns",
        }
        return TensorDict({ours: self[name] for ours, name in theirs.items()}, [len(self["obs"])])


def world(features: int = 32, actions: int = 6) -> Decisions:
    """Returns the specs of the game."""
    return Decisions(Bounded(-1.0, 1.0, shape=(features,)), Categorical(actions, shape=()))


def published_agent(recording: Recording, **overrides: Any) -> Any:
    """Returns ``agent=ppo_published`` with the recorded settings and the weights from before the update."""
    c = recording.text("hp")
    own = {
        "hidden": c["hidden_sizes"],
        "activation": c["activation"],
        "lr": c["learning_rate"],
        "minibatch_size": c["batch_size"],
        "epochs": c["n_epochs"],
        "clip": c["clip_range"],
        "clip_value": c.get("clip_range_vf"),
        "entropy_coefficient": c["ent_coef"],
        "value_coefficient": c["vf_coef"] / 2,  # of the squared error, theirs of half of it
        "max_grad_norm": c["max_grad_norm"],
        "target_kl": c["target_kl"],
        "normalize_advantage": c.get("normalize_advantage", True),
    }
    torch.manual_seed(0)
    env = world(features=recording["obs"].shape[1], actions=len(recording["before.actor.2.bias"]))
    agent: Any = make_agent("ppo_published", env, 1000, **{**own, **overrides})  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in parameters(agent).items():
            parameter.copy_(recording[f"before.{name}"])
    return agent


def parameters(agent: Any) -> dict[str, Tensor]:
    """Returns the agent's weights under their recorded names."""
    layers = {name: agent.networks[part].get_submodule(place) for name, (part, place) in PLACES.items()}
    return {f"{name}.{kind}": getattr(layer, kind) for name, layer in layers.items() for kind in ("weight", "bias")}
