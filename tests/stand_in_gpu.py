"""A simulated GPU: it computes on the CPU, and raises the same errors as a GPU for tensors on other devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "standin"
DEVICE = f"{NAME}:0"
_COPYING = ("aten::copy_", "aten::_to_copy", "aten::_copy_from", "aten::set_")
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_NEVER_MIXED = ("aten::cat", "aten::stack", "aten::mm", "aten::addmm", "aten::bmm", "aten::gather", "aten::scatter")
_RESHAPING = (
    "aten::resize_",
    "aten::t_",
    "aten::transpose_",
    "aten::squeeze_",
    "aten::unsqueeze_",
    "aten::as_strided_",
)

_UNORDERED = {
    *("aten::put_", "aten::put", "aten::histc", "aten::kthvalue", "aten::max_unpool2d", "aten::nll_loss2d_forward"),
    *("aten::grid_sampler_2d_backward", "aten::avg_pool3d_backward", "aten::max_pool2d_with_indices_backward"),
    *("aten::_adaptive_avg_pool2d_backward", "aten::adaptive_max_pool2d_backward", "aten::_ctc_loss_backward"),
    *("aten::reflection_pad1d_backward", "aten::reflection_pad2d_backward", "aten::upsample_linear1d_backward"),
    *("aten::upsample_bilinear2d_backward", "aten::upsample_bicubic2d_backward"),
}
"""Operations that have no deterministic algorithm on a GPU (``torch.use_deterministic_algorithms``)."""
_UNORDERED_IF_FLOATING = ("aten::cumsum", "aten::cumsum_")

_registered = False


class _Held(Tensor):
    """A tensor on the simulated device, whose data are on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> _Held:
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made = Tensor._make_wrapper_subclass(cls, held.shape, **layout, device=DEVICE)  # type: ignore[attr-defined]
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"StandIn({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class _Generator(torch.Generator):
    """A generator that reports the device for which it was made."""

    where: torch.device
    on_device: dict[int, torch.Generator] = {}

    def __new__(cls, device: torch.device | str = "cpu") -> _Generator:
        made = super().__new__(cls)
        made.where = torch.device(device)
        if made.where.type == NAME:  # kept, so that its address is not reused
            cls.on_device[made._cdata] = made  # type: ignore[attr-defined]
        return made

    def __init__(self, device: torch.device | str = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.where


class _Module(_DummyBackendModule):
    """The counterpart of ``torch.cuda`` for the simulated device."""

    def synchronize(self, device: Any = None) -> None:
        pass

    def get_rng_state(self, device: Any = None) -> Tensor:
        """Returns an empty state: the generators are on the CPU, and ``torch.random.fork_rng`` saves those."""
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        pass


class _Made(TorchFunctionMode):
    """Handles tensors made from numbers and arrays, which torch creates without a dispatch mode."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[1], list | range):
            args = (args[0], torch.as_tensor(list(args[1])).to(args[0].device), *args[2:])
        if func == Tensor.data.__set__ and isinstance(args[1], _Held):  # type: ignore[attr-defined]
            torch.utils.swap_tensors(args[0], args[1].detach().requires_grad_(args[0].requires_grad))
            return None
        if func is Tensor.__deepcopy__ and isinstance(args[0], _Held):  # torch would copy the memory that it has not
            return args[1].setdefault(id(args[0]), args[0].detach().clone().requires_grad_(args[0].requires_grad))
        if func is Tensor.tolist and isinstance(args[0], _Held):
            return args[0].held.tolist()
        if func is Tensor.new_tensor:
            return torch.tensor(args[1], dtype=kwargs.get("dtype", args[0].dtype)).to(args[0].device)
        return func(*args, **kwargs)


class _Everything(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Computes an operation on the CPU after checking the devices of its arguments."""
    name = func._schema.name
    tensors = list(_tensors((*args, *kwargs.values())))
    there = [entry for entry in tensors if isinstance(entry, _Held)]
    asked = kwargs.get("device")
    target = torch.device(asked) if asked is not None else torch.device(DEVICE if there else "cpu")
    _check(name, args, tensors, there, kwargs, target)
    wrapper = {id(entry.held): entry for entry in there}
    arguments = _each(_held, args)
    options = {key: _each(_held, value) for key, value in kwargs.items()}
    if asked is not None:
        options["device"] = torch.device("cpu")
        options.pop("pin_memory", None)
    result = func(*arguments, **options)
    if name in ("aten::_local_scalar_dense", "aten::equal"):
        return result
    if name in _COPYING and isinstance(args[0], Tensor) and asked is None:
        target = args[0].device
    if name == "aten::_to_copy" and isinstance(result, Tensor) and there and result is there[0].held:
        result = result.clone()

    def placed(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in wrapper:
            return wrapper[id(value)]
        return _Held(value) if target.type == NAME and not isinstance(value, _Held) else value

    return _each(placed, result)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, _Held) else value


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """Does the same as ``tree_map`` for lists and tuples, the only containers of operations, in a tenth of the time."""
    if isinstance(value, list | tuple):
        return type(value)([_each(function, entry) for entry in value])
    return function(value)


def _check(
    name: str, args: Any, tensors: list[Tensor], there: list[_Held], kwargs: dict[str, Any], target: torch.device
) -> None:
    if name in _RESHAPING and there:
        raise NotImplementedError(f"{name} of the stand-in")
    generator = kwargs.get("generator")
    if generator is not None:
        own = generator._cdata in _Generator.on_device
        if own != (target.type == NAME):
            raise RuntimeError(f"{name}: the generator is not on {target}")
    if not there or name in _COPYING:
        return
    floating = kwargs.get("dtype", there[0].dtype).is_floating_point
    if name in _UNORDERED or (name in _UNORDERED_IF_FLOATING and floating) or (name == "aten::median" and args[1:]):
        raise RuntimeError(f"{name} does not have a deterministic implementation")
    others = [entry for entry in tensors if not isinstance(entry, _Held)]
    if name in _INDEXING and isinstance(args[0], _Held):  # indices may come from the CPU
        others = [entry for entry in others if not any(entry is index for index in args[1])]
    mixed = [entry for entry in others if entry.dim() or name in _NEVER_MIXED]
    if mixed:
        raise RuntimeError(f"{name}: {DEVICE} and a tensor {list(mixed[0].shape)} on the CPU")


@contextmanager
def stand_in() -> Iterator[str]:
    """Returns a context with the simulated device, and yields its name; its random numbers are the CPU's."""
    global _registered
    if not _registered:
        _setup_privateuseone_for_python_backend(NAME, _Module())
        _registered = True
    generator = torch.Generator
    torch.Generator = _Generator  # type: ignore[misc]
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # parameters stay the same objects, as on a GPU
    try:
        # Torch fixes the number of backward threads by the number of devices at the first backward pass of a process.
        with _Made(), _Everything(), torch.autograd.set_multithreading_enabled(False):
            yield DEVICE
    finally:
        torch.Generator = generator  # type: ignore[misc]
        torch.__future__.set_swap_module_params_on_conversion(swaps)
