"""Any TorchRL environment as a world of W rows, from copies of a single environment or from batches."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.utils import unravel_key
from torch import Tensor
from torch.nn.functional import one_hot
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    TensorSpec,
    Unbounded,
)
from torchrl.envs import EnvBase, TransformedEnv

from ..foreign import check_instances, check_positive, completed, factory_at
from ..foundation.packages import needs, place_in_users_code
from ..foundation.tensors import ACTION_MASK
from ..spaces import nest
from ..world import GROUP, ForeignWorld

_INFINITE = 1e30
"""Bounds beyond this are no bounds."""


class Form(NamedTuple):
    """The outer form of a value of an environment.

    Attributes:
        spec: of a batch of it.
        convert: observations: from the environment's value ``[*lead, ...]``; actions: to it.
        choices: of the parts of an action; empty for numbers.
    """

    spec: TensorSpec
    convert: Callable[[Tensor], Tensor]
    choices: tuple[int, ...] = ()


def observation_form(spec: TensorSpec, lead: Sequence[int], dtype: torch.dtype, device: torch.device) -> Form:
    """Numbers as ``dtype`` (a single one ``[1]``), images of bytes (0 to 255) as they are, choices as one-hot vectors.

    Args:
        spec: of a single value.
        lead: dimensions of a batch.
    """
    dims, here = len(lead), {"device": device}
    if isinstance(spec, Categorical) and not isinstance(spec, Binary):
        counts = _counts(spec)

        def hot(value: Tensor) -> Tensor:
            return _one_hot(value.reshape(*value.shape[:dims], len(counts)), counts).to(dtype)

        return Form(Bounded(0.0, 1.0, shape=(*lead, sum(counts)), dtype=dtype, **here), hot)
    image = spec.dtype == torch.uint8 and len(spec.shape) >= 2 and not isinstance(spec, OneHot | Binary)
    if image and isinstance(spec, Bounded):  # as in a space of Gymnasium, bytes of a smaller range are no pixels
        image = not spec.space.low.any() and bool((spec.space.high == 255).all())
    kind = torch.uint8 if image else dtype
    shape = tuple(spec.shape) or (1,)

    def numbers(value: Tensor) -> Tensor:
        return value.to(kind).reshape(*value.shape[:dims], *shape)

    whole: dict[str, Any] = {"shape": (*lead, *shape), "dtype": kind, **here}
    if isinstance(spec, OneHot | Binary) or spec.dtype == torch.bool:
        return Form(Bounded(0.0, 1.0, **whole), numbers)
    if isinstance(spec, Bounded):
        low, high = (end.to(device, kind).reshape(shape) for end in (spec.space.low, spec.space.high))
        if image or bool((_finite(low) & _finite(high)).all()):
            return Form(Bounded(*(end.expand(whole["shape"]).clone() for end in (low, high)), **whole), numbers)
    return Form(Unbounded(**whole), numbers)


def action_form(spec: TensorSpec, lead: Sequence[int], dtype: torch.dtype, device: torch.device) -> Form:
    """Choices as indices, numbers as one vector within its bounds, beyond which they are clipped.

    One-hot vectors, several in one, and bits are choices. Numbers without bounds are within [-1, 1].

    Raises:
        ValueError: an action of another kind, or with one bound only.
    """
    dims = len(lead)
    counts = _counts(spec)
    if counts:
        several = len(counts) > 1
        shape: tuple[int, ...] = (*lead, len(counts)) if several else tuple(lead)
        kind: dict[str, Any] = {"shape": shape, "dtype": torch.int64, "device": device}
        indices = MultiCategorical(counts, **kind) if several else Categorical(counts[0], **kind)

        def choose(value: Tensor) -> Tensor:
            parts = value.reshape(*value.shape[:dims], len(counts))
            parts = _one_hot(parts, counts) if isinstance(spec, OneHot) else parts
            return parts.to(spec.dtype).reshape(*value.shape[:dims], *spec.shape)

        return Form(indices, choose, counts)
    if not isinstance(spec, Bounded | Unbounded) or not spec.dtype.is_floating_point:
        allowed = "Categorical, OneHot, their Multi kinds, Binary, or floating-point numbers"
        raise ValueError(f"actions of kind {type(spec).__name__} ({spec.dtype}) are not supported, allowed: {allowed}")
    low, high = (end.to(device, dtype).reshape(-1) for end in (spec.space.low, spec.space.high))
    if bool((_finite(low) != _finite(high)).any()):
        raise ValueError("actions with one bound only are not supported: give both, or none for [-1, 1]")
    low, high = torch.where(_finite(low), low, -1.0), torch.where(_finite(high), high, 1.0)

    def clip(value: Tensor) -> Tensor:
        return value.clamp(low, high).to(spec.dtype).reshape(*value.shape[:dims], *spec.shape)

    shape = (*lead, len(low))
    ends = (end.expand(shape).clone() for end in (low, high))
    return Form(Bounded(*ends, shape=shape, dtype=dtype, device=device), clip)


def _counts(spec: TensorSpec) -> tuple[int, ...]:
    """Numbers of choices of the parts of a discrete value; none for others."""
    if isinstance(spec, MultiOneHot):
        return tuple(int(box.n) for box in spec.space)
    if isinstance(spec, OneHot):
        return (int(spec.space.n),)
    if isinstance(spec, MultiCategorical):
        return tuple(int(count) for count in spec.nvec.reshape(-1))
    if isinstance(spec, Categorical):
        return (2 if isinstance(spec, Binary) else int(spec.space.n),) * spec.shape.numel()
    return ()


def _one_hot(parts: Tensor, counts: Sequence[int]) -> Tensor:
    """``[..., k]`` whole numbers, one vector ``[..., sum(counts)]``."""
    return torch.cat([one_hot(part.long(), count) for part, count in zip(parts.unbind(-1), counts)], -1)


def _finite(bound: Tensor) -> Tensor:
    return bound.abs() < _INFINITE


# -- environments by name --------------------------------------------------------------------------------------------


_FORMS = "package.module:Class, or package.module:function with the annotation '-> EnvBase'"


def maker(id: str | None, kwargs: Mapping[str, Any], device: torch.device) -> Callable[[], EnvBase]:
    """The maker of one environment. One that takes ``device`` gets the world's, unless ``kwargs`` names another.

    Raises:
        ValueError: neither a class of ``EnvBase`` nor a function annotated to return one.
    """
    module, _, attribute = (id or "").partition(":")
    if not module or not attribute:
        hint = f", {id!r} may be one of env=gymnasium" if id else ""
        raise ValueError(f"id: give {_FORMS}{hint}")
    factory = factory_at(str(id), "torchrl", "torchrl.envs.EnvBase", lambda made: issubclass(made, EnvBase))
    # TorchRL's metaclass hides the signature of a class.
    accepted = inspect.signature(factory.__init__ if inspect.isclass(factory) else factory).parameters
    arguments = {"device": device, **kwargs} if "device" in accepted else dict(kwargs)

    def make() -> EnvBase:
        try:
            env = factory(**arguments)
        except Exception as error:  # of a constructor, which may be the user's
            line = (" ".join(str(error).split()) or type(error).__name__) + place_in_users_code(error)
            raise ValueError(f"{id} cannot be made with kwargs {dict(kwargs)}: {line}") from error
        if not isinstance(env, EnvBase):
            raise ValueError(f"id: {id} has made a {type(env).__name__}, not a torchrl.envs.EnvBase")
        return env

    return make


_COPIES = 8
_RETURN = "episode_reward"
_NOT_SHOWN = (ACTION_MASK, _RETURN, "step_count", "is_init", "episode", "active")
"""Entries of environments and TorchRL's transforms that are not observations."""


class TorchRL(ForeignWorld):
    """Rows of a TorchRL environment: copies of one without a batch size, or as many batches as are needed.

    ``observation`` is the environment's entry of that name or, without one, a dict of all its entries except masks and
    counters; ``action`` is an index ``[W]``, several ``[W, k]`` or numbers ``[W, D]``, see
    :mod:`~rlstack.envs.torchrl.env`. An environment with its action in a group with an axis of agents, such as
    ``("agents", "action") [A, ...]``, becomes a world with the group ``agents``. ``("episode", "return")`` is the
    environment's ``episode_reward`` (``RewardSum``) if it has one, or the sum of its rewards (mean over agents);
    ``("episode", "length")`` counts steps. If an environment has a method ``episode_terms``, which returns sums ``[N]``
    by term, ``("episode", "reward_<term>")`` shows them. The environment's transforms stay in place, including time
    limits.

    A copy that has ended waits for its reset; the rows of a batch are stepped until all have ended. An episode's end,
    and an agent's, lasts until the reset, and rewards after it do not count. If only agents have ends, the world ends
    with the last of them. Environments cannot be saved: after :meth:`load_state_dict` new episodes begin, from seeds
    that follow from the saved generator.

    Args:
        id: ``package.module:Class`` of an ``EnvBase``, or a function annotated to return one.
        num_envs: number of rows W; a larger batch shows its first rows. None is the environment's own batch size, or 8
            copies.
        kwargs: arguments of the class or function.
        max_steps: number of steps after which an episode is truncated, in addition to the environment's own limit.
        observation_keys: entries of the observation, such as ``[pixels, state.speed]``; a single key is the observation
            itself.
        dtype: type of rewards, statistics, continuous actions and of all observations except images of bytes.
        device: device of the outputs; passed to an environment that accepts it.
        seed: determines all environments' seeds.
        max_instances: number of copies or batches that can live at once; see
            :class:`~rlstack.envs.gymnasium.Gymnasium`.

    Raises:
        ValueError: the environment does not exist, or its actions, rewards or keys are not supported.
    """

    _terms: dict[str, Tensor]
    observing: ClassVar[tuple[str, ...]] = ("rlstack.envs.torchrl.env:TorchRL._show",)

    def __init__(
        self,
        id: str | None = None,
        num_envs: int | None = None,
        kwargs: dict[str, Any] | None = None,
        max_steps: int | None = None,
        observation_keys: list[str] | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int | None = 0,
        max_instances: int | None = None,
    ) -> None:
        check_positive(num_envs=num_envs, max_steps=max_steps)
        make = maker(id, kwargs or {}, torch.device(device))
        first = make()
        rows = first.batch_size.numel()
        if num_envs is None:
            num_envs = rows if first.batch_size else _COPIES
        super().__init__(num_envs, device, dtype, seed)
        copies = math.ceil(num_envs / rows)
        self._single, self._rows, self._max_steps = first, rows, max_steps
        self._envs = [first]
        try:
            check_instances(copies, max_instances)
            completed(self._envs, make, copies)
            self._set_specs(observation_keys)
        except BaseException:
            with suppress(RuntimeError):  # of TorchRL's batches that have not begun
                self.close()
            raise
        total = rows * len(self._envs)
        self._roots: list[TensorDictBase] = []
        self._following: list[TensorDictBase] = []
        self._ends = torch.zeros(2, total, dtype=torch.bool, device=self.device)  # terminated, truncated
        self._agents_ends = torch.zeros(2, total, *self._agents, dtype=torch.bool, device=self.device)
        self._returns = torch.zeros(total, dtype=torch.float64, device=self.device)
        self._lengths = torch.zeros_like(self._returns)
        self._terms = {name: torch.zeros_like(self._returns) for name in self._terms}
        self._shown = TensorDict({}, self.batch_size, self.device)
        self._set_seed(0 if seed is None else seed)

    # -- specs ---------------------------------------------------------------------------------------------------

    def _set_specs(self, chosen: list[str] | None) -> None:
        env = self._single
        if len(env.action_keys) != 1 or len(env.reward_keys) != 1:
            found = f"{env.action_keys} and {env.reward_keys}"
            raise ValueError(f"id: environments with one action and one reward are supported, this one has {found}")
        self._action_key, self._reward_key = env.action_keys[0], env.reward_keys[0]
        prefix = self._action_key[:-1] if isinstance(self._action_key, tuple) else ()
        inside = env.full_action_spec[prefix] if prefix else env.full_action_spec
        agents = tuple(inside.shape[len(env.batch_size) :])
        if len(agents) > 1:
            raise ValueError(f"id: {self._action_key} has {len(agents)} axes of agents, one is supported")
        self._prefix, self._agents = prefix, agents
        lead = (self.num_worlds, *agents)
        kind: dict[str, Any] = {"lead": lead, "dtype": self.float_dtype, "device": self.device}
        self._action = action_form(self._of_one(env.full_action_spec[self._action_key], len(agents)), **kind)
        self._observation: list[tuple[NestedKey, tuple[str, ...], Form]] = []
        for source, path in self._observed(chosen):
            form = observation_form(self._of_one(env.observation_spec[source], len(agents)), **kind)
            self._observation.append((source, path, form))
        reward = self._of_one(env.full_reward_spec[self._reward_key], len(self._reward_lead()))
        if reward.shape.numel() != 1:
            raise ValueError(f"id: a reward is one number, that of this environment has shape {list(reward.shape)}")
        observation = nest(
            [(path, form.spec) for _, path, form in self._observation],
            lambda entries: Composite(entries, shape=lead, device=self.device),
        )
        shown = {"observation": observation}
        self._mask_key = self._beside(self._action_key, ACTION_MASK, env.observation_spec)
        if self._mask_key is not None and self._action.choices:
            size = sum(self._action.choices)
            if self._of_one(env.observation_spec[self._mask_key], len(agents)).shape.numel() != size:
                raise ValueError(
                    f"id: {self._mask_key} of this environment has not {size} entries, one for each choice"
                )
            self.choices = self._action.choices
            shown[ACTION_MASK] = Binary(size, shape=(*lead, size), dtype=torch.bool, device=self.device)
        else:
            self._mask_key = None
        there = [self._beside(self._action_key, name, env.observation_spec) for name in ("active", "mask")]
        self._active_key = next((key for key in there if key is not None), None) if agents else None
        self._return_key = self._beside(self._reward_key, _RETURN, env.observation_spec)
        self._terms = {}
        if hasattr(type(_inside(env)), "episode_terms"):
            env.set_seed(0)
            env.reset()
            self._terms = dict(env.episode_terms())
        statistics = ("return", "length", *(f"reward_{name}" for name in self._terms))
        self.declare_specs(shown, self._action.spec, statistics, agents[0] if agents else None)

    def _of_one(self, spec: TensorSpec, further: int) -> TensorSpec:
        """Returns the spec of an entry for one row or one agent."""
        dims = len(self._single.batch_size) + further
        return spec[(0,) * dims] if dims else spec

    def _reward_lead(self) -> tuple[int, ...]:
        """Returns the axis of agents if rewards have one."""
        return self._agents if isinstance(self._reward_key, tuple) and self._reward_key[:-1] == self._prefix else ()

    def _beside(self, key: NestedKey, name: str, spec: Composite) -> NestedKey | None:
        """Returns the key of an entry beside another one; None if there is none."""
        path = (*key[:-1], name) if isinstance(key, tuple) else (name,)
        neighbour = unravel_key(path)
        return neighbour if neighbour in spec.keys(include_nested=True) else None

    def _observed(self, chosen: list[str] | None) -> list[tuple[NestedKey, tuple[str, ...]]]:
        """Returns the keys of the observed entries, with their places in the observation."""
        spec = self._single.observation_spec
        prefix = self._prefix if self._agents else ()
        inside = spec[prefix] if prefix else spec
        leaves = [
            path
            for key, leaf in inside.items(include_nested=True, leaves_only=True)
            if not isinstance(leaf, NonTensor) and (path := (key,) if isinstance(key, str) else key)
        ]
        known = [path for path in leaves if path[0] not in _NOT_SHOWN and path[-1] not in _NOT_SHOWN]
        if chosen is not None:
            wanted = [tuple(key.split(".")) for key in chosen]
            strange = [".".join(key) for key in wanted if not any(path[: len(key)] == key for path in leaves)]
            if strange or not wanted:
                allowed = ", ".join(sorted({path[0] for path in leaves}))
                raise ValueError(
                    f"observation_keys: {strange or chosen} is not shown by {self._name()}, it shows {allowed}"
                )
            known = [path for path in leaves if any(path[: len(key)] == key for key in wanted)]
            cut = len(wanted[0]) if len(wanted) == 1 else 0
        else:
            own = [path for path in leaves if path[0] == "observation"]
            known, cut = own or known, 1 if own else 0
        if not known:
            raise ValueError(f"id: {self._name()} shows no observation")
        return [(unravel_key((*prefix, *path)), path[cut:]) for path in known]

    def _name(self) -> str:
        return type(self._single).__name__

    # -- steps ---------------------------------------------------------------------------------------------------

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        actions = self._action.convert(self._chosen(tensordict).detach())
        over = self._ends.any(0)
        if hidden := len(over) - self.num_worlds:
            actions = torch.cat((actions, actions[:1].expand(hidden, *actions.shape[1:])))
        waits = over.view(len(self._envs), -1).all(-1).tolist()
        for index, own in enumerate(actions.split(self._rows)):
            if not waits[index]:
                self._step_one(index, own)
        gone = self._agents_ends.any(0) | over.view(-1, *[1] * len(self._agents))
        reward = self._read(self._following, self._reward_key).reshape(len(over), -1)
        reward = reward.masked_fill(gone if self._reward_lead() else over[:, None], 0)
        self._returns = self._returns + reward.double().mean(-1)
        self._lengths = self._lengths + ~over
        if self._return_key is not None:
            own_sum = self._read(self._following, self._return_key).reshape(len(over), -1)
            self._returns = torch.where(over, self._returns, own_sum.double().mean(-1))
        sums: list[Any] = [env.episode_terms() for env in self._envs] if self._terms else []
        for name, total in self._terms.items():  # those of rows that are over stay as they were at the end
            self._terms[name] = torch.where(over, total, torch.cat([terms[name] for terms in sums]).to(total))
        flags = self._read_ends(())
        if flags is None and not self._agents:
            flags = self._read_ends(self._prefix)
        if self._agents:
            theirs = self._read_ends(self._prefix)
            if theirs is None:
                assert flags is not None
                theirs = flags[..., None].expand_as(self._agents_ends)
            self._agents_ends = _first_ends(self._agents_ends, theirs.view_as(self._agents_ends))
            if flags is None:  # a world ends with its last agent, and has terminated if all of them have
                terminated = self._agents_ends[0].all(-1)
                flags = torch.stack((terminated, self._agents_ends.any(0).all(-1) & ~terminated))
        assert flags is not None
        if self._max_steps is not None:
            flags[1] |= self._lengths >= self._max_steps
        self._ends = _first_ends(self._ends, flags)
        self._show(self._following)
        following, shown = self._current(), slice(self.num_worlds)
        for name, flag in _flags(self._ends).items():
            following.set(name, flag[shown, None])
        if not self._agents:
            return following.set("reward", reward[shown].to(self.float_dtype))
        agents = following.get(GROUP)
        reward = reward.expand(-1, *self._agents).masked_fill(gone, 0)
        agents.set("reward", reward[shown, :, None].to(self.float_dtype))
        self._agents_ends[1] |= self._ends[1, :, None] & ~self._agents_ends[0]
        ends = _flags(self._agents_ends)
        for name, flag in ends.items():
            agents.set(name, flag[shown, :, None])
        agents.set("active", agents.get("active") & ~ends["done"][shown])
        self._shown = following.select(*self.observation_spec.keys(include_nested=True, leaves_only=True))
        return following

    def _step_one(self, index: int, action: Tensor) -> None:
        env, root = self._envs[index], self._roots[index]
        shape = torch.Size([*env.batch_size, *action.shape[1:]])
        root.set(self._action_key, action.reshape(shape).to(env.device or action.device))
        stepped = env.step(root)
        self._following[index] = stepped.get("next")
        self._roots[index] = env.step_mdp(stepped)

    def _read_ends(self, prefix: tuple[str, ...]) -> Tensor | None:
        """Reads ``terminated`` and ``truncated`` ``[2, rows]`` or ``[2, rows * A]``; None if there is no ``done``."""
        following = self._following[0]
        if following.get(unravel_key((*prefix, "done")), None) is None:
            return None
        keys = [unravel_key((*prefix, name)) for name in ("terminated", "truncated")]
        terminated, *truncated = (
            self._read(self._following, key).flatten() for key in keys if following.get(key, None) is not None
        )
        return torch.stack((terminated, *(truncated or [torch.zeros_like(terminated)])))

    # -- episodes ------------------------------------------------------------------------------------------------

    def _restart(self, worlds: Tensor | None) -> None:
        begin = torch.ones_like(self._ends[0])
        if worlds is not None:
            begin = self._ends.any(0)
            begin[: self.num_worlds] = False
            begin[worlds] = True
        old, following = self._roots, self._following
        self._roots, self._following = list(old), list(following)
        for index, (env, mask) in enumerate(zip(self._envs, begin.view(len(self._envs), -1))):
            if not old:
                self._roots.append(env.reset())
                self._following.append(self._roots[index])
            elif bool(mask.all()):
                self._roots[index] = env.reset()
            elif bool(mask.any()):
                # Resets rows as :meth:`torchrl.envs.EnvBase.maybe_reset` does, even if they have not ended
                root = old[index]
                mask = mask.to(env.device or mask.device).reshape(env.batch_size)
                for key in env.reset_keys:
                    done = unravel_key((*(key[:-1] if isinstance(key, tuple) else ()), "done"))
                    shape = env.full_done_spec[done].shape
                    root.set(key, mask.reshape(*mask.shape, *[1] * (len(shape) - mask.dim())).expand(shape).clone())
                self._roots[index] = env.reset(root, select_reset_only=True)
        self._ends = self._ends & ~begin
        self._agents_ends = self._agents_ends & ~(begin[:, None] if self._agents else begin)
        self._returns = self._returns.masked_fill(begin, 0.0)
        self._lengths = self._lengths.masked_fill(begin, 0.0)
        self._terms = {name: total.masked_fill(begin, 0.0) for name, total in self._terms.items()}
        self._show(self._roots)

    def _restart_each(self, seeds: list[int]) -> None:
        if self._rows > 1:
            raise ValueError(
                f"seed: the rows of a batch of {self._name()} cannot have seeds of their own; give one seed"
            )
        self._restart(None)
        for row, own in enumerate(seeds):
            self._envs[row].set_seed(own)
            self._restart(torch.tensor([row], device=self.device))

    # -- observations --------------------------------------------------------------------------------------------

    def _read(self, parts: list[TensorDictBase], key: NestedKey) -> Tensor:
        """Reads an entry of all environments, ``[rows, ...]``."""
        dims = len(self._single.batch_size)
        values = [part.get(key) for part in parts]
        values = [value.reshape(self._rows, *value.shape[dims:]) for value in values]
        return (values[0] if len(values) == 1 else torch.cat(values)).to(self.device)

    def _show(self, parts: list[TensorDictBase]) -> None:
        shown, lead = slice(self.num_worlds), [self.num_worlds, *self._agents]
        observation = nest(
            [(path, form.convert(self._read(parts, key)[shown])) for key, path, form in self._observation],
            lambda entries: TensorDict(entries, lead, self.device),
        )
        entries: dict[str, Any] = {"observation": observation}
        if self._mask_key is not None:
            entries[ACTION_MASK] = self._read(parts, self._mask_key)[shown].reshape(*lead, -1).bool()
        if self._agents:
            there = torch.ones(lead, dtype=torch.bool, device=self.device)
            if self._active_key is not None:
                there = self._read(parts, self._active_key)[shown].reshape(lead).bool()
            there = there & ~self._agents_ends.any(0)[shown]
            entries = {GROUP: TensorDict({**entries, "active": there}, lead, self.device)}
        statistics = {"return": self._returns, "length": self._lengths}
        statistics |= {f"reward_{name}": total for name, total in self._terms.items()}
        entries["episode"] = {name: value[shown, None].to(self.float_dtype) for name, value in statistics.items()}
        self._shown = TensorDict(entries, self.batch_size, self.device)

    # -- seeds and checkpoint ------------------------------------------------------------------------------------

    def _set_seed(self, seed: int | None) -> None:
        super()._set_seed(seed)
        if seed is not None and "_envs" in self.__dict__:  # the base class seeds before they exist
            self._seed_environments()

    def _seed_environments(self) -> None:
        entropy = int(torch.randint(2**62, (), generator=self.generator, device=self.device))
        for index, env in enumerate(self._envs):
            words = (entropy, self._first_number + index * self._rows)
            env.set_seed(int(np.random.SeedSequence(words).generate_state(1)[0] >> 1))

    def _load_state(self, state: dict[str, Any]) -> None:
        self._seed_environments()
        super()._load_state(state)


class TaskRows(TorchRL):
    """Rows of a task in a library's registry, which the library steps as one batch: the base class of such worlds.

    A subclass stands in a module with a class ``Rows``, the batch, made with ``task``, ``num_envs`` and ``kwargs``.

    Args:
        task: name in the registry.
        num_envs: number of rows.
        kwargs: further arguments of ``Rows``.
        max_steps: number of steps after which an episode is truncated; None: :meth:`own_limit`.
        observation_keys: entries of the observation.
        dtype, device, seed, max_instances: see :class:`TorchRL`.

    Raises:
        ValueError: there is no such task, or the library is not installed.
    """

    library: ClassVar[tuple[str, str, str]]
    """The library's module, the extra that installs it (also the name of the world), and its own name."""

    def __init__(
        self,
        task: str | None = None,
        num_envs: int = 8,
        kwargs: dict[str, Any] | None = None,
        max_steps: int | None = None,
        observation_keys: list[str] | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int | None = 0,
        max_instances: int | None = None,
    ) -> None:
        module, extra, name = self.library
        if find_spec(module) is None:
            raise ValueError(f"env={extra} {needs(extra)}")
        known = self.tasks()
        if task is None or task not in known:
            raise ValueError(f"task: {task!r} is none of {name}'s: {', '.join(known)}")
        id, limit = f"{type(self).__module__}:Rows", self.own_limit(task) if max_steps is None else max_steps
        made_with = {"task": task, "num_envs": num_envs, **(kwargs or {})}
        super().__init__(id, num_envs, made_with, limit, observation_keys, dtype, device, seed, max_instances)

    @classmethod
    def tasks(cls) -> Sequence[str]:
        """Returns the names in the registry."""
        raise NotImplementedError

    @classmethod
    def own_limit(cls, task: str) -> int | None:
        """Returns the task's own number of steps of an episode; None if the batch truncates episodes itself."""
        return None


def _inside(env: EnvBase) -> EnvBase:
    """Returns the environment inside all transforms."""
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env


def _flags(ends: Tensor) -> dict[str, Tensor]:
    """Returns the flags of ``terminated`` and ``truncated`` ``[2, ...]`` by name."""
    terminated, truncated = ends
    return {"done": terminated | truncated, "terminated": terminated, "truncated": truncated}


def _first_ends(earlier: Tensor, now: Tensor) -> Tensor:
    """Returns ``terminated`` and ``truncated`` ``[2, ...]``, those from before where an episode had ended already."""
    return torch.where(earlier.any(0), earlier, now)
