"""Mistakes that can be found without torch are reported before its import, which takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from rlstack.config import conf_dir, load_group
from tests.exhaustive import exhaustive

SCRIPT = """
import io, json, sys
from contextlib import redirect_stderr
from rlstack.__main__ import main
told = {}
for words in json.loads(sys.argv[1]):
    sys.argv, errors = ["rlstack", *words], io.StringIO()
    try:
        with redirect_stderr(errors):
            main()
        status = 0
    except SystemExit as end:
        status = end.code
    imported = [name for name in ("torch", "torchrl", "tensordict") if name in sys.modules]
    told[" ".join(words[1:])] = [status, errors.getvalue(), imported]
print(json.dumps(told))
"""
MISTAKES = {
    "agent.lrr=3": "agent.lrr: unknown key, did you mean 'lr_actor' or 'lr_critic'?",
    "agent.hidden=[abc]": "agent.hidden[0]: expected a whole number such as 64 or 1e6",
    "agent.epsilon={}": "agent.epsilon.kind: missing, expected one of 'constant', 'linear', ",
    "eval={}": "eval: {} changes nothing, it has: every, episodes, seed, max_steps",
    "agent.noise_scale={kind: linear, start: 99, end: 0}": "agent.noise_scale: 99.0 is outside [0, 10] (actions lie in",
    "agent.algorithm=[1]": "agent.algorithm: expected a name, got [1]",
    "env=ALE/Pong-v5": "env: no option 'ALE/Pong-v5', available: arena, ",
    "agent=null": "agent: no option 'null'",
    "curriculum=[1]": "curriculum: no option '[1]', available: arena, echelon, marinenav, rocket",
    "curriculum=5": "curriculum: no option '5', available: arena, echelon, marinenav, rocket",
    "agent=ppo debug=true collector.steps_per_batch=abc": "collector.steps_per_batch: expected a whole number",
    "agent=dqn resume=complete": "agent.name: cannot change when resuming; allowed: total_frames, until, ",
    "experiment=reference/cartpole_dqn resume=complete": "agent.name: cannot change when resuming; allowed: total_",
    "env.name={a: 1}": "env.name: expected a name, got {'a': 1}",
    "env.num_worlds=none": "env.num_worlds: expected a whole number such as 64 or 1e6",
    "env.max_steps=abc": "env.max_steps: expected a whole number such as 64 or 1e6, got 'abc' (str)",
    "env.perception_noise=flase": "env.perception_noise: expected true or false, got 'flase' (str)",
    "env.dtype={}": "env.dtype: expected text, got {} (dict)",
    "env.action_repeat=1000000000": "env.action_repeat: 1000000000 is outside [1, 10000]",
    "agent=ppo agent.lr=abc": "agent.lr: expected a number or a schedule such as {kind: linear, start: 1.0e-3, end: 0}",
    "total_frames=abc": "total_frames: expected a whole number such as 64 or 1e6, got 'abc'",
    "total_frames=1e300": "total_frames: 1e+300 is outside [1, ",
    "threads=100000": "threads: 100000 is outside [1, ",
    "device=meta": "device: 'meta' is unknown, allowed: auto, cpu, cuda, cuda:<k>",
    "compile=maybe": "compile: expected true or false or one of 'auto', got 'maybe' (str)",
    "debug=abc": "debug: expected true or false or a whole number such as 64 or 1e6",
    "run_dir=''": "run_dir: '' names no folder",
    "resume=[1]": "resume: expected text or null, got [1] (list)",
    "init=complte": "init: complte does not exist, did you mean 'complete'?",
    "resume=nowhere": "nowhere: not a run directory",
    "experiment=arena/styl1": "experiment: no option 'arena/styl1', did you mean 'arena/style1'? available: arena/st",
    "experiment=styl1": "experiment: no option 'styl1', did you mean 'arena/style1'?",
    "-m env=mine:Pole,cartpole": "env: 'mine:Pole' is not the name of a world; name your own class alone",
    "agent=mellow": "agent: no option 'mellow', available: a2c, ",
    "--agent ppo": "--agent: unknown flag, write agent=ppo",
    "--total-frames=1e5": "--total-frames: unknown flag, write total_frames=1e5",
    "--debug": "--debug: unknown flag, write debug=<value>",
    "--lr 1e-3": "--lr: unknown flag, write agent.lr=1e-3",
    "--learning-rate 1e-3": "--learning-rate: unknown flag, write agent.lr=1e-3",
    "--n-envs=8 agent=ppo": "--n-envs: unknown flag, options have the form key=value",
    "lr=1e-3": "lr: unknown key, did you mean 'agent.lr_actor' or 'agent.lr_critic'?",
    "agent=ppo learning_rate=1e-3": "learning_rate: unknown key, did you mean 'agent.lr'?",
    "agent=ppo agent.learning_rate=1e-3": "agent.learning_rate: unknown key, did you mean 'lr'?",
    "env=gymnasium num_worlds=8": "num_worlds: unknown key, did you mean 'env.num_envs'?",
    "gama=0.9": "gama: unknown key, did you mean 'agent.gamma'?",
    "seeds=1": "seeds: unknown key, did you mean 'seed'?",
    "--cofnig-dir=mine": "--cofnig-dir: unknown flag, did you mean '--config-dir'?",
    "seed=1 --config-dir mine agent=odd agent.lrr=1": "agent.lrr: unknown key",
    "resume=complete": "resume: the run is complete (1,000 frames); raise total_frames to continue",
    "resume=complete total_frames=2000 until=1000": "resume: the run is at 1,000 frames; raise until, or set",
}


def told(mistakes: Iterable[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, list[str]]]:
    """Returns for each mistake the exit status, the output, and the modules imported by then."""
    folder = tmp_path_factory.mktemp("told")
    (folder / "mine" / "agent").mkdir(parents=True)
    (folder / "mine" / "agent" / "odd.yaml").write_text("defaults: [acqn, _self_]\nname: odd\n")
    (folder / "complete" / "checkpoints").mkdir(parents=True)
    (folder / "complete" / "config.yaml").write_text(json.dumps(_complete()))
    (folder / "complete" / "evaluations").mkdir()
    (folder / "complete" / "evaluations" / "000000001000.json").write_text("{}")
    with zipfile.ZipFile(folder / "complete" / "checkpoints" / "checkpoint_000000001000.pt", "w") as archive:
        archive.writestr("data.pkl", b"")
    commands = [["train", *_words(mistake)] for mistake in mistakes]
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(commands)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def _words(mistake: str) -> list[str]:
    return [mistake] if "{" in mistake else mistake.split(" ")


def _complete() -> dict[str, object]:
    from rlstack.config.groups import compose_config
    from rlstack.config.typed import resolve

    return {**resolve(compose_config("train"), ""), "total_frames": 1000}


QUICK = [mistake for mistake in MISTAKES if mistake.startswith(("agent.lrr", "agent.noise", "env.num", "resume=comp"))]


@exhaustive("mistakes", [QUICK, [mistake for mistake in MISTAKES if mistake not in QUICK]], ids=["some", "others"])
def test_mistakes_are_told_in_one_line_without_torch(
    mistakes: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The slow cases check by command what tests of configurations check without it."""
    found = told(mistakes, tmp_path_factory)
    assert list(found) == mistakes
    for mistake, (status, errors, imported) in found.items():
        assert errors.startswith(f"error: {MISTAKES[mistake]}") and errors.count("\n") == 1
        assert (status, imported) == (2, []), mistake


def test_the_shipped_agents_are_known_without_their_code() -> None:
    """The configuration classes checked before torch is imported are those of the agents."""
    from rlstack.agents import agent_class
    from rlstack.config.agents import CONFIGS

    shipped = sorted(path.stem for path in (conf_dir() / "agent").glob("*.yaml") if path.stem != "own")
    assert {load_group("agent", name)["algorithm"] for name in shipped} == set(CONFIGS)
    assert all(agent_class(name).Config is config for name, config in CONFIGS.items())
