"""Runs all tests of a training and returns one record."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from rlstack.agents import agent_class
from rlstack.agents.legacy import Legacy
from rlstack.config import ConfigError, to_plain
from rlstack.envs.foundation.work import counted
from rlstack.runs.seeding import seed_everything
from rlstack.training.environment import environment

from .comparison import SCHEMA
from .findings import verdict
from .gpu import measure_gpu
from .measuring import MeasuredTraining, cores
from .training import measure_iterations, measure_learning
from .worlds import measure_inference, measure_worlds

TESTS: dict[str, Callable[[MeasuredTraining], dict[str, Any]]] = {
    "env": measure_worlds,
    "inference": measure_inference,
    "learn": measure_learning,
    "collect": measure_iterations,
    "gpu": measure_gpu,
}
_WITHOUT_LEARNING = ("env", "inference")


def diagnose(
    measured: MeasuredTraining,
    test: str = "all",
    tell: Callable[[str, dict[str, Any]], Any] = lambda name, record: None,
) -> dict[str, Any]:
    """Measures a training.

    Args:
        test: one of :data:`TESTS`, or ``all``; for an agent that cannot learn, all means the tests that apply.
        tell: called with the name and the results of each test when it ends.

    Returns the content of the file: ``schema``, ``created``, ``subject``, ``machine``, ``config``, ``tests`` (results
    by name) and ``verdict``, a list of ``text``, ``option`` and ``gain``.

    Raises:
        ConfigError: the test measures learning, and the agent cannot learn.
    """
    config, names = measured.config, tuple(TESTS) if test == "all" else (test,)
    if issubclass(agent_class(config.agent["algorithm"]), Legacy):
        if test not in ("all", *_WITHOUT_LEARNING):
            allowed = ", ".join(_WITHOUT_LEARNING)
            raise ConfigError(f"test: an agent from elsewhere is not trained here; allowed for it: all, {allowed}")
        names = tuple(name for name in names if name in _WITHOUT_LEARNING)
    wall, cpu, results = time.perf_counter(), time.process_time(), {}
    for name in counted(names, "measuring", "tests"):
        seed_everything(config.seed)
        results[name] = TESTS[name](measured)
        tell(name, results[name])
    alone = measured.device.type == "cpu" and not measured.processes  # this process's CPU threads do all the work
    used = (time.process_time() - cpu) / (time.perf_counter() - wall) if alone else None
    here = environment()
    machine = {name: here[name] for name in ("processor", "instruction_set", "gpu")} | here["versions"]
    machine |= {"cores": cores(), "cpu_share": used}
    options = {name: to_plain(getattr(config, name)) for name in ("agent", "env", "collector", "log_every")}
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "created": here["started"],
        "subject": described(measured),
        "machine": machine,
        "config": options,
        "tests": results,
    }
    return {**record, "verdict": [to_plain(advice) for advice in verdict(record)]}


def described(measured: MeasuredTraining) -> dict[str, Any]:
    """Returns the entry ``subject``: what is measured, and how."""
    env = measured.config.env
    return {
        "agent": measured.config.agent.get("name"),
        "env": str(env.get("id") or env.get("name")),
        "num_worlds": measured.num_worlds,
        "size_option": measured.size_option,
        "device": str(measured.device),
        "threads": torch.get_num_threads(),
        "clock": measured.clock.kind,
        "seconds": measured.seconds,
    }
