"""An env as an agent sees it: its specs, how its actions are scaled, and which of them are legal."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, TensorSpec
from torchrl.envs import EnvBase

from rlstack.config import ConfigError
from rlstack.envs.foundation.tensors import unchecked
from rlstack.envs.world import GROUP, STATE, Mirror, WorldHooks, hooks_of
from rlstack.networks.distributions import legal

MASK = "action_mask"


@dataclass(frozen=True)
class Interface:
    """An env as one agent sees it: the specs of a single decision, without batch or agent dimensions.

    Attributes:
        group: key of the group of agents in a tensordict; None for a single agent.
        observation: spec of one observation, a Composite if structured.
        action: spec of one action.
        features: builds the world's own input scaling (a module from observation to observation), if it has one.
        dtype: dtype of floating-point observations.
        masked: whether the env says under ``action_mask`` which actions are legal.
        nearest: function from the observation to the distance of the nearest obstacle, if the world has one.
        carries: whether the env passes on a policy's recurrent state, see :class:`rlstack.envs.world.World`.
        agents: the number of agents in the group of each world, absent ones included.
        mirror: the mirror of the world, or the reason why it has none.
        either_action: whether the world has the option ``continuous_actions``.
        state: spec of what the world shows beside an observation under ``state``, for critics alone; None if nothing.
        privileged: specs of what only critics see, by name (``agent.critic_inputs``).
        hidden: those of them that are keys of the world's observation, which :attr:`observation` lacks.
    """

    group: str | None
    observation: TensorSpec
    action: TensorSpec
    features: Callable[[], nn.Module] | None
    dtype: torch.dtype
    masked: bool = False
    nearest: Callable[[Any], Tensor] | None = None
    carries: bool = False
    agents: int = 1
    mirror: Mirror | str = "it declares no mirror"
    either_action: bool = field(default=False, compare=False)  # only for messages
    state: TensorSpec | None = None
    privileged: Composite | None = None
    hidden: tuple[str, ...] = ()

    @classmethod
    def of(cls, env: EnvBase) -> Interface:
        """Reads an env's specs.

        Raises:
            ConfigError: it is no env of TorchRL.
        """
        check_world(env)
        hooks = hooks_of(env)
        group = GROUP if GROUP in env.observation_spec.keys() else None  # noqa: SIM118
        prefix = () if group is None else (group,)
        lead = env.full_action_spec[group].shape if group is not None else env.batch_size
        if (*prefix, "observation") not in env.observation_spec.keys(True):
            shown = ", ".join(map(str, env.observation_spec.keys(True, True)))
            hint = "a transform such as torchrl.envs.CatTensors makes one, or rlstack.envs.make('torchrl', id=...)"
            raise ConfigError(f"env: it shows no entry 'observation', only {shown}; {hint}")
        observation = _strip(env.observation_spec[(*prefix, "observation")], len(lead))
        action = _strip(env.full_action_spec[(*prefix, "action")], len(lead))
        dtypes = [leaf.dtype for leaf in _leaves(observation).values() if leaf.dtype.is_floating_point]
        seen = env.observation_spec if group is None else env.observation_spec[group]
        return cls(
            group,
            observation,
            action,
            hooks.input_features,
            dtypes[0] if dtypes else torch.get_default_dtype(),
            MASK in seen.keys(),  # noqa: SIM118
            hooks.nearest_obstacle,
            hooks is env and hooks.carries_memory,  # TorchRL's transforms do not hand it on
            1 if group is None else int(lead[-1]),
            (hooks if hooks is env else WorldHooks()).mirror(),  # transforms may show it differently
            "continuous_actions" in inspect.signature(type(hooks.innermost).__init__).parameters,
            _strip(seen[STATE], len(lead)) if STATE in seen.keys() else None,  # noqa: SIM118
        )

    def with_critic_inputs(self, names: Sequence[str]) -> Interface:
        """Returns the interface of an agent whose critics see what is named, and whose actor sees nothing of it.

        Args:
            names: ``state``, or keys of an observation that is a dict; ``observation``, which stands for what the actor
                sees, changes nothing here.

        Raises:
            ConfigError: the world has no such entry, or nothing would be left for the actor.
        """
        whole = self.observation
        keys = [str(key) for key in whole.keys()] if isinstance(whole, Composite) else []  # noqa: SIM118
        beside = {} if self.state is None else {STATE: self.state}
        for name in names:
            if name not in ("observation", *beside, *keys):
                shows = ", ".join(("observation", *beside, *keys))
                hint = "; env.state=true adds it in marinenav and echelon" if name == STATE else ""
                raise ConfigError(f"agent.critic_inputs: the world shows no {name!r}, it shows {shows}{hint}")
        hidden = tuple(name for name in names if name not in beside and name in keys)
        if keys and len(hidden) == len(keys):
            raise ConfigError("agent.critic_inputs: the actor sees what it does not name, and it names all keys")
        shown = {name: whole[name] if name in hidden else beside[name] for name in names if name in (*hidden, *beside)}
        left = Composite({key: whole[key] for key in keys if key not in hidden}) if hidden else whole
        return replace(self, observation=left, privileged=Composite(shown), hidden=hidden)

    def key(self, name: str) -> str | tuple[str, str]:
        """Returns ``name`` or ``(group, name)``."""
        return name if self.group is None else (self.group, name)

    def observation_keys(self) -> list[Any]:
        """Returns the leaf keys of the observation in the env's layout, for a policy's ``in_keys``."""
        root = self.key("observation")
        if not isinstance(self.observation, Composite):
            return [root]
        prefix = root if isinstance(root, tuple) else (root,)
        leaves = self.observation.keys(include_nested=True, leaves_only=True)
        return [(*prefix, *((key,) if isinstance(key, str) else key)) for key in leaves]

    def observed(self, tensordict: TensorDictBase) -> Any:
        """Returns the observation in an env's tensordict; a structured one gets its batch dimensions if it has none."""
        observation = tensordict.get(self.key("observation"))
        if not isinstance(observation, Tensor) and not observation.batch_size:
            (key, leaf), *_ = self.observation.items(include_nested=True, leaves_only=True)
            shape = observation.get(key).shape
            observation.batch_size = shape[: len(shape) - len(leaf.shape)]
        return observation.exclude(*self.hidden) if self.hidden else observation

    def lead(self, observation: Any) -> torch.Size:
        """Returns the batch dimensions of an observation."""
        if not isinstance(observation, Tensor):
            return observation.batch_size
        return observation.shape[: observation.dim() - len(self.observation.shape)]

    # -- actions -------------------------------------------------------------------------------------------------

    @cached_property
    def continuous(self) -> bool:
        """Whether the action is a bounded vector."""
        return isinstance(self.action, Bounded) and self.action.dtype.is_floating_point and self.action.ndim == 1

    @cached_property
    def choices(self) -> tuple[int, ...] | None:
        """The number of choices of each discrete part of an action (usually one part); None for other actions."""
        if isinstance(self.action, MultiCategorical):
            return tuple(int(n) for n in self.action.nvec.reshape(-1))
        if isinstance(self.action, Categorical) and not isinstance(self.action, Binary):
            return (int(self.action.n),)
        return None

    @cached_property
    def hybrid(self) -> HybridAction | None:
        """The conversion of a dict of bounded vectors and choices (both, and nothing else) to one vector; else None."""
        if not isinstance(self.action, Composite):
            return None
        parts = {key: replace(self, action=part) for key, part in self.action.items()}
        if {part.continuous for part in parts.values()} != {True, False}:
            return None
        known = all(part.continuous or part.choices is not None for part in parts.values())
        return HybridAction(parts) if known else None

    @cached_property
    def kind(self) -> str:
        """The kind of action: ``vector`` (bounded), ``choice``, ``choices``, ``hybrid``, or ``other``."""
        if self.continuous or self.hybrid is not None:
            return "vector" if self.continuous else "hybrid"
        if self.choices is None:
            return "other"
        return "choice" if len(self.choices) == 1 else "choices"

    def describe_action(self) -> str:
        """Describes the kind of action, for messages."""
        if self.hybrid is not None:
            return f"hybrid actions of {self.hybrid.numbers} numbers and choices {list(self.hybrid.counts)}"
        if self.continuous:
            size = self.action.shape[-1]
            return f"continuous actions of {size} number{'' if size == 1 else 's'}"
        choices = self.choices
        if isinstance(self.action, OneHot | MultiOneHot):
            return "one-hot actions, of which TorchRL makes indices by categorical_action_encoding=True"
        if choices is None:
            return f"{type(self.action).__name__} actions of shape {list(self.action.shape)}"
        return f"{choices[0]} discrete actions" if len(choices) == 1 else f"multi-discrete actions {list(choices)}"

    @cached_property
    def as_is(self) -> bool:
        """Whether :meth:`to_env` is the identity: agent and env represent actions in the same way."""
        if self.hybrid is not None:
            return False
        return not self._single if self._whole else self._scaling is None

    def to_env(self, action: Tensor) -> Any:
        """Converts an agent's action to the env's form.

        A continuous action in [-1, 1] is scaled to the env's bounds (an infinite bound leaves its number as it is); a
        choice ``[...]`` gets a last dimension of 1 if the env has one; a hybrid action becomes a tensordict.
        """
        if self.hybrid is not None:
            return self.hybrid.to_env(action)
        if self._whole:
            return action.unsqueeze(-1) if self._single else action
        if self._scaling is None:
            return action
        centre, half, _ = (part.to(action.device, action.dtype) for part in self._scaling)
        return torch.addcmul(centre, action, half)

    def from_env(self, action: Any) -> Tensor:
        """The inverse of :meth:`to_env`."""
        if self.hybrid is not None:
            return self.hybrid.from_env(action)
        if self._whole:
            return action.squeeze(-1) if self._single else action
        if self._scaling is None:
            return action
        centre, _, divisor = (part.to(action.device, action.dtype) for part in self._scaling)
        return (action - centre) / divisor

    @cached_property
    def _whole(self) -> bool:
        return not self.action.dtype.is_floating_point

    @cached_property
    def _single(self) -> bool:
        return tuple(self.action.shape) == (1,)

    @cached_property
    def _scaling(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Centre and half width of the bounds ``[D]``, and the divisor: the half width, or 1 where that is 0.

        None where all actions are in [-1, 1] or unbounded.
        """
        low, high = self.action.space.low, self.action.space.high
        bounded = torch.isfinite(low) & torch.isfinite(high)
        low, high = torch.where(bounded, low, -1.0), torch.where(bounded, high, 1.0)
        if bool((low == -1).all() and (high == 1).all()):
            return None
        half = (high - low) / 2
        return (high + low) / 2, half, torch.where(half > 0, half, 1.0)

    def random_action(self, lead: Sequence[int], device: torch.device, mask: Tensor | None = None) -> Tensor:
        """Draws uniform actions ``[*lead, ...]``, legal if a mask is given; continuous ones in [-1, 1]."""
        choices = self.choices
        if choices is None:
            return torch.rand((*lead, *self.action.shape), dtype=self.dtype, device=device) * 2 - 1
        if mask is None and len(choices) == 1:
            return torch.randint(choices[0], tuple(lead), device=device)
        allowed = torch.ones(*lead, sum(choices), device=device) if mask is None else mask
        parts = [chosen_by(legal(part > 0).to(torch.float32)).view(*lead) for part in allowed.split(choices, -1)]
        return parts[0] if len(parts) == 1 else torch.stack(parts, -1)


class HybridAction:
    """Converts between a dict of bounded vectors and choices and one vector ``[..., D + K]``.

    The D numbers in [-1, 1] come first, then the K choices as whole numbers; both in the order of the dict.

    Args:
        parts: parts of the dict by key, each given as the interface of an env with that action alone.

    Attributes:
        numbers: D.
        counts: the number of options of each of the K choices.
    """

    def __init__(self, parts: Mapping[str, Interface]) -> None:
        self.vectors = {key: part for key, part in parts.items() if part.continuous}
        self.selections = {key: part for key, part in parts.items() if not part.continuous}
        self.numbers = sum(part.action.shape[-1] for part in self.vectors.values())
        self.counts = tuple(count for part in self.selections.values() for count in part.choices or ())
        self._widths = [part.action.shape[-1] for part in self.vectors.values()]
        self._widths += [len(part.choices or ()) for part in self.selections.values()]

    def to_env(self, action: Tensor) -> TensorDict:
        """Converts a vector to the env's form; numbers are clipped to [-1, 1]."""
        columns = iter(action.split(self._widths, -1))
        entries = {key: part.to_env(next(columns).clamp(-1, 1)) for key, part in self.vectors.items()}
        for key, part in self.selections.items():
            chosen = next(columns).long()
            entries[key] = part.to_env(chosen.squeeze(-1) if len(part.choices or ()) == 1 else chosen)
        return unchecked(entries, batch_size=action.shape[:-1], device=action.device)

    def from_env(self, action: TensorDictBase) -> Tensor:
        """The inverse of :meth:`to_env`."""
        vectors = [part.from_env(action.get(key)) for key, part in self.vectors.items()]
        for key, part in self.selections.items():
            chosen = part.from_env(action.get(key)).to(vectors[0].dtype)
            vectors.append(chosen.unsqueeze(-1) if len(part.choices or ()) == 1 else chosen)
        return torch.cat(vectors, -1)


def check_world(env: Any) -> None:
    """Raises a one-line :class:`ConfigError` unless an env has TorchRL's specs."""
    if not hasattr(env, "full_action_spec"):
        example = "rlstack.envs.make('gymnasium', id='CartPole-v1')"
        raise ConfigError(f"env: expected a world as TorchRL has them, such as {example}, got {env!r:.60}")


def chosen_by(weights: Tensor) -> Tensor:
    """Draws options ``[...]`` in proportion to ``weights [..., n]`` >= 0, at least one of which is positive.

    It does what ``torch.multinomial`` does, without its check of the weights, which waits for the GPU.
    """
    return (weights / torch.empty_like(weights).exponential_()).argmax(-1)


def difference(known: Interface, offered: Interface) -> str | None:
    """Describes the first difference between the env that an agent knows and another; None if they agree."""
    ours, theirs = _described(known), _described(offered)
    for name in known.hidden:
        theirs = {key: words for key, words in theirs.items() if key != name and not key.startswith(f"{name}.")}
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            return f"{key} is {theirs.get(key, 'nothing')}, it knows {ours.get(key, 'nothing')}"
    return None


def _described(interface: Interface) -> dict[str, str]:
    """Describes the kind, shape and dtype of everything that an agent sees and does."""
    leaves = {"action": interface.action, **_leaves(interface.observation)}
    kinds = {key: f"{type(leaf).__name__} {list(leaf.shape)} {leaf.dtype}" for key, leaf in leaves.items()}
    return kinds | {"agents": "several" if interface.group else "one"}


def _strip(spec: TensorSpec, dims: int) -> TensorSpec:
    """Returns the spec of a single entry, without the leading ``dims`` dimensions."""
    return spec[(0,) * dims] if dims else spec


def _leaves(observation: TensorSpec) -> dict[str, TensorSpec]:
    """Returns the specs of the leaves of an observation, nested keys with dots."""
    if not isinstance(observation, Composite):
        return {"observation": observation}
    nested = observation.items(include_nested=True, leaves_only=True)
    return {key if isinstance(key, str) else ".".join(key): leaf for key, leaf in nested}


class Mirroring:
    """Mirror images of a world's data in the agent's form, for ``agent.symmetry=augment``.

    Agents with a replay buffer mirror a random half of what they draw from it. Agents that learn from fresh data learn
    from each minibatch and from its mirror image; the probability with which the acting policy would have taken a
    mirrored action is assumed to be that of the action itself, as in Mittal et al. 2024 (arXiv 2403.04359).

    Args:
        interface: interface of the world.

    Raises:
        ConfigError: a world without a mirror, or with hybrid actions.
    """

    def __init__(self, interface: Interface) -> None:
        if isinstance(interface.mirror, str):
            raise ConfigError(f"agent.symmetry=augment needs a world that has a mirror: {interface.mirror}")
        if interface.hybrid is not None:
            raise ConfigError(f"agent.symmetry=augment: of {interface.describe_action()} it knows no mirror image")
        self.interface, self.mirror = interface, interface.mirror

    def image(self, entries: TensorDictBase) -> dict[str, Any]:
        """Returns the mirror images of raw observations ``[...]``, and of actions and action masks if present."""
        images = {"observation": self.mirror.observation(entries.get("observation"))}
        action, mask = entries.get("action", None), entries.get(MASK, None)
        if action is not None:
            to_env, from_env = self.interface.to_env, self.interface.from_env
            images["action"] = from_env(self.mirror.action(to_env(action)))
        if mask is not None:
            images[MASK] = mask if self.mirror.mask is None else self.mirror.mask(mask)
        return images

    def at_random(self, batch: TensorDictBase) -> TensorDictBase:
        """Returns transitions ``[N]``, each mirrored with probability 1/2."""
        flips = torch.rand(len(batch), device=batch.get(("next", "reward")).device) < 0.5
        return self._drawn(batch, flips).set("next", self._drawn(batch.get("next"), flips))

    def _drawn(self, entries: TensorDictBase, flips: Tensor) -> TensorDictBase:
        result = entries.copy()
        for name, image in self.image(entries).items():
            result.set(name, _where(flips, image, entries.get(name)))
        return result


def _where(flips: Tensor, image: Any, plain: Any) -> Any:
    if isinstance(plain, Tensor):
        return torch.where(flips.view(-1, *[1] * (plain.dim() - 1)), image, plain)
    entries = {key: _where(flips, image.get(key), value) for key, value in plain.items()}
    return TensorDict(entries, plain.batch_size, plain.device)
