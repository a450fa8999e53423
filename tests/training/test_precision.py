"""``agent.precision``: what auto decides by recipe and device, what a run prints about it, and what it leaves alone."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from rlstack.agents import optimizer as precision
from rlstack.config import build, conf_dir, load_group
from rlstack.config.errors import ConfigError
from rlstack.runs.loading import load
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.config import TrainConfig
from rlstack.training.run import train
from rlstack.training.summary import describe
from tests.refusals import refused
from tests.small_run import composed

CPU = torch.device("cpu")
GPU = torch.device("cuda")


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives devices units for bfloat16, or takes them away."""
    return lambda has: monkeypatch.setattr(precision, "has_bfloat16", lambda device: has)


# -- what is decided ---------------------------------------------------------------------------------------------------


def test_auto_keeps_recurrent_cores_in_float32(units: Any) -> None:
    units(True)
    agent = {"precision": "auto", "bfloat16_pays": True, "recurrent": {"kind": "lstm"}}
    assert precision.decided(agent, CPU) == "float32"
    assert precision.explained(agent, CPU) == "float32 (auto: recurrent cores stay in float32)"
    assert precision.decided({**agent, "precision": "bfloat16"}, CPU) == "bfloat16"


def test_auto_is_the_default_and_three_recipes_gain() -> None:
    names = [path.stem for path in Path(conf_dir(), "agent").glob("*.yaml") if path.stem != "legacy"]
    agents = [load_group("agent", name) for name in names]
    assert len(agents) > 10
    assert {(agent["precision"], agent["bfloat16_pays"]) for agent in agents} == {("auto", False)}
    gaining = {
        path.stem for path in Path(conf_dir(), "recipe").glob("*.yaml") if "bfloat16_pays: true" in path.read_text()
    }
    assert gaining == {"arena_ppo", "echelon_ppo", "rocket_ppo"}
    agent = composed("agent=ppo", "env=arena")["agent"]
    assert agent["precision"] == "auto" and agent["bfloat16_pays"]


@pytest.mark.parametrize(("capability", "has"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_a_gpu_has_units_from_capability_8_on(
    capability: tuple[int, int], has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert precision.has_bfloat16(GPU) is has


@pytest.mark.parametrize(
    ("units", "highest", "has"),
    [
        ({"avx512_f": True, "avx512_bf16": True}, "", True),
        ({"avx512_f": True, "avx512_bf16": True}, "AVX512_CORE_AMX", True),
        ({"avx512_f": True, "avx512_bf16": True}, "avx2", False),
        ({"avx512_f": True, "avx512_bf16": False}, "", False),  # oneDNN converts to float32 and back
        ({"neon": True, "bf16": True}, "", True),
        ({"neon": True, "bf16": False}, "", False),
    ],
)
def test_a_cpu_is_asked_for_its_units(
    units: dict[str, bool], highest: str, has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", highest)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: units)
    assert precision.has_bfloat16(CPU) is has


def test_torch_still_tells_what_the_kernel_tells() -> None:
    if platform.machine() != "x86_64" or not Path("/proc/cpuinfo").is_file() or "ONEDNN_MAX_CPU_ISA" in os.environ:
        pytest.skip("the kernel does not tell, or oneDNN is held back")
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")).split()
    assert precision.has_bfloat16(CPU) == ("avx512_bf16" in flags)


def test_a_torch_that_tells_nothing_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert not precision.has_bfloat16(CPU)


# -- what is said ------------------------------------------------------------------------------------------------------


SLOW = "WARNING: this CPU has no units for it and takes about 16 times as long as in float32"
BEGAN = "as the run began; on this CPU auto is {}, which agent.precision=auto changes to"
PAYS = "auto: bfloat16 pays with this recipe, and this CPU has"


@pytest.mark.parametrize(
    ("asked", "pays", "has", "resumed", "said"),
    [
        ("auto", True, True, False, f"bfloat16 ({PAYS} units for it)"),
        ("auto", True, False, False, f"float32 ({PAYS} no units for it)"),
        ("auto", False, True, False, "float32 (auto: agent.bfloat16_pays is false)"),
        ("float32", True, True, False, "float32"),
        ("bfloat16", True, True, False, "bfloat16"),
        ("bfloat16", False, False, False, f"bfloat16 ({SLOW})"),
        ("bfloat16", True, True, True, "bfloat16"),
        ("float32", True, True, True, f"float32 ({BEGAN.format('bfloat16')})"),
        ("bfloat16", True, False, True, f"bfloat16 ({BEGAN.format('float32')}; {SLOW})"),
    ],
)
def test_the_summary_names_the_precision_and_why(
    asked: str, pays: bool, has: bool, resumed: bool, said: str, units: Any
) -> None:
    units(has)
    agent = {"precision": asked, "bfloat16_pays": pays}
    assert precision.explained(agent, CPU, resumed) == said
    assert said.startswith(precision.decided(agent, CPU))


def test_an_unknown_precision_is_one_line() -> None:
    plain = composed("agent=ppo", "env=cartpole", "agent.precision=float64", "env.num_worlds=2")
    refused(ConfigError, r"agent\.precision.*auto.*float32.*bfloat16.*float16", train, plain)


# -- what a run keeps --------------------------------------------------------------------------------------------------

TINY = (
    *("agent=ppo", "env=cartpole", "agent.bfloat16_pays=true", "agent.hidden=[8]", "agent.steps_per_batch=8"),
    *("env.num_worlds=4", "total_frames=64", "log_every=32", "eval.every=64", "eval.episodes=1", "checkpoint.every=32"),
    *("logger=csv", "threads=1", "device=cpu", "until=32"),
)


@pytest.mark.parametrize("began", [True, False])
def test_a_run_keeps_its_precision_on_another_kind_of_cpu(
    began: bool, units: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    units(began)
    first, second = ("bfloat16", "float32") if began else ("float32", "bfloat16")
    train({**composed(*TINY), "run_dir": str(tmp_path / "run")})
    assert f"precision  {first} (auto: " in capsys.readouterr().out

    run = RunDirectory.open(tmp_path / "run")
    stored = run.read_config()
    assert stored["agent"]["precision"] == first and load(run.path).config["agent"]["precision"] == first
    units(not began)
    train({**stored, "resume": str(run.path), "until": None})
    kept = f"precision  {first} (as the run began; on this CPU auto is {second}, "
    assert kept in capsys.readouterr().out
    loaded = load(run.path)
    assert loaded.frames == 64 and loaded.agent.config.precision == first
    rolled = loaded.make_env().rollout(3, loaded.agent.policy(explore=True))
    assert rolled["action"].dtype == torch.int64

    changed = build(TrainConfig, {**run.read_config(), "resume": str(run.path)})
    changed.agent["precision"] = "auto"
    assert f"precision  {second} (auto: " in describe(changed, run)
