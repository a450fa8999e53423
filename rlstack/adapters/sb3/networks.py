"""The networks of Stable-Baselines3's MLP policies, rebuilt from their weights alone.

Every network maps features ``[N, F]`` (a structured observation joined, normalised if the model was trained so) to
named outputs; none of them trains.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import TypeAlias

import torch
from torch import Tensor, nn

from rlstack.config import ConfigError

Layers: TypeAlias = list[tuple[Tensor, Tensor]]
"""Weight ``[out, in]`` and bias ``[out]`` of linear layers in order."""
State: TypeAlias = tuple[Tensor, ...]
"""Hidden and cell state of the actor's LSTM ``[layers, N, H]``, then those of the critic's, if it has one."""

ACTIVATIONS: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (
        *(nn.Tanh, nn.ReLU, nn.SiLU, nn.GELU, nn.ELU, nn.LeakyReLU, nn.SELU, nn.CELU, nn.Mish, nn.Sigmoid),
        *(nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.ReLU6, nn.Tanhshrink, nn.LogSigmoid, nn.Identity),
    )
}
LOG_STD_RANGE = (-20.0, 2.0)
"""SAC's bounds on the logarithm of its standard deviation."""


class Weights:
    """A ``state_dict`` that remembers what has been taken out of it.

    Attributes:
        left: names not taken yet.
    """

    def __init__(self, state: dict[str, Tensor]) -> None:
        self.state, self.left = state, set(state)

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

    def drop(self, prefix: str) -> None:
        """Marks weights that nobody needs to act as taken."""
        self.left = {name for name in self.left if not name.startswith(prefix)}


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


class SB3Network(nn.Module):
    """The base of all of them.

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
        """Linear layers in order, by part, first the one that acts; each but a part's last precedes an activation."""

    def _describe(self) -> None:
        parts = self.layers()
        acting, layers = next(iter(parts.items()))
        if not layers:
            raise ConfigError(f"the weights lack the {acting} network")
        self.in_features, self.out_features = layers[0][0].shape[1], len(layers[-1][1])
        self.hidden = {part: tuple(len(bias) for _, bias in layers[:-1]) for part, layers in parts.items() if layers}


class FeedForward(SB3Network):
    """A network without memory."""

    @abstractmethod
    def outputs(self, features: Tensor) -> dict[str, Tensor]:
        """Everything that the network tells about features ``[N, F]``."""

    @abstractmethod
    def act(self, features: Tensor, deterministic: bool = True) -> Tensor:
        """Index ``[N]`` of an action, or an action ``[N, n]`` in the network's own scale."""

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        return self.outputs(features)


class _Heads(SB3Network):
    """Separate actor and critic.

    Args:
        weights: with ``mlp_extractor.*``, ``action_net``, ``value_net`` and, for continuous actions, ``log_std``.
    """

    def __init__(self, weights: Weights, activation: str, discrete: bool) -> None:
        super().__init__()
        actor = [*weights.linears("mlp_extractor.policy_net"), weights.linear("action_net")]
        critic = [*weights.linears("mlp_extractor.value_net"), weights.linear("value_net")]
        self.actor, self.critic = perceptron(actor, activation), perceptron(critic, activation)
        self.log_std = None if discrete else nn.Parameter(weights.take("log_std"))
        self._describe()

    def layers(self) -> dict[str, Layers]:
        return {"actor": _linears_of(self.actor), "critic": _linears_of(self.critic)}

    def _outputs(self, actor_features: Tensor, critic_features: Tensor) -> dict[str, Tensor]:
        out, value = self.actor(actor_features), self.critic(critic_features)
        if self.log_std is None:
            return {"logits": out, "value": value}
        return {"mean": out, "log_std": self.log_std.expand_as(out), "value": value}

    def _act(self, features: Tensor, deterministic: bool) -> Tensor:
        out = self.actor(features)
        if self.log_std is not None:
            return out if deterministic else out + self.log_std.exp() * torch.randn_like(out)
        return out.argmax(-1) if deterministic else torch.distributions.Categorical(logits=out).sample()


class ActorCriticNetwork(_Heads, FeedForward):
    """PPO and A2C. Outputs: ``value [N, 1]``, and ``logits [N, n]`` or ``mean`` and ``log_std [N, n]``."""

    def outputs(self, features: Tensor) -> dict[str, Tensor]:
        return self._outputs(features, features)

    def act(self, features: Tensor, deterministic: bool = True) -> Tensor:
        return self._act(features, deterministic)


class RecurrentActorCritic(_Heads):
    """RecurrentPPO; before the critic stands an LSTM of its own, a linear layer, or the actor's LSTM.

    Args:
        weights: as of PPO, with ``lstm_actor.*`` and perhaps ``lstm_critic.*`` or ``critic.*``.
    """

    def __init__(self, weights: Weights, activation: str, discrete: bool) -> None:
        super().__init__(weights, activation, discrete)
        self.lstm_actor = _lstm(weights, "lstm_actor")
        separate, linear = "lstm_critic.weight_ih_l0" in weights.state, "critic.weight" in weights.state
        self.lstm_critic = _lstm(weights, "lstm_critic") if separate else None
        self.linear_critic = perceptron([weights.linear("critic")], activation) if linear else None
        self.in_features = self.lstm_actor.input_size

    def initial_state(self, count: int) -> State:
        """Zeros for ``count`` entries."""
        states: list[Tensor] = []
        for lstm in (self.lstm_actor, self.lstm_critic):
            if lstm is not None:
                zeros = next(lstm.parameters()).new_zeros(lstm.num_layers, count, lstm.hidden_size)
                states += [zeros, zeros]
        return tuple(states)

    def outputs(self, features: Tensor, state: State, starts: Tensor) -> tuple[dict[str, Tensor], State]:
        """One step: outputs as of :class:`ActorCriticNetwork`, and the state after it.

        Args:
            features: ``[N, F]``.
            state: after the step before.
            starts: ``[N]`` bool, whose memory begins anew.
        """
        actor, critic, state = self._latent(features, state, starts)
        return self._outputs(actor, critic), state

    def act(self, features: Tensor, state: State, starts: Tensor, deterministic: bool = True) -> tuple[Tensor, State]:
        """Index ``[N]`` of an action or an action ``[N, n]``, and the new state; arguments as of :meth:`outputs`."""
        actor, _, state = self._latent(features, state, starts)
        return self._act(actor, deterministic), state

    def _latent(self, features: Tensor, state: State, starts: Tensor) -> tuple[Tensor, Tensor, State]:
        keep = (~starts).to(features.dtype)[None, :, None]
        state = tuple(part * keep for part in state)
        actor, following = self.lstm_actor(features[None], state[:2])
        critic = actor
        if self.lstm_critic is not None:
            critic, of_critic = self.lstm_critic(features[None], state[2:])
            following = (*following, *of_critic)
        elif self.linear_critic is not None:
            critic = self.linear_critic(features)[None]
        return actor[0], critic[0], following


class QNetwork(FeedForward):
    """DQN. Output: ``q [N, n]``; it has no distribution to sample from."""

    def __init__(self, weights: Weights, activation: str) -> None:
        super().__init__()
        self.q = perceptron(weights.linears("q_net.q_net"), activation)
        weights.drop("q_net_target.")
        self._describe()

    def outputs(self, features: Tensor) -> dict[str, Tensor]:
        return {"q": self.q(features)}

    def act(self, features: Tensor, deterministic: bool = True) -> Tensor:
        return self.q(features).argmax(-1)

    def layers(self) -> dict[str, Layers]:
        return {"q": _linears_of(self.q)}


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
        self._describe()

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
        latent = _linears_of(self.latent)
        parts = {"actor": [*latent, *_linears_of(self.mean)], "log_std": [*latent, *_linears_of(self.log_std)]}
        return parts | {f"critic{index}": _linears_of(critic) for index, critic in enumerate(self.critics)}


def _linears_of(module: nn.Module) -> Layers:
    return [(part.weight.data, part.bias.data) for part in module.modules() if isinstance(part, nn.Linear)]


def _lstm(weights: Weights, name: str) -> nn.LSTM:
    names = [key.removeprefix(f"{name}.") for key in weights.state if key.startswith(f"{name}.")]
    strange = [key for key in names if not re.fullmatch(r"(weight|bias)_(ih|hh)_l\d+", key)]
    if strange:
        raise ConfigError(f"only a plain LSTM with biases is supported, {name} has also {strange[0]}")
    state = {key: weights.take(f"{name}.{key}") for key in names}
    count = len({key.rpartition("_l")[2] for key in names})
    try:
        hidden, size = state["weight_hh_l0"].shape[1], state["weight_ih_l0"].shape[1]
        lstm = nn.LSTM(size, hidden, count)
        lstm.load_state_dict(state)
    except (KeyError, RuntimeError) as error:
        raise ConfigError(f"the weights of {name} do not make an LSTM ({str(error).splitlines()[0]})") from None
    return lstm
