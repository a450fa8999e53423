"""Publishes an agent or recorded transitions on the Hugging Face Hub: ``rlstack push runs/<run> <user>/<name>``."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module, words_as
from rlstack.config import ConfigError, build
from rlstack.config.errors import nearest_path, writing
from rlstack.envs.foundation.files import write_text

_FILMS = (".mp4", ".gif")
_PRIVATE = ("run_dir", "resume", "init", "notify", "logger", "hydra.", "data", "seeds")
"""Beginnings of options that a card leaves out: names of the user's places, and the number of runs beside this one."""
_BEGUN_WITH = {"init": "<checkpoint>", "data": "<recorded transitions>"}
"""Those without which another training would begin, and what stands for their values."""
_STARTS = (["-m", "rlstack.train"], ["-m", "rlstack", "train"], ["rlstack", "train"])
"""What the command line of a training begins with, after Python's."""
_SEVERAL = {"-m", "--multirun", "hydra.mode=MULTIRUN"}
"""Words of a command line that trains several runs, and so is not that of one."""


@dataclass
class PushConfig:
    """See ``conf/push.yaml`` for what each key does."""

    what: str | None
    to: str | None
    which: Literal["latest", "best"]
    film: str | None
    license: str | None
    private: bool
    out: str | None
    allow: list[str] = field(default_factory=list)


@as_module
def push(*words: str, quiet: bool = False, **keys: Any) -> str:
    """Publishes an agent or recorded transitions, as the command ``rlstack push`` does.

    Args:
        words: arguments as on the command line, such as ``"runs/<run>", "<user>/<name>"``.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/push.yaml``.

    Returns the address of the repository or, with ``out``, the folder.

    Example:
        >>> rlstack.push("runs/<run>", "<user>/<name>", film="film.mp4", license="apache-2.0")
    """
    return command.call(run, words, keys, quiet)


def run(cfg: DictConfig) -> str:
    """Writes the files of a repository, and uploads them unless ``out`` is given."""
    from rlstack.runs import hub

    config = build(PushConfig, cfg)
    if config.what is None or config.to is None:
        raise ConfigError("what and to: missing, as in: rlstack push runs/<run> <user>/<name>; see rlstack push --help")
    hub.check_name(config.to, "to")
    transitions = _transitions(Path(config.what))
    with ExitStack() as stack:
        if config.out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="push_")))
        else:
            folder = Path(config.out)
            if folder.exists():
                raise ConfigError(f"out: {config.out} exists already")
            with writing(f"out: {config.out}"):
                folder.mkdir(parents=True)
        head, parts = data_card(folder, transitions, config) if transitions else agent_card(folder, config)
        known = {key: value for key, value in {**head, "license": config.license}.items() if value is not None}
        with writing(folder):
            write_text(
                folder / hub.CARD, "\n\n".join([f"---\n{yaml.safe_dump(known, sort_keys=False)}---", *parts]) + "\n"
            )
        hub.write_sums(folder)
        for file in sorted(folder.iterdir()):
            print(f"{file.stat().st_size:>12,} bytes  {file.name}")
        if config.out is not None:
            print(f"wrote {config.out}")
            return config.out
        address = hub.upload(folder, config.to, "dataset" if transitions else "model", config.private)
    print(f"pushed to {address}")
    print(f"use it:  {_use(config.to, bool(transitions))}")
    return address


Card = tuple[dict[str, Any], list[str]]
"""The head of a card, and its paragraphs."""


def _use(name: str, data: bool) -> str:
    return (
        f"rlstack train agent=<agent> env=<world> data=hf:{name}" if data else f"rlstack evaluate checkpoint=hf:{name}"
    )


# -- an agent ----------------------------------------------------------------------------------------------------------


def agent_card(folder: Path, config: PushConfig) -> Card:
    """Writes an agent and its film; returns the card."""
    from rlstack.runs import hub
    from rlstack.runs.loading import checkpoint_file, read_agent
    from rlstack.runs.run_directory import named

    file = checkpoint_file(Path(named(str(config.what), "what")), config.which, "what")
    state = hub.acting_parts(read_agent(file))
    hub.write_agent(folder, state)
    run_folder = file.parent.parent if file.parent.name == "checkpoints" else file.parent
    film = None if config.film in (None, "none") else Path(str(config.film))
    if config.film is None:  # the newest one of the run
        places = run_folder.rglob("*") if run_folder != file.parent else run_folder.glob("*")
        films = [path for path in places if path.suffix in _FILMS and path.is_file()]
        film = max(films, key=lambda path: path.stat().st_mtime_ns, default=None)
    elif film is not None and (film.suffix not in _FILMS or not film.is_file()):
        raise ConfigError(f"film: {film} is not a file {' or '.join(_FILMS)}{nearest_path(film)}")
    agent, world = state["config"]["agent"]["name"], state["config"]["env"]
    env = str(world.get("id") or world["name"])
    scores, judged = _scores(run_folder, state["frames"])
    named_scores = {"eval/return": "mean_reward", "eval/success": "success_rate"}
    metrics = [
        {"type": kind, "name": kind, "value": scores[key]} for key, kind in named_scores.items() if key in scores
    ]
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    results = {"task": task, "dataset": {"type": env, "name": env}, "metrics": metrics}
    head = {
        "library_name": "rlstack",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "rlstack", "torchrl", agent, *dict.fromkeys((world["name"], env))],
        "model-index": [{"name": config.to, "results": [results]}] if scores else None,
    }
    parts = [f"# {agent} in {env}", f"Trained by rlstack for {state['frames']:,} frames."]
    if film is not None:
        with writing(folder):
            shutil.copyfile(film, folder / f"film{film.suffix}")
        video = '<video src="film.mp4" controls autoplay loop muted></video>'
        parts.append(video if film.suffix == ".mp4" else "![film](film.gif)")
    rows = [f"| {key.removeprefix('eval/')} | {value:,.4g} |" for key, value in scores.items()]
    table = "\n".join(["| | |", "|---|---|", *rows])
    if judged < state["frames"]:
        table = f"Of the agent after {judged:,} frames, the last that was evaluated in the run:\n\n{table}"
    parts += ["## Scores", table if scores else "The agent has not been evaluated in its run."]
    parts += ["## Use", _code([_use(str(config.to), False), f"rlstack watch checkpoint=hf:{config.to}"])]
    if trained := _trained(run_folder, state["config"].get("seed")):
        parts += ["## Training", _code([trained])]
    shown = {key: state["config"][key] for key in ("agent", "env")}
    return head, [*parts, "## Configuration", _code([yaml.safe_dump(shown, sort_keys=False).strip()], "yaml")]


def _scores(run_folder: Path, frames: int) -> tuple[dict[str, float], int]:
    """Returns the numbers of a zoo agent's card, or of the run's newest evaluation up to ``frames``, and its frames."""
    from rlstack.evaluation.results import Evaluation
    from rlstack.files.safe_load import read_json_object
    from rlstack.runs.run_directory import CARD, RunDirectory, zoo_folder

    if run_folder.parent == zoo_folder():
        known = read_json_object(run_folder / CARD)
        return {**known["score"], "episodes": known["episodes"]}, frames
    stored = sorted(RunDirectory(run_folder).evaluations.glob("*.json"), reverse=True)
    for file in stored:
        if file.stem.isdigit() and int(file.stem) <= frames:
            evaluation = Evaluation.from_json(file.read_text(encoding="utf-8"))
            return {**evaluation.summary(), "episodes": len(evaluation.levels)}, int(file.stem)
    return {}, frames


def _trained(run_folder: Path, seed: int | None) -> str:
    """Returns the command of a run's first start, without options that name places of the user's; ``""`` if unknown.

    Args:
        seed: seed of the run, which is not that of the command if it began several.
    """
    from rlstack.training.environment import ENVIRONMENT

    words: Sequence[str] = []
    with suppress(OSError, ValueError, LookupError, TypeError):
        words = json.loads((run_folder / ENVIRONMENT).read_text(encoding="utf-8"))[0]["command"]
    names = [Path(word).name for word in words[:3]]
    start = next((start for start in _STARTS if names[: len(start)] == start), None)
    if start is None or not _SEVERAL.isdisjoint(given := words[len(start) :]):
        return ""
    options = [word for word in given if "=" in word and not word.lstrip("+~").startswith(_PRIVATE)]
    options = [word for word in options if not word.partition("=")[2].startswith(("/", "~"))]
    keys = {key for key, _, value in (word.lstrip("+").partition("=") for word in given) if value not in ("", "null")}
    if "seeds" in keys:
        options = [*(word for word in options if not word.startswith("seed=")), f"seed={seed}"]
    named = [f"{key}={what}" for key, what in _BEGUN_WITH.items() if key in keys]
    return " ".join(["rlstack train", shlex.join(options), *named])


# -- data --------------------------------------------------------------------------------------------------------------


def _transitions(path: Path) -> list[Path]:
    """Returns the files of recorded transitions that a path names; none if it is an agent."""
    if path.suffix == ".npz":
        if not path.is_file():
            raise ConfigError(f"what: {path} does not exist{nearest_path(path)}")
        return [path]
    return sorted(path.glob("*.npz")) if path.is_dir() else []


def data_card(folder: Path, files: Sequence[Path], config: PushConfig) -> Card:
    """Copies files of recorded transitions; returns the card."""
    from rlstack.files.safe_load import load_arrays

    for key, usual in (("film", None), ("which", "latest")):
        if getattr(config, key) != usual:
            raise ConfigError(f"{key}: is for agents, {config.what} holds recorded transitions")
    rows = ["| file | transitions | arrays |", "|---|---|---|"]
    for file in files:
        try:
            arrays = load_arrays(file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"what: {file} cannot be read as recorded transitions ({error})") from None
        shapes = ", ".join(f"`{name}` {list(array.shape[1:])} {array.dtype}" for name, array in sorted(arrays.items()))
        count = max((len(array) for array in arrays.values() if array.ndim), default=0)
        rows.append(f"| {file.name} | {count:,} | {shapes} |")
        with writing(folder):
            shutil.copyfile(file, folder / file.name)
    parts = ["# Recorded transitions", "\n".join(rows), "Each row is a decision; the episodes follow one another."]
    return {"tags": ["reinforcement-learning", "rlstack"]}, [*parts, "## Use", _code([_use(str(config.to), True)])]


def _code(lines: Sequence[str], language: str = "") -> str:
    return "\n".join([f"```{language}", *lines, "```"])


command = HydraCommand("push", words_as("what", "to"))
main = command.line(run)

if __name__ == "__main__":
    main()
