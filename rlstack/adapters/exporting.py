"""Exports an agent's greedy policy as a stand-alone program that runs without rlstack: torch.export, AOTInductor, ONNX
or TorchScript, which torch 2.14 deprecates. Measures how far two policies' actions are apart.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from rlstack.agents.base import Agent, Policy
from rlstack.agents.interface import MASK, Interface
from rlstack.agents.recurrent import RecurrentPolicy
from rlstack.config import ConfigError
from rlstack.config.errors import writing
from rlstack.envs.foundation.files import replacing
from rlstack.envs.foundation.packages import needs
from rlstack.envs.world import MEMORY
from rlstack.files.safe_load import first_line

FORMAT, VERSION = "rlstack-policy", 1
FORMATS = ("torchscript", "export", "aoti", "onnx")
INPUTS = 1000
"""The number of random inputs on which program and agent are compared."""
_EXAMPLES = 3
Program = Callable[[Sequence[Tensor]], Tensor | tuple[Tensor, ...]]
NEXT_MEMORY = f"next_{MEMORY}"


@dataclass(frozen=True)
class ExportedProgram:
    """A program that was written.

    Attributes:
        path: path of the program; see :func:`beside` for its description.
        agreement: agreement with the agent's own actions.
        description: content of the file that describes it.
    """

    path: Path
    agreement: Agreement
    description: dict[str, Any]


def export_policy(
    agent: Agent, path: str | Path, format: str = "torchscript", frames: int | None = None
) -> ExportedProgram:
    """Writes an agent's greedy policy, from raw observations to the env's actions, as a stand-alone program.

    Inputs are the leaves of the observation in the env's order ``[N, *shape]``, and the action mask last where the env
    has one; N is free. The output is the action ``[N, *shape]`` in the env's units, or the choice (int64). A program of
    a recurrent agent takes the recurrent state as its last input ``memory [N, M]``, zeros at first, and returns
    ``next_memory`` as a second output. A JSON file next to the program names all of them; in ONNX, inputs that the
    policy does not use are left out. The program runs on the CPU, and is compared with the agent before the file gets
    its name. The global random generators keep their state.

    Args:
        agent: agent of rlstack; if its greedy policy samples, the program takes the mean or mode, and ``note`` in the
            JSON file says so.
        path: path of the file to write.
        format: ``torchscript``; ``export`` (``torch.export.load``); ``aoti``, compiled for this kind of processor
            (``torch._inductor.aoti_load_package``), which needs a C++ compiler here; or ``onnx``.
        frames: number of frames it was trained for, for the JSON file; default: the agent's own count.

    Raises:
        ConfigError: in one line: the agent is not one of ours, a package is missing, the file cannot be written, or the
            program does not act like the agent; then no file is left behind.
    """
    path = Path(path)
    if agent.device.type != "cpu":
        raise ConfigError(f"export: the agent is on {agent.device}, load it on the cpu")
    if format not in FORMATS:
        raise ConfigError(f"format: {format!r} is unknown, allowed: {', '.join(FORMATS)}")
    if agent.interface.hybrid is not None:
        raise ConfigError(f"export: a program gives one tensor, the agent has {agent.interface.describe_action()}")
    if format == "onnx":
        for package in ("onnx", "onnxruntime"):
            try:
                importlib.import_module(package)
            except ImportError:
                raise ConfigError(f"format=onnx {needs('export')}") from None
    for place in (path, beside(path)):
        if place.is_dir():
            raise ConfigError(f"out: {place} is a folder")
    with deterministic(agent) as note, torch.no_grad(), ExitStack() as afterwards:
        for parameter in (value for network in agent.networks.values() for value in network.parameters()):
            if parameter.requires_grad:  # a constant while it is traced, as it is in a program
                afterwards.callback(parameter.requires_grad_)
                parameter.requires_grad_(False)
        module = ExportablePolicy(agent)
        content, program = write_program(module, format)
        observation, mask = random_inputs(module.interface, INPUTS)
        inputs = module.split(observation, mask)
        try:
            answer, memory = _action_and_memory(program(inputs))
            single, _ = _action_and_memory(program([value[:1] for value in inputs]))
        except Exception as error:  # of many kinds, some of them the runtime's own
            why = f"its program fails for {INPUTS} rows or for one: {type(error).__name__}: {first_line(error)}"
            raise ConfigError(f"format={format}: cannot express this agent; another may ({why})") from error
        wanted, _ = _action_and_memory(module(*inputs))
        given, interface = TensorDict(dict(zip(module.names, inputs)), [INPUTS]), module.interface

        def compared(does: str, output: int, answer: Tensor, allowed: float | None = None) -> Agreement:
            def act(entries: Any, _: Tensor | None) -> Tensor:
                return _action_and_memory(module(*map(entries.get, module.names)))[output]

            found = compare(act, answer, given, None, interface, allowed)
            if found.wrong or not alike:
                raise ConfigError(
                    f"the exported program {does} otherwise than the agent on {found.wrong} of {INPUTS} random inputs, "
                    f"by up to {found.largest:.1e}; nothing was written"
                )
            return found

        alike = single.shape == answer[:1].shape and answer.dtype == wanted.dtype
        agreement = compared("acts", 0, answer)
        if memory is not None:
            compared("remembers", 1, memory, TOLERANCE)
        action: dict[str, Any] = {"kind": "continuous", "meaning": interface.describe_action()}
        if interface.choices is not None:
            action |= {"kind": "discrete", "choices": list(interface.choices)}
        else:
            for name, bound in (("low", interface.action.space.low), ("high", interface.action.space.high)):
                action[name] = [value if math.isfinite(value) else None for value in bound.tolist()]
        description = {
            "format": FORMAT,
            "version": VERSION,
            "agent": agent.config.name,
            "frames": agent.frames if frames is None else frames,
            "inputs": [_entry(name, value) for name, value in zip(module.names, inputs) if name in module.taken],
            "output": _entry("action", wanted) | action,
            "largest_difference": agreement.largest,
        }
        if module.memory_size:
            description["memory"] = f"{MEMORY} is zeros where an episode begins, then {NEXT_MEMORY} of the step before"
        description |= {"note": note} if note else {}
    text = json.dumps(description, indent=2) + "\n"
    with writing(f"out: {path}"), replacing(path, beside(path)) as (program_file, text_file):
        program_file.write_bytes(content)
        text_file.write_text(text, encoding="utf-8")
    return ExportedProgram(path, agreement, description)


def beside(path: Path) -> Path:
    """Returns the path of the file that describes a program."""
    return path.with_name(f"{path.name}.json")


@contextmanager
def deterministic(agent: Agent) -> Iterator[str]:
    """Makes an agent that samples when greedy act by its mean or mode inside; yields a note about it, or ``""``."""
    config, changes, note = agent.config, {}, ""
    if getattr(config, "act_levels", None) == "random":
        changes = {"act_levels": "midpoints"}
        note = "it acts at random quantile levels; exported with evenly spaced ones"
    elif getattr(config, "greedy", None) == "sample":
        changes, note = {"greedy": "mode"}, "it samples its actions; exported with the most probable ones"
    agent.config = dataclasses.replace(config, **changes) if changes else config
    try:
        yield note
    finally:
        agent.config = config


class ExportablePolicy(nn.Module):
    """The greedy policy of an agent, whose networks it shares, on plain tensors: the module that an export traces.

    Attributes:
        names: names of the inputs in order; the recurrent state ``[N, M]``, if it has one, comes last.
        taken: those of them that the program takes; one in ONNX takes no input that it does not use.
        outputs: names of the outputs: the action and, if it has one, the next recurrent state.
    """

    _policy: Policy | RecurrentPolicy

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        policy = agent.policy(explore=False)
        if not isinstance(policy, Policy | RecurrentPolicy):
            raise ConfigError(f"{type(agent).__name__} cannot be exported, only agents with networks of rlstack can")
        self.interface = agent.interface
        self.__dict__["_policy"] = policy  # not part of the module: its networks become constants of the program
        self.memory_size = policy.size if isinstance(policy, RecurrentPolicy) else 0
        spec = agent.interface.observation
        self._keys = list(spec.keys(include_nested=True, leaves_only=True)) if isinstance(spec, Composite) else []
        names = [key if isinstance(key, str) else ".".join(key) for key in self._keys] or ["observation"]
        # No name of another input or output, and no number, which is no name in ONNX.
        others = ("action", MASK, MEMORY, NEXT_MEMORY)
        self.names = [f"observation.{name}" if name in others or name.isdigit() else name for name in names]
        self.names += [MASK] if agent.interface.masked else []
        self.names += [MEMORY] if self.memory_size else []
        self.taken = list(self.names)
        self.outputs = ["action", *([NEXT_MEMORY] if self.memory_size else [])]

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Returns the ``outputs`` ``[N, ...]`` for the inputs ``[N, ...]`` in the order of ``names``."""
        if not isinstance(self._policy, RecurrentPolicy):
            return self._policy.action(*self.joined(inputs))
        observation, mask = self.joined(inputs[:-1])
        acted, memory = self._policy.step(observation, inputs[-1], mask)
        return acted["action"], memory

    def joined(self, inputs: Sequence[Tensor]) -> tuple[Any, Tensor | None]:
        """Returns the observation and action mask of these inputs, which exclude the recurrent state."""
        mask = inputs[-1] if self.interface.masked else None
        if not self._keys:
            return inputs[0], mask
        # Without a batch size: torch.export would fix it to that of the example.
        return TensorDict(dict(zip(self._keys, inputs)), []), mask

    def split(self, observation: Any, mask: Tensor | None) -> tuple[Tensor, ...]:
        """Returns all inputs for an observation, with a random recurrent state that is always the same."""
        leaves = [observation.get(key) for key in self._keys] if self._keys else [observation]
        inputs = [*leaves, *([] if mask is None else [mask])]
        if self.memory_size:
            generator, size = torch.Generator().manual_seed(0), (len(leaves[0]), self.memory_size)
            inputs.append(torch.rand(size, generator=generator, dtype=self.interface.dtype) * 2 - 1)
        return tuple(inputs)


def write_program(module: ExportablePolicy, format: str) -> tuple[bytes, Program]:
    """Traces a policy for any number of rows; returns the content of a file of this format, and its program.

    Raises:
        ConfigError: the format cannot express the policy, or nothing here compiles it.
    """
    examples, buffer = module.split(*random_inputs(module.interface, _EXAMPLES)), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about tracing: dependence on values is checked by the comparison
        try:
            if format == "torchscript":
                torch.jit.save(torch.jit.trace(module, examples, check_trace=False), buffer)
                buffer.seek(0)
                scripted = torch.jit.load(buffer)
                return buffer.getvalue(), lambda inputs: scripted(*inputs)
            if format == "onnx":
                return _onnx(module, examples)
            rows = torch.export.Dim("batch", min=1)
            shapes = (({0: rows},) * len(examples),)
            traced = torch.export.export(module, examples, dynamic_shapes=shapes, strict=False)
            if format == "export":
                torch.export.save(traced, buffer)
                buffer.seek(0)
                loaded = torch.export.load(buffer).module()
                return buffer.getvalue(), lambda inputs: loaded(*inputs)
            from torch._inductor import aoti_compile_and_package, aoti_load_package

            with tempfile.TemporaryDirectory() as folder:
                path = aoti_compile_and_package(traced, package_path=str(Path(folder) / "policy.pt2"))
                compiled = aoti_load_package(path)
                return Path(path).read_bytes(), lambda inputs: compiled(*inputs)
        except Exception as error:  # of many kinds, some of them the runtime's own
            also = " here, or there is no C++ compiler, which it needs" if format == "aoti" else ""
            why = f"{type(error).__name__}: {first_line(error)}"
            raise ConfigError(f"format={format}: cannot express this agent{also}; another may ({why})") from error


def _onnx(module: ExportablePolicy, examples: tuple[Tensor, ...]) -> tuple[bytes, Program]:
    buffer: Any = io.BytesIO()  # accepted by this exporter, though not in its signature
    axes = {name: {0: "batch"} for name in (*module.names, *module.outputs)}
    torch.onnx.export(
        *(module, examples, buffer),
        input_names=module.names,
        output_names=module.outputs,
        dynamic_axes=axes,
        dynamo=False,  # torch.export does not support observations as TensorDicts
    )
    runtime = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(buffer.getvalue(), providers=["CPUExecutionProvider"])
    used = {entry.name for entry in session.get_inputs()}  # an unused input is missing
    module.taken = [name for name in module.names if name in used]

    def program(inputs: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
        feed = {name: value.numpy() for name, value in zip(module.names, inputs) if name in used}
        outputs = tuple(torch.from_numpy(output) for output in session.run(None, feed))
        return outputs if module.memory_size else outputs[0]

    return buffer.getvalue(), program


def _action_and_memory(answer: Tensor | tuple[Tensor, ...]) -> Any:
    return (answer, None) if isinstance(answer, Tensor) else answer


def _entry(name: str, value: Tensor) -> dict[str, Any]:
    return {"name": name, "shape": ["batch", *value.shape[1:]], "dtype": str(value.dtype).removeprefix("torch.")}


# -- comparison of two policies --------------------------------------------------------------------------------------


Act = Callable[[Any, Tensor | None], Tensor]
"""Maps an observation ``[N]`` and, where the env has one, an action mask ``[N, n]`` to the env's actions."""

TOLERANCE = 1e-5
"""The largest difference of equal continuous actions, in the env's units, or relative to half their range if over 1."""
_WIDE = 1e4
"""Bounds beyond this say nothing about typical observations."""
_NUDGES, _NUDGE = 64, 1e-6


def random_inputs(interface: Interface, count: int, seed: int = 0) -> tuple[Any, Tensor | None]:
    """Draws observations ``[count]`` within their spec, and action masks that allow something, on the CPU.

    Features without meaningful bounds are normal numbers of standard deviations from 0.1 to 100.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed: the generators of GPUs are not restored
        mask = None
        if interface.masked:
            parts = []
            for size in interface.choices or ():
                legal = torch.rand(count, size) < 0.5
                parts.append(legal | torch.nn.functional.one_hot(torch.randint(size, (count,)), size).bool())
            mask = torch.cat(parts, -1)
        return _sample(interface.observation, count), mask


def _sample(spec: TensorSpec, count: int) -> Any:
    if isinstance(spec, Composite):
        return TensorDict({key: _sample(leaf, count) for key, leaf in spec.items()}, [count])
    if not spec.dtype.is_floating_point:
        return spec.cpu().expand(count, *spec.shape).rand()
    size = 10 ** torch.randint(-1, 3, (count, *[1] * len(spec.shape))).to(spec.dtype)
    free = size * torch.randn(count, *spec.shape, dtype=spec.dtype)
    if not hasattr(spec.space, "low"):
        return free
    low, high = spec.space.low.cpu(), spec.space.high.cpu()
    bounded = (low.abs() < _WIDE) & (high.abs() < _WIDE)
    uniform = low + (high - low) * torch.rand(count, *spec.shape, dtype=spec.dtype)
    return torch.where(bounded, uniform, free.clamp(low, high))


@dataclass(frozen=True)
class Agreement:
    """The result of :func:`compare`.

    Attributes:
        largest: the largest difference, except where rounding decides.
        rounded: number of actions that differ by more than :func:`tolerance` where rounding decides.
        wrong: number of actions that differ by more than that where it does not.
    """

    largest: float
    rounded: int
    wrong: int

    def __str__(self) -> str:
        rounded = f", but for {self.rounded} where rounding decides," if self.rounded else ""
        return f"its greedy actions differ by {self.largest:.1e} at most{rounded}"


@torch.no_grad()
def compare(
    act: Act,
    answer: Tensor,
    observation: Any,
    mask: Tensor | None,
    interface: Interface,
    allowed: float | None = None,
) -> Agreement:
    """Measures how far another policy's actions are from an agent's.

    Rounding decides where the agent's own action moves that far (for choices: to that choice) if its input changes in
    the sixth digit: between two actions of the same value, or where large numbers cancel.

    Args:
        act: the agent.
        answer: actions ``[N]`` of the other policy for the same inputs.
        allowed: the largest difference that counts as none; None: :func:`tolerance`.
    """
    wanted = act(observation, mask)
    difference = _difference(wanted, answer)
    beyond = difference > (tolerance(interface) if allowed is None else allowed)
    rounded = beyond.clone()
    if bool(beyond.any()):
        given, ours, legal = answer[beyond], wanted[beyond], None if mask is None else mask[beyond]
        decided = torch.zeros(len(given), dtype=torch.bool)
        with torch.random.fork_rng(devices=[]):
            for _ in range(_NUDGES):
                near = act(_nudged(observation[beyond]), legal)
                if given.is_floating_point():
                    decided |= _difference(near, ours) >= 0.9 * _difference(given, ours)
                else:
                    decided |= _difference(near, given) == 0
        rounded[beyond] = decided
    wrong = int((beyond & ~rounded).sum())
    return Agreement(float(difference.masked_fill(rounded, 0.0).max()), int(rounded.sum()), wrong)


def _nudged(observation: Any) -> Any:
    if not isinstance(observation, Tensor):
        return observation.apply(_nudged)
    if not observation.is_floating_point():
        return observation
    return observation * (1 + _NUDGE * (2 * torch.rand_like(observation) - 1))


def _difference(one: Tensor, other: Tensor) -> Tensor:
    """Returns differences ``[N]``: the largest over an action's numbers; for choices 1 where they differ."""
    if not one.is_floating_point():
        return (one != other).reshape(len(one), -1).any(-1).float()
    return (one - other).abs().reshape(len(one), -1).amax(-1).nan_to_num(torch.inf)


def tolerance(interface: Interface) -> float:
    """Returns the largest difference that counts as none."""
    if not interface.continuous:
        return 0.0
    half = (interface.action.space.high - interface.action.space.low).float().max() / 2
    return TOLERANCE * max(1.0, float(half) if torch.isfinite(half) else 1.0)
