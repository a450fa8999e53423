"""Any Python object as a policy: the three forms in which people write one.

* a callable, ``obs -> action``;
* an object with ``act(state, eps)`` for one observation at a time, as MarineNav's agents;
* an object with ``predict(obs)`` for a batch, returning ``action`` or ``(action, state)``, as Stable-Baselines3's.

A structured observation is handed over as a nested dict by key.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs import EnvBase

from rlstack.agents.episode_starts import EpisodeStarts
from rlstack.agents.fit import as_actions, telling, try_out
from rlstack.agents.interface import Interface
from rlstack.config import ConfigError
from rlstack.files.safe_load import first_line

ProtocolName: TypeAlias = Literal["auto", "callable", "act", "predict"]
Arrays: TypeAlias = Literal["auto", "numpy", "torch"]


@runtime_checkable
class CallablePolicy(Protocol):
    """``policy(obs) -> action``; numpy or torch, batched ``[N, ...]`` or one at a time."""

    def __call__(self, observation: Any, /) -> Any: ...


@runtime_checkable
class ActPolicy(Protocol):
    """``policy.act(state, eps) -> action`` for one observation; ``eps`` is the chance of a random action."""

    def act(self, state: Any, eps: float, /) -> Any: ...


@runtime_checkable
class PredictPolicy(Protocol):
    """``policy.predict(obs) -> action`` or ``(action, state)`` for a batch ``[N, ...]`` of numpy arrays."""

    def predict(self, observation: Any, /) -> Any: ...


def foreign_policy(
    obj: Any, env: EnvBase, protocol: ProtocolName = "auto", batched: bool = True, arrays: Arrays = "auto"
) -> TensorDictModuleBase:
    """An object as a policy of an env; it is tried on a sample of the env's observations at once.

    Args:
        obj: a callable, or an object with ``act`` or ``predict``.
        env: worlds, and agents if there are several, are folded into one batch ``[N]`` for it.
        protocol: how to ask it; ``auto`` takes ``predict`` before ``act`` before a call. ``act`` is asked one
            observation at a time, with ``eps`` 0; ``predict`` is asked with ``deterministic=True`` if it takes that,
            and gets back the state that it returned, with ``episode_start``, if it takes both.
        batched: False calls a callable once per entry, without a batch dimension.
        arrays: what a callable gets. ``auto``: tensors for an ``nn.Module``; numpy for others, or tensors if it fails
            on numpy. Tensors are on the env's device.

    Raises:
        ConfigError: it follows no protocol, fails, or answers with something that is no action of this env.
    """
    interface, who = Interface.of(env), _name(obj)
    chosen = _choose(obj, protocol, who)
    kinds: list[Literal["numpy", "torch"]] = ["numpy"]
    if chosen == "callable":
        auto: list[Literal["numpy", "torch"]] = ["torch"] if isinstance(obj, nn.Module) else ["numpy", "torch"]
        kinds = auto if arrays == "auto" else [arrays]
    faults: list[str] = []
    for kind in kinds:
        asked = _Asked(obj, chosen, batched and chosen != "act", kind == "torch")
        policy = ForeignPolicy(interface, asked, who).to(env.device)
        try:
            try_out(policy.action, env, interface, who)
        except ConfigError as error:
            faults.append(f"with {kind} arrays, {error}" if len(kinds) > 1 else str(error))
            continue
        policy.reset()
        return policy
    raise ConfigError("; ".join(faults))


def load_callable(path: str) -> Any:
    """The object that ``package.module:attribute`` names; importing the module runs its code.

    Raises:
        ConfigError: not of that form, or there is no such module or attribute.
    """
    module, colon, attribute = path.partition(":")
    if not colon or not module or not attribute:
        raise ConfigError(f"{path!r} is not of the form 'package.module:attribute'")
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything, or end the program
        raise ConfigError(
            f"{path}: {module} cannot be imported ({type(error).__name__}: {first_line(error)})"
        ) from error
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            public = ", ".join(key for key in getattr(found, "__dict__", ()) if not key.startswith("_")) or "nothing"
            raise ConfigError(f"{path}: there is no {name!r} in it, but {public}") from None
        except Exception as error:  # an attribute that is computed
            raise ConfigError(f"{path}: {name} cannot be had ({type(error).__name__}: {first_line(error)})") from error
    return found


class ForeignPolicy(TensorDictModuleBase):
    """Asks an object for the actions of an env's tensordict.

    Args:
        interface: of the env.
        asked: the object, and how to ask it.
        who: its name, for messages.
    """

    def __init__(self, interface: Interface, asked: _Asked, who: str) -> None:
        super().__init__()
        self.in_keys, self.out_keys = interface.observation_keys(), [interface.key("action")]
        self.interface, self.who, self._asked = interface, who, asked
        if isinstance(asked.obj, nn.Module):
            self.network = asked.obj
        self._starts = EpisodeStarts(interface)

    def reset(self) -> None:
        """Makes an object with a memory begin anew everywhere at the next call."""
        self._starts.reset()
        self._asked.state = None

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        observation = tensordict.get(self.interface.key("observation"))
        starts = None
        if self._asked.remembers:
            starts = self._starts(tensordict, _lead(observation, self.interface)).reshape(-1).cpu().numpy()
        return tensordict.set(self.out_keys[0], self.action(observation, starts))

    def action(self, observation: Any, starts: np.ndarray[Any, Any] | None = None) -> Tensor:
        """Actions for an observation of the env; ``starts [N]`` tells an object with a memory where episodes begin.

        Raises:
            ConfigError: the object fails, or its answer is no action of the env.
        """
        device, lead = _first(observation).device, _lead(observation, self.interface)
        folded = _fold(observation, len(lead), lead.numel(), self._asked.tensors)
        with telling(self.interface, self.who):
            answer = self._asked.answer(folded, lead.numel(), starts)
        return as_actions(answer, lead, self.interface.action, device, self.who)


class _Asked:
    """An object and the way in which it is asked.

    Attributes:
        remembers: it takes back the state that it returns.
    """

    def __init__(self, obj: Any, protocol: str, batched: bool, tensors: bool) -> None:
        self.obj, self.protocol, self.batched, self.tensors = obj, protocol, batched, tensors
        self.state: Any = None
        accepted = _parameters(obj.predict) if protocol == "predict" else set()
        self.remembers = {"state", "episode_start"} <= accepted
        self.options: dict[str, Any] = {"deterministic": True} if "deterministic" in accepted else {}

    def answer(self, folded: Any, count: int, starts: np.ndarray[Any, Any] | None) -> Any:
        """Actions for a folded observation ``[N, ...]``."""
        if self.batched:
            return self._ask(folded, starts)
        answers = [self._ask(_entry(folded, index), None) for index in range(count)]
        if all(isinstance(answer, Tensor) for answer in answers):
            return torch.stack(answers)
        return np.stack([np.asarray(answer) for answer in answers])

    def _ask(self, observation: Any, starts: np.ndarray[Any, Any] | None) -> Any:
        if self.protocol == "callable":
            return self.obj(observation)
        if self.protocol == "act":
            return self.obj.act(observation, 0.0)
        memory = {"state": self.state, "episode_start": starts} if self.remembers and starts is not None else {}
        answer = self.obj.predict(observation, **self.options, **memory)
        if isinstance(answer, tuple):
            answer, self.state = answer[0], answer[1] if len(answer) > 1 else None
        return answer


def _choose(obj: Any, protocol: str, who: str) -> str:
    offers = {
        "predict": isinstance(obj, PredictPolicy) and not inspect.isclass(obj),
        "act": isinstance(obj, ActPolicy) and not inspect.isclass(obj),
        "callable": isinstance(obj, CallablePolicy) and not inspect.isclass(obj),
    }
    if protocol != "auto" and protocol not in offers:
        raise ConfigError(f"protocol: {protocol!r} is unknown, allowed: auto, {', '.join(offers)}")
    wanted = [name for name in offers if offers[name]] if protocol == "auto" else [protocol]
    if not wanted or not offers[wanted[0]]:
        lacks = "no predict(obs), act(state, eps) or call" if protocol == "auto" else f"no {protocol}"
        hint = "; it is a class, an instance is needed" if inspect.isclass(obj) else ""
        raise ConfigError(f"{who} is no policy: it offers {lacks}{hint}")
    return wanted[0]


def _parameters(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # built in, without a signature
        return set()


def _name(obj: Any) -> str:
    return str(getattr(obj, "__qualname__", type(obj).__qualname__))


def _first(observation: Any) -> Tensor:
    if isinstance(observation, Tensor):
        return observation
    return next(iter(observation.values(include_nested=True, leaves_only=True)))


def _lead(observation: Any, interface: Interface) -> torch.Size:
    spec = interface.observation
    leaf = spec if isinstance(observation, Tensor) else next(iter(spec.values(include_nested=True, leaves_only=True)))
    shape = _first(observation).shape
    return shape[: len(shape) - len(leaf.shape)]


def _fold(observation: Any, dims: int, count: int, tensors: bool) -> Any:
    """Batch dimensions folded into one; a structured observation as a nested dict."""
    if not isinstance(observation, Tensor):
        return {key: _fold(value, dims, count, tensors) for key, value in observation.items()}
    folded = observation.reshape(count, *observation.shape[dims:])
    return folded if tensors else folded.detach().cpu().numpy().copy()  # a stranger may write into what it gets


def _entry(folded: Any, index: int) -> Any:
    return {key: _entry(value, index) for key, value in folded.items()} if isinstance(folded, dict) else folded[index]
