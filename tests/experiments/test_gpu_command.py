"""``python -m experiments.gpu``: rows that fail in all ways, the comparisons, and the whole command on a CPU."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.gpu import __main__ as command_line
from experiments.gpu import machine as machines
from experiments.gpu import rows as gpu_rows
from experiments.gpu.__main__ import chosen, parsed, planned, run
from experiments.gpu.correctness import DrawnOnCpu, Lessons, compare_lessons, compare_worlds
from experiments.gpu.results import name_of, table, write
from experiments.gpu.runner import Mismatch, NoDevice, Outcome, Row, Runner, Setting
from experiments.gpu.speed import rates, summed, told
from rlstack.config import ConfigError
from tests.refusals import refused
from tests.stand_in_gpu import stand_in

_ROWS = "tests.experiments.gpu_rows"


def row(function: str, name: str = "", group: Any = "correctness", limit: float = 60.0, **arguments: Any) -> Row:
    return Row(name or function, group, f"{_ROWS}:{function}", arguments, limit)


def runner_of(folder: Path, device: str = "cpu") -> Runner:
    return Runner(Setting(device, quick=True), 300.0, folder / "log.txt")


def test_rows_go_on_after_every_kind_of_failure(tmp_path: Path) -> None:
    rows = [
        row("passes", "first"),
        row("differs"),
        row("lacks"),
        row("poisons"),
        row("passes", "after a poisoned process"),
        row("dies"),
        row("hangs", limit=0.05),
        row("passes", "last", group="speed"),
    ]
    outcomes = list(runner_of(tmp_path).run(rows))
    found = {outcome.name: (outcome.status, outcome.line) for outcome in outcomes}
    assert found == {
        "first": ("passed", "1 in this process"),
        "differs": ("failed", "0.3 beside 0.5 | allowed 0.1"),
        "lacks": ("left out", "there is no compiler"),
        "poisons": ("failed", "RuntimeError: CUDA error: device-side assert triggered"),
        "after a poisoned process": ("passed", "1 in this process"),
        "dies": ("failed", "its process died (exit status 7), see log.txt"),
        "hangs": ("failed", "not over after 0 s"),
        "last": ("passed", "1 in this process"),
    }
    assert outcomes[0].figures["quick"] is True
    log = (tmp_path / "log.txt").read_text()
    assert "last words" in log and "device-side assert" in log
    assert {outcome.name for outcome in outcomes if outcome.fails} == {"differs", "poisons", "dies", "hangs"}


def test_rows_run_side_by_side_and_are_told_in_their_order(tmp_path: Path) -> None:
    rows = [row("waits", "slow", until=str(tmp_path / "made")), row("makes", "quick", path=str(tmp_path / "made"))]
    over: list[str] = []
    runner = runner_of(tmp_path)  # the first row waits for the second
    outcomes = list(runner.run([*rows, row("dies"), row("passes")], 3, lambda outcome: over.append(outcome.name)))
    assert [outcome.name for outcome in outcomes] == ["slow", "quick", "dies", "passes"]
    assert [outcome.status for outcome in outcomes] == ["passed", "passed", "failed", "passed"]
    assert sorted(over) == ["dies", "passes", "quick", "slow"] and over.index("quick") < over.index("slow")


@pytest.mark.slow
def test_what_no_longer_fits_is_not_run(tmp_path: Path) -> None:
    runner, long = runner_of(tmp_path), replace(row("passes", "long", limit=2000.0), seconds=2000.0)
    outcomes = list(runner.run([row("passes"), long]))
    runner.end = time.monotonic() + 2.0
    outcomes += runner.run([replace(row("hangs"), seconds=1.0), row("passes")])
    assert [outcome.status for outcome in outcomes] == ["passed", "not run", "not run", "not run"]
    assert outcomes[1].line.endswith(' s were left, it takes 2000: python -m experiments.gpu "only=long" minutes=35')
    assert outcomes[2].line == 'cut short, the time for all was over: python -m experiments.gpu "only=hangs"'
    assert not any(outcome.fails for outcome in outcomes)


@pytest.mark.slow
def test_a_device_that_is_not_there_ends_it(tmp_path: Path) -> None:
    runner = Runner(Setting("cpu", quick=True), 60.0, tmp_path / "log.txt", f"{_ROWS}:no_such_function")
    (found,) = runner.run([row("passes")])
    assert found.status == "failed" and found.line.startswith("its process died")
    if not torch.cuda.is_available():
        refused(NoDevice, "device: 'cuda' cannot be used", machines.machine, Setting("cuda", quick=True))
    given = ["device=nowhere", f"output={tmp_path / 'x.json'}"]
    refused(NoDevice, "device: 'nowhere'", run, given, [row("passes")])


def test_the_file_of_a_card_keeps_what_was_measured_there_before(tmp_path: Path) -> None:
    machine = {"gpu": "NVIDIA H100 80GB HBM3", "torch": "2.13.0", "torchrl": "0.14.1", "commit": "1234567890abcdef"}
    about = {"quick": False, "machine": machine}
    figures = {"unit": "steps/s", "median": 12_345.6, "least": 12_000.0, "most": 13_000.0, "repetitions": 5}
    profile = {"kernels_per_step": 49.0, "busy": 0.963, "longest": [{"name": "gemm|x", "calls": 2, "ms": 1.0}]}
    first = [
        Outcome("world a", "correctness", "failed", "0.3 | 0.5", 1.25),
        Outcome("a alone", "speed", "passed", "12 steps/s", 2.0, {**figures, "median": 1.0}),
        Outcome("b alone", "speed", "failed", "not over after 45 s", 45.0),
    ]
    path = tmp_path / "h100.json"
    write(path, about, first)
    assert table(tmp_path / "empty") == ""
    write(path, about, [Outcome("a alone", "speed", "passed", "", 2.0, figures | profile)])
    assert table(tmp_path).splitlines() == [
        f"{machine['gpu']}, torch 2.13.0, torchrl 0.14.1, commit 1234567890, 0 of 1 checks passed; failed: world a.",
        "",
        "| row | median (least to most) | kernels a step | kernels an update | card busy |",
        "|---|---|---|---|---|",
        "| a alone | 12,346 steps/s (12,000 to 13,000) | 49 |  | 96% |",
    ]
    write(path, {**about, "machine": {**machine, "commit": "another"}}, first[:1])
    assert [entry["name"] for entry in json.loads(path.read_text())["rows"]] == ["world a"]
    assert name_of(machine["gpu"]) == "h100.json" and name_of("NVIDIA GeForce RTX 4090") == "rtx_4090.json"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["quick"], "quick: options are given as key=value"),
        (["quik=true"], "quik: unknown key, did you mean 'quick'"),
        (["quick=perhaps"], "quick: expected true or false"),
        (["minutes=0"], "minutes: 0"),
        (["only=sac,nothing of the kind"], "only: no row's name contains 'nothing of the kind'"),
        (["skip=correctness,speed"], "only, skip: together they leave no row"),
        (["order=random"], "order: expected one of 'checks', 'speed', got 'random'"),
    ],
)
def test_mistakes_are_told_in_one_line(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command_line.main([*given, f"output={tmp_path / 'out.json'}"]) == 2
    told = capsys.readouterr().err
    assert message in told and told.startswith("error: ") and len(told.splitlines()) == 1


def test_options_have_the_form_of_the_other_commands() -> None:
    assert (parsed(["device=cpu", "quick=true"]).device, parsed(["device=cpu", "quick=true"]).quick) == ("cpu", True)
    assert (parsed([]).device, parsed([]).minutes) == ("cuda", 5.0)
    with pytest.raises(ConfigError):
        parsed(["minutes=nan"])
    rows = [row("passes", "sac updates", "speed"), row("passes", "td3 updates", "speed"), row("passes", "update sac")]
    assert [one.name for one in chosen(parsed(["only=speed", "skip=td3"]), rows)] == ["sac updates"]
    assert [one.name for one in chosen(parsed(["only=td3 u,date sac"]), rows)] == ["td3 updates", "update sac"]


def test_code_is_compiled_beside_the_checks() -> None:
    def order(*rows: Row, first: str = "checks") -> list[tuple[list[str], bool]]:
        return [([one.name for one in part], beside) for part, beside in planned(rows, first)]

    check, eager = row("passes", "check"), row("passes", "a", "speed", compiles=False)
    compiled, long = (row("passes", name, "speed", compiles=True) for name in ("b", "c"))
    long = replace(long, seconds=300.0)
    beside = (["compiling for b", "check"], True)
    assert order(check, eager, compiled, long) == [beside, (["a", "b", "c"], False)]
    assert order(check, eager, compiled, first="speed") == [(["a"], False), beside, (["b"], False)]
    assert order(eager, compiled) == [(["a", "b"], False)] and order(check) == [(["check"], True)]
    (ahead, _), _ = planned([check, compiled], "checks")
    assert ahead[0].group == "compiling" and ahead[0].arguments == {"compiles": True, "once": True}


def test_what_is_wanted_of_a_card_fits_into_five_minutes() -> None:
    wanted = gpu_rows.speeds()
    names = [entry.name for entry in wanted]
    first = wanted[: names.index("marinenav acqn solved")]
    assert sum(entry.seconds for entry in first) < 140.0  # the checks took two minutes on 16 cores


def test_every_agent_and_world_has_its_rows() -> None:
    names = [entry.name for entry in gpu_rows.all_rows()]
    assert len(names) == len(set(names))
    folder = Path(__file__).parents[2] / "conf"
    agents = {path.stem for path in (folder / "agent").glob("*.yaml")} - {"legacy"}
    assert {f"update {name}" for name in agents} <= set(names)
    not_worlds = {"gymnasium", "pettingzoo", "torchrl", "playground", "mjlab", "own", "marinenav_published"}
    worlds = {path.stem for path in (folder / "env").glob("*.yaml")} - not_worlds
    assert {f"world {name}" for name in worlds} <= set(names)
    assert not any("," in name for name in names), "only= separates parts of names by commas"


# -- what is compared ----------------------------------------------------------------------------------------------


def _steps() -> list[dict[str, torch.Tensor]]:
    return [{"position": torch.tensor([[100.0], [0.5], [float("nan")]]), "done": torch.tensor([True, False, False])}]


def test_worlds_that_differ_are_counted() -> None:
    assert compare_worlds(_steps(), _steps(), 1e-3) == (1.0, 0.0)
    near, other, ended = _steps(), _steps(), _steps()
    near[0]["position"][0] += 0.01
    agree, largest = compare_worlds(_steps(), near, 1e-3)
    assert agree == 1.0 and largest == pytest.approx(1e-4, rel=1e-3)  # relative, as 100 is more than 1
    other[0]["position"][1] += 0.01
    ended[0]["done"][2] = True
    for wrong in (other, ended):
        assert compare_worlds(_steps(), wrong, 1e-3)[0] == pytest.approx(2 / 3)
    with pytest.raises(Mismatch, match="only one of them shows done"):
        compare_worlds(_steps(), [{"position": _steps()[0]["position"]}], 1e-3)
    with pytest.raises(Mismatch, match="position: torch"):
        compare_worlds(_steps(), [{**_steps()[0], "position": torch.zeros(3, 1).double()}], 1e-3)


def test_updates_that_differ_are_measured_by_how_far_they_moved() -> None:
    first = {"actor.weight": torch.zeros(2), "critic.weight": torch.zeros(1)}
    ours = Lessons(
        first, {"actor.weight": torch.tensor([3.0, 0.0]), "critic.weight": torch.tensor([4.0])}, [{"loss": 2.0}], 5
    )
    assert compare_lessons(ours, ours) == {
        "losses": 0.0,
        "parameters": 0.0,
        "name": "largest of losses and actor.weight",
    }
    last = {**ours.last, "critic.weight": torch.tensor([4.5])}  # of a total change of 5
    found = compare_lessons(ours, replace(ours, last=last, metrics=[{"loss": 2.2}]))
    assert found["parameters"] == pytest.approx(0.1) and found["losses"] == pytest.approx(0.1)
    assert found["name"] == "largest of loss and critic.weight"
    broken = compare_lessons(ours, replace(ours, last={**last, "critic.weight": torch.tensor([math.nan])}))
    assert broken["parameters"] == math.inf
    assert compare_lessons(ours, replace(ours, metrics=[{"loss": math.nan}]))["losses"] == math.inf
    refused(Mismatch, "4 updates, on the CPU 5", compare_lessons, ours, replace(ours, updates=4))
    with pytest.raises(Mismatch, match="they begin with other parameters"):
        compare_lessons(ours, replace(ours, first={**first, "actor.weight": torch.ones(2)}))
    refused(Mismatch, "have moved nothing", compare_lessons, replace(ours, last=first), ours)


def test_random_numbers_are_drawn_on_the_cpu() -> None:
    def drawn(device: str) -> list[torch.Tensor]:
        torch.manual_seed(5)
        with DrawnOnCpu():
            made = [
                torch.rand(3, device=device),
                torch.empty(2, device=device).normal_(),
                torch.randperm(9, device=device),
            ]
            return [entry.cpu() for entry in (*made, torch.rand_like(made[0]))]

    torch.manual_seed(5)
    expected = [torch.rand(3), torch.empty(2).normal_(), torch.randperm(9), torch.rand(3)]
    assert all(torch.equal(one, other) for one, other in zip(drawn("cpu"), expected, strict=True))
    with stand_in() as device:
        assert all(torch.equal(one, other) for one, other in zip(drawn(device), expected, strict=True))
    own = torch.Generator().manual_seed(7)
    wanted = torch.rand(4, generator=torch.Generator().manual_seed(7))
    with DrawnOnCpu():
        found = torch.cat((torch.rand(2, generator=own), torch.rand(2, generator=own)))  # continues, does not restart
    assert torch.equal(found, wanted)
    with DrawnOnCpu(), pytest.raises(RuntimeError, match="a generator on cpu for numbers on meta"):
        torch.rand(2, generator=own, device="meta")
    with DrawnOnCpu():  # a recurrent layer as a GPU computes it: tagged as drawing, and not on a CPU
        x, state, weights = (torch.zeros(size, device="meta") for size in ((5, 2, 3), (1, 2, 4), (128,)))
        lstm = (2, 4, 0, 1, False, 0, True, False, [], None)
        found = torch.ops.aten._cudnn_rnn(x, [weights], 4, None, state, state, *lstm)[0]
    assert found.device.type == "meta" and found.shape == (5, 2, 4)


def test_rates_are_work_over_time() -> None:
    now = 0.0

    def work() -> float:
        nonlocal now
        now += 0.25
        return 10.0

    assert rates(work, lambda: now, seconds=1.0, repeats=3) == [40.0] * 3
    found = told([30.0, 50.0, 40.0], "steps/s")
    assert found.line == "40 steps/s (30 to 50, 3 repetitions)"
    assert {"median": 40.0, "least": 30.0, "most": 50.0}.items() <= found.figures.items()
    kernels = [("gemm", 0.25), ("add", 0.5), ("gemm", 0.5), *((name, 0.0625) for name in "abcd")]
    shares = summed(kernels, 3.0, torch.device("cuda"))
    assert shares["busy"] == 0.5 and len(shares["longest"]) == 5
    assert shares["longest"][0] == {"name": "gemm", "calls": 2, "ms": 750.0}


@pytest.mark.slow
@pytest.mark.timeout(2 * 3600)  # the command itself may take an hour
def test_the_command_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, path = ["device=cpu", "quick=true", "minutes=60"], tmp_path / "cpu.json"
    assert command_line.main([*given, f"output={path}"]) == 0, capsys.readouterr().out
    content = json.loads(path.read_text())
    status = {entry["name"]: entry["status"] for entry in content["rows"]}
    assert list(status) == [entry.name for entry in chosen(parsed(given), gpu_rows.all_rows())]
    absent = {name for name, found in status.items() if found == "left out"}
    assert all("compiled" in name for name in absent)
    assert {status[name] for name in status.keys() - absent} == {"passed"}
    assert content["machine"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    measured = [entry["figures"] for entry in content["rows"] if entry["group"] == "speed" and entry["figures"]]
    assert all(found["median"] > 0 for found in measured)
    assert any(found.get("kernels_per_update", 0) > 100 for found in measured)
