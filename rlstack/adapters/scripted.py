"""TorchScript and ONNX files as policies of an env.

Both contain a program made of tensor operations, perhaps from an unknown source. It cannot run Python, so loading and
running it is less of a risk than a pickle. It may still compute anything and waste time or memory, and TorchScript has
operations that read and write files: only run programs from people you trust.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import Composite, OneHot
from torchrl.envs import EnvBase

from rlstack.adapters.protocols import ForeignPolicy
from rlstack.agents.compatibility import as_actions, batch_of, choices, leaves, telling, try_out
from rlstack.agents.interface import MASK, Interface
from rlstack.config import ConfigError
from rlstack.envs.foundation.packages import needs
from rlstack.files.safe_load import first_line, forward_arguments

Graph = Callable[[list[Tensor]], Any]
"""Maps the leaves of an observation ``[N, *shape]`` in order (followed by the action mask, if any) to the output."""
_DTYPES = {"float": "float32", "double": "float64"}
"""ONNX's names of dtypes, where they differ from torch's."""


def torchscript_policy(path: str | Path, env: EnvBase) -> TensorDictModuleBase:
    """Returns a TorchScript module as a policy, after trying it on a sample of the env's observations.

    Worlds, and agents if there are several, are flattened into one batch ``[N]``. A flat observation is its only
    argument. A structured one is passed leaf by leaf in the env's order as separate arguments, or as one tuple, list or
    dict (by key), whichever its ``forward`` takes. An additional argument is the env's action mask, where it has one.
    Its output (the first, if it has several) is the action, or, for n discrete actions, n logits or values in floating
    point, of which the highest is taken. It runs on the env's device in its own dtype.

    Args:
        path: a file of ``torch.jit.save``. It cannot run Python, see the module's docstring.
        env: world in which the policy acts.

    Raises:
        ConfigError: no such file, not TorchScript, or it does not fit the env.
    """
    _check_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = torch.jit.load(str(path), map_location=env.device).eval()
    except Exception as error:  # torch raises all sorts for damaged and hostile bytes
        raise ConfigError(f"{path}: not a TorchScript file ({first_line(error)})") from None
    try:
        arguments = forward_arguments(module)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    dtype = next((value.dtype for value in module.parameters() if value.is_floating_point()), None)
    interface = Interface.of(env)
    names = _leaf_names(interface)
    count, required = max(1, len(names)), sum(not entry.has_default_value() for entry in arguments)
    masked = interface.masked and required == count + 1
    container = str(arguments[0].type).partition("[")[0] if arguments else ""
    one = not masked and required <= 1 <= len(arguments) and container in ("Tuple", "List", "Dict")
    if not masked and not one and not required <= count <= len(arguments):
        taken = ", ".join(f"{entry.name}: {entry.type}" for entry in arguments) or "nothing"
        shown = f"{count} tensor{'s' if count > 1 else ''} ({', '.join(names) or 'a flat observation'})"
        raise ConfigError(f"{path}: forward takes {taken}; the env shows {shown}")

    def run(parts: list[Tensor]) -> Any:
        cast = [part.to(dtype) if dtype is not None and part.is_floating_point() else part for part in parts]
        given = cast if masked else cast[:count]
        if not one:
            return module(*given)
        if container == "Dict":
            return module(dict(zip(names or ["observation"], given)))
        return module(tuple(given) if container == "Tuple" else given)

    return GraphPolicy(run, env, str(path), module)


def onnx_policy(path: str | Path, env: EnvBase) -> TensorDictModuleBase:
    """Returns an ONNX graph as a policy on the CPU, after trying it on a sample of the env's observations.

    A structured observation is matched to the graph's inputs by name if their names are those of leaves, otherwise in
    order. For the rest see :func:`torchscript_policy`. The batch dimension must be dynamic, or that of the env.

    Raises:
        ConfigError: onnxruntime is not installed, no such file, not ONNX, or it does not fit the env.
    """
    _check_file(path)
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        raise ConfigError(f"a policy in ONNX {needs('export')}") from None
    try:
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's exceptions have no common base class
        raise ConfigError(f"{path}: not an ONNX file that can be run ({first_line(error)})") from None
    interface, inputs = Interface.of(env), session.get_inputs()
    seen, order = _leaf_names(interface), [entry.name for entry in inputs]
    names = seen or ["observation"]
    if interface.masked and len(inputs) == len(names) + 1:
        names = [*names, MASK]
    named = bool(order) and set(order) <= set(names)  # some leaves may be of no use to it
    if len(inputs) != len(names) and not named:
        taken, shown = ", ".join(order), ", ".join(seen)
        raise ConfigError(f"{path}: takes {taken or 'nothing'}; the env shows {shown or 'a flat observation'}")
    order = names if named else order
    kinds = {entry.name: re.fullmatch(r"tensor\((\w+)\)", entry.type) for entry in inputs}
    dtypes = {name: getattr(torch, _DTYPES.get(kind[1], kind[1]), None) for name, kind in kinds.items() if kind}
    if strange := [entry.type for entry in inputs if dtypes.get(entry.name) is None]:
        raise ConfigError(f"{path}: an input of {strange[0]}, only tensors of numbers are supported")

    def run(parts: list[Tensor]) -> Any:
        given = {name: part for name, part in zip(order, parts) if name in dtypes}
        return session.run(None, {name: part.to("cpu", dtypes[name]).numpy() for name, part in given.items()})

    return GraphPolicy(run, env, str(path))


class GraphPolicy(ForeignPolicy):
    """Runs a graph on an env's observations, after trying it on a sample.

    Args:
        module: what has its parameters, if anything.
    """

    def __init__(self, graph: Graph, env: EnvBase, who: str, module: Any = None) -> None:
        interface = Interface.of(env)
        super().__init__(interface, who, interface.masked)
        self._graph = graph
        if module is not None:
            self.network = module
        try_out(self.action, env, interface, who)

    def action(self, observation: Any, mask: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        parts, lead = leaves(observation, self.interface), batch_of(observation, self.interface)
        inputs = [part.reshape(lead.numel(), *part.shape[len(lead) :]) for part in parts]
        if self.interface.masked:
            options = sum(self.interface.choices or ())
            everything = torch.ones(lead.numel(), options, dtype=torch.bool, device=parts[0].device)
            inputs.append(everything if mask is None else mask.reshape(-1, options))
        with telling(self.interface, self.who):
            output = self._graph(inputs)
            while isinstance(output, tuple | list):
                output = output[0]
            output = torch.as_tensor(output)
        spec = self.interface.action
        count = choices(spec)
        scores = output.is_floating_point() and output.shape[-1:] == (count,) and output.dim() > 1
        if count is not None and scores and (count > 1 or not isinstance(spec, OneHot)):
            output = output.argmax(-1)
        return as_actions(output, lead, spec, parts[0].device, self.who)


def _leaf_names(interface: Interface) -> list[str]:
    """Returns the names of the leaves of a structured observation; none for a flat one."""
    spec = interface.observation
    keys = spec.keys(include_nested=True, leaves_only=True) if isinstance(spec, Composite) else ()
    return [".".join(key) if isinstance(key, tuple) else key for key in keys]


def _check_file(path: str | Path) -> None:
    if not Path(path).is_file():
        raise ConfigError(f"{path}: no such file")
