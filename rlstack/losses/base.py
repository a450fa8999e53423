"""The base class of losses: plain networks inside a TorchRL ``LossModule``, keys, targets, the Bellman equation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.objectives.common import LossModule

from rlstack.envs.foundation.tensors import by_name
from rlstack.networks.distributions import legal

Metrics = dict[str, Tensor]


class Loss(LossModule):
    """A ``LossModule`` that calls its networks directly, so that it costs no more than plain tensors.

    TorchRL's losses swap parameters in and out of a functional network with every call. Here a network added by
    :meth:`add_network` stays a plain module (``loss.<name>``), its target is a frozen copy (``loss.target_<name>``),
    and ``loss.<name>_params`` and ``loss.target_<name>_params`` are views of their parameters. TorchRL's
    ``SoftUpdate`` and ``HardUpdate``, ``state_dict``, ``parameters`` and ``to`` work on them as on any other loss.

    A network is an ``nn.Module`` that takes and returns tensors, or a ``TensorDictModule``, which reads its own
    ``in_keys``. Entries may have any number of batch dimensions ``[...]``; rewards and ends are ``[..., 1]``.

    Args:
        gamma: discount of the value of the next state, where the data do not have their own (entry ``gamma``).
    """

    @dataclass
    class _AcceptedKeys:
        """Entries that :meth:`set_keys` can rename; those of the next state are under ``next``.

        ``gamma [...]`` or ``[..., 1]`` is the discount of an (n-step) bootstrap, ``action_mask [..., n]`` (bool) the
        legal choices, and ``priority_weight [...]`` the importance weight of an entry that was sampled by priority; all
        are optional. Under ``priority``, :meth:`forward` writes the size of each entry's error.
        """

        observation: NestedKey = "observation"
        action: NestedKey = "action"
        action_mask: NestedKey = "action_mask"
        reward: NestedKey = "reward"
        terminated: NestedKey = "terminated"
        gamma: NestedKey = "gamma"
        action_value: NestedKey = "action_value"
        state_action_value: NestedKey = "state_action_value"
        priority: NestedKey = "td_error"
        priority_weight: NestedKey = "priority_weight"

    tensor_keys: Any  # of this loss's own _AcceptedKeys
    default_keys = _AcceptedKeys
    _names: tuple[str, ...] = ()
    _following: ClassVar[tuple[str, ...]] = ("reward", "terminated")
    """Names of the keys of required entries of the next state, beside those that networks read."""
    RESULTS: ClassVar[Sequence[str]] = ("loss_critic", "value", "target")
    """Names of all losses and metrics: the ``out_keys``."""

    def __init__(self, gamma: float = 0.99) -> None:
        super().__init__()
        self.gamma, self.out_keys = gamma, list(self.RESULTS)

    # -- networks ------------------------------------------------------------------------------------------------

    def add_network(self, name: str, network: nn.Module, target: bool = False) -> None:
        """Stores a network as ``self.<name>``, and with ``target`` also a frozen copy as ``self.target_<name>``."""
        self.__dict__[name] = network  # not registered as a module: its parameters are those of the view
        if target:
            self.__dict__[f"target_{name}"] = deepcopy(network).requires_grad_(False)
        self._names = (*self._names, name)
        self._has_update_associated[name] = not target
        self._view()

    def called(self) -> dict[str, nn.Module]:
        """Returns the networks and their targets by name."""
        names = [held for name in self._names for held in (name, f"target_{name}")]
        return {name: self.__dict__[name] for name in names if name in self.__dict__}

    def _view(self) -> None:
        for name, network in self.called().items():
            setattr(self, f"{name}_params", TensorDictParams(TensorDict.from_module(network), no_convert=True))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(deepcopy(self.__dict__, memo))
        twin._view()  # TorchRL copies views by themselves, apart from the copied networks
        return twin

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        for network in self.called().values():
            network._apply(fn, recurse)
        for key, buffer in list(self.named_buffers(recurse=False)):
            setattr(self, key, fn(buffer))
        self._view()
        return self

    def named_parameters(self, *args: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields the trained parameters, without those of the targets."""
        for name, parameter in super().named_parameters(*args, **options):
            if not name.rpartition("_params")[0].rpartition(".")[2].startswith("target_"):
                yield name, parameter

    @property
    def in_keys(self) -> list[NestedKey]:
        """The required entries."""
        return self._required_keys()

    def _required_keys(self) -> list[NestedKey]:
        keys, observed = self.tensor_keys, self.observed
        following = [_under_next(key) for key in (*observed, *(getattr(keys, name) for name in self._following))]
        return [*observed, keys.action, *following]

    @property
    def named_keys(self) -> list[NestedKey]:
        """The entries that can be given by name, required ones first."""
        keys = self.tensor_keys
        mask = keys.action_mask
        return [*self.in_keys, mask, _under_next(mask), keys.gamma, keys.priority_weight]

    @property
    def observed(self) -> list[NestedKey]:
        """The entries that the networks read, without the action: those that a ``TensorDictModule`` names, and for
        others the observation.
        """
        keys: list[NestedKey] = []
        for name in self._names:
            network = self.__dict__[name]
            for part in network if isinstance(network, nn.ModuleList) else [network]:
                read = part.in_keys if isinstance(part, TensorDictModuleBase) else [self.tensor_keys.observation]
                keys += [key for key in read if key not in (*keys, self.tensor_keys.action)]
        return keys

    @property
    def functional(self) -> bool:
        """False: the networks hold their parameters, so that ``get_stateful_net`` returns the network itself."""
        return False

    def reset_parameters_recursive(self) -> None:
        """Draws new weights in all layers that have ``reset_parameters``; targets become copies of their networks."""
        for name in self._names:
            network = self.__dict__[name]
            for module in network.modules():
                if callable(reset := getattr(module, "reset_parameters", None)):
                    reset()
            if f"target_{name}" in self.__dict__:
                self.__dict__[f"target_{name}"].load_state_dict(network.state_dict())

    # -- calls ---------------------------------------------------------------------------------------------------

    def output(self, network: Any, tensordict: TensorDictBase, key: NestedKey, **given: Tensor) -> Tensor:
        """Returns the output of a network for a tensordict's entries.

        Args:
            network: a plain one is called with the observation and the tensors in ``given``, in their order.
            tensordict: the state, with the inputs of a ``TensorDictModule`` under its ``in_keys``.
            key: where a ``TensorDictModule`` writes its output.
            given: further inputs by the name of their key, such as ``action``.
        """
        if isinstance(network, TensorDictModuleBase):
            inputs = tensordict.select(*network.in_keys, strict=False)
            for name, tensor in given.items():
                inputs.set(getattr(self.tensor_keys, name), tensor)
            out: Tensor = network(inputs).get(key)
        else:
            out = network(required(tensordict, self.tensor_keys.observation), *given.values())
        return out

    def value(self, critic: nn.Module, tensordict: TensorDictBase, action: Tensor) -> Tensor:
        """Returns ``Q(s, a) [..., 1]``."""
        return self.output(critic, tensordict, self.tensor_keys.state_action_value, action=action)

    def values_of_all(self, critics: Any, tensordict: TensorDictBase, action: Tensor) -> list[Tensor]:
        """Returns ``Q(s, a) [..., 1]`` of each critic, see :class:`~rlstack.networks.values.Critics`."""
        if getattr(critics, "batched", False):
            return critics(required(tensordict, self.tensor_keys.observation), action)
        return [self.value(critic, tensordict, action) for critic in critics]

    def joint_values(
        self, critics: Any, tensordict: TensorDictBase, next_action: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns ``Q(s, a)`` and, without gradients, ``Q(s', a')`` ``[..., 1]`` of each critic, from one joint pass.

        Layers that normalise over the batch thus see both as one batch, which replaces target networks; their running
        statistics are updated only here (CrossQ, Bhatt et al. 2024).

        Args:
            critics: an ``nn.ModuleList`` of (observation, action) -> value.
        """
        keys, read = self.tensor_keys, [key for critic in critics for key in getattr(critic, "in_keys", ())]
        names = {key for key in (read or [keys.observation]) if key != keys.action}
        both = torch.cat([part.select(*names) for part in (tensordict, required(tensordict, "next"))])
        actions = torch.cat((required(tensordict, keys.action), next_action))
        critics.train()
        pairs = [self.value(critic, both, actions).split(len(tensordict)) for critic in critics]
        critics.eval()
        return [now for now, _ in pairs], [then.detach() for _, then in pairs]

    def greedy(self, values: Tensor, tensordict: TensorDictBase) -> Tensor:
        """Returns the index ``[..., 1]`` of the best legal action by values ``[..., n]`` in a tensordict's state."""
        mask = tensordict.get(self.tensor_keys.action_mask, None)
        if mask is not None:
            values = values.masked_fill(~legal(mask), -torch.inf)
        return values.argmax(-1, keepdim=True)

    def chosen(self, tensordict: TensorDictBase, choices: int) -> Tensor:
        """Returns the index ``[..., 1]`` of the action taken, whose entry may be one-hot ``[..., n]`` or an index.

        Raises:
            ValueError: it has more dimensions, such as one of agents.
        """
        action, lead = required(tensordict, self.tensor_keys.action), len(tensordict.batch_size)
        if action.dim() == lead:
            return action.unsqueeze(-1)
        if action.dim() > lead + 1 or action.shape[-1] not in (1, choices):
            raise misshapen("the actions", action, tensordict)
        return action if action.shape[-1] == 1 else action.to(torch.uint8).argmax(-1, keepdim=True)

    def act_and_penalty(self, actor: Any, tensordict: TensorDictBase, weight: float) -> tuple[Tensor, Tensor | float]:
        """Returns a deterministic actor's action ``[..., D]``, and ``weight`` times its mean squared raw output."""
        if not weight or isinstance(actor, TensorDictModuleBase):
            return self.output(actor, tensordict, self.tensor_keys.action), 0.0
        raw = actor.raw(required(tensordict, self.tensor_keys.observation))
        return actor.squashed(raw), weight * raw.square().mean()

    # -- arithmetic ----------------------------------------------------------------------------------------------

    def bootstrapped(self, tensordict: TensorDictBase, values: Tensor) -> Tensor:
        """Returns ``r + gamma v`` for values ``[..., k]`` (or ``[k]``, if all next states have the same); at the end
        ``r`` alone, whatever ``v``.

        Only the end of a task (``terminated``) has no future; a time limit (``truncated``) does.

        Raises:
            ValueError: rewards or ends are not ``[..., 1]``; broadcasting them would mix up entries and quantiles.
        """
        keys, following = self.tensor_keys, required(tensordict, "next")
        reward, end = required(following, keys.reward), required(following, keys.terminated)
        gamma, lead = tensordict.get(keys.gamma, None), values.shape[:-1]
        for name, entry in (("reward", reward), ("terminated", end)):
            if entry.shape[-1:] != (1,) or entry.shape[entry.dim() - 1 - len(lead) : -1] != lead:
                shapes = f"the shape {[*entry.shape]}, [..., 1] is needed for values {[*values.shape]}"
                raise ValueError(f"{name} has {shapes} of the next states")
        if gamma is None:
            target = torch.add(reward, values, alpha=self.gamma)
        else:
            target = torch.addcmul(reward, gamma.reshape(reward.shape), values)
        return torch.where(end, reward, target)

    def mean(self, errors: Tensor, tensordict: TensorDictBase) -> Tensor:
        """Returns the mean of errors ``[...]`` or ``[..., 1]``, each times its importance weight if there is one."""
        return weighted_mean(errors, self.weight(tensordict))

    def weight(self, tensordict: TensorDictBase) -> Tensor | None:
        """Returns the importance weight of each entry, for data sampled by priority; otherwise None."""
        return tensordict.get(self.tensor_keys.priority_weight, None)

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the critic's loss, a scalar, and its metrics, among them ``td_error`` of each entry if known."""
        raise NotImplementedError

    def terms(self, tensordict: TensorDictBase) -> tuple[Metrics, Metrics]:
        """Returns the losses of a batch by name, to be summed, and metrics; here the loss of the critic alone."""
        loss, metrics = self.critic_loss(tensordict)
        return {"loss_critic": loss}, metrics

    @by_name("named_keys", batched=True)
    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Returns losses and metrics, scalars under ``out_keys``; errors go into the input, for a prioritised buffer.

        Entries can also be given by name, as in ``loss(observation=..., action=..., next_reward=...)``; the scalars are
        then returned in the order of ``out_keys``.
        """
        losses, metrics = self.terms(tensordict)
        error = metrics.pop("td_error", None)
        if error is not None:
            tensordict.set(self.tensor_keys.priority, error.reshape(*tensordict.batch_size, -1).mean(-1))
        return TensorDict({**losses, **metrics}, [])

    def regression(
        self, error: Callable[..., Tensor], values: Sequence[Tensor], target: Tensor, tensordict: TensorDictBase
    ) -> tuple[list[Tensor], Metrics]:
        """Returns the mean error of each critic's values ``[..., 1]`` to the target, and metrics.

        Raises:
            ValueError: values and target differ in shape; broadcasting them would compare each entry with all others.
        """
        for value in values:
            if value.shape != target.shape:
                raise ValueError(f"the target has the shape {tuple(target.shape)}, the values {tuple(value.shape)}")
        metrics = {"value": values[0].detach().mean(), "target": target.mean()}
        if self.weight(tensordict) is None:
            return [error(value, target) for value in values], metrics
        metrics["td_error"] = (target - torch.stack(tuple(values)).detach()).abs().mean(0).squeeze(-1)
        return [self.mean(error(value, target, reduction="none"), tensordict) for value in values], metrics

    def distributional(
        self, errors: Tensor, values: Tensor, target: Tensor, tensordict: TensorDictBase
    ) -> tuple[Tensor, Metrics]:
        """Returns the mean of the errors ``[...]`` between distributions of values, and metrics."""
        metrics = {"value": values.detach().mean(), "target": target.mean()}
        if self.weight(tensordict) is not None:
            metrics["td_error"] = errors.detach()
        return self.mean(errors, tensordict), metrics


@contextmanager
def frozen(*networks: nn.Module) -> Iterator[None]:
    """Lets gradients pass through these networks inside the context without reaching their parameters."""
    parameters = [p for network in networks for p in network.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def weighted_mean(errors: Tensor, weight: Tensor | None) -> Tensor:
    """Returns the mean of errors ``[...]`` or ``[..., 1]``, each times its weight ``[...]``; of the errors for None."""
    return errors.mean() if weight is None else (weight.reshape(errors.shape) * errors).mean()


def required(tensordict: TensorDictBase, key: NestedKey) -> Any:
    """Returns an entry.

    Raises:
        KeyError: there is none.
    """
    entry = tensordict.get(key, None)
    if entry is None:
        raise KeyError(f"the loss needs the entry {key!r}, there are {', '.join(map(str, tensordict.keys()))}")
    return entry


def misshapen(what: str, entry: Tensor, tensordict: TensorDictBase) -> ValueError:
    """Returns the error for an entry whose dimensions do not fit the batch."""
    shape, batch = [*entry.shape], [*tensordict.batch_size]
    hint = "make a batch of several agents one of single agents first, by rlstack.flatten_agents"
    return ValueError(f"{what} have the shape {shape}, which does not fit the batch {batch}; {hint}")


def _under_next(key: NestedKey) -> NestedKey:
    return ("next", *key) if isinstance(key, tuple) else ("next", key)
