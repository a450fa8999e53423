"""The shared part of every command: Hydra's composition, and errors that a user can act on.

A command's file ends with ``command = HydraCommand("train")`` and ``main = command.line(run)``. A user's mistake
becomes one line ``error: ...`` on stderr and exit status 2; a bug keeps its traceback. ``RLSTACK_FULL_ERROR=1`` also
shows the traceback of a user's mistake.
"""

import functools
import inspect
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import hydra
from hydra import compose
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from rlstack.config import ConfigError, conf_dir
from rlstack.config.allowed import granting
from rlstack.config.errors import (
    RunError,
    did_you_mean,
    exit_in_one_line,
    missing_option,
    nearest,
    nearest_path,
    unknown_key,
)
from rlstack.config.groups import (
    FOLDER_FLAGS,
    default_choices,
    hydra_set_aside,
    installed_worlds,
    is_own,
    option_files,
    own_folders,
)
from rlstack.config.overrides import (
    Word,
    assign_again,
    given_overrides,
    in_sweep,
    override,
    quoted,
    readable,
    word,
)
from rlstack.config.typed import resolve
from rlstack.envs.foundation.packages import needs
from rlstack.envs.foundation.work import Work
from rlstack.help import command_help

_FLAGS = {
    **dict.fromkeys(("--hydra-help", "--version", "--resolve", "--run", "-r", "--multirun", "-m"), False),
    **dict.fromkeys(("--shell-completion", "-sc"), False),
    **dict.fromkeys(("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn"), True),
    **dict.fromkeys(("--config-dir", "-cd", "--experimental-rerun", "--info", "-i"), True),
}
"""Hydra's own flags, and whether a value follows each."""
_MULTIRUN = {"-m", "--multirun", "hydra.mode=MULTIRUN"}
_OPTIONAL = ("curriculum", "experiment")
"""Groups from which nothing may be chosen, with ``null``."""
_NO_NAME = re.compile(r"null|true|false|[\[{].*|[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
"""Values that Hydra does not take for the name of a file."""
_CLASS = re.compile(r"[\w.]+:[\w.]+")

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])

# Commands do not print TorchRL's messages about its internals; set before torchrl is imported.
os.environ.setdefault("RL_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("RL_WARNINGS", "False")

USER_ERRORS = (ConfigError, HydraException, OmegaConfBaseException, YAMLError)

# Hydra looks for sweepers in packages named hydra_plugins, such as ours.
_PLACE_OF_PLUGINS = str(Path(__file__).with_name("sweeps") / "plugins")
if _PLACE_OF_PLUGINS not in sys.path:
    sys.path.append(_PLACE_OF_PLUGINS)

_PLUGINS = {
    "hydra/launcher/joblib": "sweep",
    "hydra/launcher/submitit_local": "sweep",
    "hydra/launcher/submitit_slurm": "sweep",
    "hydra/launcher/ray": "ray",
}
"""Options that other packages bring, and the extras with these packages."""


@dataclass(eq=False)
class HydraCommand:
    """A command line that composes ``<conf_dir>/<config_name>.yaml``, and the same as a Python function.

    All of Hydra's own flags work (``--cfg job``, ``--config-dir``, ``-m``), except ``--help``, which
    :mod:`rlstack.help` replaces.

    Args:
        config_name: name of its configuration.
        arguments: rewrites what the user typed, without the flags, into Hydra's overrides.
        makes_runs: True puts the runs of ``-m`` into one folder, see :mod:`rlstack.sweeps.folder`.
    """

    config_name: str
    arguments: Callable[[list[str]], list[str]] = list
    makes_runs: bool = False

    def line(self, task: Callable[[DictConfig], Any]) -> Callable[[], None]:
        """Returns the command line that runs a task.

        It exits with status 2 on a user's mistake, 1 if a run cannot continue, 130 on Ctrl-C; any other exception
        propagates.
        """

        @functools.wraps(task)
        def job(cfg: DictConfig) -> Any:
            # Errors are reported here: one that escapes a job makes Hydra print another line.
            _use_one_thread(cfg)
            if in_sweep():
                assign_again(cfg, given_overrides())
            with job_errors() if in_sweep() else user_errors(), _work_shown(), self._checked(cfg):
                return task(cfg)

        def main() -> None:
            os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach us, and are not printed by Hydra
            with user_errors():
                if not {"--help", "-h"}.isdisjoint(sys.argv[1:]):
                    print(command_help(self.config_name, own_folders(sys.argv[1:])))
                    raise SystemExit(0)
                sys.argv[1:] = self._for_hydra(sys.argv[1:])
                start = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=self.config_name)(job)
                if _MULTIRUN.isdisjoint(sys.argv):
                    start()
                else:
                    self._sweep(start)

        return main

    def _sweep(self, start: Callable[[], Any]) -> None:
        """Runs the jobs of ``-m`` and shows their results."""
        from rlstack.sweeps.folder import announced, show_results, sweep_folder, take_results

        groups = default_choices(self.config_name) if self.makes_runs else None
        with sweep_folder(sys.argv[1:], groups) as (sys.argv[1:], sweep):
            try:
                with announced(_parted(sys.argv[1:])[1]):
                    start()
            finally:
                if sweep is not None:
                    show_results(take_results(sweep), sweep)

    def call(
        self, task: Callable[[DictConfig], Result], words: Sequence[Word], keys: Mapping[str, Any], quiet: bool = False
    ) -> Result:
        """Runs a task from Python with the configuration of the command line, and returns its result.

        It also works inside another Hydra application. Hydra's state, the random generators, torch's number of threads
        and ``sys.argv`` are restored afterwards; meanwhile ``sys.argv`` is that of the same command line, which the
        files of a run record.

        Args:
            task: function of the command's module.
            words: arguments as on the command line, or paths.
            keys: arguments as Python values, by name.
            quiet: prints nothing but warnings.

        Raises:
            ConfigError: the arguments are wrong; the message has one line.
            RunError: the work cannot continue.
        """
        typed = [*map(word, words), *(override(key, value) for key, value in keys.items())]
        logger, line = logging.getLogger("torchrl"), [task.__module__, *typed]
        with ExitStack() as stack:
            for name, argv in (("argv", line), ("orig_argv", [sys.executable, "-m", *line])):
                stack.callback(setattr, sys, name, getattr(sys, name))
                setattr(sys, name, argv)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.WARNING)  # none about TorchRL's internals, also if it was imported before
            if quiet:
                stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            try:
                cfg = stack.enter_context(_composed(self.config_name, self._for_hydra(typed)))
                from rlstack.runs.seeding import surroundings_untouched  # torch takes seconds to import

                stack.enter_context(surroundings_untouched())
                _use_one_thread(cfg)
                with _work_shown(quiet), self._checked(cfg):
                    return task(cfg)
            except RunError as error:
                if error.details:
                    print(error.details, file=sys.stderr)
                raise
            except (HydraException, OmegaConfBaseException, YAMLError) as error:
                raise ConfigError(str(explain(error))) from error

    def _for_hydra(self, typed: list[str]) -> list[str]:
        """Returns the arguments for Hydra, flags first, as its parser requires."""
        flags, overrides = _parted(typed)
        named = [part for entry in self.arguments(overrides) for part in _of_class(entry)]
        return [*flags, *(part for entry in named for part in readable(entry))]

    @contextmanager
    def _checked(self, cfg: DictConfig) -> Iterator[None]:
        """Lets files name what the user named, and reports errors of a world in one line."""
        try:
            with granting(resolve(cfg, self.config_name)):  # composed of our files and the user's arguments
                yield
        except (*USER_ERRORS, RunError):
            raise
        except (Exception, SystemExit):
            from rlstack.training.summary import environment_errors  # torch takes seconds to import

            with environment_errors(cfg.get("env")):
                raise


def _use_one_thread(cfg: DictConfig) -> None:
    """Lets torch use one thread in a command without the option ``threads``, unless ``OMP_NUM_THREADS`` is set.

    Several threads gain little with small networks, and wait for one another where other programs run.
    """
    if "threads" in cfg or "OMP_NUM_THREADS" in os.environ:
        return
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    else:
        os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it when it is imported


def as_module(function: Function) -> Function:
    """Makes the module of a function callable as that function, so that ``rlstack.train`` is both.

    It makes no difference whether ``rlstack.train`` is imported or called first.
    """
    called = {"__call__": staticmethod(function), "__signature__": inspect.signature(function)}
    sys.modules[function.__module__].__class__ = type("CallableModule", (ModuleType,), called)
    return function


def words_as(*keys: str) -> Callable[[list[str]], list[str]]:
    """For :class:`HydraCommand`: takes plain words, such as ``runs/<run>``, as values of these keys, in order.

    A path may contain ``=``; for any other word with ``=`` Hydra reports that there is no such key.
    """

    def rewrite(arguments: list[str]) -> list[str]:
        left = list(keys)
        rewritten = []
        for entry in arguments:
            key, joined, _ = entry.lstrip("+~").partition("=")
            paths = Path(entry).exists() or all(Path(part).exists() for part in entry.split(","))
            plain = not joined or (key not in keys and paths)
            rewritten.append(f"{left.pop(0)}={quoted(entry)}" if plain and left else entry)
        return rewritten

    return rewrite


def _of_class(entry: str) -> list[str]:
    """Returns the overrides for ``env=package:Class`` or ``agent=package:Class``, whose class alone knows its options.

    So does that of a world which an installed package registers. A world starts from its name (``conf/env/own.yaml``),
    an algorithm from the defaults of its class.
    """
    group, _, name = entry.partition("=")
    if group == "env" and (_CLASS.fullmatch(name) or (is_own(name) and name in installed_worlds())):
        return ["env=own", f"env.name={name}"]
    if group != "agent" or not _CLASS.fullmatch(name):
        return [entry]
    from rlstack.agents import completed  # imports the user's class and torch

    defaults = completed({"name": name.rpartition(":")[2].lower(), "algorithm": name})
    ConfigStore.instance().store("own", defaults, group="agent")
    return ["agent=own"]


def _parted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separates flags with their values from overrides.

    Raises:
        ConfigError: a flag does not exist, or nothing is chosen from a group.
    """
    flags, overrides, rest = [], [], list(arguments)
    while rest:
        entry = rest.pop(0)
        name, joined, value = entry.partition("=")
        if entry == "--json":
            overrides.append("json=true")
        elif value == "null" and name in _OPTIONAL:
            overrides.append(f"~{name}")  # Hydra's way to choose nothing, or to drop what an experiment has chosen
        elif not entry.startswith("-"):
            if _NO_NAME.fullmatch(value) and (conf_dir() / name).is_dir():
                raise ConfigError(missing_option(name, value, list(option_files(name))))
            overrides.append(entry)
        elif name not in _FLAGS:
            guess = did_you_mean(name, [flag for flag in _FLAGS if flag.startswith("--")])
            raise ConfigError(f"{name}: unknown flag, {guess}options have the form key=value, see --help")
        else:
            flags.append(entry)
            if _FLAGS[name] and not joined and rest and "=" not in rest[0].removeprefix(os.sep):
                flags.append(rest.pop(0))
    return flags, overrides


@contextmanager
def _composed(config_name: str, arguments: Sequence[str]) -> Iterator[DictConfig]:
    """Yields the configuration of a command line, which inside the context is also Hydra's own, as in a Hydra job.

    Raises:
        ConfigError: a flag is only valid on the command line.
    """
    flags, overrides = _parted(arguments)
    for name in (entry.partition("=")[0] for entry in flags if entry.startswith("-")):
        if name not in FOLDER_FLAGS:
            raise ConfigError(f"{name}: a flag of the command line; in Python, several runs are a loop")
    folders = own_folders(flags)
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"--config-dir: {folder} is not a folder{nearest_path(folder)}")
    searched = [override("hydra.searchpath", [f"file://{folder.absolute()}" for folder in folders])] if folders else []
    with hydra_set_aside():
        cfg = compose(config_name, [*overrides, *searched], return_hydra_config=True)
    cfg.hydra.overrides.task = overrides
    before, HydraConfig.instance().cfg = HydraConfig.instance().cfg, None
    try:
        HydraConfig.instance().set_config(cfg)
        own = cfg.copy()
        with open_dict(own):
            del own["hydra"]
        yield own
    finally:
        HydraConfig.instance().cfg = before


@contextmanager
def _work_shown(quiet: bool = False) -> Iterator[None]:
    """Shows the progress of long work; Ctrl-C ends it between two steps."""
    from rlstack.training.interrupt import stopping_between_steps

    @functools.cache
    def display() -> Callable[[Work], None]:
        from rlstack.training.progress import WorkDisplay  # rich takes a while to import

        return WorkDisplay()

    with stopping_between_steps(lambda work: None if quiet else display()(work)):
        yield


# -- errors --------------------------------------------------------------------------------------------------------


def user_errors() -> AbstractContextManager[None]:
    """Ends the process on a user's mistake with one line and no traceback; bugs propagate."""
    return exit_in_one_line(explain)


@contextmanager
def job_errors() -> Iterator[None]:
    """Records the error of a job of a sweep for the table at the end; only this job ends.

    The sweeper receives an error that any launcher can send from one process to another.
    """
    try:
        yield
    except Exception as error:
        from rlstack.sweeps.folder import note_result

        message = explain(error)
        line = f"{type(error).__name__}: {error}" if message is None else message
        note_result(error=line)
        if message is None or os.environ.get("RLSTACK_FULL_ERROR") == "1":
            traceback.print_exc()
        raise (RuntimeError if message is None else ConfigError)(line) from None


def explain(error: BaseException) -> str | None:
    """Returns one line that names the wrong key and what is allowed there, or None for a bug."""
    while isinstance(error, InstantiationException) and error.__cause__ is not None:
        error = error.__cause__
    match error:
        case MissingConfigException(missing_cfg_file=str(file), options=options) if options is not None:
            text = _missing(file.removesuffix(".yaml"), options)
        case OverrideParseException():
            text = _unreadable(error)
        case ConfigCompositionException(__cause__=ConfigAttributeError() | ConfigKeyError() as cause):
            text = _unknown(cause) if cause.full_key else _first_line(str(error))
        case ConfigCompositionException(__cause__=OmegaConfBaseException() as cause):
            return explain(cause)
        case ConfigAttributeError() | ConfigKeyError() if error.full_key:
            key, siblings = _key_and_siblings(error)
            text = f"{key}: missing from the configuration, which has: {', '.join(siblings)}"
        case OmegaConfBaseException():
            text = (f"{error.full_key}: " if error.full_key else "") + _first_line(str(error))
        case MarkedYAMLError(problem_mark=mark) if mark is not None:
            text = f"{mark.name}:{mark.line + 1}: {error.problem}"
        case MissingConfigException() if match := re.search(r"'agent/(\w+)_options'", str(error)):
            text = f"agent: its algorithm is not here, there is no rlstack.agents.{match[1]}"
        case MissingConfigException():
            text = _first_line(str(error))
        case ConfigError() | HydraException() | YAMLError():
            text = str(error)
        case ModuleNotFoundError() if (error.name or "").startswith("rlstack."):
            text = f"this installation has no {error.name}, which this needs"
        case _:
            return None
    return " ".join(text.split())


def _missing(path: str, options: Sequence[str]) -> str:
    """Returns the message for ``group/name``, a file that does not exist; the name may include a sub-folder."""
    group, _, name = path.partition("/")
    if path in _PLUGINS:
        extra = _PLUGINS[path]
        further = ", then pip install --no-deps hydra-ray-launcher" if extra == "ray" else ""
        return f"{path.replace('launcher/', 'launcher=')} {needs(extra)}{further}"
    if group == "env" and ":" in name:
        return f"env: {name!r} is not the name of a world; name your own class alone, on the command line: env={name}"
    folders = own_folders(sys.argv[1:])
    if found := list(option_files(group, folders)):
        own = f"; {group}/{name}.yaml in a folder of yours needs --config-dir <folder>"
        return missing_option(group, name, found) + ("" if folders or nearest(name, found) else own)
    group, _, name = path.rpartition("/")
    return missing_option(group, name, options)


def _unreadable(error: OverrideParseException) -> str:
    """Returns the message for an override that is not of the form ``key=value``."""
    from rlstack.training.notices import concealed

    override = concealed([str(error.override)])[0]
    if "=" in override or override.startswith("~"):
        key, _, value = override.partition("=")
        if value and (os.path.exists(value) or not value.isascii()):
            return f'{override}: text with such characters takes two pairs of quotes: "{key}={quoted(value)}"'
        return f"{override}: cannot read this override, {_first_line(error.message, 'Error parsing')}"
    options = {path.stem: f"{path.parent.name}={path.stem}" for path in sorted(conf_dir().glob("*/*.yaml"))}
    options |= {group: f"{group}=<name>" for group in default_choices("train")}
    meant = "".join(f"did you mean {options[name]!r}? " for name in nearest(override, options)[:1])
    return f"{override}: expected key=value, {meant}see --help"


def _unknown(error: OmegaConfBaseException) -> str:
    """Returns the message for an unknown key, or for a key of a group from which nothing is chosen."""
    key, siblings = _key_and_siblings(error)
    if (conf_dir() / key).is_dir():
        return f"{key}: none is chosen yet; choose one with {key}=<name>: {', '.join(option_files(key))}"
    root = {} if "." in key else error.parent_node
    groups = [(group, root[group]) for group in ("agent", "env") if OmegaConf.is_dict(root.get(group))]
    return unknown_key(key, siblings, [f"{group}.{name}" for group, options in groups for name in options])


def _key_and_siblings(error: OmegaConfBaseException) -> tuple[str, list[str]]:
    parent = error.parent_node
    keys = [str(key) for key in parent] if OmegaConf.is_dict(parent) else []
    # At the root, Hydra's own node is a sibling of ours, but not a key of the command.
    return str(error.full_key), sorted(key for key in keys if key != "hydra")


def _first_line(text: str, skip: str = "\0") -> str:
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith(skip)), text)
