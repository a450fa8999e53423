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
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import hydra
from hydra import compose, version
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

from rlstack import sweeps
from rlstack.config import ConfigError, catalogue, conf_dir
from rlstack.config.agents import CONFIGS
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
from rlstack.config.groups import hydra_set_aside, is_own
from rlstack.config.overrides import (
    Word,
    given_overrides,
    override,
    quoted,
    readable,
    replace_mappings,
    set_value,
    word,
)
from rlstack.config.synonyms import synonyms
from rlstack.config.typed import resolve, to_plain
from rlstack.envs.extras import needs
from rlstack.envs.working import Work
from rlstack.help import command_help, offered
from rlstack.sweeps.folder import in_sweep, note_result, show_results, sweep_folder, take_results

_FLAGS = {
    **dict.fromkeys(("--hydra-help", "--version", "--resolve", "--run", "-r", "--multirun", "-m"), False),
    **dict.fromkeys(("--shell-completion", "-sc"), False),
    **dict.fromkeys(("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn"), True),
    **dict.fromkeys(("--config-dir", "-cd", "--experimental-rerun", "--info", "-i"), True),
}
"""Hydra's own flags, and whether a value follows each."""
_HYDRA = "1.3"
"""The version of Hydra whose defaults hold."""
_OPTIONAL = ("curriculum", "experiment")
"""Groups from which nothing may be chosen, with ``null``."""
_NO_NAME = re.compile(r"null|true|false|[\[{].*|[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
"""Values that Hydra does not take for the name of a file."""

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])

# Commands do not print TorchRL's messages about its internals; set before torchrl is imported.
os.environ.setdefault("RL_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("RL_WARNINGS", "False")

USER_ERRORS = (ConfigError, HydraException, OmegaConfBaseException, YAMLError)

# Hydra looks for sweepers in packages named hydra_plugins, such as ours.
_PLACE_OF_PLUGINS = str(Path(sweeps.__file__).parent / "plugins")
if _PLACE_OF_PLUGINS not in sys.path:
    sys.path.append(_PLACE_OF_PLUGINS)

_PLUGINS = {
    "hydra/launcher/joblib": "sweep",
    "hydra/launcher/submitit_local": "sweep",
    "hydra/launcher/submitit_slurm": "sweep",
    "hydra/launcher/ray": "ray",
}
"""Options that other packages bring, and the extras with these packages."""


_NAMED_BY = {"env": "env.name", "agent": "agent.algorithm"}
"""Groups, and the key under which a user's class replaces an option."""
_OWN = re.compile(r"^(env|agent)=([\w.]+:[\w.]+)$")


class HydraCommand:
    """A command line that composes ``<conf_dir>/<config_name>.yaml``, and the same as a Python function.

    All of Hydra's own flags work (``--cfg job``, ``--config-dir``, ``-m``), except ``--help``, which
    :mod:`rlstack.help` replaces.

    Args:
        config_name: name of its configuration.
        arguments: rewrites what the user typed, without the flags, into Hydra's overrides.
        makes_runs: True puts the runs of ``-m`` into one folder, see :mod:`rlstack.sweeps.folder`.
    """

    def __init__(
        self,
        config_name: str,
        arguments: Callable[[list[str]], list[str]] | None = None,
        makes_runs: bool = False,
    ) -> None:
        self._config_name, self._makes_runs = config_name, makes_runs
        self._rewritten = (lambda typed: typed) if arguments is None else arguments

    def line(self, task: Callable[[DictConfig], Any]) -> Callable[[], Any]:
        """Returns the command line that runs a task.

        It exits with status 2 on a user's mistake, 1 if a run cannot continue, 130 on Ctrl-C; any other exception
        propagates.
        """

        @functools.wraps(task)
        def job(cfg: DictConfig) -> Any:
            # Errors have been reported here: one that escapes a job makes Hydra print another line.
            _use_one_thread(cfg)
            with job_errors() if in_sweep() else user_errors(), _work_shown():
                replace_mappings(cfg, given_overrides())
                with self._checked(cfg):
                    return task(cfg)

        before = version.getbase()
        command = hydra.main(version_base=_HYDRA, config_path=str(conf_dir()), config_name=self._config_name)(job)
        version.VersionBase.instance().version_base = before  # hydra.main has set it for the whole process
        return self._typed_for_hydra()(command)

    @contextmanager
    def _typed_for_hydra(self) -> Iterator[None]:
        """Replaces what the user typed by what Hydra reads; shows the results of a sweep at the end."""
        with user_errors(), _all_errors_reach_us():
            version.setbase(_HYDRA)
            if not {"--help", "-h"}.isdisjoint(sys.argv[1:]):
                print(command_help(self._config_name, sys.argv[1:]))
                raise SystemExit(0)
            groups = catalogue.read_command(self._config_name).groups if self._makes_runs else None
            with sweep_folder(self._for_hydra(sys.argv[1:]), groups) as (sys.argv[1:], sweep):
                try:
                    yield
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
        given = {override(key.lstrip("+"), value): to_plain(value) for key, value in keys.items()}
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
                cfg = stack.enter_context(_composed(self._config_name, self._for_hydra(typed), given))
            except USER_ERRORS as error:
                raise ConfigError(str(explain(error))) from None
            from rlstack.runs.seeding import surroundings_untouched  # torch takes seconds to import

            stack.enter_context(surroundings_untouched())
            _use_one_thread(cfg)
            stack.enter_context(_work_shown(quiet))
            try:
                with self._checked(cfg):
                    return task(cfg)
            except RunError as error:
                if error.details:
                    print(error.details, file=sys.stderr)
                raise
            except (HydraException, OmegaConfBaseException, YAMLError) as error:
                raise ConfigError(str(explain(error))) from error

    def _for_hydra(self, typed: list[str]) -> list[str]:
        """Returns the arguments for Hydra, flags first, as its parser requires."""
        flags, overrides = _parted(typed, self._config_name)
        return own_components([*flags, *map(readable, self._rewritten(overrides))])

    @contextmanager
    def _checked(self, cfg: DictConfig) -> Iterator[None]:
        """Refuses ``key={}``, lets files name what the user named, and reports errors of a world in one line."""
        try:
            for entry in given_overrides():  # {} would be merged into a file's value
                key, _, value = entry.lstrip("+").partition("=")
                if "".join(value.split()) == "{}" and (kept := OmegaConf.select(cfg, key)):
                    raise ConfigError(f"{key}: {{}} changes nothing, it has: {', '.join(map(str, kept))}")
            with granting(resolve(cfg, self._config_name)):  # composed of our files and the user's arguments
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


def open_group(*groups: str) -> Callable[[list[str]], list[str]]:
    """For :class:`HydraCommand`: accepts ``group.key=value`` for keys that the configuration does not have.

    Unknown keys are then found when the component is built. A group inside another, such as
    ``imitation.expert_options``, may also be given as a whole.
    """
    starts = (*(f"{group}." for group in groups), *(f"{group}=" for group in groups if "." in group))
    return lambda given: [f"++{entry}" if entry.startswith(starts) and "=" in entry else entry for entry in given]


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


def own_components(arguments: list[str]) -> list[str]:
    """Returns the arguments for a world or an algorithm without a yaml, whose class alone knows its options.

    ``env=my_package:MyWorld`` means ``env.name=my_package:MyWorld``, and ``agent=my_package:MyAgent`` means
    ``agent.algorithm=my_package:MyAgent``. Without ``env=`` a world starts from its name alone (``conf/env/own.yaml``),
    and ``env.key=value`` is accepted for any key, as for a yaml that only gives the name; an algorithm without
    ``agent=`` starts from the defaults of its class.
    """
    arguments = [_OWN.sub(lambda own: f"{_NAMED_BY[own[1]]}={own[2]}", entry) for entry in arguments]
    given = {entry.lstrip("+").partition("=")[0]: entry.partition("=")[2] for entry in arguments if "=" in entry}
    for group, path in _NAMED_BY.items():
        key = path.partition(".")[2]
        name = given.get(path)
        if name is None and group in given:
            with suppress(ConfigError, OSError, UnicodeError):  # reported in full when it is composed
                options = catalogue.group_options(group, given[group], catalogue.folders(arguments))
                name = next((entry.value.strip("'\"") for entry in options if entry.key == key), None)
        if name is None or not (is_own(name) if group == "env" else ":" in name):
            continue
        arguments = open_group(group)(arguments)
        if {group, "resume", "checkpoint"} & given.keys():
            continue
        arguments = [*arguments, f"{group}=own"]
        if group == "agent":
            from hydra.core.config_store import ConfigStore

            from rlstack.agents import completed  # imports the user's class and torch

            defaults = completed({"name": name.rpartition(":")[2].lower(), "algorithm": name})
            ConfigStore.instance().store("own", defaults, group="agent")
    return arguments


def _parted(arguments: Sequence[str], config_name: str) -> tuple[list[str], list[str]]:
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
                raise ConfigError(missing_option(name, value, catalogue.names(name, catalogue.folders())))
            overrides.append(entry)
        elif name not in _FLAGS:
            raise ConfigError(_unknown_flag(name, value or "".join(rest[:1]), config_name))
        else:
            flags.append(entry)
            if _FLAGS[name] and not joined and rest and "=" not in rest[0].removeprefix(os.sep):
                flags.append(rest.pop(0))
    return flags, overrides


def _unknown_flag(flag: str, value: str, config_name: str) -> str:
    """Returns the message for a flag that does not exist; one named after an option is given as ``key=value``."""
    groups, options = offered(config_name)
    known = {name: name for name in (*groups, *(option.key for option in options))}
    if "agent" in groups:
        known = {item.name: f"agent.{item.name}" for config in CONFIGS.values() for item in fields(config)} | known
    key = flag.lstrip("-").replace("-", "_")
    meant = next((known[name] for name in (key, *synonyms(key)) if name in known), None)
    if meant is None:
        guess = did_you_mean(flag, [name for name in _FLAGS if name.startswith("--")])
        return f"{flag}: unknown flag, {guess}options have the form key=value, see --help"
    given = "<value>" if not value or value.startswith("-") or "=" in value else value
    return f"{flag}: unknown flag, write {meant}={given}"


@contextmanager
def _composed(config_name: str, arguments: Sequence[str], given: Mapping[str, Any]) -> Iterator[DictConfig]:
    """Yields the configuration of a command line, which inside the context is also Hydra's own, as in a Hydra job.

    Args:
        given: Python values by their overrides. Hydra reads only the choices from groups among these overrides, which
            are texts; the other values are set in what it has composed.

    Raises:
        ConfigError: a flag is only valid on the command line.
    """
    flags, overrides = _parted(arguments, config_name)
    for name in (entry.partition("=")[0] for entry in flags if entry.startswith("-")):
        if name not in catalogue.FOLDER_FLAGS:
            raise ConfigError(f"{name}: a flag of the command line; in Python, several runs are a loop")
    where = catalogue.folders(flags)
    folders = [folder for folder in where if folder != conf_dir()]
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"--config-dir: {folder} is not a folder{nearest_path(folder)}")
    searched = [override("hydra.searchpath", [f"file://{folder.absolute()}" for folder in folders])] if folders else []
    values = [
        entry
        for entry in overrides
        if entry.lstrip("+") in given and not any((folder / entry.partition("=")[0]).is_dir() for folder in where)
    ]
    composed = [entry for entry in overrides if entry not in values]
    with hydra_set_aside():
        cfg = compose(config_name, [*composed, *searched], return_hydra_config=True)
    replace_mappings(cfg, composed)
    for entry in values:
        set_value(cfg, entry, given[entry.lstrip("+")])
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
        told = explain(error)
        line = f"{type(error).__name__}: {error}" if told is None else told
        note_result(error=line)
        if told is None or os.environ.get("RLSTACK_FULL_ERROR") == "1":
            traceback.print_exc()
        raise (RuntimeError if told is None else ConfigError)(line) from None


def explain(error: BaseException) -> str | None:
    """Returns one line that names the wrong key and what is allowed there, or None for a bug."""
    while isinstance(error, InstantiationException) and error.__cause__ is not None:
        error = error.__cause__
    match error:
        case MissingConfigException(missing_cfg_file=str(file), options=options) if options is not None:
            path = file.removesuffix(".yaml")
            text = _missing(path, options) if path not in _PLUGINS else _not_installed(path)
        case MissingConfigException():
            text = str(error).partition("\n")[0]
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
        case ConfigError() | HydraException() | YAMLError():
            text = str(error)
        case _:
            return None
    return " ".join(text.split())


def _missing(path: str, options: Sequence[str]) -> str:
    """Returns the message for ``group/name``, a file that does not exist; the name may include a sub-folder."""
    group, _, name = path.partition("/")
    if group == "env" and ":" in name:
        return f"env: {name!r} is not the name of a world; name your own class alone, on the command line: env={name}"
    folders = catalogue.folders(sys.argv[1:])
    if found := catalogue.names(group, folders):
        own = f"; {group}/{name}.yaml in a folder of yours needs --config-dir <folder>"
        return missing_option(group, name, found) + ("" if len(folders) > 1 or nearest(name, found) else own)
    group, _, name = path.rpartition("/")
    return missing_option(group, name, options)


def _not_installed(option: str) -> str:
    """Returns the message for an option of Hydra's that a package brings, such as ``hydra/launcher/joblib``."""
    extra, (group, _, name) = _PLUGINS[option], option.rpartition("/")
    further = ", then pip install --no-deps hydra-ray-launcher" if extra == "ray" else ""
    return f"{group}={name} {needs(extra)}{further}"


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
    meant = "".join(f"did you mean {options[name]!r}? " for name in nearest(override, options)[:1])
    return f"{override}: expected key=value, {meant}see --help"


def _unknown(error: OmegaConfBaseException) -> str:
    """Returns the message for an unknown key, or for a key of a group from which nothing is chosen."""
    key, siblings = _key_and_siblings(error)
    if not (conf_dir() / key).is_dir():
        root = {} if "." in key else error.parent_node
        groups = [(group, root[group]) for group in ("agent", "env") if OmegaConf.is_dict(root.get(group))]
        return unknown_key(key, siblings, [f"{group}.{name}" for group, options in groups for name in options])
    names = ", ".join(sorted(path.stem for path in (conf_dir() / key).glob("*.yaml")))
    return f"{key}: none is chosen yet; choose one with {key}=<name>: {names}"


def _key_and_siblings(error: OmegaConfBaseException) -> tuple[str, list[str]]:
    parent = error.parent_node
    keys = [str(key) for key in parent] if OmegaConf.is_dict(parent) else []
    # At the root, Hydra's own node is a sibling of ours, but not a key of the command.
    return str(error.full_key), sorted(key for key in keys if key != "hydra")


def _first_line(text: str, skip: str = "\0") -> str:
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith(skip)), text)


@contextmanager
def _all_errors_reach_us() -> Iterator[None]:
    """Prevents Hydra from printing errors itself."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        os.environ.pop("HYDRA_FULL_ERROR")
        if before is not None:
            os.environ["HYDRA_FULL_ERROR"] = before
