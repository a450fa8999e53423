"""All tests of a training, as one record."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any

import torch

from envs.working import counted
from rlstack.agents import agent_class
from rlstack.agents.legacy import Legacy
from rlstack.config import ConfigError, to_plain
from rlstack.runs.seeding import seed_everything
from rlstack.training.environment import instruction_set, processor

from .comparison import SCHEMA
from .findings import verdict
from .gpu import measure_gpu
from .inference import measure_inference
from .iteration import measure_iterations
from .learning import measure_learning
from .simulation import measure_worlds
from .subject import Subject
from .threads import cores

TESTS: dict[str, Callable[[Subject], dict[str, Any]]] = {
    "env": measure_worlds,
    "inference": measure_inference,
    "learn": measure_learning,
    "collect": measure_iterations,
    "gpu": measure_gpu,
}
_WITHOUT_LEARNING = ("env", "inference")


def diagnose(
    subject: Subject, test: str = "all", tell: Callable[[str, dict[str, Any]], Any] = lambda name, found: None
) -> dict[str, Any]:
    """Measures.

    Args:
        test: one of :data:`TESTS`, or all of them; of an agent that does not learn, those that it can take.
        tell: is called with the name and the results of a test as soon as they are there.

    Returns what goes into the file: ``schema``, ``created``, ``subject``, ``machine``, ``config``, ``tests`` (results
    by name) and ``verdict``, a list of ``text``, ``option`` and ``gain``.

    Raises:
        ConfigError: a test of learning, for an agent that cannot.
    """
    names = tuple(TESTS) if test == "all" else (test,)
    if issubclass(agent_class(subject.config.agent["algorithm"]), Legacy):
        if test not in ("all", *_WITHOUT_LEARNING):
            allowed = ", ".join(_WITHOUT_LEARNING)
            raise ConfigError(f"test: an agent from elsewhere is not trained here; allowed for it: all, {allowed}")
        names = tuple(name for name in names if name in _WITHOUT_LEARNING)
    wall, cpu, results = time.perf_counter(), time.process_time(), {}
    for name in counted(names, "measuring", "tests"):
        seed_everything(subject.config.seed)
        results[name] = TESTS[name](subject)
        tell(name, results[name])
    used = (time.process_time() - cpu) / (time.perf_counter() - wall)
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "subject": described(subject),
        "machine": {**_machine(), "cpu_share": used if _computes_here(subject) else None},
        "config": {
            "agent": to_plain(subject.config.agent),
            "env": to_plain(subject.config.env),
            "collector": to_plain(subject.config.collector),
            "log_every": subject.config.log_every,
        },
        "tests": results,
    }
    return {**found, "verdict": [to_plain(finding) for finding in verdict(found)]}


def _computes_here(subject: Subject) -> bool:
    """All that is measured is done by this process's CPU threads."""
    return subject.device.type == "cpu" and not subject.processes


def described(subject: Subject) -> dict[str, Any]:
    """What is measured, and how."""
    env = subject.config.env
    return {
        "agent": subject.config.agent.get("name"),
        "env": str(env.get("id") or env.get("name")),
        "num_worlds": subject.num_worlds,
        "size_option": subject.size_option,
        "device": str(subject.device),
        "threads": torch.get_num_threads(),
        "clock": subject.clock.kind,
        "seconds": subject.seconds,
    }


def _machine() -> dict[str, Any]:
    return {
        "processor": processor(),
        "instruction_set": instruction_set(),
        "cores": cores(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
