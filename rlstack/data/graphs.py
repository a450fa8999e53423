"""Functions recorded as CUDA graphs: a replay starts thousands of kernels at once, without Python in between."""

from __future__ import annotations

import copy
import random
import traceback
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.data import TensorSpec

from rlstack.envs.foundation.tensors import unchecked

_WARM_UP = 3  # calls before recording, during which libraries choose their algorithms and everything lazy is made
_LAYOUTS = 8  # recordings of a function; each takes memory
_NUMBERS = (int, float, str, bool, type(None), torch.Size, torch.device, torch.dtype)

_GROWING = (dict, list, deque)

Place = tuple[Any, Any, Any]
"""An owner of values, a key in it, and the value there.

Owners are dicts, lists, deques, tensordicts and the ``__dict__`` of objects; and, with the name of an attribute as key,
objects with ``__slots__`` and the cells of closures.
"""


class CannotRecord(Exception):
    """Raised when a function does something that a replay would not repeat; the message says what."""


class CudaGraph:
    """A recording on a GPU.

    Args:
        generators: the generators that the function draws from, besides the device's default one.
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self._generators = [generator for generator in generators if generator.device.type == "cuda"]

    _streams: ClassVar[dict[torch.device, torch.cuda.Stream]] = {}
    """Of each GPU, that of all warm-ups: every stream keeps freed memory and a workspace of cuBLAS for itself."""
    _lanes: ClassVar[dict[torch.cuda.Stream, torch.cuda.Stream]] = {}
    """Of the stream of each lane, the one on which it records: recordings keep the workspace of cuBLAS of theirs."""

    @classmethod
    def warm_up(cls, function: Callable[[], Any]) -> Any:
        """Calls a function on a stream besides the current one, as it will be recorded; a lane is such a stream."""
        here = torch.cuda.current_stream()
        if here in cls._lanes:
            return function()
        if here.device not in cls._streams:
            cls._streams[here.device] = torch.cuda.Stream()
        stream = cls._streams[here.device]
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            results = function()
        here.wait_stream(stream)
        return results

    def record(self, function: Callable[[], Any]) -> Any:
        """Records a function, which computes nothing, and returns the tensors that a replay will fill."""
        stream = torch.cuda.current_stream()
        drawn = [generator.get_state() for generator in self._generators]
        try:
            # From torch 2.12 on, the end of a recording frees the workspaces of cuBLAS on its stream, also those that
            # other recordings use (pytorch/pytorch#193402). After the end of a small one, this one gets its own.
            self._recorded(_little)
            return self._recorded(function)
        except BaseException:
            # Torch stays on the recording's stream, and its generators in the mode of recording until one succeeds.
            torch.cuda.set_stream(stream)
            self._recorded(_little)
            for generator, state in zip(self._generators, drawn):
                generator.set_state(state)
            raise

    def _recorded(self, function: Callable[[], Any]) -> Any:
        self._graph = torch.cuda.CUDAGraph()
        for generator in self._generators if torch.__version__ < "2.14" else ():  # torch itself does it from then on
            self._graph.register_generator_state(generator)
        # Other threads, such as those that write a checkpoint, may use the GPU meanwhile.
        stream = self._lanes.get(torch.cuda.current_stream())
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            return function()

    def replay(self) -> None:
        """Computes what was recorded, with the present contents of its tensors."""
        self._graph.replay()

    @classmethod
    def lane(cls, device: torch.device, own: bool = True) -> Callable[[], None]:
        """Returns a function that gives its thread a stream, and states of the default generators, of their own.

        A GPU computes what is on several streams side by side. What has been begun so far is waited for, so that all
        streams may use it; from then on the threads must have nothing in common but what does not change.

        Args:
            own: False for the stream and the states that the calling thread has.
        """
        torch.cuda.synchronize(device)
        stream = torch.cuda.Stream(device) if own else torch.cuda.current_stream(device)
        if own:
            cls._lanes[stream] = torch.cuda.Stream(device)
        generators = torch.cuda.default_generators
        states = [generator.clone_state() if own else generator.graphsafe_get_state() for generator in generators]

        def enter() -> None:
            torch.cuda.set_stream(stream)
            for generator, state in zip(generators, states):
                generator.graphsafe_set_state(state)

        return enter


def _little() -> Tensor:
    return torch.zeros(1, device="cuda")


GRAPHS: dict[str, Any] = {"cuda": CudaGraph}
"""How functions are recorded, by the kind of device; tests rehearse it on a CPU."""


class Recorded:
    """A function recorded once for each layout of its arguments, and replayed after that.

    A replay does what a call would have done: it computes with new arguments, draws the next random numbers, and leaves
    new state in the objects that the function changes. These hold the same tensors before and after; what the function
    puts in their place is copied into them. Whole numbers that a call changes are counters, which a replay advances by
    as much; the function may not compute with them, nor with other numbers that change from call to call. If something
    else replaces a tensor, such as a loaded checkpoint, its content is taken over. A class may name attributes that the
    function does not touch in ``unrecorded``.

    Arguments that are no tensors are part of the layout. The results of a replay are the same tensors each time.
    Where nothing can be recorded (on a CPU, beyond :data:`_LAYOUTS` layouts, inside another recording, or after a
    failure, which is told once), the function is called.

    Args:
        function: takes and returns tensors, or containers of them; no gradient flows through them.
        what: name of the function in messages.
        state: the objects that the function changes.
        device: where it computes.
        lent: whether arguments are lent: the same tensors at each call, which nobody needs unchanged.
    """

    _depth = 0  # of calls of recorded functions; those inside another one are part of it

    def __init__(
        self, function: Callable[..., Any], what: str, state: Sequence[Any], device: torch.device, lent: bool = False
    ) -> None:
        self.function, self.what, self.failed, self._lent = function, what, False, lent
        self._state, self._device = state, device
        self._kind: Any = GRAPHS.get(device.type)
        self._recordings: dict[Any, _Recording] = {}

    def __call__(self, *arguments: Any) -> Any:
        if self._kind is None or self.failed or Recorded._depth:
            return self.function(*arguments)
        tensors: list[Any] = []
        structure = flattened(arguments, tensors)
        parts = ((part.shape, part.dtype) if isinstance(part, Tensor) else part for part in tensors)
        layout = (structure, *parts)
        recording = self._recordings.get(layout)
        if recording is not None and recording.is_stale():
            del self._recordings[layout]
            recording = None
        if recording is None:
            if len(self._recordings) == _LAYOUTS:
                return self.function(*arguments)
            recording = self._recordings[layout] = _Recording(self)
        Recorded._depth += 1
        try:
            return recording(tensors, structure)
        except (RuntimeError, CannotRecord) as error:  # it waits for the GPU, or changes what a replay cannot
            if not recording.began_recording:
                raise
            self._tell(error)
        finally:
            Recorded._depth -= 1
        return self.function(*arguments)

    @property
    def replays(self) -> bool:
        """Whether any results may be overwritten by a later call."""
        return any(recording.graph is not None for recording in self._recordings.values())

    def _tell(self, error: Exception) -> None:
        self.failed = True
        self._recordings.clear()
        first = error.__context__  # the end of a recording that has failed raises an error of its own
        error = first if isinstance(first, RuntimeError) else error
        reason, where = (str(error) or type(error).__name__).splitlines()[0], ""
        if not isinstance(error, CannotRecord):
            frames = traceback.extract_tb(error.__traceback__)
            at = next((frame for frame in reversed(frames) if "site-packages" not in frame.filename), frames[-1])
            where = f" ({Path(at.filename).name}, line {at.lineno}: {at.line})"
        warnings.warn(f"{self.what} is not recorded as a CUDA graph: {reason}{where}", stacklevel=3)


class _Recording:
    """The recording of a function for one layout of arguments."""

    def __init__(self, recorded: Recorded) -> None:
        self._of, self._calls = recorded, 0
        self.graph: Any = None
        self.began_recording = False

    def __call__(self, tensors: list[Any], structure: Any) -> Any:
        of = self._of

        def compute(inputs: list[Any]) -> Any:
            return of.function(*unflattened(structure, iter(inputs)))

        self._calls += 1
        if self._calls < _WARM_UP:
            return of._kind.warm_up(partial(compute, tensors))
        if self._calls == _WARM_UP:  # finds out which tensors the function replaces
            before, _ = _reachable((*of._state, of.function))
            results = of._kind.warm_up(partial(compute, tensors))
            self._replaced = [(owner, key) for owner, key, value in before if _now(owner, key) is not value]
            return results
        if self.graph is None:
            self.began_recording = True
            self._record(tensors, compute)
            self.began_recording = False
        else:
            fresh = [
                (old, new)
                for old, new in zip(self._inputs, tensors)
                if old is not new and isinstance(old, Tensor) and old.data_ptr() != new.data_ptr()
            ]
            for old, new in fresh:
                old.copy_(new)
        for owner, key, step in self._counters:
            owner[key] += step
        self.graph.replay()
        return self._results

    def _record(self, tensors: list[Any], compute: Callable[[list[Any]], Any]) -> None:
        of = self._of
        self._inputs = tensors if of._lent else [part.clone() if isinstance(part, Tensor) else part for part in tensors]
        for owner, key in self._replaced:  # nobody else may hold the tensors that replays write into
            if (value := _now(owner, key)) is not None:
                _put(owner, key, own(value))
        before, generators = _reachable((*of._state, of.function))
        elsewhere = [
            (owner, key, value, value._version)
            for owner, key, value in before
            if isinstance(value, Tensor) and value.device.type != of._device.type
        ]
        sizes = {id(owner): (owner, len(owner)) for owner, _, _ in before if isinstance(owner, _GROWING)}
        host = _HostDraws([] if of._device.type == "cpu" else [torch.default_generator, *generators])
        changes = _Changes()

        def compute_and_keep() -> Any:
            results = compute(self._inputs)
            for owner, key, value in before:
                changes.compare(owner, key, value, _now(owner, key), counts=True)
            if grown := next((owner for owner, size in sizes.values() if len(owner) > size), None):
                raise CannotRecord(f"it adds {list(dict(_entries(grown)[1]))[-1]!r}")  # type: ignore[index]
            for owner, key, value, version in elsewhere:
                if value._version != version or _now(owner, key) is not value:
                    raise CannotRecord(f"it changes {key!r} on another device: {value.device}")
            if who := host.drawn():
                raise CannotRecord(f"it draws random numbers of {who}")
            results = changes.apart(results)
            changes.copy()
            return results

        graph = of._kind(generators)
        try:
            self._results = graph.record(compute_and_keep)
        except BaseException:
            host.restore()
            raise
        finally:
            for owner, size in sizes.values():
                while len(owner) > size:
                    _ = owner.pop() if isinstance(owner, (list, deque)) else owner.popitem()
            for owner, key, value in before:
                if _now(owner, key) is not value:
                    _put(owner, key, value)
        self.graph, self._counters = graph, changes.counters
        holds: dict[int, bool] = {}
        watched = [place for place in before if not isinstance(place[0], TensorDictBase)]  # for speed
        self._held = [place for place in watched if _holds_tensors(place[2], holds)]
        # What is called before every replay, so that looking at hundreds of places takes microseconds.
        self._looks = [(_getter(owner), key, value) for owner, key, value in self._held]

    def is_stale(self) -> bool:
        """Takes over what others have put in the place of recorded tensors.

        Returns whether that is impossible, so that the function must be recorded anew.
        """
        if self.graph is None:
            return False
        moved = [number for number, (get, key, value) in enumerate(self._looks) if get(key) is not value]
        if not moved:
            return False
        changes = _Changes()
        try:
            for owner, key, value in map(self._held.__getitem__, moved):
                changes.compare(owner, key, value, _now(owner, key))
        except CannotRecord:
            return True
        changes.copy()
        for owner, key, value in map(self._held.__getitem__, moved):
            _put(owner, key, value)
        return False


class _Changes:
    """What differs between the objects that were there and those that are there now.

    Attributes:
        counters: places of whole numbers that a call changes, with the increase.
    """

    def __init__(self) -> None:
        self.counters: list[Place] = []
        self._pairs: dict[int, tuple[Tensor, Tensor]] = {}

    def compare(self, owner: Any, key: Any, old: Any, new: Any, counts: bool = False) -> None:
        """Takes in a place, where ``old`` was and ``new`` is.

        Args:
            counts: whether whole numbers that differ are counters.

        Raises:
            CannotRecord: something differs that is neither the content of a tensor nor a counter.
        """
        if old is new:
            return
        if isinstance(old, Tensor) and isinstance(new, Tensor):
            if (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device):
                self._pairs[id(old)] = (old, new)
                return
        elif type(old) is type(new):
            if (inside := _entries(old)) is not None:
                (inner, before), after = inside, dict(_entries(new)[1])  # type: ignore[index]
                if dict(before).keys() != after.keys():
                    raise CannotRecord(f"it changes the entries of {key!r}")
                for name, value in before:
                    self.compare(inner, name, value, after[name], counts)
                return
            if old == new:
                return
            if counts and type(old) is int and owner is not None:
                self.counters.append((owner, key, new - old))
                return
        raise CannotRecord(f"it changes {key!r} from {_brief(old)} to {_brief(new)}")

    def apart(self, results: Any) -> Any:
        """Returns results with copies of those tensors that :meth:`copy` will overwrite."""
        parts: list[Any] = []
        structure = flattened(results, parts)
        written = {_memory(old) for old, _ in self._pairs.values()}
        return unflattened(
            structure,
            iter(part.clone() if isinstance(part, Tensor) and _memory(part) in written else part for part in parts),
        )

    def copy(self) -> None:
        """Copies the new contents into the old tensors."""
        if not self._pairs:
            return
        written = {_memory(old) for old, _ in self._pairs.values()}
        olds, news = {}, {}
        for place, (old, new) in self._pairs.items():
            olds[str(place)], news[str(place)] = old, new.clone() if _memory(new) in written else new
        with torch.no_grad():  # as tensordicts, which are copied by a few kernels
            unchecked(olds, ()).update_(unchecked(news, ()))


def flattened(value: Any, parts: list[Any]) -> Any:
    """Appends what is inside nested tuples, lists, dicts and tensordicts to ``parts``.

    Returns their structure, which can be hashed, for :func:`unflattened`.
    """
    kind = type(value)
    if kind is Tensor:  # the most frequent by far
        parts.append(value)
        return None
    if isinstance(value, TensorDictBase):
        about: Any = (value.batch_size, value.device)
    elif kind in (tuple, list, dict) or hasattr(value, "_fields"):
        about = None
    else:
        parts.append(value)
        return None
    entries = list(value.items()) if hasattr(value, "items") else list(enumerate(value))
    return kind, about, tuple((key, flattened(entry, parts)) for key, entry in entries)


def unflattened(structure: Any, parts: Iterator[Any]) -> Any:
    """Returns what :func:`flattened` took apart, with other parts."""
    if structure is None:
        return next(parts)
    kind, about, inside = structure
    entries = {key: unflattened(part, parts) for key, part in inside}
    if about is not None:
        return unchecked(entries, *about)
    if kind in (dict, list, tuple):
        return entries if kind is dict else kind(entries.values())
    return kind(*entries.values())


class _HostDraws:
    """The generators of random numbers on the host, whose draws a replay on a GPU would not repeat, as they are now.

    Args:
        generators: the generators of torch that a function may draw from, on any device.
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        own = [generator for generator in generators if generator.device.type == "cpu"]
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._torch = [(generator, generator.get_state()) for generator in own]

    def drawn(self) -> str | None:
        """Returns whose random numbers have been drawn since then; None if none have."""
        pairs: Any = zip(self._numpy, np.random.get_state())
        if random.getstate() != self._python or not all(np.array_equal(before, now) for before, now in pairs):
            return "Python or NumPy"
        same = (np.array_equal(own.get_state().numpy(), state.numpy()) for own, state in self._torch)
        return None if all(same) else "torch on the CPU"

    def restore(self) -> None:
        """Undoes the draws since then."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        for generator, state in self._torch:
            generator.set_state(state)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _brief(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else f"{value!r:.40}"


def _getter(owner: Any) -> Callable[[Any], Any]:
    """Returns the function from a key to what an owner has there."""
    if isinstance(owner, dict):
        return owner.get
    return owner.__getitem__ if isinstance(owner, (*_GROWING, TensorDictBase)) else partial(getattr, owner)


def _now(owner: Any, key: Any) -> Any:
    """Returns what is at a place; None if there is nothing."""
    try:
        return _getter(owner)(key)
    except (KeyError, IndexError, AttributeError, ValueError):  # a cell may be empty
        return None


def _put(owner: Any, key: Any, value: Any) -> None:
    if isinstance(owner, (*_GROWING, TensorDictBase)):
        owner[key] = value
    else:
        object.__setattr__(owner, key, value)


def own(value: Any) -> Any:
    """Returns a copy of a value whose tensors share no memory with others."""
    if isinstance(value, Tensor):
        return value.detach().clone(memory_format=torch.contiguous_format)
    if isinstance(value, TensorDictBase):
        return value.apply(own)  # its own clone adds zero to all, which makes 0.0 of -0.0
    if isinstance(value, tuple):
        parts = [own(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if (inside := _entries(value)) is None:
        return value
    copied = copy.copy(value)
    owner, _ = _entries(copied)  # type: ignore[misc]
    for key, entry in inside[1]:
        _put(owner, key, own(entry))
    return copied


def _entries(value: Any) -> tuple[Any, list[tuple[Any, Any]]] | None:
    """Returns the owner of the entries inside a value (None for a tuple's) and these; None if it has none."""
    if isinstance(value, (TensorDictBase, dict)):
        return value, list(value.items())
    if isinstance(value, (list, deque)):
        return value, list(enumerate(value))
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return None, list(enumerate(value))
    if isinstance(value, (type, types.ModuleType, types.FunctionType, Tensor, TensorSpec, Recorded)):
        return None
    if _of_a_library(type(value).__module__) and not isinstance(value, (nn.Module, torch.optim.Optimizer)):
        return None
    if (inside := getattr(value, "__dict__", None)) is not None:
        apart = getattr(type(value), "unrecorded", ())
        return inside, [(key, entry) for key, entry in inside.items() if key not in apart]
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(value, name)]
    return (value, [(name, getattr(value, name)) for name in slots]) if slots else None


def _of_a_library(module: str | None) -> bool:
    """Returns whether what a module defines keeps its state to itself."""
    return str(module).partition(".")[0] in ("torch", "torchrl", "tensordict", "omegaconf", "builtins")


def _holds_tensors(value: Any, known: dict[int, bool]) -> bool:
    """Returns whether a value is a tensor, or has some inside."""
    if isinstance(value, (Tensor, TensorDictBase)):
        return True
    if id(value) not in known:
        known[id(value)] = False  # for what refers back to it
        inside = None if isinstance(value, _NUMBERS) else _entries(value)
        known[id(value)] = inside is not None and any(_holds_tensors(entry, known) for _, entry in inside[1])
    return known[id(value)]


def _reachable(roots: Sequence[Any]) -> tuple[list[Place], list[torch.Generator]]:
    """Returns every place that can be reached from some objects, and their generators."""
    places: list[Place] = []
    generators: list[torch.Generator] = []
    seen: dict[int, Any] = {}
    stack: list[Any] = list(roots)
    while stack:
        value = stack.pop()
        if id(value) in seen or isinstance(value, (Tensor, *_NUMBERS)):
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Generator):
            generators.append(value)
        elif isinstance(value, types.MethodType):
            stack += (value.__self__, value.__func__)
        elif isinstance(value, types.FunctionType):
            cells = [cell for cell in value.__closure__ or () if cell != types.CellType()]
            if not _of_a_library(value.__module__):
                places += [(cell, "cell_contents", cell.cell_contents) for cell in cells]
            stack += [cell.cell_contents for cell in cells]
        elif isinstance(value, partial):
            stack += (value.func, value.args, value.keywords)
        elif (inside := _entries(value)) is not None:
            owner, entries = inside
            stack += [entry for _, entry in entries]
            if owner is not None:
                places += [(owner, key, entry) for key, entry in entries]
    return places, generators
