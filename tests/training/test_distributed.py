"""One run in several processes: what they draw, learn and see together is what one process does."""

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

import envs
from rlstack.agents.optimizer import Info, Optimizer
from rlstack.config import ConfigError, build
from rlstack.data.ranks import Ranks
from rlstack.networks.draws import drawn, exponential, own, part_of_rows, whole
from rlstack.runs.checkpoint import read_checkpoint
from rlstack.train import train
from rlstack.training.config import TrainConfig
from rlstack.training.distributed import of_rank
from tests.training.shared_runs import RUNS, plain_config

ROOT = Path(__file__).parents[2]
FAST = ("ppo", "sac")


class Rank(Ranks):
    """A process without the others: sums are its own part of them."""

    def __init__(self, index: int, count: int) -> None:
        self.index, self.count = index, count

    def sum(self, tensors: Any) -> list[Tensor]:
        return list(tensors)


# -- random numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "draw", [torch.randn_like, torch.rand_like, exponential, lambda rows: torch.multinomial(rows, 1)]
)
def test_processes_draw_what_one_would_for_all_rows(draw: Callable[[Tensor], Tensor]) -> None:
    weights = torch.rand(10, 7, generator=torch.Generator().manual_seed(5))
    torch.manual_seed(3)
    expected, after = draw(weights), torch.get_rng_state()
    parts = []
    for first, stop in ((0, 3), (3, 6), (6, 10)):
        torch.manual_seed(3)
        with part_of_rows(first, stop - first, 10):
            parts.append(drawn(draw, weights[first:stop]))
        assert torch.equal(torch.get_rng_state(), after)
    assert torch.equal(torch.cat(parts), expected)


def test_rows_of_worlds_may_stand_for_several_agents() -> None:
    with part_of_rows(2, 2, 6):
        assert whole((4, 5)) == (12, 5)  # two worlds of two agents: four rows
        assert own(torch.arange(12)).tolist() == [4, 5, 6, 7]
        assert whole((3, 5)) == (3, 5) and whole(()) == ()  # not rows of worlds
    assert whole((4, 5)) == (4, 5)


# -- gradients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [7, 2])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_and_reports_of_the_parts_add_up(size: int, accumulate: int) -> None:
    batch = TensorDict({"x": torch.arange(2.0 * size).view(size, 2)}, [size])
    start = torch.tensor([0.5, -1.0])

    def step(ranks: Ranks | None) -> tuple[Tensor, Tensor, Info]:
        weight = start.clone().requires_grad_()

        def loss(part: Any) -> tuple[Tensor, Info]:
            error = (part["x"] @ weight).square()
            return error.mean(), {"error": error.detach(), "mean": error.detach().mean()}

        optimizer = Optimizer([[weight]], lr=0.0, accumulate=accumulate)
        optimizer.ranks = ranks
        value, _, info = optimizer.minimize(loss, batch)
        assert weight.grad is not None
        return weight.grad, value, info

    gradient, value, info = step(None)
    parts = [step(Rank(index, 3)) for index in range(3)]
    torch.testing.assert_close(sum(part[0] for part in parts), gradient)
    torch.testing.assert_close(sum(part[1] for part in parts), value)
    torch.testing.assert_close(sum(part[2]["error"] for part in parts), info["error"])
    torch.testing.assert_close(sum(part[2]["mean"] for part in parts), info["mean"])


# -- worlds ------------------------------------------------------------------------------------------------------


def test_gymnasium_environments_are_those_of_one_world() -> None:
    everyone = envs.make("gymnasium", id="CartPole-v1", num_envs=6, seed=4)
    share = envs.make("gymnasium", id="CartPole-v1", num_envs=2, seed=4)
    share.share(2, 6, seed=4)
    assert torch.equal(share.reset()["observation"], everyone.reset()["observation"][2:4])


def test_other_worlds_have_random_numbers_of_their_own() -> None:
    worlds = [envs.make("marinenav", num_worlds=2, seed=4) for _ in range(2)]
    for index, world in enumerate(worlds):
        world.share(2 * index, 4, seed=4)
    one, other = (world.reset()["agents", "observation", "self"] for world in worlds)
    assert not torch.equal(one, other)
    worlds[0].rollout(3)
    assert worlds[0].total_steps == 3 * 4  # a schedule by steps counts those of all


@pytest.mark.parametrize(
    ("override", "needle"),
    [
        ("env.num_envs=7", "env.num_envs: 7 is no multiple of the 2 processes"),
        ("device=cuda:1", "cuda:1 is one GPU for several processes"),
        ("+env.opponents={players: [random]}", "env.opponents: cannot be combined"),
    ],
)
def test_what_cannot_be_shared_is_refused(override: str, needle: str, tmp_path: Path) -> None:
    config = build(TrainConfig, plain_config("ppo", tmp_path, override))
    with pytest.raises(ConfigError, match=needle):
        of_rank(config, Rank(0, 2))


# -- whole runs --------------------------------------------------------------------------------------------------


def torchrun(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def rows(run: Path) -> list[dict[str, float]]:
    """The metrics, without what depends on the clock."""
    with open(run / "metrics.csv", newline="") as file:
        return [
            {key: float(value) for key, value in row.items() if value and not key.startswith(("time/", "system/"))}
            for row in csv.DictReader(file)
        ]


def leaves(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(state, dict | list | tuple):
        for key, value in state.items() if isinstance(state, dict) else enumerate(state):
            yield from leaves(value, f"{name}/{key}")
    else:
        yield name, state


def newest(run: Path) -> dict[str, Any]:
    """Agent, replay, statistics and random generators; learned metrics round differently with their size."""
    state = read_checkpoint(max((run / "checkpoints").glob("checkpoint_*.pt")))
    return dict(leaves({key: state.get(key) for key in ("frames", "agent", "replay", "rng", "best_rank")}))


@pytest.mark.slow
@pytest.mark.parametrize("names", [FAST, [name for name in RUNS if name not in (*FAST, "stages")]])
def test_two_processes_learn_what_one_does(names: list[str], tmp_path: Path) -> None:
    process = torchrun("tests.training.shared_runs", str(tmp_path / "two"), *names)
    for name in names:
        train(plain_config(name, tmp_path / "one"))
    output = finished(process)
    assert output.count("run finished") == len(names), "one process speaks"
    for name in names:
        one, two = tmp_path / "one" / name, tmp_path / "two" / name
        assert rows(two) == [pytest.approx(row, rel=2e-4, abs=1e-5) for row in rows(one)], name
        expected, found = newest(one), newest(two)
        assert expected.keys() == found.keys()
        assert any("exp_avg" in key or "square_avg" in key for key in found)
        for key, value in expected.items():
            if isinstance(value, Tensor):
                torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5, msg=f"{name} {key}")
            else:
                close = pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
                assert found[key] == close, f"{name} {key}"


@pytest.mark.slow
def test_a_resumed_run_goes_on_exactly_and_only_with_as_many_processes(tmp_path: Path) -> None:
    run = tmp_path / "stages"
    finished(torchrun("tests.training.shared_runs", str(tmp_path), "stages+checkpoint.every=300+checkpoint.keep=9"))
    straight, metrics = newest(run), rows(run)
    assert max(row.get("curriculum/stage", 0) for row in metrics) > 0
    for checkpoint in (run / "checkpoints").iterdir():
        if checkpoint.name == "best.pt" or "_000000001" in checkpoint.name:
            checkpoint.unlink()
    with pytest.raises(
        ConfigError, match="one of 2 processes, not 1; start it with torchrun --standalone --nproc_per_node=2"
    ):
        train({**plain_config("stages", tmp_path), "resume": str(run)})
    assert "resuming at" in finished(torchrun("rlstack.train", f"resume={run}"))
    assert rows(run) == metrics
    for key, value in newest(run).items():
        assert torch.equal(value, straight[key]) if isinstance(value, Tensor) else value == straight[key], key


def under_way(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A long run that has begun to learn, and the numbers of its two processes."""
    process = torchrun("tests.training.shared_runs", str(folder), "dqn+total_frames=10_000_000+eval.every=10_000_000")
    metrics, deadline = folder / "dqn" / "metrics.csv", time.monotonic() + 200
    while not metrics.exists() or not rows(metrics.parent):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.2)
    children = [int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(children) == 2
    return process, children


@pytest.mark.slow
def test_when_one_process_dies_all_end(tmp_path: Path) -> None:
    process, children = under_way(tmp_path)
    os.kill(children[1], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert output.count("error: another process of this run has ended") == 1, output
    assert not Path(f"/proc/{children[0]}").exists()


@pytest.mark.slow
def test_an_interrupted_run_saves_a_checkpoint(tmp_path: Path) -> None:
    process, children = under_way(tmp_path)
    for child in children:  # as a terminal does it: torchrun passes its own on, too
        os.kill(child, signal.SIGINT)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert output.count("interrupted; saved checkpoint_") == 1, output
    assert newest(tmp_path / "dqn")["/frames"] > 0
