"""Trains a stretch of a run again and compares it with what the run has saved (``rlstack verify``).

A copy of the run resumes in a temporary folder from one of its checkpoints, or begins from its seed, with the
configuration in the checkpoint at the end of the stretch; the run's own folder is only read. Evaluations and log lines
make no difference to how an agent learns, so none is made, and what must agree is what
:func:`rlstack.runs.checkpoint.state_digest` covers, to the last bit, and the rows of ``metrics.csv``.
"""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlstack.config import ConfigError
from rlstack.config.allowed import granting
from rlstack.config.errors import RunError
from rlstack.config.options import renewed
from rlstack.envs.foundation.files import check_regular
from rlstack.envs.foundation.work import Work, working
from rlstack.envs.world import hooks_of
from rlstack.runs.checkpoint import (
    BEST,
    CheckpointError,
    UnreadableError,
    content_digest,
    deciding,
    read_checkpoint,
    to_saveable,
)
from rlstack.runs.loading import OF_A_RUN, check_content
from rlstack.runs.manifest import MANIFEST, changed
from rlstack.runs.run_directory import RunDirectory

from .config import differing, is_resumable
from .environment import unlike
from .hooks import Hook
from .loggers import FRAMES, METRICS_FILE, read_metrics
from .loop import OWN_STATE, Training
from .run import begun
from .seeds import TOGETHER

SEED = 0
"""Value of ``from`` for the beginning of a run."""
_OF_THE_MACHINE = ("time/", "system/", "eval/")
"""Groups of metrics that measure the machine, and evaluations, which are not made again."""

_LEARNING = ("total_frames", "agent", "guard", "threads", "device", "compile", "cudagraphs", "deterministic")
"""Options with which a run may learn otherwise after it was resumed: schedules stretch to another length."""


@dataclass
class Verified:
    """The result of :func:`verify`.

    Attributes:
        run: folder of the run.
        start: frames at which the stretch begins; :data:`SEED` for the beginning of the run.
        end: frames of the checkpoint at its end.
        rows: number of rows of ``metrics.csv`` in the stretch that agree.
        differences: lines about everything that differs, the first tensor first, and about damaged files.
        remarks: lines about what may explain a difference.
    """

    run: Path
    start: int
    end: int
    rows: int = 0
    differences: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Returns whether nothing differs and nothing is damaged."""
        return not self.differences

    def __str__(self) -> str:
        """Describes the result in lines."""
        start = f"from {self.start:,}" if self.start else "from the seed"
        stretch = f"{self.run}, trained again {start} to {self.end:,} frames"
        if self.equal:
            return f"equal: {stretch}: the same state to the last bit, and the same metrics (rows: {self.rows})"
        return "\n  ".join([f"different: {stretch}", *self.differences, *self.remarks])


def verify(folder: Path, start: str | int | None, frames: int | None, hooks: Sequence[Hook] = ()) -> Verified:
    """Trains a stretch of a run again.

    Args:
        folder: the run's folder.
        start: the checkpoint to start from: its frames, its file's name, or ``best``; :data:`SEED` for the beginning of
            the run. None: the last that has a checkpoint to compare with, or the beginning.
        frames: least number of frames to the checkpoint to compare with; None: the next one.
        hooks: the hooks of its own that the run had.

    Raises:
        ConfigError: there is no such run or checkpoint, a file names something that the user has not allowed, or the
            stretch cannot be repeated exactly.
        RunError: a checkpoint is damaged.
    """
    run = RunDirectory.open(folder)
    stored = run.read_config()
    first, last = _stretch(run, start, frames)
    begins, ends = None if first is None else _read(first), _read(last)
    config = renewed(ends["config"])
    _check_repeatable(config, ends, hooks)
    changes: list[str] = []
    verified = Verified(folder, SEED if begins is None else begins["frames"], ends["frames"])
    for place in sorted({manifest.parent for manifest in folder.rglob(MANIFEST)}):
        damaged = (place / name for name in changed(place))
        verified.differences += [f"{path}: changed or damaged after it was written" for path in damaged]
    for file, other in (("config.yaml", stored), (first, config if begins is None else renewed(begins["config"]))):
        for key, there, here in differing(other, config):
            line = f"{key}: {there!r:.60} in {file}, {here!r:.60} in {last}"
            if key != "run_dir" and not is_resumable(key):
                verified.differences.append(line)
            elif file == first and key.partition(".")[0] in _LEARNING:
                changes.append(f"{line}: when the run was resumed within the stretch, it learned otherwise from there")
    with (
        tempfile.TemporaryDirectory(prefix="rlstack-verify-") as temporary,
        granting([ends["config"], begins]),  # whose names have been checked
        working("training again", "frames", max(verified.end - verified.start, 1)) as work,
    ):
        copy = Path(temporary) / folder.resolve().name
        plain = _copied(config, begins, folder, copy)
        again = _Again(verified.start, verified.end, work)
        with redirect_stdout(StringIO()), suppress(_Reached), begun(plain, [*hooks, again]) as training:
            training.execute()
        if again.state is None:  # another rank compares
            return verified
        entries = list(differences(deciding(ends), deciding(to_saveable(again.state))))
        if entries:
            more = f"; so do {len(entries) - 1} further entries" if entries[1:] else ""
            verified.differences.append(f"{entries[0]}, at {verified.end:,} frames{more}")
        try:
            before, trained = _rows(folder, verified), _rows(copy, verified)
        except (OSError, ValueError, TypeError, csv.Error) as error:
            verified.differences.append(f"{folder / METRICS_FILE}: cannot be read ({error})")
        else:
            both = sorted(before.keys() & trained.keys())
            verified.rows = len({frames for frames, _ in both})
            for frames, name in both:
                logged, again_logged = repr(before[frames, name]), repr(trained[frames, name])
                if logged != again_logged:
                    numbers = f"{logged} in the run, {again_logged} trained again"
                    verified.differences.append(f"{METRICS_FILE}, {name} at {frames:,} frames: {numbers}")
                    break
    verified.remarks += [] if verified.equal else [*changes, *unlike(folder)]
    return verified


def _stretch(run: RunDirectory, start: str | int | None, frames: int | None) -> tuple[Path | None, Path]:
    """Returns the checkpoint to start from, None for the seed, and the one to compare with.

    Raises:
        ConfigError: there are no such checkpoints.
    """
    held = {int(path.stem.rpartition("_")[2]): path for path in reversed(run.checkpoints.newest_first())}
    best: dict[str, int] = {}
    if (file := run.checkpoints.directory / BEST).is_file():
        frames_of_best = _read(file)["frames"]
        held.setdefault(frames_of_best, file)
        best = dict.fromkeys((BEST, "best"), frames_of_best)
    numbers = sorted(held)
    names = {str(number): number for number in numbers} | {path.name: number for number, path in held.items()} | best
    if start is None:
        first = max((number for number in numbers if numbers[-1] - number >= (frames or 1)), default=None)
    elif str(start) == str(SEED):
        first = None
    elif (first := names.get(Path(str(start)).name)) is None:
        raise ConfigError(f"from: {run.path} has no checkpoint {start}; it has: {', '.join(names) or 'none'}, {SEED}")
    later = [number for number in numbers if first is None or number > first]
    last = next((number for number in later if number - (first or 0) >= (frames or 0)), None)
    if last is None:
        wanted = "" if frames is None else f", {frames:,} frames or more"
        raise ConfigError(f"from: {run.path} has no later checkpoint{wanted}; it has: {', '.join(names) or 'none'}")
    return None if first is None else held[first], held[last]


def _read(path: Path) -> dict[str, Any]:
    """Reads a checkpoint of a run.

    Raises:
        ConfigError: it names something that the user has not allowed, or it cannot be read.
        RunError: it is damaged, or not that of a run.
    """
    try:
        state = read_checkpoint(path)
        check_content(state, path, OF_A_RUN)
    except UnreadableError as error:
        raise ConfigError(str(error)) from None
    except CheckpointError as error:
        raise RunError(str(error)) from None
    return state


def _check_repeatable(config: dict[str, Any], ends: Mapping[str, Any], hooks: Sequence[Hook]) -> None:
    """Raises a :class:`ConfigError` if a run with this configuration cannot be repeated here."""
    ranks = 1 + len(ends.get("other_ranks", []))
    if ranks != int(os.environ.get("WORLD_SIZE", "1")):
        start = f"torchrun --standalone --nproc_per_node={ranks}" if ranks > 1 else "python"
        raise ConfigError(f"verify: the run is one of {ranks} processes; start it with {start} -m rlstack.verify")
    if config["collector"].get("backend") == "multiasync":
        raise ConfigError("verify: collector.backend=multiasync never repeats, its workers do not wait for the learner")
    if config["env"].get("max_instances") is not None:
        raise ConfigError("verify: with env.max_instances evaluations interrupt episodes, which cannot be repeated")
    if TOGETHER in ends:
        count, seed = ends[TOGETHER], config["seed"]
        how = f"as one of {count} seeds in one process, and alone its numbers round otherwise"
        raise ConfigError(f"verify: seed {seed} was trained {how}; the same command with seeds={count} repeats all")
    own = set(ends) - {*OWN_STATE, "data"} - {hook.name for hook in hooks}
    if own:
        names = ", ".join(sorted(own))
        raise ConfigError(f"verify: the run had hooks of its own ({names}), which rlstack.verify takes as hooks=[...]")


def _copied(config: dict[str, Any], begins: dict[str, Any] | None, folder: Path, copy: Path) -> dict[str, Any]:
    """Makes a copy of the run at the beginning of the stretch; returns its configuration, which keeps to its folder."""
    plain = {**config, "run_dir": str(copy), "resume": str(copy), "notify": None, "allow": []}
    plain["logger"] = {**config["logger"], "tensorboard": False, "wandb": "disabled", "mlflow": False, "trackio": False}
    if begins is not None:
        plain["init"] = None
    if isinstance(config["agent"].get("replay"), dict):
        plain["agent"] = {**config["agent"], "replay": {**config["agent"]["replay"], "directory": None}}
    opponents = config["env"].get("opponents")
    if isinstance(opponents, dict):
        (copy / "opponents").mkdir(parents=True)
        for snapshot in Path(opponents.get("pool") or folder / "opponents").glob("*.pt"):
            shutil.copy(check_regular(snapshot), copy / "opponents")
        plain["env"] = {**config["env"], "opponents": {**opponents, "pool": None}}
    run = RunDirectory(copy)
    run.path.mkdir(parents=True, exist_ok=True)
    run.write_config(plain)
    if begins is not None:
        run.checkpoints.save({**begins, "config": plain}, begins["frames"])
    return plain


class _Reached(Exception):
    """Ends the training at the end of the stretch."""


@dataclass(eq=False)
class _Again(Hook):
    """Keeps the state of a run at a number of frames, and ends it.

    Attributes:
        start: frames at which the stretch begins.
        end: frames at which it ends.
        work: shows the progress.
        state: the state at the end; None on all ranks but the first.
    """

    start: int
    end: int
    work: Work
    state: dict[str, Any] | None = None

    def on_prepare(self, training: Training) -> None:
        """Raises a :class:`ConfigError` if the checkpoint lacks what the run continues from."""
        c = training.config
        if not training.frames:
            return
        if not c.checkpoint.replay and c.data is None and training.agent.replay is not None:
            raise ConfigError("verify: checkpoint.replay=false, without the replay buffer only from=0 repeats exactly")
        if not hooks_of(training.env).saves_episodes and c.data is None:
            raise ConfigError(f"verify: the state of env={c.env['name']} cannot be saved, only from=0 repeats exactly")

    def evaluation_due(self, training: Training) -> bool:
        return False

    def on_start(self, training: Training) -> None:
        if training.frames >= self.end:
            self.on_end(training)

    def on_iteration(self, training: Training) -> None:
        self.work.reach(training.frames - self.start)
        self.on_start(training)

    def on_end(self, training: Training) -> None:
        self.state = training.state()
        raise _Reached


def _leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the entries of nested containers with their paths; an empty container is an entry itself."""
    if not isinstance(state, dict | list | tuple) or not state:
        yield path, state
        return
    for name, part in state.items() if isinstance(state, dict) else enumerate(state):
        yield from _leaves(part, f"{path}.{name}".lstrip("."))


def differences(there: Any, here: Any) -> Iterator[str]:
    """Yields a line about each entry of a run's state that differs from the one trained again."""
    before, again = dict(_leaves(there)), dict(_leaves(here))
    for path in {**before, **again}:
        if path not in before or path not in again:
            if not path.startswith("rng.cuda."):  # machines have various numbers of GPUs
                yield f"{path}: missing {'when trained again' if path in before else 'in the run'}"
            continue
        one, other = before[path], again[path]
        if content_digest(one) == content_digest(other):
            continue
        shown = [f"{v.dtype} {list(v.shape)}" if isinstance(v, Tensor) else f"{v!r:.60}" for v in (one, other)]
        if not isinstance(one, Tensor) or shown[0] != shown[1]:
            yield f"{path}: {shown[0]} in the run, {shown[1]} trained again"
            continue
        ours, theirs = (value.cpu().reshape(-1, 1).contiguous() for value in (one, other))
        place = (ours.view(torch.uint8) != theirs.view(torch.uint8)).any(-1).nonzero().flatten()
        sizes = (theirs[place].double() - ours[place].double()).abs()
        yield (
            f"{path} {list(one.shape)}: {len(place):,} of {one.numel():,} numbers differ, by up to {sizes.max():.3g} "
            f"(first number {place[0]:,}: {ours[place[0], 0]:.9g} in the run, {theirs[place[0], 0]:.9g} trained again)"
        )


def _rows(folder: Path, verified: Verified) -> dict[tuple[int, str], float]:
    """Returns the metrics of the stretch, by frame and name, that do not depend on the machine."""
    return {
        (int(row[FRAMES]), name): value
        for row in read_metrics(folder / METRICS_FILE)
        for name, value in row.items()
        if verified.start < row[FRAMES] <= verified.end and not name.startswith(_OF_THE_MACHINE)
    }
