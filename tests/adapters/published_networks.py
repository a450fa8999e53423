"""The published networks, written from their description, for comparison with files and policies."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlstack import envs
from rlstack.adapters.marinenav.agents import CONFIGURATIONS, FILES, NETWORKS
from rlstack.agents import Agent, make_agent

Inputs = tuple[Tensor, Tensor, Tensor]
CONTINUOUS = ("AC-IQN", "DDPG", "SAC")
SELF, OBJECT, HIDDEN = 6, 4, 12
FEATURES = SELF + 5 * OBJECT


class Noisy(nn.Module):
    """A noisy layer in evaluation mode, in which the means alone act."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        for name in ("mu", "sigma"):
            setattr(self, f"weight_{name}", nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5))
            setattr(self, f"bias_{name}", nn.Parameter(torch.randn(outputs)))

    def forward(self, x: Tensor) -> Tensor:
        weight: Any = self.weight_mu
        return x @ weight.T + self.bias_mu


class Acting(nn.Module):
    """The network that chooses an agent's actions: ``(self [B, 7], objects [B, 5, 5], mask [B, 5])`` to its output."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.self_encoder = nn.Sequential(nn.Linear(7, SELF), nn.ReLU())
        self.object_encoder = nn.Sequential(nn.Linear(5, OBJECT), nn.ReLU())
        if kind == "Rainbow":
            for stream, width in (("v", 51), ("a", 25 * 51)):
                setattr(self, f"hidden_layer_{stream}", Noisy(FEATURES, HIDDEN))
                setattr(self, f"hidden_layer_{stream}_2", Noisy(HIDDEN, HIDDEN))
                setattr(self, f"output_layer_{stream}", Noisy(HIDDEN, width))
            return
        self.hidden_layer = nn.Linear(FEATURES, HIDDEN)
        self.hidden_layer_2 = nn.Linear(HIDDEN, HIDDEN)
        if kind == "IQN":
            self.cos_embedding = nn.Linear(64, FEATURES)
        for name in ("_mu", "_log_std") if kind == "SAC" else ("",):
            setattr(self, f"output_layer{name}", nn.Linear(HIDDEN, 2 if kind in CONTINUOUS else 25))

    def forward(self, inputs: Inputs, taus: Tensor | None = None) -> Any:
        own, objects, mask = inputs
        masked = torch.where(mask[..., None] < 0.5, 0.0, self.object_encoder(objects))
        x = torch.cat((self.self_encoder(own), masked.flatten(1)), 1)
        layer: Any = self.__getattr__
        if self.kind == "Rainbow":
            v, a = (
                layer(f"output_layer_{stream}")(
                    torch.relu(layer(f"hidden_layer_{stream}_2")(torch.relu(layer(f"hidden_layer_{stream}")(x))))
                )
                for stream in "va"
            )
            a = a.view(-1, 25, 51)
            return torch.softmax(v[:, None] + a - a.mean(1, keepdim=True), -1)
        if taus is not None:
            cosines = torch.cos(math.pi * torch.arange(64) * taus[..., None])
            x = x[:, None] * torch.relu(self.cos_embedding(cosines))
        x = torch.relu(self.hidden_layer_2(torch.relu(self.hidden_layer(x))))
        if self.kind == "SAC":
            return layer("output_layer_mu")(x), torch.clamp(layer("output_layer_log_std")(x), -20, 2)
        output = layer("output_layer")(x)
        return torch.arctan(output) / (math.pi / 2) if self.kind in CONTINUOUS else output


def acting_network(kind: str) -> nn.Module:
    """Returns a small random network in float64, whose outputs differ between observations."""
    torch.manual_seed(3)
    return Acting(kind).double().requires_grad_(False)


def decide(kind: str, network: nn.Module, inputs: Inputs) -> Tensor:
    """Takes the published decision with random numbers from torch's generator."""
    if kind in ("AC-IQN", "DDPG"):
        return network(inputs)
    if kind == "SAC":
        mean, log_std = network(inputs)
        return torch.arctan(mean + log_std.exp() * torch.randn_like(mean)) / (math.pi / 2)
    if kind == "IQN":
        return network(inputs, torch.rand(len(inputs[0]), 32, dtype=torch.float64)).mean(1).argmax(-1)
    if kind == "Rainbow":
        return (network(inputs) * torch.linspace(-1, 1, 51, dtype=torch.float64)).sum(-1).argmax(-1)
    return network(inputs).argmax(-1)


def traced(kind: str, network: nn.Module) -> Any:
    """Writes a TorchScript export like that of the published agents."""
    inputs: tuple[Any, ...] = ((torch.randn(2, 7).double(), torch.randn(2, 5, 5).double(), torch.ones(2, 5).double()),)
    if kind == "IQN":
        inputs = (*inputs, torch.rand(2, 32).double())
    return torch.jit.trace(network, inputs)


# -- native agents and files of the same widths --------------------------------------------------------------------

SMALL: dict[str, Any] = {"self_features": SELF, "object_features": [OBJECT], "hidden": [HIDDEN, HIDDEN]}


def world(kind: str) -> Any:
    options = {"continuous_actions": kind in CONTINUOUS, "dtype": torch.float64}
    return envs.make("marinenav", num_worlds=6, num_robots=4, **options)


def native(kind: str, seed: int = 0, **overrides: Any) -> Agent:
    torch.manual_seed(seed)
    return make_agent(CONFIGURATIONS[kind], world(kind), 1000, **{**SMALL, **overrides})


def write(directory: Path, kind: str, network: nn.Module) -> Path:
    """Writes the acting network's ``.pth`` file."""
    file = directory / FILES[next(iter(NETWORKS[kind]))][0]
    torch.save(network.state_dict(), file)
    return file
