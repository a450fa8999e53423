"""MarineNav's own command line: ``python -m rlstack.adapters.marinenav -C config.json [-P num_procs] [-D device]``.

Trains the published agents from an unchanged JSON configuration of the published trainer, by the published rules, and
leaves the files that it leaves. ``-R <folder>`` goes on with trials that were interrupted. ``-I <expert>`` says whom
trials with ``imitation_learning: true`` clone; they end with that, and are evaluated once, at timestep 0.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rlstack.command import user_errors
from rlstack.config import ConfigError
from rlstack.config.named_code import granting
from rlstack.runs.worlds import choose_device

from .processes import train_together
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
    parser.add_argument(
        "-I",
        "--imitate",
        metavar="EXPERT",
        help="whom trials with imitation_learning: true clone: a run directory, a checkpoint, kind:path of an agent "
        "from elsewhere (marinenav:<published files>), or recorded episodes (evaluations.npz)",
    )
    parser.add_argument(
        "allow",
        nargs="?",
        type=_allowed,
        default=[],
        metavar="allow=[NAME,...]",
        help="with -R: code that the trials' files may name, such as allow=[package.module:function]",
    )
    return parser


def _allowed(argument: str) -> list[str]:
    found = re.fullmatch(r"allow=\[(.*)\]", argument)
    if found is None:
        raise argparse.ArgumentTypeError(f"{argument!r} is not of the form allow=[package.module:attribute]")
    return found[1].split(",")


def jobs(arguments: argparse.Namespace) -> list[Job]:
    """What to train, all of it checked, each trial in its folder.

    Raises:
        ConfigError: in one line, what is wrong; nothing has been written then.
    """
    if (arguments.config_file is None) == (arguments.resume is None):
        raise ConfigError("give -C/--config-file, or -R/--resume to go on with a training")
    if arguments.num_procs < 1:
        raise ConfigError(f"-P/--num-procs: {arguments.num_procs} is not a positive number of processes")
    choose_device(arguments.device)
    if arguments.resume is not None:
        if arguments.imitate is not None:
            raise ConfigError("-I/--imitate: with -R/--resume, trials imitate whom they began to imitate; leave it out")
        unfinished = resumable(arguments.resume)
        alone = min(arguments.num_procs, len(unfinished)) == 1
        return [Job(trial, folder, arguments.device, alone, expert) for trial, folder, expert in unfinished]
    trials = read_trials(arguments.config_file)
    check(trials, arguments.device, arguments.imitate)
    alone = min(arguments.num_procs, len(trials)) == 1
    places = folders(trials, time.strftime("%Y-%m-%d-%H-%M-%S"))
    work = [Job(trial, place, arguments.device, alone, arguments.imitate) for trial, place in zip(trials, places)]
    lay_out(work)
    return work


def lay_out(work: Sequence[Job]) -> None:
    """Makes the folders of new trials: of all of them, or of none.

    Raises:
        ConfigError: a folder cannot be made, or written to.
    """
    made: list[Path] = []
    try:
        for job in work:
            made[:0] = [path for path in (job.folder, *job.folder.parents) if not path.exists()]
            job.lay_out()
    except (ConfigError, OSError) as error:
        for job in work:
            if job.folder in made:
                shutil.rmtree(job.folder, ignore_errors=True)
        for folder in made:
            with contextlib.suppress(OSError):  # gone, or in use by another training
                folder.rmdir()
        raise error if isinstance(error, ConfigError) else ConfigError(f"save_dir: {error}") from None


def run(work: Sequence[Job], num_procs: int) -> None:
    """Trains one trial after the other, or several at once in processes of their own."""
    try:
        if work[0].alone:
            for job in work:
                run_trial(job)
        else:
            train_together(work, num_procs)
    except KeyboardInterrupt:
        folder = work[0].folder if len(work) == 1 else work[0].folder.parent
        print(f"go on with: python -m rlstack.adapters.marinenav -R {folder}")
        raise


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; ends with status 2 and one line on a user's error."""
    with user_errors():
        parsed = _parser().parse_args(arguments)
        with granting(parsed.allow):
            work = jobs(parsed)
        run(work, parsed.num_procs)


if __name__ == "__main__":
    main()
