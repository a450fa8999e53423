"""Run directories written by hand, as small as they can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

HEADER = "frames,train/return,eval/success,eval/success_low,eval/success_high,eval/return,time/seconds,time/cpu_seconds"
ROWS = ("100,1.0,,,,,10,9", "100,,0.5,0.2,0.8,5.0,12,11", "200,2.0,,,,,20,18", "200,,0.75,0.4,0.9,7.0,26,23")


def config(seed: int = 0, lr: float = 0.1, agent: str = "ppo", **more: Any) -> dict[str, Any]:
    settings = {"name": agent, "lr": lr, "recurrent": None}
    return {"agent": settings, "env": {"name": "toy"}, "seed": seed, "total_frames": 200, "run_dir": "x", **more}


def make_run(folder: Path, settings: dict[str, Any] | None, rows: tuple[str, ...] = ROWS, header: str = HEADER) -> Path:
    folder.mkdir(parents=True)
    if settings is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    (folder / "metrics.csv").write_text("\n".join([header, *rows, ""]))
    return folder


def make_evaluation(path: Path, returns: list[float], success: float = 0.5, level: str = "all") -> Path:
    row = {"level": level, "episodes": len(returns), "success": success, "success_low": 0.1, "success_high": 0.9}
    row |= {"return": sum(returns) / len(returns), "kills": 3.0}
    episodes = [{"level": level, "return": value} for value in returns]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"levels": [row], "episodes": episodes, "versions": {"torch": "9.9"}}))
    return path


def score_rows(value: float, frames: int = 200) -> tuple[str, ...]:
    return (f"100,0,0.1,0,1,{value / 2},5,5", f"{frames},0,{value},0,1,{value},10,10")
