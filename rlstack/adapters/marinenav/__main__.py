"""MarineNav's own command line: ``python -m rlstack.adapters.marinenav -C config.json [-P num_procs] [-D device]``.

Trains the published agents from an unchanged JSON configuration of the published trainer, by the published rules, and
leaves the files that it leaves. ``-R <folder>`` goes on with trials that were interrupted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NoReturn

from rlstack.command import user_errors
from rlstack.config import ConfigError
from rlstack.training.worlds import choose_device

from .training import Job, check, folders, resumable, run_trial
from .trial import read_trials


class _Parser(argparse.ArgumentParser):
    """Tells of a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help")


def _parser() -> _Parser:
    parser = _Parser(prog="python -m rlstack.adapters.marinenav", description="Trains the published MarineNav agents.")
    parser.add_argument("-C", "--config-file", type=Path, help="JSON configuration of the published trainer")
    parser.add_argument("-P", "--num-procs", type=int, default=1, help="trials trained at once, default 1")
    parser.add_argument("-D", "--device", default="cpu", help="cpu (default), cuda, cuda:<k> or auto")
    parser.add_argument("-R", "--resume", type=Path, help="folder of an interrupted training, instead of -C")
    return parser


def jobs(arguments: argparse.Namespace) -> list[Job]:
    """What to train, checked, nothing written yet.

    Raises:
        ConfigError: in one line, what is wrong.
    """
    if (arguments.config_file is None) == (arguments.resume is None):
        raise ConfigError("give -C/--config-file, or -R/--resume to go on with a training")
    if arguments.num_procs < 1:
        raise ConfigError(f"-P/--num-procs: {arguments.num_procs} is not a positive number of processes")
    choose_device(arguments.device)
    resume = arguments.resume is not None
    if resume:
        trials, places = map(list, zip(*resumable(arguments.resume)))
    else:
        trials = read_trials(arguments.config_file)
    check(trials, arguments.device, resume)
    if not resume:
        places = folders(trials, time.strftime("%Y-%m-%d-%H-%M-%S"))
    alone = arguments.num_procs == 1 or len(trials) == 1
    return [Job(trial, place, arguments.device, resume, alone) for trial, place in zip(trials, places)]


def run(work: Sequence[Job], num_procs: int) -> None:
    """Trains one trial after the other, or several at once in processes of their own."""
    if all(job.alone for job in work):
        for job in work:
            run_trial(job)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(num_procs, len(work)), context)
    try:
        pending = {pool.submit(run_trial, job): job for job in work}
        for job in work:
            print(f"{job.folder}: {job.trial.agent_type}, seed {job.trial.seed}", flush=True)
        for future in as_completed(pending):
            print(f"{pending[future].folder}: finished, success {future.result():.3f}", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; ends with status 2 and one line on a user's error."""
    with user_errors():
        parsed = _parser().parse_args(arguments)
        run(jobs(parsed), parsed.num_procs)


if __name__ == "__main__":
    main()
