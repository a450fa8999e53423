"""Writes an agent's greedy policy as a program: ``rlstack export checkpoint=runs/<run> format=onnx``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module
from rlstack.config import ConfigError, build

if TYPE_CHECKING:
    from rlstack.runs.loading import LoadedRun


@dataclass
class ExportConfig:
    """See ``conf/export.yaml`` for what each key does."""

    checkpoint: str | None
    which: Literal["latest", "best"]
    format: Literal["torchscript", "onnx", "arena"]
    out: str | None
    agent: dict[str, Any] | None = None
    allow: list[str] = field(default_factory=list)


@as_module
def export(*words: str, quiet: bool = False, **keys: Any) -> Path:
    """Exports a policy as the command ``rlstack export`` does: ``rlstack.export(checkpoint="runs/<run>")``.

    Args:
        words: arguments as on the command line.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/export.yaml``.

    Returns the path of the program.
    """
    return command.call(run, words, keys, quiet)


def run(cfg: DictConfig) -> Path:
    """Loads a checkpoint, exports its agent and prints where the files are."""
    config = build(ExportConfig, cfg)
    if config.checkpoint is None:
        raise ConfigError("checkpoint: missing; name a run's folder or a checkpoint file: checkpoint=runs/<run>")
    from rlstack.adapters.exporting import INPUTS, beside, export_policy
    from rlstack.runs.loading import load
    from rlstack.runs.run_directory import named

    loaded = load(named(config.checkpoint, "checkpoint"), which=config.which, agent=config.agent)
    if config.format == "arena":
        return _save_arena(loaded, config.out)
    ending = "pt" if config.format == "torchscript" else "onnx"
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


def _save_arena(loaded: LoadedRun, out: str | None) -> Path:
    """Writes files of the Arena's own stack, which can continue training there; also the curriculum of a final file."""
    from rlstack.adapters.arena import STYLES, save_arena, training_state
    from rlstack.runs.checkpoint import read_checkpoint

    run = loaded.folder
    path = run / "exports" / f"{run.resolve().name}_{loaded.frames}_steps.pt" if out is None else Path(out)
    state = None
    if path.stem.endswith("_final"):
        style = STYLES.get((loaded.agent.interface.choices or (0,))[0])
        curriculum = read_checkpoint(loaded.path).get("curriculum")
        state = training_state(path, style, loaded.frames, None, curriculum)
    for file in save_arena(loaded.agent, path, loaded.frames, state):
        print(f"wrote {file}")
    return path


command = HydraCommand("export")
main = command.line(run)

if __name__ == "__main__":
    main()
