"""MarineNav's own command line: ``python -m rlstack.adapters.marinenav -C config.json [-P num_procs] [-D device]``.

Trains the published agents from an unchanged JSON configuration of the published trainer, by the published rules, and
leaves the files that it leaves: each trial is a run of ours. ``-R <folder>`` continues interrupted trials.
``-I <expert>`` says whom trials with ``imitation_learning: true`` clone.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlstack.adapters.command import Parser, command
from rlstack.config import ConfigError
from rlstack.config.allowed import allowing, granting
from rlstack.config.errors import INTERRUPTED_STATUS, USER_ERROR_STATUS, RunError
from rlstack.envs.foundation.files import open_to_append
from rlstack.runs.worlds import choose_device
from rlstack.training.config import ObjectiveConfig
from rlstack.training.loggers import score

from .published_run import check, folders, lay_out, read_trials, resumable, run_trial

OUTPUT = "output.txt"
"""The file for what a trial prints that is trained beside others."""


def _parser() -> Parser:
    parser = Parser(prog="python -m rlstack.adapters.marinenav", description="Trains the published MarineNav agents.")
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
        help="with -R: what the files of trials that others began may name, such as allow=[package.module:function]",
    )
    return parser


def _allowed(argument: str) -> list[str]:
    match = re.fullmatch(r"allow=\[(.*)\]", argument)
    if match is None:
        raise argparse.ArgumentTypeError(f"{argument!r} is not of the form allow=[package.module:attribute]")
    return match[1].split(",")


def trials_to_train(arguments: argparse.Namespace) -> list[Path]:
    """The folders of the trials to train, all of it checked.

    Raises:
        ConfigError: in one line, what is wrong; nothing has been written then.
    """
    if (arguments.config_file is None) == (arguments.resume is None):
        raise ConfigError("use -C/--config-file, or -R/--resume to continue a training")
    if arguments.num_procs < 1:
        raise ConfigError(f"-P/--num-procs: {arguments.num_procs} is not a positive number of processes")
    choose_device(arguments.device)
    if arguments.resume is not None:
        if arguments.imitate is not None:
            raise ConfigError("-I/--imitate: with -R/--resume, trials imitate whom they began to imitate; leave it out")
        return resumable(arguments.resume)
    trials = read_trials(arguments.config_file)
    check(trials, arguments.device, arguments.imitate)
    places = folders(trials, time.strftime("%Y-%m-%d-%H-%M-%S"))
    lay_out(trials, places, arguments.device, arguments.imitate)
    return places


def train_together(places: Sequence[Path], num_procs: int, argv: Callable[[Path], Sequence[str]]) -> None:
    """Trains ``num_procs`` trials at a time, each by a command of its own; says which begin and end.

    Ctrl-C or SIGTERM here makes every running trial save a checkpoint and stop; once more stops them at once.

    Args:
        places: the trials' folders, in this order.
        argv: the command that trains the trial of a folder.

    Raises:
        KeyboardInterrupt: it was stopped.
        ConfigError, RunError: after all others have ended, for the first trial that failed.
    """
    running: list[subprocess.Popen[bytes]] = []
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    pool = ThreadPoolExecutor(num_procs)
    try:
        errors = list(pool.map(lambda place: _trained(place, argv(place), running), places))
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()
        pool.shutdown()
        raise
    finally:
        for process in running:
            process.kill()
        signal.signal(signal.SIGTERM, before)
    if error := next(filter(None, errors), None):
        raise error


def _trained(place: Path, argv: Sequence[str], running: list[subprocess.Popen[bytes]]) -> Exception | None:
    """Trains a trial by a command, says how it ended, and returns what went wrong.

    Ctrl-C does not reach its process: a terminal sends it to a whole session, but only this one decides.
    """
    print(f"{place}: begins", flush=True)
    with open_to_append(place / OUTPUT) as output:
        process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    running.append(process)
    status = process.wait()
    if status == 0:
        print(f"{place}: finished, success {score(place, ObjectiveConfig()):.3f}", flush=True)
    elif status in (INTERRUPTED_STATUS, -signal.SIGTERM, -signal.SIGKILL):
        print(f"{place}: stopped", flush=True)
    else:
        last = (place / OUTPUT).read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        known = last.startswith("error: ")
        reason = last.removeprefix("error: ") if known else f"its process ended with status {status}, see {OUTPUT}"
        print(f"{place}: failed, {reason}", flush=True)
        return (ConfigError if status == USER_ERROR_STATUS else RunError)(f"{place}: {reason}")
    return None


@command
def main(arguments: Sequence[str] | None = None) -> None:
    """Trains the trials of a command line."""
    parsed = _parser().parse_args(arguments)
    with granting(parsed.allow):
        places = trials_to_train(parsed)
        try:
            if min(parsed.num_procs, len(places)) == 1:
                for place in places:
                    run_trial(place, parsed.device)
            else:
                program = [sys.executable, "-m", "rlstack.adapters.marinenav", "-D", parsed.device]
                option = [allowing(parsed.allow)] if parsed.allow else []
                train_together(places, parsed.num_procs, lambda place: [*program, "-R", str(place), *option])
        except KeyboardInterrupt:
            folder = places[0] if len(places) == 1 else places[0].parent
            print(f"continue with: python -m rlstack.adapters.marinenav -R {folder}")
            raise


if __name__ == "__main__":
    main()
