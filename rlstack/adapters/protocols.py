"""Any Python object as a policy, if it has one of three common forms:

* a callable, ``obs -> action``;
* an object with ``act(state, eps)`` for one observation at a time, like MarineNav's agents;
* an object with ``predict(obs)`` for a batch, returning ``action`` or ``(action, state)``, like Stable-Baselines3's.

A structured observation is passed as a nested dict by key.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs import EnvBase

from rlstack.agents.compatibility import as_actions, batch_of, leaves, telling, try_out
from rlstack.agents.interface import MASK, Interface
from rlstack.agents.recurrent import EpisodeStarts
from rlstack.config import ConfigError
from rlstack.envs.foundation.packages import found
from rlstack.envs.foundation.tensors import by_name

ProtocolName: TypeAlias = Literal["auto", "callable", "act", "predict"]
Arrays: TypeAlias = Literal["auto", "numpy", "torch"]


def callable_policy(
    obj: Any, env: EnvBase, protocol: ProtocolName = "auto", batched: bool = True, arrays: Arrays = "auto"
) -> TensorDictModuleBase:
    """Returns an object as a policy of an env, after trying it on a sample of the env's observations.

    Args:
        obj: a callable, or an object with ``act`` or ``predict``, or ``package.module:attribute``, which names one.
        env: the env; its worlds, and agents if there are several, are flattened into one batch ``[N]``.
        protocol: how to call the object; ``auto`` prefers ``predict``, then ``act``, then a call. ``act`` is called
            with one observation at a time and ``eps`` 0; ``predict`` is called with ``deterministic=True`` if it takes
            that, and with the state that it returned and ``episode_start`` if it takes both.
        batched: False calls a callable once per entry, without a batch dimension.
        arrays: type of a callable's input. ``auto``: tensors for an ``nn.Module``; numpy for others, or tensors if they
            fail on numpy. Tensors are on the env's device.

    Raises:
        ConfigError: there is no such object, or it follows no protocol, fails, or returns what is not an action of this
            env.
    """
    if isinstance(obj, str):
        try:
            obj = found(obj)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    interface, who = Interface.of(env), str(getattr(obj, "__qualname__", type(obj).__qualname__))
    names = {"predict": "predict", "act": "act", "callable": "__call__"}
    offered = [name for name, method in names.items() if hasattr(obj, method) and not inspect.isclass(obj)]
    if protocol != "auto" and protocol not in names:
        raise ConfigError(f"protocol: {protocol!r} is unknown, allowed: auto, {', '.join(names)}")
    if not offered or (protocol != "auto" and protocol not in offered):
        lacks = "no predict(obs), act(state, eps) or call" if protocol == "auto" else f"no {protocol}"
        hint = "; it is a class, an instance is needed" if inspect.isclass(obj) else ""
        raise ConfigError(f"{who} is not a policy: it offers {lacks}{hint}")
    chosen = offered[0] if protocol == "auto" else protocol
    kinds = ["numpy"]
    if chosen == "callable":
        auto = ["torch"] if isinstance(obj, nn.Module) else ["numpy", "torch"]
        kinds = auto if arrays == "auto" else [arrays]
    faults: list[str] = []
    for kind in kinds:
        policy = ObjectPolicy(interface, obj, chosen, batched and chosen != "act", kind == "torch", who).to(env.device)
        try:
            try_out(policy.action, env, interface, who)
        except ConfigError as error:
            faults.append(f"with {kind} arrays, {error}" if len(kinds) > 1 else str(error))
            continue
        policy.reset()
        return policy
    raise ConfigError("; ".join(faults))


class ForeignPolicy(TensorDictModuleBase):
    """Writes the actions of something from elsewhere into an env's tensordict; subclasses choose them.

    Args:
        who: its name, for messages.
        masked: whether it takes action masks.

    Attributes:
        recurrent: whether it keeps a state from call to call, which :meth:`reset` forgets.
    """

    recurrent = False

    def __init__(self, interface: Interface, who: str = "", masked: bool = False) -> None:
        super().__init__()
        self.in_keys = interface.observation_keys() + ([interface.key(MASK)] if masked else [])
        self.out_keys, self.interface, self.who = [interface.key("action")], interface, who
        self._masked, self._starts = masked, EpisodeStarts(interface)
        self._state: Any = None

    def reset(self) -> None:
        """Makes a recurrent policy begin episodes everywhere at the next call."""
        self._starts.reset()
        self._state = None

    @by_name()
    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        observation = tensordict.get(self.interface.key("observation"))
        mask = tensordict.get(self.interface.key(MASK)) if self._masked else None
        if not self.recurrent:
            return tensordict.set(self.out_keys[0], self.action(observation, mask))
        lead = batch_of(observation, self.interface)
        action = self.action(observation, mask, self._starts(tensordict, lead).reshape(-1))
        self._starts.remember(tensordict, lead)
        return tensordict.set(self.out_keys[0], action)

    def action(self, observation: Any, mask: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        """Returns actions for an observation of the env.

        Args:
            mask: of actions; None: everything is legal.
            starts: ``[N]`` bool, where episodes begin; for recurrent policies.

        Raises:
            ConfigError: it fails, or its answer is not an action of the env.
        """
        raise NotImplementedError


class ObjectPolicy(ForeignPolicy):
    """Gets actions from an object; see :func:`callable_policy`.

    Args:
        protocol: ``callable``, ``act`` or ``predict``.
        batched: whether it is called with all entries at once.
        tensors: whether it gets tensors instead of numpy arrays.
    """

    def __init__(self, interface: Interface, obj: Any, protocol: str, batched: bool, tensors: bool, who: str) -> None:
        super().__init__(interface, who)
        asks: dict[str, Any] = {
            "act": lambda observation: obj.act(observation, 0.0),
            "predict": getattr(obj, "predict", None),
        }
        self._ask: Callable[..., Any] = asks.get(protocol, obj)
        self._batched, self._tensors, self._predicts = batched, tensors, protocol == "predict"
        accepted: set[str] = set()
        with suppress(TypeError, ValueError):  # built in, without a signature
            accepted = set(inspect.signature(obj.predict).parameters) if self._predicts else accepted
        self._options: dict[str, Any] = {"deterministic": True} if "deterministic" in accepted else {}
        self.recurrent = {"state", "episode_start"} <= accepted
        if isinstance(obj, nn.Module):
            self.network = obj

    def action(self, observation: Any, mask: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        lead = batch_of(observation, self.interface)
        folded = self._fold(observation, lead)
        with telling(self.interface, self.who):
            if self._batched:
                memory = {} if starts is None else {"state": self._state, "episode_start": starts.cpu().numpy()}
                answer = self._action_of(self._ask(folded, **self._options, **memory))
            else:
                entries = (_entry(folded, index) for index in range(lead.numel()))
                answers = [self._action_of(self._ask(entry, **self._options)) for entry in entries]
                tensors = all(isinstance(answer, Tensor) for answer in answers)
                answer = torch.stack(answers) if tensors else np.stack([np.asarray(answer) for answer in answers])
        device = leaves(observation, self.interface)[0].device
        return as_actions(answer, lead, self.interface.action, device, self.who)

    def _action_of(self, answer: Any) -> Any:
        """Returns the action in an answer of ``predict``, and keeps the state in it."""
        if self._predicts and isinstance(answer, tuple):
            answer, self._state = answer[0], answer[1] if len(answer) > 1 else None
        return answer

    def _fold(self, observation: Any, lead: torch.Size) -> Any:
        """Flattens the batch dimensions into one; a structured observation becomes a nested dict."""
        if not isinstance(observation, Tensor):
            return {key: self._fold(value, lead) for key, value in observation.items()}
        folded = observation.reshape(lead.numel(), *observation.shape[len(lead) :])
        # Foreign code may write into its input.
        return folded if self._tensors else folded.detach().cpu().numpy().copy()


def _entry(folded: Any, index: int) -> Any:
    return {key: _entry(value, index) for key, value in folded.items()} if isinstance(folded, dict) else folded[index]
