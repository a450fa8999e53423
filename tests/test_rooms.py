"""Rooms that can be taken off: without one of them the rest imports, trains, evaluates and reports."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "rlstack"

COMMON = """
import importlib, pkgutil, sys
import rlstack
for module in pkgutil.walk_packages(rlstack.__path__, "rlstack."):
    left_out = module.name.endswith("__main__") or module.name.startswith(("rlstack.sweeps.plugins", "rlstack.zoo"))
    if not left_out and not module.name.startswith(sys.argv[2]):
        importlib.import_module(module.name)
assert all(module.__file__.startswith(sys.argv[1]) for name, module in sys.modules.items() if name == "rlstack")
small = ["agent.hidden=[8]", "env.num_worlds=4", "eval.episodes=2", "logger=csv", "device=cpu", "threads=1"]
rlstack.train("agent=ppo", "env=cartpole", "total_frames=400", "agent.steps_per_batch=50", "run_dir=run", *small)
rlstack.evaluate(checkpoint="run", episodes=2, video=False)
"""
REPORT = """
rlstack.report("run")
"""
MISSING = {
    "adapters": ('rlstack.load_policy("sb3:model.zip", rlstack.envs.make("cartpole", num_worlds=1))', "sb3"),
    "play": ('rlstack.league("rank", folder="league")', "rlstack.play"),
    "sweeps": ('importlib.import_module("rlstack.sweeps.search")', "rlstack.sweeps"),
    "diagnostics": ('rlstack.explain("speed", "agent=ppo", "env=cartpole")', "rlstack.diagnostics"),
    "reporting": ('rlstack.report("run")', "rlstack.reporting"),
    "envs/arena": ('rlstack.envs.make("arena")', "unknown world 'arena'"),
    "envs/marinenav": ('rlstack.envs.make("marinenav")', "unknown world 'marinenav'"),
    "envs/rocket": ('rlstack.envs.make("rocket")', "unknown world 'rocket'"),
    "envs/echelon": ('rlstack.envs.make("echelon")', "unknown world 'echelon'"),
    "envs/gymnasium": ('rlstack.envs.make("gymnasium")', "unknown world 'gymnasium'"),
    "envs/pettingzoo": ('rlstack.envs.make("pettingzoo")', "unknown world 'pettingzoo'"),
    "envs/torchrl": ('rlstack.envs.make("torchrl")', "unknown world 'torchrl'"),
    "agents/tqc.py": ('rlstack.train("agent=tqc", "env=cartpole")', "rlstack.agents.tqc"),
    "agents/torchrl.py": ('rlstack.train("agent=torchrl_ppo", "env=cartpole")', "rlstack.agents.torchrl"),
    "agents/pqn.py": ('rlstack.train("agent=pqn", "env=cartpole")', "rlstack.agents.pqn"),
}
"""What is removed: an expression that needs it, and what its error names."""
BUILT_ON = {"envs/torchrl": ("envs/mjlab", "envs/playground")}
"""Rooms that are removed with another one, which they extend."""


@pytest.mark.slow
@pytest.mark.parametrize("room", MISSING)
def test_the_rest_works_without(room: str, tmp_path: Path) -> None:
    copy = tmp_path / "rlstack"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "zoo"))
    removed = copy / room
    for part in (removed, *(copy / other for other in BUILT_ON.get(room, ()))):
        part.unlink() if part.is_file() else shutil.rmtree(part)
    needing, named = MISSING[room]
    report = "" if room == "reporting" else REPORT
    check = f"try:\n    {needing}\nexcept Exception as error:\n    print('missing:', error)\n"
    program = f"{COMMON}{report}{check}"
    command = [sys.executable, "-c", program, str(tmp_path), f"rlstack.adapters.{removed.name}"]  # the world's adapter
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("missing:")]
    assert named in line
    assert room == "reporting" or (tmp_path / "run" / "report.html").is_file()
