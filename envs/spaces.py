"""Converts Gymnasium spaces to TorchRL specs, and observations and actions of environments to rows of arrays.

Worker processes encode and decode with this module without torch: only :meth:`Observations.spec` and
:meth:`Actions.spec` import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    import torch
    from torchrl.data import TensorSpec

Array = np.ndarray[Any, Any]
Row = int | tuple[int, ...]

_INFINITE = 1e30
"""Bounds beyond this count as infinite: environments often write the largest float instead."""
MASKS = ("action_mask", "action_masks")
"""The names of an action mask in observations and infos; the first is ``ACTION_MASK``, whose module imports torch."""
_ROUNDING = 1e-5
"""How far beyond a bound a floating-point number may be, in units of the bound if that is greater than 1."""


@dataclass(frozen=True)
class Leaf:
    """One array of an observation.

    Attributes:
        path: keys of Dict and indices of Tuple spaces that lead to it; empty for a space that is one array.
        shape, dtype: shape and type of its encoding.
        low, high: bounds of the encoding, ``shape``; infinite if there are none.
        encode: ``encode(array, row, value)`` writes a value of the space into ``array[row]``.
    """

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: Array
    high: Array
    encode: Callable[[Array, Row, Any], None]

    @property
    def key(self) -> tuple[str, ...]:
        """The path as keys of a tensordict."""
        return tuple(str(part) for part in self.path)

    def spec(self, lead: tuple[int, ...], device: torch.device | None) -> TensorSpec:
        """Returns the spec of a batch ``[*lead]``."""
        import torch
        from torchrl.data import Bounded, Unbounded

        low, high = (torch.from_numpy(end).to(device) for end in (self.low, self.high))
        own: dict[str, Any] = {"shape": (*lead, *self.shape), "dtype": low.dtype, "device": device}
        if not finite(self.low, self.high):
            return Unbounded(**own)
        return Bounded(low.expand(own["shape"]).clone(), high.expand(own["shape"]).clone(), **own)


def leaves_of(space: spaces.Space[Any], dtype: np.dtype[Any], path: tuple[Any, ...] = ()) -> list[Leaf]:
    """Returns the leaves of a space in its own order; see :class:`rlstack.envs.spaces.Observations`.

    Raises:
        ValueError: a space has no encoding; the message names it.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return [leaf for key, part in _parts(space) for leaf in leaves_of(part, dtype, (*path, key))]
    if isinstance(space, spaces.Box):
        # Bytes of a smaller range are the codes of a grid, which as pixels would be divided by 255.
        image = space.dtype == np.uint8 and len(space.shape) >= 2 and bool((space.low == 0).all())
        image = image and bool((space.high == 255).all())
        own = np.dtype(np.uint8) if image else dtype
        with np.errstate(over="ignore"):
            low, high = (np.asarray(end).astype(own).reshape(space.shape or (1,)) for end in (space.low, space.high))
        return [Leaf(path, low.shape, own, low, high, copy_value)]
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        encode: Callable[[Array, Row, Any], None]
        if isinstance(space, spaces.MultiBinary):
            size, encode = int(np.prod(space.shape)), _flat
        elif isinstance(space, spaces.Discrete):
            size, encode = int(space.n), _one_hot(np.zeros((), int), np.asarray(space.start))
        else:
            nvec = space.nvec.reshape(-1)
            size, encode = int(nvec.sum()), _one_hot(np.cumsum(nvec) - nvec, space.start.reshape(-1))
        return [Leaf(path, (size,), dtype, np.zeros(size, dtype), np.ones(size, dtype), encode)]
    where = f" of observation entry {'.'.join(map(str, path))!r}" if path else ""
    allowed = "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    raise ValueError(f"observation space {space}{where} is not supported, allowed: {allowed}")


def copy_value(array: Array, row: Row, value: Any) -> None:
    """Encodes a value that is an array already."""
    array[row] = value


def _flat(array: Array, row: Row, value: Any) -> None:
    array[row] = np.asarray(value).reshape(-1)


def _one_hot(offsets: Array, start: Array) -> Callable[[Array, Row, Any], None]:
    shift = offsets - start

    def encode(array: Array, row: Row, value: Any) -> None:
        target = array[row]
        target[:] = 0
        target[np.asarray(value).reshape(shift.shape) + shift] = 1

    return encode


def finite(low: Array, high: Array) -> bool:
    """Returns whether all bounds are finite."""
    if low.dtype == np.uint8:
        return True
    return bool((np.abs(low) < _INFINITE).all() and (np.abs(high) < _INFINITE).all())


def misfit_of(space: spaces.Space[Any], path: tuple[Any, ...] = ()) -> Callable[[Any], str]:
    """Returns a function that says what of a value does not fit a space: what came, and what the space says.

    The function returns ``""`` for a value that fits. Lists may stand for arrays, whole numbers for floating-point
    ones, and the width of numbers does not matter. A bound of floating-point numbers holds up to rounding; NaN is left
    to those who learn from it.

    Args:
        space: a space that :class:`Observations` encodes.
        path: the entry of a larger space that this one is, for the text.
    """
    where = f"entry {'.'.join(map(str, path))!r}" if path else "it"
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = dict(_parts(space))
        form: Any = Mapping if isinstance(space, spaces.Dict) else tuple | list
        inside = [(key, misfit_of(part, (*path, key))) for key, part in parts.items()]

        def of_parts(value: Any) -> str:
            given = (
                list(value if isinstance(value, Mapping) else range(len(value))) if isinstance(value, form) else None
            )
            if given is None or (given != list(parts) and set(given) != parts.keys()):
                came = f"is a {type(value).__name__}" if given is None else f"has the entries {given}"
                return f"{where} {came}, but the space says {type(space).__name__} of {list(parts)}"
            return next((why for key, misfit in inside if (why := misfit(value[key]))), "")

        return of_parts
    low, high, kinds = _ends(space)
    slack = _ROUNDING if "f" in kinds else 0
    least, most = low - slack * np.maximum(1, np.abs(low)), high + slack * np.maximum(1, np.abs(high))

    def of_array(value: Any) -> str:
        try:
            array = np.asarray(value)
        except Exception:  # parts of different lengths, or a tensor on a GPU
            array = np.asarray(None)
        if array.dtype.kind not in kinds or array.shape != low.shape:
            came = f"{array.dtype} of shape {list(array.shape)}" if array.dtype.kind in "biufc" else f"{value!r:.40}"
            return f"{where} is {came}, but the space says {space.dtype} of shape {list(low.shape)}"
        beyond = (array < least) | (array > most)
        if not beyond.any():
            return ""
        place = tuple(int(part) for part in np.argwhere(beyond)[0])
        at = f" at {list(place)}" if place else ""
        return f"{where} has {array[place]}{at}, but the space allows {low[place]} to {high[place]}"

    return of_array


def _ends(space: Any) -> tuple[Array, Array, str]:
    """Returns the least and the greatest values of a space of arrays, and the kinds of numbers that may be there."""
    if isinstance(space, spaces.Box):
        real = np.issubdtype(space.dtype, np.floating)
        low, high = (np.asarray(end, np.float64 if real else None) for end in (space.low, space.high))
        if real:
            low, high = (np.where(np.abs(end) < _INFINITE, end, np.copysign(np.inf, end)) for end in (low, high))
        return low, high, "fiub" if real else "iub"
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, int), np.ones(space.shape, int), "iub"
    start = np.asarray(space.start)
    return start, start + (space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1, "iub"


_RESERVED = {"device", "dtype", "shape", "space"}
"""Keys that TorchRL's ``Composite`` refuses."""


class Observations:
    """Encodes observations of a space.

    Box becomes floating point of its own shape (a scalar ``[1]``), except images (unsigned bytes from 0 to 255, of
    two or more dimensions), which stay bytes. Discrete and MultiDiscrete become one-hot vectors, MultiBinary 0-1
    vectors. Dict and Tuple nest; entries of a Tuple are called ``"0"``, ``"1"``, ...

    Args:
        space: space of a single observation.
        dtype: type of all floating-point leaves, ``np.float32`` or ``np.float64``.

    Attributes:
        leaves: the arrays of an observation.
        plain: whether an observation is a single array that ``arrays[0][row] = observation`` encodes.

    Raises:
        ValueError: a space has no encoding; the message names it.
    """

    def __init__(self, space: spaces.Space[Any], dtype: Any = np.float32) -> None:
        self.leaves = tuple(leaves_of(space, np.dtype(dtype)))
        if not self.leaves:
            raise ValueError(f"observation space {space} is empty")
        if taken := sorted(_RESERVED & {part for leaf in self.leaves for part in leaf.key}):
            fault = f"observation space: the key {taken[0]!r} means something else to TorchRL; rename it"
            raise ValueError(f"{fault} (none may be one of {', '.join(sorted(_RESERVED))})")
        self._only = self.leaves[0] if self.leaves[0].path == () else None
        self.plain = self._only is not None and self._only.encode is copy_value

    def arrays(self, *lead: int) -> list[Array]:
        """Returns zeros for a batch, an array ``[*lead, *shape]`` for each leaf."""
        return [np.zeros((*lead, *leaf.shape), leaf.dtype) for leaf in self.leaves]

    def write(self, arrays: Sequence[Array], row: Row, observation: Any) -> None:
        """Encodes one observation into row ``row`` of :meth:`arrays`."""
        if self._only is not None:
            self._only.encode(arrays[0], row, observation)
            return
        for leaf, array in zip(self.leaves, arrays):
            leaf.encode(array, row, taken(observation, leaf.path))

    def nested(self, values: Sequence[Any], dictionary: Callable[[dict[str, Any]], Any]) -> Any:
        """Nests one value per leaf as the space does; ``dictionary`` makes each level from a dict."""
        return nest([(leaf.key, value) for leaf, value in zip(self.leaves, values)], dictionary)

    def spec(self, lead: Sequence[int], device: torch.device | None = None) -> TensorSpec:
        """Returns the spec of a batch ``[*lead]``: Bounded, Unbounded if a bound is infinite, or a Composite."""
        from torchrl.data import Composite

        return self.nested(
            [leaf.spec(tuple(lead), device) for leaf in self.leaves],
            lambda entries: Composite(entries, shape=tuple(lead), device=device),
        )


class Actions:
    """Turns a policy's actions into those of a space.

    Discrete(n) takes an index ``[]`` from 0 to n - 1 regardless of its start, MultiDiscrete(nvec) and MultiBinary
    (choices of two) a vector of indices ``[k]``, and Box a vector ``[D]``, which is clipped to its bounds.

    Args:
        space: space of a single action.
        dtype: type of continuous actions, ``np.float32`` or ``np.float64``.

    Attributes:
        shape, dtype: shape and type of a policy's action.
        nvec: number of choices of each index; empty for a Box.

    Raises:
        ValueError: the space has no such form, or a Box has infinite bounds.
    """

    def __init__(self, space: spaces.Space[Any], dtype: Any = np.float32) -> None:
        self.space = space
        self.dtype = np.dtype(np.int64)
        self._start: Any = 0
        if isinstance(space, spaces.Discrete):
            self.nvec, self._start = [int(space.n)], int(space.start)
        elif isinstance(space, spaces.MultiDiscrete):
            self.nvec, self._start = space.nvec.reshape(-1).tolist(), space.start
        elif isinstance(space, spaces.MultiBinary):
            self.nvec = [2] * int(np.prod(space.shape))
        elif isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
            self.nvec, self.dtype = [], np.dtype(dtype)
            self.low, self.high = (
                _inside(end.reshape(-1), self.dtype, to) for end, to in ((space.low, np.inf), (space.high, -np.inf))
            )
            if not finite(self.low, self.high):
                bounded = f"gymnasium.spaces.Box(-1.0, 1.0, {space.shape})"
                helps = f"gymnasium.wrappers.TransformAction(env, lambda action: action, {bounded})"
                raise ValueError(f"action space {space}: bounds must be finite; {helps} declares others")
        else:
            allowed = "Discrete, MultiDiscrete, MultiBinary or a floating-point Box"
            raise ValueError(f"action space {space} is not supported, allowed: {allowed}")
        self.discrete = bool(self.nvec)
        self._single = isinstance(space, spaces.Discrete)
        self.shape: tuple[int, ...] = () if self._single else (len(self.nvec) or len(self.low),)

    @property
    def mask_size(self) -> int:
        """Returns the size of an action mask: the choices of all indices in order; 0 for a Box."""
        return sum(self.nvec)

    def array(self, *lead: int) -> Array:
        """Returns zeros for a batch of actions ``[*lead, *shape]``."""
        return np.zeros((*lead, *self.shape), self.dtype)

    def store(self, array: Array, actions: Array) -> None:
        """Copies a batch of a policy's actions into :meth:`array`, clipped to a Box's bounds.

        Raises:
            ValueError: an action has another shape.
        """
        if actions.shape != array.shape:
            raise ValueError(f"an action has shape {list(actions.shape)}, but {list(array.shape)} is needed")
        if self.discrete:
            array[...] = actions
        else:
            np.clip(actions, self.low, self.high, out=array)

    def decode(self, row: Any) -> Any:
        """Returns one stored action in the environment's form, as a copy that it may keep and change."""
        return self.decode_all(np.asarray(row)[None])[0]

    def decode_all(self, actions: Array) -> list[Any]:
        """Returns stored actions ``[N, *shape]``, each in the form of :meth:`decode`."""
        if self._single:
            return (actions + self._start if self._start else actions).tolist()
        values = actions.reshape(-1, *self.space.shape).astype(self.space.dtype)  # type: ignore[misc]
        return list(values + self._start if isinstance(self.space, spaces.MultiDiscrete) else values)

    def spec(self, lead: Sequence[int], device: torch.device | None = None) -> TensorSpec:
        """Returns the spec of a batch ``[*lead]`` of actions: Categorical, MultiCategorical or Bounded."""
        import torch
        from torchrl.data import Bounded, Categorical, MultiCategorical

        shape = (*lead, *self.shape)
        if self._single:
            return Categorical(self.nvec[0], shape=shape, dtype=torch.int64, device=device)
        if self.discrete:
            return MultiCategorical(self.nvec, shape=shape, dtype=torch.int64, device=device)
        low, high = (torch.from_numpy(end).to(device).expand(shape).clone() for end in (self.low, self.high))
        return Bounded(low, high, shape=shape, dtype=low.dtype, device=device)

    def mask_spec(self, lead: Sequence[int], device: torch.device | None = None) -> TensorSpec:
        """Returns the spec of a batch of action masks ``[*lead, mask_size]``: bool, true for allowed actions."""
        import torch
        from torchrl.data import Binary

        return Binary(self.mask_size, shape=(*lead, self.mask_size), dtype=torch.bool, device=device)

    def write_mask(self, array: Array, row: Row, mask: Any) -> None:
        """Writes a mask into ``array[row]``; None allows everything, and several masks are concatenated.

        Raises:
            ValueError: the numbers of entries and choices differ, or an entry is neither 0 nor 1.
        """
        if mask is None:
            array[row] = True
            return
        if isinstance(mask, list | tuple):
            mask = np.concatenate([np.asarray(part).reshape(-1) for part in mask])
        flat = np.asarray(mask).reshape(-1)
        if len(flat) != self.mask_size:
            raise ValueError(f"action mask has {len(flat)} entries, action space {self.space} needs {self.mask_size}")
        array[row] = flat
        if flat.dtype.kind != "b" and (array[row] != flat).any():
            raise ValueError(f"action mask {flat.tolist()} has other numbers than 0 and 1")


def _inside(ends: Array, dtype: np.dtype[Any], inwards: float) -> Array:
    """Returns bounds in another type, rounded towards the inside."""
    with np.errstate(over="ignore"):
        rounded = ends.astype(dtype)
    beyond = rounded < ends if inwards > 0 else rounded > ends
    return np.where(beyond, np.nextafter(rounded, dtype.type(inwards)), rounded)


def mask_path(space: spaces.Space[Any]) -> tuple[Any, ...] | None:
    """Returns the path to the action mask of an observation: an entry named as in :data:`MASKS`, at any depth.

    Returns None for a space without one.

    Raises:
        ValueError: there are several masks; the message names them.
    """

    def below(space: spaces.Space[Any], path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        for key, part in _parts(space):
            if key in MASKS:
                yield (*path, key)
            else:
                yield from below(part, (*path, key))

    paths = list(below(space, ()))
    if len(paths) > 1:
        named = ", ".join(".".join(map(str, path)) for path in paths)
        raise ValueError(f"observation space: it has the action masks {named}, one for all choices is allowed")
    return paths[0] if paths else None


def _parts(space: spaces.Space[Any]) -> list[tuple[Any, spaces.Space[Any]]]:
    """Returns the parts of a Dict or Tuple with their keys or indices; none of other spaces."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else []


def split_mask(space: spaces.Space[Any]) -> tuple[spaces.Space[Any], Callable[[Any], Any]]:
    """Returns a space without its action mask, and a function that extracts the rest of such an observation.

    If only ``observation`` remains of a Dict, it is the space, since the Dict served only the mask.
    """
    if mask_path(space) is None:
        return space, lambda observation: observation
    rest = _without(space)
    if isinstance(rest, spaces.Dict) and list(rest.spaces) == ["observation"] != list(space.spaces):  # type: ignore[attr-defined]
        return rest["observation"], lambda observation: observation["observation"]
    return rest, lambda observation: observation


def _without(space: spaces.Space[Any]) -> spaces.Space[Any]:
    rest = {key: _without(part) for key, part in _parts(space) if key not in MASKS}
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(list(rest.values()))
    return spaces.Dict(rest) if isinstance(space, spaces.Dict) else space


def taken(observation: Any, path: tuple[Any, ...]) -> Any:
    """Returns the part of an observation to which a path of keys and indices leads."""
    for part in path:
        observation = observation[part]
    return observation


def nest(entries: list[tuple[tuple[str, ...], Any]], dictionary: Callable[[dict[str, Any]], Any]) -> Any:
    """Nests values by their paths in dictionaries made by ``dictionary``; a value with an empty path is returned."""
    if entries[0][0] == ():
        return entries[0][1]
    branches: dict[str, list[tuple[tuple[str, ...], Any]]] = {}
    for key, value in entries:
        branches.setdefault(key[0], []).append((key[1:], value))
    return dictionary({name: nest(below, dictionary) for name, below in branches.items()})
