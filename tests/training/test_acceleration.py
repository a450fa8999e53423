"""What ``compile``, ``cudagraphs``, ``deterministic`` and ``agent.precision`` decide, and what is printed of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rlstack.agents import base, build_agent
from rlstack.agents import optimizer as precision
from rlstack.agents.optimizer import CannotCompile
from rlstack.config import ConfigError, build, conf_dir
from rlstack.runs.loading import load
from rlstack.runs.run_directory import RunDirectory
from rlstack.runs.seeding import surroundings_untouched
from rlstack.runs.worlds import build_world
from rlstack.training import acceleration
from rlstack.training.acceleration import (
    LONG,
    Acceleration,
    keep_compiled_code,
    missing_compiler,
    set_determinism,
)
from rlstack.training.config import TrainConfig
from rlstack.training.run import train
from rlstack.training.summary import describe
from tests.agents.small_agents import YAMLS
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import CARTPOLE_RUN, composed

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
NETWORKS = ["agent.hidden=[8,8]", "agent.self_features=8", "agent.object_features=[8]"]


def config(*overrides: str) -> TrainConfig:
    return build(TrainConfig, composed("env.num_worlds=4", "device=cpu", *NETWORKS, *overrides))


def decided(*overrides: str, device: torch.device = CPU, shared: bool = False) -> tuple[Acceleration, Any]:
    """Returns what is decided for a run, and its agent, which is on a CPU."""
    c = config(*overrides)
    found = Acceleration(c, device, shared=shared)
    env = build_world(c.env)
    agent = build_agent(c.agent, env, c.total_frames, CPU)
    found.apply(agent)
    return found, agent


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "given"))


@exhaustive(
    ("overrides", "compiles_agent", "world"),
    [
        ([], False, {}),
        (["compile=true"], True, {"compiled": True}),
        (["compile=false"], False, {}),
        (["compile=false", "env.compiled=true"], False, {"compiled": True}),
        ([f"total_frames={LONG}", "agent.frames_per_update=1"], False, {}),  # a few less, as the memory fills first
        ([f"total_frames={2 * LONG}", "agent.frames_per_update=1"], True, {}),
        ([f"total_frames={2 * LONG}", "agent.frames_per_update=1", "compile=false"], False, {}),
    ],
)
def test_on_a_cpu_auto_compiles_the_update_of_long_runs(
    overrides: list[str], compiles_agent: bool, world: dict[str, bool]
) -> None:
    found, agent = decided(*overrides)
    assert (agent.compiler is not None, found.world, found.notes) == (compiles_agent, world, [])


@pytest.mark.slow
def test_ppo_counts_its_updates() -> None:
    _, agent = decided("agent=ppo", "total_frames=1_000_000", "agent.epochs=3", "agent.minibatch_size=500")
    assert agent.expected_updates() == 6000


def test_without_a_compiler_a_run_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "missing_compiler", lambda device: "there is no C++ compiler (such as g++)")
    found, agent = decided("compile=true")
    assert (agent.compiler, found.world) == (None, {"compiled": False})
    assert found.notes == ["compile: there is no C++ compiler (such as g++), the run continues without it"]


def test_an_agent_that_cannot_be_compiled_says_why() -> None:
    memory = "agent.recurrent={kind: gru, size: 4, layers: 1, sequence_length: 4}"
    found, agent = decided("agent=ppo", "compile=true", memory)
    assert agent.compiler is None and len(found.notes) == 1
    assert found.notes[0].startswith("compile: the agent runs as it is, agent.recurrent")


def test_processes_that_share_each_step_compile_worlds_alone() -> None:
    found, agent = decided("compile=true", shared=True)
    assert agent.compiler is None and found.world == {"compiled": True}
    assert found.notes == ["compile: the agent runs as it is, several processes share each step"]


def test_worlds_elsewhere_are_compiled_for_their_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "missing_compiler", lambda device: None)
    assert Acceleration(config(), GPU, CPU).world == {}


def test_on_a_gpu_everything_is_compiled_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "missing_compiler", lambda device: None)
    found, agent = decided(device=GPU)
    assert found.world == {"compiled": True}
    assert (agent.compiler.compiles, agent.compiler.graphs) == (True, True)
    assert Acceleration(config("cudagraphs=false"), GPU)._graphs is False


def test_on_a_gpu_a_torch_that_compiles_no_gradients_compiles_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "missing_compiler", lambda device: None)

    def too_old() -> None:
        raise CannotCompile("torch 2.11 cannot compile gradients, 2.13 can")

    monkeypatch.setattr(base, "trace_gradients", too_old)
    found, agent = decided(device=GPU)
    assert (agent.compiler.compiles, found.notes) == (True, [])


def test_compiling_for_a_gpu_needs_a_c_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.delenv("CC", raising=False)
    there = {"clang": "/usr/bin/clang"}
    monkeypatch.setattr(acceleration.shutil, "which", lambda name: there.get(name))
    assert missing_compiler(GPU) is None
    there.clear()
    assert missing_compiler(GPU) == "there is no C compiler (such as gcc)"


def test_compiling_for_a_cpu_needs_a_cpp_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration.sys, "platform", "linux")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(acceleration.shutil, "which", {"g++": "/usr/bin/g++", "icpx": "/opt/icpx"}.get)
    assert missing_compiler(CPU) is None
    monkeypatch.setattr(acceleration.sys, "platform", "darwin")  # clang++ there
    assert missing_compiler(CPU) == "there is no C++ compiler (such as g++)"
    monkeypatch.setenv("CXX", "icpx")
    assert missing_compiler(CPU) is None


def test_graphs_need_a_gpu() -> None:
    found, agent = decided("cudagraphs=true")
    assert agent.compiler is None and found.notes == ["cudagraphs: the device is cpu, nothing is recorded"]


def test_a_wrong_value_is_refused() -> None:
    refused(ConfigError, "compile: ", config, "compile=always")


def test_compiled_code_has_a_lasting_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keep_compiled_code()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "given")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    keep_compiled_code()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "rlstack" / "inductor")


# -- ``deterministic``: what auto decides, what it sets on a GPU, and that it ends with the call of a command ----------


DENSE, IMAGES = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Sequential(nn.Conv2d(1, 1, 1)), nn.Linear(2, 2))


def agent(device: str, network: nn.Module) -> Any:
    return SimpleNamespace(device=torch.device(device), networks={"actor": DENSE, "critic": network})


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    memory = torch.utils.deterministic.fill_uninitialized_memory
    with surroundings_untouched():
        yield
    torch.utils.deterministic.fill_uninitialized_memory = memory


@pytest.mark.parametrize(
    ("wanted", "device", "network", "before", "mode", "words"),
    [
        ("auto", "cuda", DENSE, 0, 1, "yes (auto: no network convolves)"),
        ("auto", "cuda", IMAGES, 0, 0, "no (auto: deterministic convolutions are slow)"),
        (True, "cuda", IMAGES, 0, 2, "yes"),
        (False, "cuda", DENSE, 2, 0, "no"),
        ("auto", "cpu", DENSE, 0, 0, None),
        (True, "cpu", DENSE, 0, 0, None),
        (False, "cpu", DENSE, 1, 1, None),
    ],
)
def test_auto_leaves_only_convolutions_out_until_the_command_ends(
    wanted: Any, device: str, network: nn.Module, before: int, mode: int, words: str | None
) -> None:
    """The modes are 0: off, 1: warnings, 2: errors for operations without a deterministic algorithm."""
    torch.set_deterministic_debug_mode(before)
    with surroundings_untouched():
        assert set_determinism(wanted, agent(device, network)) == words
        assert torch.get_deterministic_debug_mode() == mode
        assert device == "cpu" or not torch.utils.deterministic.fill_uninitialized_memory
    assert torch.get_deterministic_debug_mode() == before


@pytest.mark.parametrize(("wanted", "given"), [(False, {}), ("auto", {}), (True, {"CUBLAS_WORKSPACE_CONFIG": ":16:8"})])
def test_cublas_is_told_before_cuda_starts(wanted: Any, given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration.os, "environ", environment := dict(given))
    acceleration.prepare_cublas(wanted)
    assert environment == (given or ({} if wanted is False else {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}))


# -- ``agent.precision``: what auto decides by recipe and device, what a run prints about it, and what it leaves alone -


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives devices units for bfloat16, or takes them away."""
    return lambda has: monkeypatch.setattr(precision, "has_bfloat16", lambda device: has)


def test_auto_keeps_recurrent_cores_in_float32(units: Any) -> None:
    units(True)
    agent = {"precision": "auto", "bfloat16_pays": True, "recurrent": {"kind": "lstm"}}
    assert precision.decided(agent, CPU) == "float32"
    assert precision.explained(agent, CPU) == "float32 (auto: recurrent cores stay in float32)"
    assert precision.decided({**agent, "precision": "bfloat16"}, CPU) == "bfloat16"


def test_auto_is_the_default_and_three_recipes_gain() -> None:
    assert len(YAMLS) > 10
    assert not [name for name, yaml in YAMLS.items() if {"precision", "bfloat16_pays"} & yaml.keys()]
    gaining = {
        path.stem for path in Path(conf_dir(), "recipe").glob("*.yaml") if "bfloat16_pays: true" in path.read_text()
    }
    assert gaining == {"arena_ppo", "echelon_ppo", "rocket_ppo"}
    for env, pays in (("arena", True), ("cartpole", False)):
        agent = composed("agent=ppo", f"env={env}")["agent"]
        assert (agent["precision"], agent["bfloat16_pays"]) == ("auto", pays)


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


@exhaustive("began", [True, False])
def test_a_run_keeps_its_precision_on_another_kind_of_cpu(
    began: bool, units: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    units(began)
    first, second = ("bfloat16", "float32") if began else ("float32", "bfloat16")
    tiny = ("agent.bfloat16_pays=true", "total_frames=64", "checkpoint.every=32", "until=32")
    train({**composed(*CARTPOLE_RUN, *tiny), "run_dir": str(tmp_path / "run")})
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
