"""The networks of Stable-Baselines3's MLP policies, rebuilt from their weights alone.

Every network maps features ``[N, F]`` (a structured observation joined, normalised if the model was trained so) to
named outputs; none of them trains.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeAlias

import torch
from torch import Tensor, nn

from rlstack.adapters.sb3.archive import ACTIVATIONS
from rlstack.config import ConfigError

Layers: TypeAlias = list[tuple[Tensor, Tensor]]
"""Weight ``[out, in]`` and bias ``[out]`` of linear layers in order."""

LOG_STD_RANGE = (-20.0, 2.0)
"""SAC's bounds on the logarithm of its standard deviation."""


class Weights:
    """A ``state_dict`` that remembers what has been taken out of it.

    Attributes:
        left: names not taken yet.
    """

    def __init__(self, state: dict[str, Tensor]) -> None:
        self.state, self.left = state, set(state)

    def __contains__(self, name: str) -> bool:
        return name in self.state

    def take(self, name: str) -> Tensor:
        """One tensor.

        Raises:
            ConfigError: there is none of that name.
        """
        if name not in self.state:
            raise ConfigError(f"the weights lack {name}")
        self.left.discard(name)
        return self.state[name].float()

    def linear(self, name: str) -> tuple[Tensor, Tensor]:
        """Weight and bias of one layer."""
        return self.take(f"{name}.weight"), self.take(f"{name}.bias")

    def linears(self, prefix: str) -> Layers:
        """The layers of a sequence with an activation after each: ``prefix.0``, ``prefix.2`` and so on."""
        count = 0
        while f"{prefix}.{2 * count}.weight" in self.state:
            count += 1
        return [self.linear(f"{prefix}.{2 * index}") for index in range(count)]

    def drop(self, *prefixes: str) -> None:
        """Marks what nobody needs to act as taken."""
        self.left = {name for name in self.left if not name.startswith(prefixes)}


def perceptron(layers: Layers, activation: str, bare_output: bool = True) -> nn.Sequential:
    """Linear layers with an activation between them, and after the last one too unless ``bare_output``.

    Raises:
        ConfigError: the layers do not follow one another.
    """
    modules: list[nn.Module] = []
    size = layers[0][0].shape[-1] if layers else 0
    for weight, bias in layers:
        if weight.ndim != 2 or weight.shape[1] != size or bias.shape != weight.shape[:1]:
            raise ConfigError(f"the layers do not follow one another: {[tuple(entry[0].shape) for entry in layers]}")
        linear = nn.Linear(size, len(bias))
        linear.load_state_dict({"weight": weight, "bias": bias})
        modules += [linear, ACTIVATIONS[activation]()]
        size = len(bias)
    return nn.Sequential(*(modules[:-1] if bare_output else modules))


class Network(nn.Module):
    """What all of them offer.

    Attributes:
        in_features: F.
        out_features: number of actions, or of action components.
        hidden: sizes of the hidden layers by part.
    """

    in_features: int
    out_features: int
    hidden: dict[str, tuple[int, ...]]

    @abstractmethod
    def layers(self) -> dict[str, Layers]:
        """Linear layers in order, by part; each but the last of a part is followed by the activation."""


class FeedForward(Network):
    """A network without memory."""

    @abstractmethod
    def outputs(self, features: Tensor) -> dict[str, Tensor]:
        """Everything that the network tells about features ``[N, F]``."""

    @abstractmethod
    def act(self, features: Tensor, deterministic: bool = True) -> Tensor:
        """Index ``[N]`` of an action, or an action ``[N, n]`` in the network's own scale."""

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """Same as :meth:`outputs`."""
        return self.outputs(features)


class Heads(nn.Module):
    """Separate actor and critic, as of PPO and A2C.

    Args:
        weights: with ``mlp_extractor.*``, ``action_net``, ``value_net`` and, for continuous actions, ``log_std``.
    """

    def __init__(self, weights: Weights, activation: str, discrete: bool) -> None:
        super().__init__()
        actor = [*weights.linears("mlp_extractor.policy_net"), weights.linear("action_net")]
        critic = [*weights.linears("mlp_extractor.value_net"), weights.linear("value_net")]
        self.actor, self.critic = perceptron(actor, activation), perceptron(critic, activation)
        self.log_std = None if discrete else nn.Parameter(weights.take("log_std"))

    def outputs(self, actor_features: Tensor, critic_features: Tensor) -> dict[str, Tensor]:
        """``value [N, 1]`` with ``logits [N, n]``, or with ``mean`` and ``log_std [N, n]``."""
        out, value = self.actor(actor_features), self.critic(critic_features)
        if self.log_std is None:
            return {"logits": out, "value": value}
        return {"mean": out, "log_std": self.log_std.expand_as(out), "value": value}

    def act(self, features: Tensor, deterministic: bool) -> Tensor:
        """The likeliest action, or a sampled one."""
        out = self.actor(features)
        if self.log_std is not None:
            return out if deterministic else out + self.log_std.exp() * torch.randn_like(out)
        return out.argmax(-1) if deterministic else torch.distributions.Categorical(logits=out).sample()


class ActorCritic(FeedForward):
    """PPO and A2C. Outputs: ``value``, and ``logits`` or ``mean`` and ``log_std``."""

    def __init__(self, weights: Weights, activation: str, discrete: bool) -> None:
        super().__init__()
        self.heads = Heads(weights, activation, discrete)
        describe(self, self.layers(), "actor")

    def outputs(self, features: Tensor) -> dict[str, Tensor]:
        return self.heads.outputs(features, features)

    def act(self, features: Tensor, deterministic: bool = True) -> Tensor:
        return self.heads.act(features, deterministic)

    def layers(self) -> dict[str, Layers]:
        return {"actor": linears_of(self.heads.actor), "critic": linears_of(self.heads.critic)}


class QNetwork(FeedForward):
    """DQN. Output: ``q [N, n]``; it has no distribution to sample from."""

    def __init__(self, weights: Weights, activation: str) -> None:
        super().__init__()
        self.q = perceptron(weights.linears("q_net.q_net"), activation)
        weights.drop("q_net_target.")
        describe(self, self.layers(), "q")

    def outputs(self, features: Tensor) -> dict[str, Tensor]:
        return {"q": self.q(features)}

    def act(self, features: Tensor, deterministic: bool = True) -> Tensor:
        return self.q(features).argmax(-1)

    def layers(self) -> dict[str, Layers]:
        return {"q": linears_of(self.q)}


class SquashedGaussian(FeedForward):
    """SAC. Outputs: ``mean`` and ``log_std [N, n]`` before squashing; actions are in [-1, 1]."""

    def __init__(self, weights: Weights, activation: str) -> None:
        super().__init__()
        latent, mean, spread = weights.linears("actor.latent_pi"), weights.linear("actor.mu"), "actor.log_std"
        self.latent = perceptron(latent, activation, bare_output=False)
        self.mean = perceptron([mean], activation)
        self.log_std = perceptron([weights.linear(spread)], activation)
        self.critics = nn.ModuleList()
        while layers := weights.linears(f"critic.qf{len(self.critics)}"):
            self.critics.append(perceptron(layers, activation))
        weights.drop("critic_target.")
        describe(self, self.layers(), "actor")

    def outputs(self, features: Tensor) -> dict[str, Tensor]:
        latent = self.latent(features)
        return {"mean": self.mean(latent), "log_std": self.log_std(latent).clamp(*LOG_STD_RANGE)}

    def act(self, features: Tensor, deterministic: bool = True) -> Tensor:
        out = self.outputs(features)
        noise = 0.0 if deterministic else out["log_std"].exp() * torch.randn_like(out["mean"])
        return (out["mean"] + noise).tanh()

    def values(self, features: Tensor, action: Tensor) -> list[Tensor]:
        """Each critic's value ``[N, 1]`` of an action ``[N, n]`` in [-1, 1]."""
        return [critic(torch.cat((features, action), -1)) for critic in self.critics]

    def layers(self) -> dict[str, Layers]:
        actor = linears_of(self.latent)
        parts = {"actor": [*actor, *linears_of(self.mean)], "log_std": [*actor, *linears_of(self.log_std)]}
        return parts | {f"critic{index}": linears_of(critic) for index, critic in enumerate(self.critics)}


def linears_of(module: nn.Module) -> Layers:
    """The linear layers inside, in order."""
    return [(part.weight.data, part.bias.data) for part in module.modules() if isinstance(part, nn.Linear)]


def describe(network: Network, parts: dict[str, Layers], acting: str) -> None:
    """Fills in the attributes that the weights tell; ``acting`` is the part that chooses actions."""
    if not parts[acting]:
        raise ConfigError(f"the weights lack the {acting} network")
    network.in_features = parts[acting][0][0].shape[1]
    network.out_features = len(parts[acting][-1][1])
    network.hidden = {part: tuple(len(bias) for _, bias in layers[:-1]) for part, layers in parts.items() if layers}
