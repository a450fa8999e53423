"""Writes an agent's greedy policy as a program: ``python -m rlstack.export checkpoint=runs/<run> format=onnx``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig

from rlstack.command import hydra_command, open_group
from rlstack.config import ConfigError, build


@dataclass
class ExportConfig:
    """See ``conf/export.yaml`` for what each key does."""

    checkpoint: str | None
    which: Literal["latest", "best"]
    format: Literal["torchscript", "onnx"]
    out: str | None
    agent: dict[str, Any] | None = None


def run(cfg: DictConfig) -> None:
    """Loads a checkpoint, exports its agent and says what is where."""
    config = build(ExportConfig, cfg)
    if config.checkpoint is None:
        raise ConfigError("checkpoint: missing, give a run directory or a checkpoint file: checkpoint=runs/<run>")
    from rlstack.adapters.exporting import INPUTS, beside, export_policy
    from rlstack.training.loading import load

    loaded = load(config.checkpoint, which=config.which, agent=config.agent)
    ending = "pt" if config.format == "torchscript" else "onnx"
    folder = (loaded.run_dir or loaded.path.parent) / "exports"
    out = folder / f"{loaded.path.stem}_policy.{ending}" if config.out is None else Path(config.out)
    exported = export_policy(loaded.agent, out, config.format, frames=loaded.frames)
    if "note" in exported.description:
        print(f"note: {exported.description['note']}")
    for entry in exported.description["inputs"]:
        print(f"input {entry['name']}: {entry['dtype']} {entry['shape']}")
    output = exported.description["output"]
    print(f"output {output['name']}: {output['dtype']} {output['shape']}, {output['meaning']}")
    print(f"{exported.agreement} on {INPUTS} random inputs")
    print(f"wrote {exported.path} and {beside(exported.path)}")


main = hydra_command("export", open_group("agent"))(run)

if __name__ == "__main__":
    main()
