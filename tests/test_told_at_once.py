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
    "agent.algorithm=[1]": "agent.algorithm name [1]",
    "env=ALE/Pong-v5": "env 'ALE/Pong-v5' arena env=gymnasium",
    "agent=null": "agent 'null'",
    "curriculum=[1]": "curriculum '[1]' arena",
    "curriculum=5": "curriculum '5' arena",
    "agent=ppo debug=true collector.steps_per_batch=abc": "collector.steps_per_batch whole",
    "agent=dqn resume=complete": "agent.name resuming total_frames",
    "experiment=reference/cartpole_dqn resume=complete": "agent.name resuming",
    "env.name={a: 1}": "env.name name {'a':",
    "env.num_worlds=none": "env.num_worlds whole",
    "env.perception_noise=flase": "env.perception_noise true false 'flase'",
    "env.dtype={}": "env.dtype text {}",
    "env.action_repeat=1000000000": "env.action_repeat 1000000000 10000]",
    "total_frames=1e300": "total_frames outside",
    "threads=100000": "threads 100000",
    "device=meta": "device 'meta' cuda:<k>",
    "compile=maybe": "compile true 'auto' 'maybe'",
    "run_dir=''": "run_dir ''",
    "resume=[1]": "resume text [1]",
    "init=complte": "init complte 'complete'",
    "resume=nowhere": "nowhere run",
    "experiment=styl1": "experiment 'styl1' 'arena/style1'",
    "-m env=mine:Pole,cartpole": "env 'mine:Pole' env=mine:Pole",
    "agent=mellow": "agent 'mellow' a2c --config-dir",
    "--total-frames=1e5": "--total-frames key=value",
    "--cofnig-dir=mine": "--cofnig-dir '--config-dir'",
    "gama=0.9": "gama 'agent.gamma'",
    "resume=complete": "resume complete 1,000 total_frames",
    "resume=complete total_frames=2000 until=1000": "resume 1,000 until",
}
OF_AGENTS = {
    "agent.lrr=3": "agent.lrr 'lr_actor' 'lr_critic'",
    "agent.hidden=[abc]": "agent.hidden[0] whole 'abc'",
    "agent.epsilon={}": "agent.epsilon.kind missing 'linear'",
    "agent.noise_scale={kind: linear, start: 99, end: 0}": "agent.noise_scale 99.0 10]",
    "agent=ppo agent.lr=abc": "agent.lr number schedule 'abc'",
    "seed=1 --config-dir mine agent=odd agent.lrr=1": "agent.lrr",
}
"""What is typed, and the words that the error must have; an agent's options are checked after torch is imported."""


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


ALL = MISTAKES | OF_AGENTS
QUICK = [mistake for mistake in MISTAKES if mistake.startswith(("env.num", "resume=comp"))]


@exhaustive("mistakes", [QUICK, [mistake for mistake in ALL if mistake not in QUICK]], ids=["some", "others"])
def test_mistakes_are_told_in_one_line_without_torch(
    mistakes: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The slow cases check by command what tests of configurations check without it."""
    found = told(mistakes, tmp_path_factory)
    assert list(found) == mistakes
    for mistake, (status, errors, imported) in found.items():
        assert errors.startswith("error: ") and errors.count("\n") == 1, errors
        assert not [part for part in ALL[mistake].split() if part not in errors], errors
        assert status == 2 and (mistake in OF_AGENTS or not imported), mistake


def test_the_options_read_from_a_file_are_those_of_its_class() -> None:
    """Hydra gets them without importing the file."""
    from rlstack.agents import agent_class
    from rlstack.config.options import declared, defaults_of

    for name in sorted(path.stem for path in (conf_dir() / "agent").glob("*.yaml")):
        config = agent_class(load_group("agent", name)["algorithm"]).Config
        assert declared(config.__name__) == defaults_of(config)
