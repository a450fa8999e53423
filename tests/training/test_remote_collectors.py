"""Runs whose worlds are stepped by workers: what they learn, how they resume, and what happens to lost workers."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rlstack.agents import build_agent
from rlstack.config import ConfigError, build
from rlstack.training.config import TrainConfig
from rlstack.training.loggers import read_metrics
from rlstack.training.run import train
from rlstack.training.workers import build_worlds, check_collector, start_collector
from tests.refusals import refused
from tests.small_run import composed, python
from tests.training.shared_runs import plain_config
from tests.training.test_distributed import rows, started, wait_for
from tests.training.test_every_resume import AGENTS, WORLDS, check_resumed, configured, killed, resumed, training

PROCESSES = ["collector=multiprocess", "collector.timeout=100"]
APART = ["collector=multiasync", "collector.timeout=100"]
RAY = ["collector=ray", "collector.cpus=0.5", "collector.timeout=200"]


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "words", "needle"),
    [
        ("ppo", [*PROCESSES, "env.num_envs=7"], "env.num_envs: 7 is not a multiple of the 2 workers"),
        ("ppo", [*PROCESSES, "collector.device=cuda:77"], "collector.device: 'cuda:77' cannot be used"),
        ("ppo", [*PROCESSES, "+env.opponents={players: [random]}"], "env.opponents: .* with collector.backend=multi"),
        ("ppo", APART, r"correct for that with agent\.advantage=vtrace, or set collector=multiprocess"),
        ("torchrl_ppo", APART, "torchrl_ppo learns from its present policy's alone: set collector=multiprocess"),
        ("ppo", ["+collector.workers=2"], "several workers need collector=multiprocess, multiasync or ray"),
    ],
)
def test_what_workers_cannot_do_is_refused(agent: str, words: list[str], needle: str, tmp_path: Path) -> None:
    plain = plain_config(agent, tmp_path, *words)
    refused(ConfigError, needle, lambda: check_collector(build(TrainConfig, plain)))
    check_collector(build(TrainConfig, plain_config("ppo", tmp_path, *APART, "agent.advantage=vtrace")))


def test_without_ray_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = build(TrainConfig, plain_config("ppo", tmp_path, *RAY))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused(ConfigError, r"^collector\.backend: ray needs the extra 'ray': pip install ", check_collector, config)


# -- what workers act by -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"), [("acqn", PROCESSES), ("acqn", APART), ("acqn", RAY), ("torchrl_sac", PROCESSES)]
)
def test_workers_act_as_the_learner_was_taught(name: str, backend: list[str], tmp_path: Path) -> None:
    if backend is RAY:
        pytest.importorskip("ray")
    quiet = ["agent.noise_scale=0", "agent.epsilon=0"] if name == "acqn" else []
    pendulum = ["env.id=Pendulum-v1", "agent.steps_per_batch=4"]
    config = build(TrainConfig, plain_config(name, tmp_path, *backend, *quiet, *pendulum))
    env = build_worlds(config, torch.device("cpu"), {})
    agent: Any = build_agent(config.agent, env, config.total_frames, torch.device("cpu"))
    agent.set_frames(10**7)  # after those at random
    collector = start_collector(config, env, agent, [], {}, None)
    try:
        batches = iter(collector)
        assert next(batches)["action"].mean() < 1.7
        with torch.no_grad():
            output = [layer for layer in agent.actor.modules() if isinstance(layer, nn.Linear)][-1]
            output.weight.zero_()
            output.bias[0] = 5.0  # the mean of the action, before it is squashed
            output.bias[1:] = -10.0  # and how much it varies
        taught = [next(batches)["action"] for _ in range(4)][-1]  # those that do not wait are some batches behind
    finally:
        collector.shutdown()
    assert taught.min() > 1.7


# -- whole runs ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("case", ["ppo recurrent", "sac", "dqn recurrent", "marinenav curriculum"])
def test_the_same_seed_is_the_same_run_also_killed_and_resumed(case: str, tmp_path: Path) -> None:
    check_resumed(configured(*{**AGENTS, **WORLDS}[case], "env.num_worlds=4", *PROCESSES), tmp_path)


@pytest.mark.slow
def test_a_run_whose_workers_do_not_wait_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    plain = configured(*AGENTS["sac"], "env.num_worlds=4", *APART)
    killed(training(tmp_path / "killed", plain), 200)
    again = resumed(tmp_path / "killed", plain)
    assert again.frames >= again.config.total_frames


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["agent=ppo", "collector=multiprocess"],
        ["agent=dqn", "collector=multiasync"],
        # How old its data are depends on the load, so it has more time than it needs on a quiet machine.
        ["agent=ppo", "agent.advantage=vtrace", "collector=multiasync", "total_frames=500000", "eval.every=50000"],
    ],
    ids=["ppo waits", "dqn does not wait", "ppo does not wait"],
)
def test_workers_gather_what_solves_cartpole(overrides: list[str], tmp_path: Path) -> None:
    plain = composed("env=cartpole", *overrides, "seed=1", "logger=csv", "threads=1")
    train({**plain, "run_dir": str(tmp_path / "run")})
    assert max(row.get("eval/return", 0.0) for row in rows(tmp_path / "run")) >= 475


# -- workers that are lost -----------------------------------------------------------------------------------------


def under_way(folder: Path, *overrides: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Returns a long run that has begun to learn, and the ids of its workers."""
    entry = "+".join(("dqn", "total_frames=10_000_000", "eval.every=10_000_000", "compile=false", *overrides))
    process = started("tests.training.shared_runs", str(folder), entry, start_new_session=True)
    wait_for(lambda: (folder / "dqn" / "metrics.csv").exists() and rows(folder / "dqn"), process)
    return process, [number for number, line in descendants(process.pid) if "spawn_main" in line or "ray::Wor" in line]


def wait_for_the_end_of(numbers: Iterable[int], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while left := [number for number in numbers if Path(f"/proc/{number}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def descendants(number: int) -> list[tuple[int, str]]:
    """Returns the processes that a process has started, directly or through others, and their command lines."""
    found = []
    for children in Path(f"/proc/{number}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            line = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            found += [(child, line), *descendants(child)]
    return found


def has_restarted(run: Path) -> bool:
    return any("system/worker_restarts" in row for row in read_metrics(run / "metrics.csv"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["multiprocess", "ray"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_a_run_goes_on_without_a_worker_and_ends_with_all(how: signal.Signals, backend: str, tmp_path: Path) -> None:
    if backend == "ray":
        pytest.importorskip("ray")
    process, workers = under_way(tmp_path, f"collector={backend}", "collector.timeout=100")
    assert len(workers) == 2
    os.kill(workers[1], how)
    wait_for(lambda: has_restarted(tmp_path / "dqn"), process)
    everyone = [number for number, _ in descendants(process.pid)]
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
    output, _ = process.communicate(timeout=60)
    assert output.count("\nsaved checkpoint_") == 1, output
    wait_for_the_end_of((*workers, *everyone))


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.1, 3])
def test_a_run_whose_workers_do_not_begin_ends(seconds: float, tmp_path: Path) -> None:
    entry = f"dqn+collector=multiprocess+collector.timeout={seconds}"
    ended = python("-m", "tests.training.shared_runs", str(tmp_path), entry, OMP_NUM_THREADS="1")
    assert ended.returncode == 1 and f"workers do not begin: no answer within {seconds} s" in ended.stderr


@pytest.mark.slow
def test_workers_do_not_outlive_their_learner(tmp_path: Path) -> None:
    process, workers = under_way(tmp_path, *PROCESSES)
    process.kill()
    process.wait()
    wait_for_the_end_of(workers)


# -- Ray -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[None]:
    """Starts a Ray cluster of two CPUs on this machine."""
    ray = pytest.importorskip("ray")
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init(address="local", num_cpus=2, object_store_memory=200_000_000, **options)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_workers_on_ray_train(tmp_path: Path) -> None:
    assert train(plain_config("dqn", tmp_path, *RAY)) is not None
    config = build(TrainConfig, plain_config("ppo", tmp_path, *RAY, "collector.address=auto", "collector.cpus=40"))
    refused(ConfigError, "workers: 2 with 40 CPUs each are more than the cluster has, 2; see", check_collector, config)


@pytest.mark.parametrize("address", ["localhost:1", "nonsense"])
def test_a_cluster_that_is_not_there(address: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    config = build(TrainConfig, plain_config("ppo", tmp_path, *RAY, f"collector.address={address}"))
    refused(ConfigError, f"no Ray cluster can be reached at {address}", check_collector, config)
