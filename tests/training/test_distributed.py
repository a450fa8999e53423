"""Several processes that learn together: what each has for itself, what they share, and how they end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

import rlstack
from rlstack import envs
from rlstack.agents.optimizer import Info, Optimizer
from rlstack.config import ConfigError, build
from rlstack.data.collector import LeanCollector, make_collector
from rlstack.data.normalizers import RunningMoments
from rlstack.runs.checkpoint import read_checkpoint, state_digest
from rlstack.training.config import TrainConfig
from rlstack.training.distributed import Ranks, share_of
from rlstack.training.loggers import read_metrics
from rlstack.training.preflight import check_fits, few_worlds, needs
from rlstack.training.run import train
from rlstack.training.verification import differences
from tests.conftest import REPO
from tests.training.shared_runs import plain_config

# -- gradients and statistics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_takes_the_mean_gradient_and_reports_the_mean(accumulate: int) -> None:
    rows = torch.arange(16.0).view(8, 2)
    batches = [TensorDict({"x": part}, [4]) for part in rows.split(4)]
    sent: list[list[Tensor]] = []

    def loss(part: Any) -> tuple[Tensor, Info]:
        error = (part["x"] @ weight).square()
        return error.mean(), {"error": error.detach(), "mean": error.detach().mean()}

    def mean(tensors: Sequence[Tensor]) -> list[Tensor]:
        """The other process has sent its part before."""
        sent.append([tensor.clone() for tensor in tensors])
        return [(one + other) / 2 for one, other in zip(sent[0], tensors)]

    gradients, reports = [], []
    for batch in batches:
        weight = torch.tensor([0.5, -1.0], requires_grad=True)
        optimizer = Optimizer([[weight]], lr=0.0, accumulate=accumulate)
        optimizer.mean = mean
        reports.append(optimizer.minimize(loss, batch))
        gradients.append(weight.grad)
    weight = torch.tensor([0.5, -1.0], requires_grad=True)
    whole, _, info = Optimizer([[weight]], lr=0.0).minimize(loss, TensorDict({"x": rows}, [8]))
    torch.testing.assert_close(gradients[1], weight.grad)
    torch.testing.assert_close(reports[1][0], whole)
    torch.testing.assert_close(reports[1][2]["mean"], info["mean"])
    torch.testing.assert_close(reports[1][2]["error"], info["error"][4:])  # of its own entries


@pytest.mark.parametrize("counts", [(5, 3), (0, 4), (2, 0), (0, 0)])
def test_statistics_are_those_of_the_values_of_all(counts: tuple[int, int]) -> None:
    before, parts = torch.randn(6, 3), [torch.randn(count, 3) for count in counts]
    shared, alone = RunningMoments(torch.Size([3])), RunningMoments(torch.Size([3]))
    for moments in (shared, alone):
        moments.update(before)
    sent: list[Tensor] = []
    spy = RunningMoments(torch.Size([3]))
    spy.gather = lambda own: sent.append(own) or []
    spy.update(parts[1])
    shared.gather = lambda own: [own, *sent]
    shared.update(parts[0])
    alone.update(torch.cat(parts))
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(shared.state_dict()[name], value)


# -- what each has -----------------------------------------------------------------------------------------------


def test_each_has_its_share_of_worlds_batches_and_memory(tmp_path: Path) -> None:
    config = build(TrainConfig, plain_config("dqn", tmp_path))
    shares = [share_of(config, Ranks(index, 3)) for index in range(3)]
    for share in shares:
        assert share.env["num_envs"] == 2
        assert share.agent["buffer_size"] == 67 and share.agent["batch_size"] == 11  # of 200 and 33
        assert share.total_frames == config.total_frames
        assert share.agent["learning_starts"] == config.agent["learning_starts"]
    assert [share.logger.tensorboard for share in shares[1:]] == [False, False]
    assert share_of(config, Ranks()) is config


def test_seeds_differ_and_the_first_is_the_run_s() -> None:
    seeds = [Ranks(index, 4).seed(7) for index in range(4)]
    assert seeds[0] == 7 and len(set(seeds)) == 4


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
    whole = envs.make("marinenav", num_worlds=2, seed=6)  # of another run, whose seed is by as much greater
    assert not torch.equal(whole.reset()["agents", "observation", "self"], other)
    worlds[0].rollout(3)
    assert worlds[0].total_steps == 3 * 4  # a schedule by steps counts those of all


@pytest.mark.parametrize(
    ("override", "needle"),
    [
        ("env.num_envs=7", "env.num_envs: 7 is not a multiple of the 2 processes"),
        ("device=cuda:1", "cuda:1 is one GPU for several processes"),
        ("collector=multiprocess", "multiprocess cannot be combined with torchrun, set collector=default"),
    ],
)
def test_what_cannot_be_shared_is_refused(override: str, needle: str, tmp_path: Path) -> None:
    config = build(TrainConfig, plain_config("ppo", tmp_path, override))
    with pytest.raises(ConfigError, match=needle):
        share_of(config, Ranks(0, 2))


# -- whole runs --------------------------------------------------------------------------------------------------


def started(*words: str, **options: Any) -> subprocess.Popen[str]:
    """Returns a process that runs a module of Python."""
    environment = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, "-m", *words], env=environment, **streams, **options)


def torchrun(*arguments: str) -> subprocess.Popen[str]:
    return started("torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", *arguments)


def finished(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=1700)
    assert process.returncode == 0, output
    return output


def rows(run: Path) -> list[dict[str, float]]:
    """Returns the metrics without those that depend on the clock."""
    metrics = read_metrics(run / "metrics.csv")
    return [{key: row[key] for key in row if not key.startswith(("time/", "system/"))} for row in metrics]


def newest(run: Path) -> dict[str, Any]:
    return read_checkpoint(max((run / "checkpoints").glob("checkpoint_*.pt")))


def check_ranks(folder: Path, names: Sequence[str], updates: int) -> None:
    """Trains with two processes; both must end with the same networks, after different data."""
    output = finished(torchrun("tests.training.shared_runs", str(folder), *names))
    assert output.count("run finished") == len(names), "one process speaks"
    for name in [entry.partition("+")[0] for entry in names]:
        one, two = (torch.load(folder / name / f"rank{index}.pt") for index in range(2))
        assert one["updates"] == two["updates"] >= updates, name
        own = re.compile(r"\S*(\.returns|_epsilon) ")  # of the rewards so far of each one's worlds; drawn noise
        assert not [line for line in differences(one["networks"], two["networks"]) if not own.match(line)], name
        assert one["worlds"] == two["worlds"] == 3, "of six"
        assert not torch.equal(one["random"], two["random"])
        if "capacity" in one:
            assert one["capacity"] == two["capacity"] == 100, "of two hundred"
            assert not torch.equal(one["seen"], two["seen"])
        assert len(rows(folder / name)) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ["ppo", "sac", "dqn", "iqn"],
        ["a2c", "pqn", "rainbow", "td3", "qrdqn", "tqc", "acqn", "ppo_memory"],
        ["torchrl_ppo", "torchrl_sac", "crossq"],
    ],
    ids=["four", "others", "losses of TorchRL"],
)
def test_all_keep_the_same_networks_for_a_hundred_updates(names: list[str], tmp_path: Path) -> None:
    check_ranks(tmp_path, [f"{name}+total_frames=4000" for name in names], 100)


@pytest.mark.slow
def test_in_self_play_all_know_the_games_and_snapshots_of_all(tmp_path: Path) -> None:
    finished(torchrun("tests.training.shared_runs", str(tmp_path), "self_play"))
    run = tmp_path / "self_play"
    state = newest(run)
    first, other = (part["env"]["pool"] for part in (state, *state["other_ranks"]))
    assert first == other
    snapshots = [entry for entry in first["entries"] if entry["frames"]]
    assert len(snapshots) > 2 and all((run / "opponents" / entry["source"]).exists() for entry in snapshots)
    assert sum(entry["games"] for entry in first["entries"]) > 10


@pytest.mark.slow
def test_cartpole_is_learned(tmp_path: Path) -> None:
    options = ["experiment=reference/cartpole_ppo", f"run_dir={tmp_path / 'run'}", "device=cpu", "threads=1"]
    finished(torchrun("rlstack.train", *options))
    assert [row["eval/return"] for row in rows(tmp_path / "run") if "eval/return" in row][-1] >= 475


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
    assert "equal: " in finished(torchrun("rlstack.verify", str(run)))
    assert state_digest(newest(run)) == state_digest(straight) and "other_ranks" in straight


def wait_for(happens: Any, process: subprocess.Popen[str], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.2)


def under_way(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """Returns a long run that has begun to learn, and the ids of its two processes."""
    process = torchrun("tests.training.shared_runs", str(folder), "dqn+total_frames=10_000_000+eval.every=10_000_000")
    wait_for(lambda: (folder / "dqn" / "metrics.csv").exists() and rows(folder / "dqn"), process)
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
    assert output.count("\nsaved checkpoint_") == 1, output
    assert newest(tmp_path / "dqn")["frames"] > 0


# -- Worlds on a device other than their learner's -------------------------------------------------------------------


ELSEWHERE = "cpu:0"
"""The CPU under another name, so that what would be a GPU's way is taken."""


def test_a_policy_elsewhere_gets_a_collector_that_moves_data() -> None:
    env = envs.make("gymnasium", id="CartPole-v1", num_envs=2)
    agent = rlstack.make_agent("ppo", env)
    policy = agent.policy(explore=True)
    assert isinstance(make_collector(env, policy, 4, policy_device=env.device), LeanCollector)
    moving = make_collector(env, policy, 4, policy_device=torch.device(ELSEWHERE))
    assert not isinstance(moving, LeanCollector)
    assert moving.policy_device == moving.storing_device == torch.device(ELSEWHERE)


@pytest.mark.slow
def test_a_run_with_worlds_elsewhere_is_the_same(tmp_path: Path) -> None:
    states = []
    for number, more in enumerate(([], [f"collector.device={ELSEWHERE}"])):
        plain = plain_config("ppo", tmp_path / str(number), "eval.every=1000", *more)
        train(plain)
        states.append(read_checkpoint(next((Path(plain["run_dir"]) / "checkpoints").glob("checkpoint_*.pt"))))
    here, there = (state["agent"]["networks"]["actor"] for state in states)
    assert all(torch.equal(here[name], there[name]) for name in here)


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    config = build(TrainConfig, plain_config("ppo", tmp_path, "collector.device=cuda:63"))
    with few_worlds(config) as env, pytest.raises(ConfigError, match=r"collector\.device: 'cuda:63' cannot be used"):
        check_fits("the run", needs(config, env))
