"""Writes an agent's greedy policy as a program: ``rlstack export checkpoint=runs/<run> format=onnx``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module, open_group
from rlstack.config import ConfigError, build
from rlstack.config.rooms import Kind, registered, target

KINDS: dict[str, Kind] = registered("KINDS")


@dataclass
class ExportConfig:
    """See ``conf/export.yaml`` for what each key does."""

    checkpoint: str | None
    which: Literal["latest", "best"]
    format: str
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
    if (kind := KINDS.get(config.format)) is not None and kind.export is not None:
        files: list[Path] = target(kind.export)(loaded, config.out)
        for file in files:
            print(f"wrote {file}")
        return files[0]
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


command = HydraCommand("export", open_group("agent", "env.kwargs"))
main = command.line(run)

if __name__ == "__main__":
    main()
