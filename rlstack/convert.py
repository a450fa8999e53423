"""Converts an agent from elsewhere to a native one, or a policy to a program that does not need rlstack.

``rlstack convert sb3 model.zip out=mine.pt env=<group>``, ``rlstack convert checkpoint=runs/<run> format=onnx``.
"""

from __future__ import annotations

import importlib
import shlex
import sys
import warnings
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module, words_as
from rlstack.config import ConfigError, build, load_group, to_plain
from rlstack.config.errors import missing_option
from rlstack.config.groups import folder_flags
from rlstack.config.overrides import given_overrides, override
from rlstack.config.rooms import Kind, registered, target

KINDS: dict[str, Kind] = registered("KINDS")
_OPTIONS = ("vecnormalize", "normalization", "agent_type")
"""The keys that are options of some kind of agents."""
_INPUTS = 256


@dataclass
class ConvertConfig:
    """See ``conf/convert.yaml`` for what each key does."""

    kind: str | None
    path: str | None
    checkpoint: str | None
    which: Literal["latest", "best"]
    format: str
    out: str | None
    vecnormalize: str | None
    normalization: str | None
    agent_type: str | None
    total_frames: int | None
    agent: dict[str, Any] | None = None
    env: dict[str, Any] | None = None
    allow: list[str] = field(default_factory=list)


@as_module
def convert(*words: str, quiet: bool = False, **keys: Any) -> Path:
    """Converts an agent, or exports a policy, as the command ``rlstack convert`` does.

    Args:
        words: arguments as on the command line, such as ``"sb3", "model.zip"``.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/convert.yaml``.

    Returns the path of the checkpoint, or of the program.

    Example:
        >>> rlstack.convert(checkpoint="runs/<run>", format="onnx")
        >>> rlstack.convert("sb3", "model.zip", "env.id=CartPole-v1", env="gymnasium", out="mine.pt")
    """
    return command.call(run, words, keys, quiet)


def run(cfg: DictConfig) -> Path:
    """Converts in the direction that the keys say."""
    config = build(ConvertConfig, cfg)
    return to_native(config) if config.checkpoint is None else to_program(config)


def to_program(config: ConvertConfig) -> Path:
    """Loads a checkpoint, exports its agent's greedy policy and prints where the files are."""
    if config.kind is not None or config.path is not None or config.env is not None:
        raise ConfigError("checkpoint: takes no kind, path and env; its policy is written as format=onnx or another")
    from rlstack.adapters.exporting import INPUTS, beside, export_policy
    from rlstack.runs.loading import load
    from rlstack.runs.run_directory import named

    loaded = load(named(str(config.checkpoint), "checkpoint"), which=config.which, agent=config.agent)
    if (kind := KINDS.get(config.format)) is not None and kind.export is not None:
        files: list[Path] = target(kind.export)(loaded, config.out)
        for file in files:
            print(f"wrote {file}")
        return files[0]
    ending = {"torchscript": "pt", "export": "pt2", "aoti": "aoti.pt2"}.get(config.format, "onnx")
    out = loaded.folder / "exports" / f"{loaded.path.stem}_policy.{ending}" if config.out is None else Path(config.out)
    exported = export_policy(loaded.agent, out, config.format, frames=loaded.frames)
    if "note" in exported.description:
        print(f"note: {exported.description['note']}")
    for entry in exported.description["inputs"]:
        print(f"input {entry['name']}: {entry['dtype']} {entry['shape']}")
    output = exported.description["output"]
    print(f"output {output['name']}: {output['dtype']} {output['shape']}, {output['meaning']}")
    print(f"{exported.agreement} on {INPUTS} random inputs")
    print(f"wrote {exported.path} and {beside(exported.path)}")
    return exported.path


def to_native(config: ConvertConfig) -> Path:
    """Loads and converts the agent, compares both on random observations, and writes the checkpoint."""
    _check(config)
    from rlstack.files.safe_load import reason
    from rlstack.runs.checkpoint import write_checkpoint
    from rlstack.runs.loading import overrides
    from rlstack.runs.worlds import build_world

    module = importlib.import_module(str(KINDS[str(config.kind)].conversion))
    options = {key: getattr(config, key) for key in _OPTIONS if getattr(config, key) is not None}
    world = module.own_world(str(config.path), options) if config.env is None else None
    env_config = load_group("env", *world) if world is not None else dict(config.env or {})
    with closing(build_world(env_config, num_worlds=1)) as env, warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", UserWarning)
        length = {} if config.total_frames is None else {"total_frames": config.total_frames}
        agent, original, frames = module.converted(str(config.path), env, options, {**(config.agent or {}), **length})
    compared = _compare(agent, original, str(config.path))
    out, total, name = Path(str(config.out)), agent.total_frames, agent.config.name
    content = {
        **{"agent": to_plain(agent.config), "env": env_config, "total_frames": total},
        "converted_from": {"kind": config.kind, "path": str(config.path)},
    }
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(out, {"frames": frames, "agent": agent.state_dict(), "config": content}, frames)
    except (OSError, RuntimeError) as error:  # torch's writer raises a RuntimeError
        raise ConfigError(f"out: {out} cannot be written ({reason(error)})") from None
    for note in notes:
        if "start fresh" in str(note.message):
            print(f"note: {note.message}")
    print(f"{name} of {sum(p.numel() for p in agent.parameters()):,} parameters; {compared}")
    print(f"wrote {out}")
    print(f"evaluate it:  rlstack evaluate {shlex.quote(override('checkpoint', out))}")
    # The options that differ from the yaml with the same name.
    usual = to_plain(build(type(agent).Config, load_group("agent", name), "agent"))
    changed = overrides({key: value for key, value in content["agent"].items() if value != usual[key]})
    if world is not None:
        given = [f"env={world[0]}", *(override(f"env.{key}", value) for key, value in world[1].items())]
    elif HydraConfig.initialized():  # as on the command line
        typed = (entry for entry in given_overrides() if entry.lstrip("+~").partition("=")[0].startswith("env"))
        given = [shlex.quote(entry) for entry in typed]
    else:
        given = ["env=<the same>"]
    shown = " ".join(filter(None, (f"agent={name}", changed, *given, f"total_frames={total}")))
    print(f"train it on:  rlstack train {shlex.quote(override('init', out))} {shown}{folder_flags(sys.argv[1:])}")
    return out


def _check(config: ConvertConfig) -> None:
    if config.kind is None or config.path is None:
        raise ConfigError("kind and path: missing, or checkpoint=<run>; see rlstack convert --help")
    if config.kind == "rlstack":
        raise ConfigError(f"rlstack: is native already; begin a run from it: init={config.path}")
    if config.kind not in KINDS:
        raise ConfigError(missing_option("kind", config.kind, [kind for kind in KINDS if KINDS[kind].conversion]))
    if KINDS[config.kind].conversion is None:
        raise ConfigError(
            f"{config.kind}: a program whose layers are not known cannot be converted; use it with agent=legacy, or "
            f"teach an agent to act like it with imitation.expert={config.kind}:{config.path}"
        )
    if config.out is None:
        raise ConfigError("out: missing, the checkpoint to write: out=converted.pt")
    if Path(config.out).is_dir():
        raise ConfigError(f"out: {config.out} is a folder, the checkpoint to write is a file: out=converted.pt")
    for option in _OPTIONS:
        if option not in KINDS[config.kind].options and getattr(config, option) is not None:
            raise ConfigError(f"{option}: agents of kind {config.kind} have none")


def _compare(agent: Any, original: Any, path: str) -> str:
    """Compares the actions of both for random observations, and describes how well they agree.

    Raises:
        ConfigError: their actions differ.
    """
    from tensordict import TensorDict

    from rlstack.adapters.exporting import compare, deterministic, random_inputs

    with deterministic(agent) as note:
        if note:
            return f"not compared, {note.partition(';')[0]}"
    observation, mask = random_inputs(agent.interface, _INPUTS)
    grouped = agent.interface.group is not None
    seen = TensorDict({}, [_INPUTS]).set(
        agent.interface.key("observation"), observation.unsqueeze(1) if grouped else observation
    )
    answer = original(seen).get(agent.interface.key("action"))
    policy: Any = agent.policy(explore=False)
    agreement = compare(policy.action, answer.squeeze(1) if grouped else answer, observation, mask, agent.interface)
    if agreement.wrong:
        raise ConfigError(f"{path}: converted, it acts otherwise on {agreement.wrong} of {_INPUTS} random observations")
    return f"{agreement} on {_INPUTS} random observations"


command = HydraCommand("convert", words_as("kind", "path"))
main = command.line(run)

if __name__ == "__main__":
    main()
