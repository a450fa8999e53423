"""Whole agents of the ``*_published`` recipes compared with recorded updates of the reference learners.

Losses, gradient norms before clipping, and parameters are compared after three updates: networks, losses, the order of
random draws, optimisers and clipping all have to be right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.modules import NoisyLinear

from rlstack import envs
from rlstack.adapters.marinenav.agents import (
    CONFIGURATIONS,
    CONTINUOUS,
    NETWORKS,
    NOISY_NAMES,
    network_of,
    published_state,
)
from rlstack.agents import make_agent, optimizer
from rlstack.agents.optimizer import norm_of
from tests.exhaustive import recordings

TOLERANCE = 1e-9
BATCH = 16


class Updates:
    """A recording of three updates of a reference learner on one batch."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            self.arrays = dict(file.items())

    def __getitem__(self, key: str) -> Tensor:
        return torch.as_tensor(self.arrays[key])

    def under(self, prefix: str) -> dict[str, np.ndarray]:
        """Returns the arrays whose names begin with ``prefix``, by the rest of their names.

        Small recordings store the noise of weights as the two factors of a product.
        """
        arrays = {key.removeprefix(prefix): value for key, value in self.arrays.items() if key.startswith(prefix)}
        for name in [name for name in arrays if name.endswith("weight_epsilon_in")]:
            layer = name.removesuffix("weight_epsilon_in")
            arrays[f"{layer}weight_epsilon"] = np.outer(arrays[f"{layer}bias_epsilon"], arrays.pop(name))
        return arrays

    def batch(self) -> TensorDict:
        """Returns the transitions of all three updates."""

        def observation(prefix: str) -> dict[str, Tensor]:
            return {key: self[prefix + key] for key in ("self", "objects", "mask")}

        following = {
            "observation": observation("next_"),
            "reward": self["reward"][:, None],
            "terminated": self["done"][:, None] > 0.5,
        }
        entries: dict[str, Any] = {"observation": observation(""), "action": self["action"], "next": following}
        if "weights" in self.arrays:  # Rainbow: the rewards are three-step returns
            gamma = torch.full((BATCH, 1), 0.99**3, dtype=torch.float64)
            entries |= {"priority_weight": self["weights"], "gamma": gamma}
        return TensorDict(entries, batch_size=[BATCH])

    def draws(self, name: str) -> Iterator[Tensor]:
        """Yields all draws of the three updates in order."""
        return (self[f"step{k}/{name}{i}"] for k in range(3) for i in range(3) if f"step{k}/{name}{i}" in self.arrays)


def published_part(part: str) -> str:
    return "net" if part == "network" else part


def build(kind: str, recording: Updates) -> Any:
    env = envs.make("marinenav", num_worlds=1, dtype=torch.float64, continuous_actions=kind in CONTINUOUS)
    small = {"self_features": 6, "object_features": [4], "hidden": [12, 12], "batch_size": BATCH, "buffer_size": BATCH}
    agent = make_agent(CONFIGURATIONS[kind], env, 1000, **small)
    for part, names in NETWORKS[kind].items():
        for prefix, target in (("local0", False), ("target0", True)):
            state = published_state(recording.under(f"{prefix}/{published_part(part)}/"), names)
            if (network := network_of(agent, part, target)) is not None:
                network.load_state_dict(state, strict=False)
    return agent


def inject(agent: Any, kind: str, recording: Updates) -> None:
    """Replaces every random draw by the recorded ones."""
    levels, normals, step = recording.draws("rand"), recording.draws("eps"), iter(range(3))
    if kind == "AC-IQN" or kind == "IQN":
        agent.loss.draw_levels = lambda like: next(levels)
    elif kind == "SAC":
        agent.loss.draw = lambda like: next(normals)
        watch_critics(agent)
    elif kind == "Rainbow":
        layers = dict(agent.loss.target_network.named_modules())

        def resample() -> None:
            for name, value in recording.under(f"step{next(step)}/target_eps/").items():
                layer, _, noise = name.rpartition(".")
                getattr(layers[NOISY_NAMES[layer]], noise).copy_(torch.as_tensor(value))

        agent.resample = resample


def losses(agent: Any, kind: str, metrics: dict[str, Any]) -> list[Tensor]:
    if kind == "SAC":
        return [*agent.critic_losses, metrics["loss/actor"]]
    return [metrics[name] for name in ("loss/critic", "loss/actor") if name in metrics]


@contextmanager
def watched_norms() -> Iterator[list[Tensor]]:
    """A context whose list gets the norm of each group's gradient, in the order of the steps."""
    found: list[Tensor] = []

    def watched(gradients: list[Tensor]) -> Tensor:
        found.append(norm_of(gradients))
        return found[-1]

    with mock.patch.object(optimizer, "norm_of", watched):
        yield found


def check(kind: str, path: Path) -> None:
    recording = Updates(path)
    agent, batch = build(kind, recording), recording.batch()
    original = batch.clone()
    inject(agent, kind, recording)
    per_entry: list[Tensor] = []
    if kind == "Rainbow":
        per_entry = watch_errors(agent)
    for k in range(3):
        with watched_norms() as norms:
            metrics = agent.update(batch)
        expected = [recording[f"step{k}/loss{i}"] for i in range(3) if f"step{k}/loss{i}" in recording.arrays]
        if kind == "Rainbow":
            close(per_entry[k], expected[0])
            expected = [(recording["weights"] * expected[0]).mean()]
        close(torch.stack(losses(agent, kind, metrics)), torch.stack(expected))
        close(torch.stack(norms), recording[f"step{k}/gradnorm"])
    for part, names in NETWORKS[kind].items():
        compare_parameters(network_of(agent, part).state_dict(), recording, part, names)
    assert (batch == original).all()


def watch_errors(agent: Any) -> list[Tensor]:
    """Returns a list that collects the loss's error for each entry, one tensor per update."""
    seen: list[Tensor] = []
    loss: Callable[[Any], Any] = agent.loss.critic_loss

    def watched(batch: Any) -> Any:
        value, info = loss(batch)
        seen.append(info["td_error"])
        return value, info

    agent.loss.critic_loss = watched
    return seen


def watch_critics(agent: Any) -> None:
    """Stores the losses of both critics in ``agent.critic_losses``."""
    loss: Callable[[Any], Any] = agent.loss.critic_loss

    def watched(batch: Any) -> Any:
        value, info = loss(batch)
        agent.critic_losses = [info["critic_1"], info["critic_2"]]
        return value, info

    agent.loss.critic_loss = watched


def compare_parameters(state: dict[str, Tensor], recording: Updates, part: str, names: Any) -> None:
    """Compares parameters; for arrays stored with every tenth row (``...::10``) only these rows."""
    recorded = recording.under(f"step2/local/{published_part(part)}/")
    left = {name for name in state if not name.endswith("_epsilon")}
    for name, value in recorded.items():
        layer, _, kind = name.removesuffix("::10").rpartition(".")
        ours = state[f"{names[layer]}.{kind}"]
        left.discard(f"{names[layer]}.{kind}")
        close(ours[::10] if name.endswith("::10") else ours, torch.as_tensor(value))
    assert not left


def close(ours: Tensor, recorded: Tensor) -> None:
    torch.testing.assert_close(ours, recorded, rtol=0, atol=TOLERANCE)


@recordings("losses/public_*[!y].npz", "golden/marinenav/losses/public_*[!y].npz", least=6)
def test_recorded_updates(path: Path) -> None:
    """All but ``Rainbow_memory``, which is that of its replay buffer."""
    check(path.stem.removeprefix("public_").replace("_", "-"), path)


def test_rainbow_keeps_its_noise_and_the_target_draws_new(fixtures_dir: Path) -> None:
    recording = Updates(fixtures_dir / "losses/public_Rainbow.npz")
    agent = build("Rainbow", recording)

    def noise(network: Any) -> list[Tensor]:
        return [layer.weight_epsilon.clone() for layer in network.modules() if isinstance(layer, NoisyLinear)]

    own, target = noise(agent.network), noise(agent.loss.target_network)
    assert len(own) == 6
    agent.update(recording.batch())
    assert all(map(torch.equal, own, noise(agent.network)))
    assert not any(map(torch.equal, target, noise(agent.loss.target_network)))


def test_iqn_takes_the_best_action_of_every_quantile_by_itself(fixtures_dir: Path) -> None:
    """In the recording one action is best at all levels; here the embedding is given more influence."""
    recording = Updates(fixtures_dir / "losses/public_IQN.npz")
    agent, batch = build("IQN", recording), recording.batch()
    with torch.no_grad():
        agent.loss.target_network.embedding.linear.weight.mul_(20)
        tau = torch.rand(BATCH, 8, dtype=torch.float64)
        quantiles = agent.loss.target_network(batch["next", "observation"], tau)
    best = quantiles.argmax(-1)
    assert (best != best[:, :1]).any()
    expected = batch["next", "reward"] + 0.99 * ~batch["next", "terminated"] * quantiles.max(-1).values
    agent.loss.draw_levels = lambda like: tau
    seen = agent.loss.critic_loss(batch)[1]["target"]
    torch.testing.assert_close(seen, expected.mean())
