"""Decides what is compiled, recorded as CUDA graphs (``compile``, ``cudagraphs``), and deterministic on a GPU.

On a GPU ``auto`` compiles worlds, policy and losses, and records steps and learning, which call what is compiled. On a
CPU a step of a small network gains about half a millisecond, and compiling takes from half a minute to some minutes;
there ``auto`` compiles the update of runs with :data:`LONG` updates or more, and the worlds if ``env.compiled`` is set.
It decides by numbers of the configuration alone: by a clock, two runs of one seed would differ by rounding.

The option ``deterministic`` makes a GPU take only algorithms that give the same bits every time; on a CPU the order of
sums does not depend on chance. ``auto`` is on unless a network convolves: the deterministic convolutions of cuDNN may
be much slower than the fastest ones, while other networks only need a few kernels more.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from rlstack import envs
from rlstack.agents import Agent
from rlstack.agents.optimizer import CannotCompile, Compiler
from rlstack.data.graphs import GRAPHS

from .config import TrainConfig

LONG = 200_000
"""Number of updates from which ``auto`` compiles on a CPU: about three times as many as repay the compiler's time."""


class Acceleration:
    """Compiles and records the parts of a run that its options name; steps are recorded by the collector.

    Args:
        config: configuration of the run.
        device: device of the learner.
        worlds: device that the worlds are stepped on; None for the learner's.
        shared: whether several processes learn together.

    Attributes:
        world: options of the world that replace those of ``env``.
        notes: one line for each request that cannot be met.
    """

    def __init__(
        self, config: TrainConfig, device: torch.device, worlds: torch.device | None = None, shared: bool = False
    ) -> None:
        self.notes: list[str] = []
        self._compile, self._device, self._shared = config.compile, device, shared
        worlds = worlds or device
        if config.cudagraphs is True and device.type not in GRAPHS:
            self.notes.append(f"cudagraphs: the device is {device}, nothing is recorded")
        self._graphs = device.type in GRAPHS and config.cudagraphs is not False
        self.world: dict[str, bool] = {}
        known = "compiled" in envs.options_of(config.env["name"]) and config.env.get("backend", "torch") == "torch"
        if known and (config.env.get("compiled") or self._wanted(worlds)):
            self.world["compiled"] = self._possible(worlds)

    def _wanted(self, device: torch.device) -> bool:
        return self._compile is True or (self._compile == "auto" and device.type == "cuda")

    def _possible(self, device: torch.device) -> bool:
        missing = missing_compiler(device)
        if missing is None:
            keep_compiled_code()
            return True
        note = f"compile: {missing}, the run continues without it"
        self.notes += [] if note in self.notes else [note]
        return False

    def describe(self, agent: Agent) -> str | None:
        """Describes what is compiled and recorded, once :meth:`apply` has seen the agent; None if nothing is."""
        compiler, updates = agent.compiler, agent.expected_updates()
        parts = ["worlds"] if self.world.get("compiled") else []
        if compiler is not None and compiler.compiles:
            what = "losses of updates" if compiler.graphs else "updates"
            parts.append(f"policy and {what}{f' ({updates:,.0f} of them)' if updates else ''}")
        compiled = [f"{', '.join(parts)}: about a minute at the beginning, less if they have been compiled before"]
        graphs = ["CUDA graphs"] if compiler is not None and compiler.graphs else []
        return "; ".join((compiled if parts else []) + graphs) or None

    def apply(self, agent: Agent) -> None:
        """Compiles and records the agent if the options ask for it; adds a note if that is impossible."""
        long = self._compile == "auto" and agent.expected_updates() >= LONG
        compiles = (self._wanted(self._device) or long) and self._possible(agent.device)
        if not (compiles or self._graphs):
            return
        try:
            if self._shared:
                raise CannotCompile("several processes share each step")
            agent.compile(Compiler(compiles=compiles, graphs=self._graphs))
        except CannotCompile as error:
            self.notes.append(f"compile: the agent runs as it is, {error}")


def missing_compiler(device: torch.device) -> str | None:
    """Names the compiler that ``torch.compile`` needs on a device and does not find; None if none is missing."""
    if device.type == "cuda":
        if not importlib.util.find_spec("triton"):
            return "the package triton is not installed"
        # Triton compiles the code that launches a kernel.
        compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
        return None if compiler else "there is no C compiler (such as gcc)"
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    return None if shutil.which(name) else "there is no C++ compiler (such as g++)"


def keep_compiled_code() -> None:
    """Keeps compiled code in a lasting folder for later runs, unless ``TORCHINDUCTOR_CACHE_DIR`` names another."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        folder = base / "rlstack" / "inductor"
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # torch's own choice, in the folder for temporary files
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


# -- determinism -----------------------------------------------------------------------------------------------------

Wanted = bool | Literal["auto"]
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def prepare_cublas(wanted: Wanted) -> None:
    """Sets the workspace of cuBLAS, which is read when CUDA starts, unless the user has."""
    if wanted is not False:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def set_determinism(wanted: Wanted, agent: Agent) -> str | None:
    """Lets torch take deterministic algorithms on a GPU, with ``auto`` only if no network of the agent convolves.

    An operation without one then raises a ``RuntimeError`` that names it, or with ``auto`` warns.

    Returns what was chosen, in words; None on a CPU, where nothing is.
    """
    if agent.device.type != "cuda":
        return None
    modules = (module for network in agent.networks.values() for module in network.modules())
    taken = wanted if wanted != "auto" else not any(isinstance(module, _CONVOLUTIONS) for module in modules)
    torch.use_deterministic_algorithms(taken, warn_only=wanted == "auto")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nobody reads it
    torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark and not taken
    why = f" (auto: {'no network convolves' if taken else 'deterministic convolutions are slow'})"
    return ("yes" if taken else "no") + (why if wanted == "auto" else "")
