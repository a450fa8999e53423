"""Several seeds in one process: each run is what it is alone, to rounding, and a run like any other afterwards."""

from __future__ import annotations

import math
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import rlstack
from rlstack.config import ConfigError
from rlstack.runs.checkpoint import deciding, read_checkpoint
from rlstack.runs.loading import checkpoint_file
from rlstack.training.hooks import Hook, Training
from rlstack.training.loggers import METRICS_FILE, read_metrics
from rlstack.training.seeds import _Group, found_in
from rlstack.training.verification import differences
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.rehearsal import rehearsing

RUN = [
    *("log_every=40", "eval.every=1e9", "eval.episodes=1", "eval.max_steps=4", "checkpoint.every=1e9", "device=cpu"),
    *("checkpoint.keep=9", "logger=csv", "threads=1", "compile=false", "agent.hidden=[8,8]", "seed=3"),
]
CARTPOLE = ["env=cartpole", "env.num_worlds=4", "env.dtype=float64"]
MARINENAV = ["env=marinenav", "env.num_worlds=2", "env.max_steps=9", "env.dtype=float64", "agent.self_features=4"]
REPLAY = ["agent.batch_size=16", "agent.buffer_size=100", "agent.learning_starts=40", "agent.frames_per_update=4"]
CHOICES, VECTORS = [*CARTPOLE, *REPLAY, "total_frames=240"], [*MARINENAV, *REPLAY, "agent.object_features=[4]"]
SCHEDULE = "{kind: linear, start: 0.01, end: 0.001}"
RUNS = {
    "ppo": [
        *("agent=ppo", *CARTPOLE, "agent.steps_per_batch=4", "agent.epochs=2", "agent.minibatch_size=8"),
        *("total_frames=208", f"agent.clip={SCHEDULE}", "agent.normalize_observations=true", "agent.symmetry=augment"),
    ],
    "dqn": ["agent=dqn", *CHOICES, "agent.replay.sampler=prioritized"],
    "iqn": ["agent=iqn", *CHOICES],
    "sac": ["agent=sac", *VECTORS, "total_frames=240"],
    "td3": ["agent=td3", *VECTORS, "total_frames=240"],
    "acqn": ["agent=acqn", *VECTORS, "total_frames=240"],
}
LEARNED = ("loss/", "grad/", "value/", "policy/", "train/", "eval/", "schedule/")
"""Groups of metrics that do not depend on the clock."""


def train(name: str, folder: Path, *words: str, **keys: Any) -> Any:
    return rlstack.train(*RUN, *RUNS[name], f"run_dir={folder}", *words, quiet=True, **keys)


def rows(run: Any) -> list[dict[str, float]]:
    metrics = read_metrics(Path(run) / METRICS_FILE)
    return [{name: value for name, value in row.items() if name.startswith(LEARNED)} for row in metrics]


@exhaustive("name", RUNS)
def test_each_run_is_what_it_is_alone(name: str, tmp_path: Path) -> None:
    before = time.process_time()
    together = train(name, tmp_path / "together", "seeds=2")
    spent = time.process_time() - before
    assert 0 < sum(read_metrics(run.path / METRICS_FILE)[-1]["time/cpu_seconds"] for run in together.runs) <= spent
    for number, run in enumerate(together.runs):
        alone = train(name, tmp_path / f"alone{number}", f"seed={3 + number}")
        mine, others = rows(run), rows(alone)
        assert mine[-1]["train/updates"] >= 50 and any("loss/" in key for key in mine[-2])
        assert name != "ppo" or any(row.get("policy/clipped") for row in mine)
        assert [row.keys() for row in mine] == [row.keys() for row in others]
        for own, other in zip(mine, others):
            assert own == pytest.approx(other, rel=1e-8, abs=1e-10, nan_ok=True)


@pytest.mark.parametrize("name", ["pqn", pytest.param("sac", marks=pytest.mark.slow)])
def test_on_a_gpu_each_run_is_what_it_is_alone_to_the_last_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any agent learns there, from recordings of its own; a run stops and goes on with the others."""
    options = {"pqn": ["agent=pqn", *CARTPOLE, "total_frames=320", "agent.minibatch_size=16"], "sac": RUNS["sac"]}
    words = [*RUN, *options[name], "cudagraphs=auto"]
    with rehearsing(monkeypatch):
        rlstack.train(*words, "seeds=2", "until=120", f"run_dir={tmp_path / 'together'}", quiet=True)
        together = rlstack.train(f"resume={tmp_path / 'together'}", "until=null", quiet=True)
        for number, run in enumerate(together.runs):
            alone = rlstack.train(*words, f"seed={3 + number}", f"run_dir={tmp_path / str(number)}", quiet=True)
            states = [deciding(read_checkpoint(checkpoint_file(each.path, "latest"))) for each in (run, alone)]
            assert [*differences(*states)] == []


@pytest.mark.slow
def test_runs_stop_resume_and_are_evaluated(tmp_path: Path) -> None:
    whole = train("dqn", tmp_path / "whole", "seeds=2")
    train("dqn", tmp_path / "parts", "seeds=2", "until=120")
    assert [Path(path).name for path in found_in(tmp_path / "parts")] == ["dqn_cartpole_seed3", "dqn_cartpole_seed4"]
    resumed = rlstack.train(f"resume={tmp_path / 'parts'}", "until=null", quiet=True)
    for one, other in zip(whole.runs, resumed.runs):
        assert rows(one)[-1] == rows(other)[-1]
        assert not math.isnan(one.score)
    judged = rlstack.evaluate(checkpoint=str(resumed.runs[1].path), episodes=2, quiet=True)
    assert len(judged.episodes["return"]) == 2


@pytest.mark.slow
def test_a_run_of_several_is_not_verified_alone_but_what_it_learned_alone_is(tmp_path: Path) -> None:
    several = train("ppo", tmp_path / "several", "seeds=2", "total_frames=64", "until=32")
    run = several.runs[1].path
    for ask in (lambda: several.evaluation, lambda: several.metrics, several.load):
        refused(ConfigError, "several holds 2 runs, each with its own results: take one of .runs", ask)
    refused(ConfigError, "no latest checkpoint; choose one of its runs, such as .*seed3$", rlstack.load, several)
    told = "verify: seed 4 was trained as one of 2 seeds in one process, .* with seeds=2 repeats all"
    refused(ConfigError, told, rlstack.verify, run, quiet=True)
    rlstack.train(f"resume={run}", "until=null", quiet=True)
    assert rlstack.verify(run, quiet=True).equal


@pytest.mark.slow
def test_a_folder_goes_on_with_the_runs_that_are_not_complete(tmp_path: Path) -> None:
    """Others may be: a run can go on alone, and Ctrl-C may come while the last of them are evaluated."""
    first, second = (run.path for run in train("ppo", tmp_path, "seeds=2", "total_frames=64", "until=32").runs)
    rlstack.train(f"resume={first}", "until=null", quiet=True)
    complete = checkpoint_file(first, "latest").read_bytes()
    resumed = rlstack.train(f"resume={tmp_path}", "until=null", quiet=True)
    assert [run.path for run in resumed.runs] == [first, second] and not math.isnan(resumed.score)
    assert checkpoint_file(first, "latest").read_bytes() == complete
    assert checkpoint_file(second, "latest").stem == "checkpoint_000000000064"
    refused(ConfigError, "resume: the run is complete .64 frames.; .*", rlstack.train, f"resume={tmp_path}", quiet=True)


class _Interrupts(Hook):
    """Ctrl-C in the first batch of the first run, before the others have begun."""

    asked = False

    def on_collected(self, training: Training, batch: Any, sequences: Any) -> None:
        handler: Any = signal.getsignal(signal.SIGINT)
        if not self.asked:
            self.asked = True
            handler(signal.SIGINT, None)


def test_ctrl_c_ends_runs_that_have_not_begun_too(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train("dqn", tmp_path / "runs", "seeds=2", "agent.steps_per_batch=1", hooks=[_Interrupts()])
    frames = [checkpoint_file(Path(run), "latest").stem for run in found_in(tmp_path / "runs")]
    assert frames == ["checkpoint_000000000004"] * 2


class _Counts(Hook):
    """Counts the batches of its run."""

    name = "counted"

    def __init__(self) -> None:
        self.batches = 0

    def on_batch(self, training: Training, batch: Any, metrics: Any) -> None:
        self.batches += 1

    def state_dict(self) -> int:
        return self.batches


def test_each_run_has_a_hook_with_a_state_for_itself(tmp_path: Path) -> None:
    given = _Counts()
    made = train("dqn", tmp_path / "runs", "seeds=2", "total_frames=80", hooks=[given])
    counted = [read_checkpoint(checkpoint_file(run.path, "latest"))["counted"] for run in made.runs]
    assert counted == [80 / (4 * 4)] * 2 and given.batches == 0  # frames of 4 steps in 4 worlds


def test_a_gpu_that_is_full_when_a_run_begins_ends_all() -> None:
    begun: list[int] = []

    def lane(own: bool = True) -> Any:
        if own and begun:
            raise RuntimeError("out of memory")
        return lambda: None

    refused(RuntimeError, "out of memory", _Group(3, lane).run, begun.append)
    assert begun == [0]


def test_what_cannot_be_batched_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = ["seeds=2", "agent.recurrent={kind: lstm}", "collector=multiprocess", "compile=true"]
    named = "agent.recurrent, compile=true, collector; allowed are ppo, dqn, iqn, sac, td3, acqn"
    refused(ConfigError, named, train, "ppo", tmp_path / "run", *wrong)
    refused(ConfigError, "agent.algorithm=pqn", rlstack.train, "agent=pqn", "env=cartpole", "seeds=2", quiet=True)
    with rehearsing(monkeypatch):
        refused(ConfigError, "16 runs .* on a GPU at most 15", train, "ppo", tmp_path / "run", "seeds=16")
    assert not (tmp_path / "run").exists()
