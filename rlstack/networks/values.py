"""Networks for values of states and of actions, and their normalisation over the batch (CrossQ, Bhatt et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn import functional
from torchrl.modules import BatchRenorm1d

from rlstack.config.options import Activation
from rlstack.envs.foundation.tensors import looks_are_free

from .distributions import full_precision
from .encoders import Encoder, Layers, Observation, apply_layer, mlp
from .own import OwnNetwork
from .recurrent import Remembering


class StateNetwork(nn.Module):
    """Hidden layers and a linear output: state values, action values or logits.

    Args:
        encoder: observation encoder.
        outputs: number of outputs N.
        hidden: widths of the hidden layers.
        besides: number of features that :meth:`head` takes in addition to those of the encoder.
    """

    def __init__(
        self,
        encoder: Encoder,
        outputs: int,
        hidden: Sequence[int],
        activation: Activation = "relu",
        layer_norm: bool = False,
        besides: int = 0,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        widths = encoder.out_features + besides, *hidden
        self.trunk = mlp(widths, layer_norm, activation)
        self.output = nn.Linear(widths[-1], outputs)

    def forward(self, observation: Observation) -> Tensor:
        """Returns the outputs ``[..., N]``."""
        # Calling the parts as modules would cost as much as a small network itself.
        return self.head(self.encoder.forward(observation))

    def head(self, features: Tensor) -> Tensor:
        """Returns the outputs ``[..., N]`` for an observation that is already encoded."""
        return apply_layer(self.output, self.trunk.forward(features))


class DuelingNetwork(nn.Module):
    """Computes ``v + a - mean_a a`` from two streams (Wang et al. 2016), for values or for the logits of K atoms.

    Args:
        encoder: observation encoder, shared by the streams.
        actions: number of actions N.
        hidden: widths of the hidden layers of each stream.
        atoms: K; None for plain values.
        linear: makes a linear layer from its sizes, for example a noisy one.
    """

    def __init__(
        self,
        encoder: Encoder,
        actions: int,
        hidden: Sequence[int],
        atoms: int | None = None,
        activation: Activation = "relu",
        linear: Callable[[int, int], nn.Module] = nn.Linear,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.actions, self.atoms = actions, atoms
        width = atoms or 1
        self.value, self.advantage = (
            Layers(mlp((encoder.out_features, *hidden), layer_norm, activation, linear), linear(hidden[-1], outputs))
            for outputs in (width, actions * width)
        )

    def forward(self, observation: Observation) -> Tensor:
        """Returns ``[..., N]``, or ``[..., N, K]`` with atoms."""
        x = self.encoder(observation)
        value, advantage = self.value.forward(x), self.advantage.forward(x)
        if self.atoms is None:
            return value + advantage - advantage.mean(-1, keepdim=True)
        advantage = advantage.unflatten(-1, (self.actions, self.atoms))
        return value.unsqueeze(-2) + advantage - advantage.mean(-2, keepdim=True)


class ActionValue(nn.Module):
    """``Q(s, a)`` of continuous actions.

    Args:
        encoder: observation encoder.
        action_size: D, the number of components of an action.
        hidden: widths of the hidden layers.
        join: ``"concat"``: the action is concatenated with the encoded observation; ``"gated"``: its encoding
            multiplies the first of two equal hidden layers (arXiv 2412.09466).
        outputs: number of outputs K: one value, or the quantiles of its distribution.
    """

    def __init__(
        self,
        encoder: Encoder,
        action_size: int,
        hidden: Sequence[int],
        activation: Activation = "relu",
        layer_norm: bool = False,
        join: Literal["concat", "gated"] = "concat",
        outputs: int = 1,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.action_encoder = mlp((action_size, hidden[0])) if join == "gated" else None
        first = encoder.out_features if join == "gated" else encoder.out_features + action_size
        self.trunk = mlp((first, *hidden), layer_norm, activation)
        self.output = nn.Linear(hidden[-1], outputs)
        self._first_layer = 3 if layer_norm else 2

    def forward(self, observation: Observation, action: Tensor) -> Tensor:
        """Returns the outputs ``[..., K]``."""
        x = self.encoder(observation)
        if self.action_encoder is None:
            return apply_layer(self.output, self.trunk.forward(torch.cat((x, action), -1)))
        x = self.trunk[: self._first_layer](x) * self.action_encoder(action)
        return self.output(self.trunk[self._first_layer :](x))


class Critics(nn.ModuleList):
    """Networks of one structure that judge the same; on a GPU all are computed as one batch.

    There the parameters of all lie side by side in memory, so that each layer is one matrix product. This takes
    networks of this module without buffers and recurrent cores that share no parameters, and no part of them may be a
    user's; others are computed one by one, as all are on a CPU.
    """

    _whole: list[Tensor] | None = None

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__(networks)
        self._lay()

    def _lay(self) -> None:
        """Lays the parameters of all networks side by side."""
        parameters = [list(network.parameters()) for network in self]
        every = [parameter for own in parameters for parameter in own]
        alike = len({str(network) for network in self}) == 1 and len(set(map(id, every))) == len(every)
        ours = all(isinstance(network, (ActionValue, StateNetwork)) for network in self)
        apart = any(isinstance(module, OwnNetwork | Remembering) for module in self.modules())
        if apart or not (ours and alike and len(self) > 1):
            return
        if looks_are_free(every[0].device) or any(True for _ in self.buffers()):
            return
        self._whole = [torch.stack([parameter.detach() for parameter in same]) for same in zip(*parameters)]
        for whole, same in zip(self._whole, zip(*parameters)):
            for parameter, own in zip(same, whole.unbind(0)):
                parameter.data = own

    @property
    def batched(self) -> bool:
        """Whether all are computed as one batch."""
        return self._whole is not None

    def forward(self, *inputs: Any) -> list[Tensor]:
        """Returns the output of each network for the same inputs."""
        if self._whole is None:
            return [network(*inputs) for network in self]
        first: Any = self[0]
        names = [name for name, _ in first.named_parameters()]
        columns = zip(*(network.parameters() for network in self))
        trained = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.parameters())
        stacked = {
            name: _SideBySide.apply(whole, *own) if trained else whole
            for name, whole, own in zip(names, self._whole, columns)
        }

        def one(parameters: dict[str, Tensor]) -> Any:
            return torch.func.functional_call(first, parameters, inputs)

        return list(torch.vmap(one, randomness="different")(stacked).unbind(0))

    def __reduce__(self) -> Any:
        return Critics, (list(self),), {"training": self.training}  # copies and pickles lie side by side, too

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        before = [parameter.data_ptr() for parameter in self.parameters()]
        super()._apply(fn, recurse)
        if before != [parameter.data_ptr() for parameter in self.parameters()]:
            self._whole = None
            self._lay()
        return self


class _SideBySide(torch.autograd.Function):
    """Several parameters as the tensor in which they lie; its gradient is split among them without a copy."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, *_: Tensor) -> Tensor:
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, *gradients[0].unbind(0)


def orthogonal_(network: StateNetwork, output_gain: float) -> None:
    """Initialises orthogonal weights (Saxe et al. 2014), of gain sqrt 2 or ``output_gain``, and biases of zero."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, output_gain if layer is network.output else math.sqrt(2))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class BatchRenorm(BatchRenorm1d):
    """TorchRL's batch renormalisation (Ioffe 2017) of ``[..., F]``, with a correction that is complete after a warm-up.

    In TorchRL 0.14.1 the correction keeps growing: it is twice as large after twice the warm-up, and so on. A batch
    whose mean or variance is not finite leaves the running statistics as they were.
    """

    def forward(self, x: Tensor) -> Tensor:
        x = full_precision(x)
        before = self.running_mean.clone(), self.running_var.clone()
        out: Tensor = super().forward(x.reshape(-1, x.shape[-1]))
        if self.training:
            finite = self.running_mean.isfinite().all() & self.running_var.isfinite().all()
            for now, earlier in zip((self.running_mean, self.running_var), before):
                now.copy_(torch.where(finite, now, earlier))
            self.num_batches_tracked.copy_(self.num_batches_tracked.clamp(max=self.warmup_steps))
        return out.reshape(x.shape)


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation (Ioffe & Szegedy 2015) of ``[..., F]``; batches that are not finite as in BatchRenorm."""

    running_mean: Tensor
    running_var: Tensor
    momentum: float

    def __init__(self, features: int) -> None:
        super().__init__(features, eps=1e-3, momentum=0.01)

    def forward(self, x: Tensor) -> Tensor:
        flat = full_precision(x).reshape(-1, x.shape[-1])
        mean, var = self.running_mean, self.running_var
        if self.training:
            mean, var = mean.clone(), var.clone()  # gradients need those of before
        options = self.weight, self.bias, self.training, self.momentum, self.eps
        out = functional.batch_norm(flat, mean, var, *options)
        if self.training:
            finite = mean.isfinite().all() & var.isfinite().all()
            for now, value in ((self.running_mean, mean), (self.running_var, var)):
                now.copy_(torch.where(finite, value, now))
        return out.reshape(x.shape)


def renormalized(network: Any, wanted: bool = True) -> nn.Module:
    """Returns a network, its ``trunk`` normalised over the batch before every linear layer and before the output."""
    layers: list[nn.Module] = []
    for layer in network.trunk if wanted else ():
        layers += [BatchRenorm(layer.in_features), layer] if isinstance(layer, nn.Linear) else [layer]
    if layers:
        network.trunk = nn.Sequential(*layers, BatchRenorm(network.output.in_features))
    return network


def batch_normalized(network: Any) -> nn.Module:
    """Returns a network, its ``trunk`` normalised over the batch at its input and after every linear layer, before the
    activation (XQC, arXiv 2509.25174); the layers then have no bias of their own.
    """
    first, *_ = (layer for layer in network.trunk if isinstance(layer, nn.Linear))
    layers: list[nn.Module] = [BatchNorm(first.in_features)]
    for layer in network.trunk:
        layers.append(layer)
        if isinstance(layer, nn.Linear):
            layer.register_parameter("bias", None)
            layers.append(BatchNorm(layer.out_features))
    network.trunk = Layers(*layers)
    return network


def running_statistics(network: nn.Module) -> list[Tensor]:
    """Returns the running means and variances of such layers."""
    layers = [layer for layer in network.modules() if isinstance(layer, BatchRenorm | BatchNorm)]
    return [value for layer in layers for value in (layer.running_mean, layer.running_var)]


class CentralNetwork(StateNetwork):
    """Computes the value of an agent's state from its own observation and those of the others in its world.

    It is the critic of ``agent.critic=central`` (Yu et al. 2022), which sees the others in training only.

    All observations go through the same encoder. The agent's own encoding is concatenated with the mean of the others'
    after one more layer (Zaheer et al. 2017), and with the share of them that are present; if none are, both are zero.

    Args:
        encoder: observation encoder.
        hidden: widths of the hidden layers; the first is also the width of the others' mean.
        others: the number of other agents that a world has room for.
    """

    def __init__(self, encoder: Encoder, hidden: Sequence[int], others: int, activation: Activation = "relu") -> None:
        super().__init__(encoder, 1, hidden, activation, besides=hidden[0] + 1)
        self.view = mlp((encoder.out_features, hidden[0]), activation=activation)
        self.others = others

    def pooled(self, features: Tensor, there: Tensor) -> Tensor:
        """Returns the pooled encodings of the others ``[..., Q, V]``, to be concatenated with those of Q agents.

        Args:
            features: encodings of M others, ``[..., M, F]``.
            there: ``[..., Q, M]`` bool, which of the M others count for each of the Q agents.
        """
        views = self.view(features)
        count = there.sum(-1, keepdim=True)
        mean = (there.to(views.dtype) @ views) / count.clamp(min=1)
        return torch.cat((mean, (count / self.others).to(mean.dtype)), -1)


def apart(there: Tensor) -> Tensor:
    """Returns ``there [..., A, A]`` with its diagonal set to False: no agent counts for itself."""
    return there & ~torch.eye(there.shape[-1], dtype=torch.bool, device=there.device)


class Others:
    """Computes the values that a :class:`CentralNetwork` gives the agents of one rollout.

    Rows of sequences ``[B, T]`` are in the order of :func:`~rlstack.data.flatten.flatten_agents`: the A agents of the
    first world, then those of the next one.

    Args:
        critic: the network that computes the values.
        agents: A, the number of agents in each world.

    Attributes:
        pieces: the rollout cut into sequences, for a critic with a recurrent core.
    """

    def __init__(self, critic: CentralNetwork, agents: int) -> None:
        self.critic, self.agents = critic, agents
        self.pieces: TensorDictBase | None = None
        self._observation: Any = None
        self._active = torch.empty(0, 0, dtype=torch.bool)

    def begin(self, observation: Any, active: Tensor) -> Tensor:
        """Takes a new rollout in place of the last one.

        Args:
            observation: as the networks see it, ``[B, T]``.
            active: ``[B, T]`` bool; agents that are not active do not count for the others.

        Returns the places ``[B, T]`` of its decisions, which identify them in :meth:`seen`.
        """
        self._observation, self._active = observation, active
        return torch.arange(active.numel(), device=active.device).view_as(active)

    def forget(self) -> None:
        """Releases the rollout."""
        self._observation = self.pieces = None

    @property
    def rows(self) -> int:
        """B, the number of rows of the rollout."""
        return len(self._active)

    def row_and_step(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the rows and steps of some places in ``[B, T]``."""
        time = self._active.shape[1]
        return place // time, place % time

    def values(self, features: Tensor | None = None) -> Tensor:
        """Returns the values of all decisions ``[B, T, 1]``; encodings ``[B, T, F]`` may be passed if known."""
        if features is None:
            features = self.critic.encoder(self._observation)
        return self.critic.head(torch.cat((features, self._all(features)), -1))

    def seen(self, place: Tensor) -> Tensor:
        """Returns the pooled encodings ``[N, V]`` of the others at some places ``[N]``."""
        if len(place) * (self.agents - 1) >= self._active.numel():  # encoding everyone once is cheaper
            return self._all(self.critic.encoder(self._observation)).flatten(0, 1)[place]
        row, step = self.row_and_step(place)
        own = row % self.agents
        further = torch.arange(1, self.agents, device=place.device)
        others = (row - own)[:, None] + (own[:, None] + further) % self.agents
        chosen = (others, step[:, None].expand_as(others))
        features = self.critic.encoder(self._observation[chosen])
        return self.critic.pooled(features, self._active[chosen].unsqueeze(1)).squeeze(1)

    def among(self, features: Tensor, active: Tensor) -> Tensor:
        """Pools the encodings ``[G, A, T, F]`` of all agents of some worlds into those of the others ``[G, A, T, V]``.

        Args:
            active: ``[G, A, T]`` bool.
        """
        there = active.transpose(1, 2).unsqueeze(-2).expand(-1, -1, self.agents, -1)
        return self.critic.pooled(features.transpose(1, 2), apart(there)).transpose(1, 2)

    def _all(self, features: Tensor) -> Tensor:
        """:meth:`seen` for all places, ``[B, T, V]``, from the encodings of all, ``[B, T, F]``."""
        worlds = (-1, self.agents)
        return self.among(features.unflatten(0, worlds), self._active.unflatten(0, worlds)).flatten(0, 1)

    def values_after(self, sequences: TensorDictBase, ends: Tensor | None, encoded: Callable[[Any], Tensor]) -> Tensor:
        """Returns the values of the states that follow some decisions, given what all agents see then.

        Other agents count if they go on, or if they are truncated at the same step. Those that terminated at this step
        or earlier do not count; nor do newcomers.

        Args:
            sequences: ``[B, T]``.
            ends: which decisions, ``[B, T]`` bool, E of them; None: all.
            encoded: maps indices (rows and steps) of decisions to the encodings of the observations that followed.

        Returns ``[E, 1]``, or ``[B, T, 1]`` for all.
        """
        following, active = sequences.get("next"), sequences.get("active")
        worlds = (-1, self.agents)

        def after(features: Tensor, there: Tensor, cut: Tensor, before: Tensor) -> Tensor:
            """Returns the values ``[..., A, 1]`` of the agents of some worlds at some steps."""
            goes_on = there.unsqueeze(-2) | (cut.unsqueeze(-1) & cut.unsqueeze(-2))
            others = self.critic.pooled(features, apart(goes_on & before.unsqueeze(-2)))
            return self.critic.head(torch.cat((features, others), -1))

        cut = (following.get("done") & ~following.get("terminated"))[..., 0]
        parts = following.get("active"), cut, active
        if ends is None:
            of_all = [part.unflatten(0, worlds).transpose(1, 2) for part in (encoded(slice(None)), *parts)]
            return after(*of_all).transpose(1, 2).flatten(0, 1)
        groups, steps = ends.unflatten(0, worlds).any(1).nonzero(as_tuple=True)
        rows = groups[:, None] * self.agents + torch.arange(self.agents, device=ends.device)
        chosen = (rows, steps[:, None].expand_as(rows))
        values = after(encoded(chosen), *(part[chosen] for part in parts))
        everywhere = values.new_zeros(*ends.shape, 1)
        everywhere[chosen] = values
        return everywhere[ends]
