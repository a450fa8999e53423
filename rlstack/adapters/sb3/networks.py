"""The networks of Stable-Baselines3's MLP policies, rebuilt from their weights alone; none of them trains."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from rlstack.config import ConfigError

Layers: TypeAlias = list[tuple[Tensor, Tensor]]
"""Weight ``[out, in]`` and bias ``[out]`` of linear layers in order."""
Memory: TypeAlias = tuple[Tensor, ...]
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

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.state, self.left = state, set(state)

    def take(self, name: str) -> Tensor:
        """Returns one tensor in float32; raises a :class:`ConfigError` if there is none of that name."""
        if name not in self.state:
            raise ConfigError(f"the weights lack {name}")
        self.left.discard(name)
        return self.state[name].float()

    def linear(self, name: str) -> Layers:
        """Returns one layer, as a list."""
        return [(self.take(f"{name}.weight"), self.take(f"{name}.bias"))]

    def linears(self, prefix: str) -> Layers:
        """Returns the layers of a sequence with an activation after each: ``prefix.0``, ``prefix.2`` and so on."""
        layers: Layers = []
        while f"{prefix}.{2 * len(layers)}.weight" in self.state:
            layers += self.linear(f"{prefix}.{2 * len(layers)}")
        return layers

    def drop(self, prefix: str) -> None:
        """Marks weights that nobody needs to act as taken."""
        self.left = {name for name in self.left if not name.startswith(prefix)}


def perceptron(layers: Layers, activation: str, bare_output: bool = True) -> nn.Sequential:
    """Returns linear layers with an activation between them, and after the last one too unless ``bare_output``.

    Raises:
        ConfigError: the layers do not follow one another.
    """
    modules: list[nn.Module] = []
    size = layers[0][0].shape[-1] if layers else 0
    for weight, bias in layers:
        if weight.shape != (len(bias), size) or bias.ndim != 1:
            raise ConfigError(f"the layers do not follow one another: {[tuple(entry[0].shape) for entry in layers]}")
        linear = nn.Linear(size, len(bias))
        linear.load_state_dict({"weight": weight, "bias": bias})
        modules += [linear, ACTIVATIONS[activation]()]
        size = len(bias)
    return nn.Sequential(*(modules[:-1] if bare_output else modules))


class SB3Network(nn.Module):
    """The network of one algorithm. It maps features ``[N, F]`` to its outputs by name.

    A structured observation is joined to features, and normalised if the model was trained so.

    Args:
        weights: those of the model's policy.
        algorithm: a name of :data:`~rlstack.adapters.sb3.model.ALGORITHMS`.
        activation: a name of :data:`ACTIVATIONS`.
        discrete: whether actions are choices.

    Attributes:
        parts: perceptrons, first the one that acts: ``actor`` and ``critic`` (PPO, A2C; behind the LSTMs for
            RecurrentPPO), ``q`` (DQN), or ``actor``, ``log_std`` (with the same hidden layers) and ``critic0``,
            ``critic1``, ... (SAC; input: features, then the action in [-1, 1]).
        memories: the LSTMs of RecurrentPPO, ``actor`` and perhaps ``critic``.
        log_std: logarithm of the standard deviation ``[n]`` of continuous actions, where it is no network's output.
        in_features, out_features: F, and the number of actions or of an action's components.
    """

    def __init__(self, weights: Weights, algorithm: str, activation: str, discrete: bool) -> None:
        super().__init__()
        self.squashed = algorithm == "SAC"
        parts: dict[str, Layers] = {}
        if algorithm == "DQN":
            parts["q"] = weights.linears("q_net.q_net")
            weights.drop("q_net_target.")
        elif self.squashed:
            latent = weights.linears("actor.latent_pi")
            parts["actor"] = [*latent, *weights.linear("actor.mu")]
            parts["log_std"] = [*latent, *weights.linear("actor.log_std")]
            while layers := weights.linears(f"critic.qf{len(parts) - 2}"):
                parts[f"critic{len(parts) - 2}"] = layers
            weights.drop("critic_target.")
        else:
            parts["actor"] = weights.linears("mlp_extractor.policy_net") + weights.linear("action_net")
            parts["critic"] = weights.linears("mlp_extractor.value_net") + weights.linear("value_net")
        self.parts = nn.ModuleDict({name: perceptron(layers, activation) for name, layers in parts.items()})
        self.log_std = nn.Parameter(weights.take("log_std")) if "critic" in parts and not discrete else None
        self.memories, self.linear_critic = nn.ModuleDict(), None
        if algorithm == "RecurrentPPO":
            self.memories["actor"] = _lstm(weights, "lstm_actor")
            if "lstm_critic.weight_ih_l0" in weights.state:
                self.memories["critic"] = _lstm(weights, "lstm_critic")
            if "critic.weight" in weights.state:
                self.linear_critic = perceptron(weights.linear("critic"), activation)
        acting = next(iter(parts.values()))
        if not acting:
            raise ConfigError(f"the weights lack the {next(iter(parts))} network")
        self.in_features, self.out_features = acting[0][0].shape[1], len(acting[-1][1])
        if self.memories:
            self.in_features = int(self.memories["actor"].input_size)  # type: ignore[arg-type]

    def layers(self) -> dict[str, Layers]:
        """Returns copies of the linear layers in order, by part; each but a part's last precedes an activation."""
        linears = {
            name: [part for part in module.modules() if isinstance(part, nn.Linear)]
            for name, module in self.parts.items()
        }
        return {
            name: [(part.weight.data.clone(), part.bias.data.clone()) for part in parts]
            for name, parts in linears.items()
        }

    def initial_memory(self, count: int) -> Memory:
        """Returns zeros for ``count`` entries."""
        lstms: Any = self.memories.values()
        shapes = [(lstm.num_layers, count, lstm.hidden_size) for lstm in lstms for _ in range(2)]
        return tuple(next(self.parameters()).new_zeros(shape) for shape in shapes)

    def forward(
        self, features: Tensor, memory: Memory = (), starts: Tensor | None = None
    ) -> tuple[dict[str, Tensor], Memory]:
        """Returns all outputs by name, and the memory after the step.

        These are ``q [N, n]``; or ``logits [N, n]``, or ``mean`` and ``log_std [N, n]`` (of SAC before squashing); and
        of an actor-critic ``value [N, 1]``.

        Args:
            features: ``[N, F]``.
            memory: after the step before, for a recurrent network.
            starts: ``[N]`` bool, whose memory begins anew.
        """
        inputs = {"actor": features, "critic": features if self.linear_critic is None else self.linear_critic(features)}
        if self.memories and starts is not None:
            kept = (~starts).to(features.dtype)[None, :, None]
            following: list[Tensor] = []
            for index, (name, lstm) in enumerate(self.memories.items()):
                states = tuple(part * kept for part in memory[2 * index : 2 * index + 2])
                output, after = lstm(features[None], states)
                inputs[name] = output[0]
                following += after
            if "critic" not in self.memories and self.linear_critic is None:
                inputs["critic"] = inputs["actor"]
            memory = tuple(following)
        if "q" in self.parts:
            return {"q": self.parts["q"](features)}, memory
        actor = self.parts["actor"](inputs["actor"])
        if self.squashed:
            return {"mean": actor, "log_std": self.parts["log_std"](features).clamp(*LOG_STD_RANGE)}, memory
        value = self.parts["critic"](inputs["critic"])
        if self.log_std is None:
            return {"logits": actor, "value": value}, memory
        return {"mean": actor, "log_std": self.log_std.expand_as(actor), "value": value}, memory

    def choose(self, outputs: Mapping[str, Tensor], deterministic: bool = True) -> Tensor:
        """Returns the index ``[N]`` of an action, or an action ``[N, n]`` (of SAC in [-1, 1]); a DQN never samples."""
        if "mean" in outputs:
            noise = 0.0 if deterministic else outputs["log_std"].exp() * torch.randn_like(outputs["mean"])
            action = outputs["mean"] + noise
            return action.tanh() if self.squashed else action
        if "q" in outputs or deterministic:
            return outputs["q" if "q" in outputs else "logits"].argmax(-1)
        return torch.distributions.Categorical(logits=outputs["logits"]).sample()


def _lstm(weights: Weights, name: str) -> nn.LSTM:
    names = [key.removeprefix(f"{name}.") for key in weights.state if key.startswith(f"{name}.")]
    if strange := [key for key in names if not re.fullmatch(r"(weight|bias)_(ih|hh)_l\d+", key)]:
        raise ConfigError(f"only a plain LSTM with biases is supported, {name} has also {strange[0]}")
    state = {key: weights.take(f"{name}.{key}") for key in names}
    try:
        hidden, size = state["weight_hh_l0"].shape[1], state["weight_ih_l0"].shape[1]
        lstm = nn.LSTM(size, hidden, len({key.rpartition("_l")[2] for key in names}))
        lstm.load_state_dict(state)
    except (KeyError, RuntimeError) as error:
        raise ConfigError(f"the weights of {name} do not make an LSTM ({str(error).splitlines()[0]})") from None
    return lstm
