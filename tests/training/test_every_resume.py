"""For every agent and world, a run that was killed and resumed ends bit for bit like one that was not."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from rlstack.agents.torchrl import WITHOUT_ROLLOUTS
from rlstack.config.allowed import granting
from rlstack.evaluation.results import Evaluation
from rlstack.runs.checkpoint import read_checkpoint, state_digest
from rlstack.training.loop import Training
from tests.agents.small_agents import ALGORITHMS, CONTINUOUS, YAMLS
from tests.exhaustive import exhaustive
from tests.faults import Killed
from tests.rehearsal import rehearsing
from tests.small_run import begun, composed, logged, reopened

RUN = [
    *("total_frames=280", "log_every=70", "eval.every=1000", "eval.episodes=1", "checkpoint.every=90"),
    *("checkpoint.keep=9", "logger=csv", "threads=1", "device=cpu"),
]
TINY = {
    **{"hidden": "[16]", "steps_per_batch": 4},
    **{"self_features": 8, "object_features": "[8]", "minibatch_size": 32, "epochs": 2, "batch_size": 16},
    **{"learning_starts": 70, "frames_per_update": 20, "buffer_size": 140, "candidates": 2, "random_frames": 35},
}
"""Of an agent's options, those that it has; the memory is smaller than the run, so that it wraps around."""
MARINENAV = ["env=marinenav", "env.num_worlds=3", "env.max_steps=20"]
DISCRETE = [*MARINENAV, "env.continuous_actions=false"]
NORMALIZED = ["agent.inputs=raw", "agent.normalize_observations=true"]
MEMORY = "agent.recurrent={kind: lstm, size: 8, sequence_length: 4}"
PROMOTED = "curriculum.advance={any: [{stage_frames: {min: 100}}]}"
ARENA = ["env=arena", "env.num_worlds=4", "env.max_steps=40"]
ROCKET = ["env=rocket", "env.num_worlds=4", "env.max_seconds=1"]
ECHELON = ["env=echelon", "env.num_worlds=2", "env.blue=2", "env.red=2", "env.max_steps=20"]

CARTPOLE, OWN = ["env=cartpole", "env.num_worlds=4"], "agent.network=tests.agents.own_network:Net"

TORCHRL = [name for name, yaml in YAMLS.items() if yaml.get("algorithm", "torchrl") == "torchrl" and name != "cql"]
"""Around TorchRL's losses, but for the one that takes no observations with keys."""
ALONE = ["~agent.networks.qvalue_network", "~agent.options.loss_function", "++agent.options.scale=2.0"]

AGENTS: dict[str, list[str]] = {
    **{name: [f"agent={name}", *(MARINENAV if name in CONTINUOUS else DISCRETE)] for name in ALGORITHMS},
    "ppo": ["agent=ppo", *MARINENAV, *NORMALIZED, "agent.normalize_rewards=true"],
    "ppo discrete": ["agent=ppo", *DISCRETE],
    "ppo recurrent": ["agent=ppo", *MARINENAV, MEMORY],
    "ppo central": ["agent=ppo", *MARINENAV, *NORMALIZED, "agent.critic=central"],
    "a2c central recurrent": ["agent=a2c", *MARINENAV, *NORMALIZED, "agent.critic=central", MEMORY],
    "a2c vtrace": ["agent=a2c", *MARINENAV, *NORMALIZED, "agent.advantage=vtrace"],
    "ppo rnd": ["agent=ppo", *MARINENAV, "agent.rnd={coefficient: 0.5}"],
    "pqn": ["agent=pqn", *DISCRETE, "agent.normalize_rewards=true"],
    "dqn": ["agent=dqn", *DISCRETE, "agent.n_step=3"],
    "dqn retrace": ["agent=dqn", *DISCRETE, "agent.n_step=3", "agent.correction=retrace"],
    "iqn retrace": ["agent=iqn", *DISCRETE, "agent.n_step=3", "agent.correction=retrace"],
    "dqn recurrent": ["agent=dqn", *DISCRETE, MEMORY],
    "a2c recurrent": ["agent=a2c", *MARINENAV, MEMORY],
    "iqn recurrent": ["agent=iqn", *DISCRETE, MEMORY.replace("}", ", burn_in: 2}")],
    **{f"{name} recurrent": [f"agent={name}", *MARINENAV, MEMORY] for name in ("sac", "td3", "ddpg", "tqc")},
    "sac": ["agent=sac", *MARINENAV, *NORMALIZED],
    "sac mirrored": ["agent=sac", *MARINENAV, "env.colregs_penalty=0", "agent.symmetry=augment"],
    "sac critic_norm": [
        "agent=sac",
        *MARINENAV,
        "agent.critic_norm=batch",
        "agent.weight_norm=true",
        "agent.layer_norm=false",
    ],
    "xqc": ["agent=xqc", *MARINENAV, "agent.critic_hidden=[16, 16]"],
    "sac discrete": ["agent=sac", *DISCRETE],
    **{name: [f"agent={name}", *(DISCRETE if "discrete" in name else MARINENAV)] for name in TORCHRL},
    "torchrl_sac": ["agent=torchrl_sac", *MARINENAV, *NORMALIZED],
    "torchrl_ppo": ["agent=torchrl_ppo", *DISCRETE],
    "own loss": ["agent=torchrl_sac", *DISCRETE, "agent.loss=tests.agents.own_loss:RewardWeightedLoss", *ALONE],
    "dqn own network": ["agent=dqn", *CARTPOLE, OWN],
    "ppo own network": ["agent=ppo", *CARTPOLE, OWN],
    "iqn own network and memory": ["agent=iqn", *CARTPOLE, OWN, MEMORY],
    "torchrl_ppo own network": ["agent=torchrl_ppo", *CARTPOLE, OWN],
    "ppo_published": ["agent=ppo_published", *ARENA, "agent.hidden=[16, 16, 8]"],
    "acqn_published": ["agent=acqn_published", *MARINENAV, "agent.hidden=[16, 16]"],
    "rainbow_published": ["agent=rainbow_published", *DISCRETE, "agent.steps_per_batch=1"],
    **{f"{name}_published": [f"agent={name}_published", *MARINENAV] for name in ("ddpg", "sac")},
    **{f"{name}_published": [f"agent={name}_published", *DISCRETE] for name in ("dqn", "iqn")},
}
WORLDS: dict[str, list[str]] = {
    "marinenav curriculum": ["agent=ppo", *MARINENAV, "curriculum=marinenav", PROMOTED],
    "arena curriculum": ["agent=ppo", *ARENA, "env.style=2", "curriculum=arena"],
    "rocket": ["agent=ppo", *ROCKET],
    "rocket opponents": ["agent=ppo", *ROCKET, "env.opponents={players: [rule, random]}"],
    "echelon": ["agent=ppo", *ECHELON],
}


def configured(*overrides: str) -> dict[str, Any]:
    """Returns the configuration of a tiny run."""
    known = composed(*overrides)["agent"]
    unused = WITHOUT_ROLLOUTS if known.get("data") == "rollout" else ()
    tiny = [f"agent.{key}={value}" for key, value in TINY.items() if key in known and key not in unused]
    return composed(*RUN, "seed=3", *tiny, *overrides)


def training(folder: Path, plain: dict[str, Any], **options: Any) -> Training:
    made = reopened(folder, plain) if folder.exists() else begun(folder, plain, **options)
    # A whole game takes longer than all the rest; test_loop.py has runs that are evaluated.
    made.evaluate = lambda: Evaluation({"return": torch.ones(1)}, ["all"], "none", {}, 0)  # type: ignore[method-assign]
    return made


def digests(folder: Path) -> dict[str, str]:
    """Returns the digest of every checkpoint of a run by its name."""
    paths = sorted((folder / "checkpoints").glob("checkpoint_*.pt"))
    return {path.name: state_digest(read_checkpoint(path)) for path in paths}


def killed(run: Training, frames: int) -> None:
    """Executes a run up to the first update after so many frames."""
    learn = run.agent.learn

    def deadly(batch: Any, now: int) -> Any:
        if now > frames:
            raise Killed
        return learn(batch, now)

    run.agent.learn = deadly  # type: ignore[method-assign]
    with pytest.raises(Killed):
        run.execute()


def resumed(folder: Path, plain: dict[str, Any]) -> Training:
    torch.manual_seed(12345)  # whatever the new process did before must not matter
    run = training(folder, plain)
    with granting(plain):  # as the command that resumes allows what it names
        run.restore()
    assert 0 < run.frames < 280
    run.execute()
    return run


QUICK = [("ppo", False), ("dqn recurrent", False), ("dqn own network", True)]  # acqn: see test_loop.py
RECORDED = ("dqn own network", "ppo own network", "acqn", "sac", "rainbow", "ppo_published", "rocket", "echelon")
"""Some in every world, which are also run as on a GPU, where steps and updates are recorded."""
EVERY = [*((case, False) for case in (*AGENTS, *WORLDS)), *((case, True) for case in RECORDED)]


@exhaustive(("case", "records"), sorted(EVERY, key=lambda each: each not in QUICK), quick=len(QUICK))
def test_killed_and_resumed_is_the_same_run(
    case: str, records: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = configured(*{**AGENTS, **WORLDS}[case])
    with rehearsing(monkeypatch) if records else nullcontext():
        check_resumed(plain, tmp_path)


def check_resumed(plain: dict[str, Any], tmp_path: Path) -> None:
    straight = training(tmp_path / "straight", plain)
    straight.execute()
    wanted = digests(tmp_path / "straight")
    assert len(set(wanted.values())) == len(wanted) >= 3 and straight.digest == wanted[max(wanted)]
    killed(training(tmp_path / "killed", plain), 200)
    before = digests(tmp_path / "killed")
    assert before and before == {name: wanted[name] for name in before}, "the same seed gives another run"
    again = resumed(tmp_path / "killed", plain)
    assert again.agent.updates == straight.agent.updates > 0
    assert digests(tmp_path / "killed") == wanted and again.digest == straight.digest
    assert logged(tmp_path / "killed") == logged(tmp_path / "straight")


@pytest.mark.slow
def test_what_cannot_be_saved_begins_anew_in_the_same_way(tmp_path: Path) -> None:
    """Gymnasium's environments cannot be saved: a resumed run begins new episodes, the same at each resumption."""
    plain = configured("agent=dqn", "env=gymnasium", "env.id=CartPole-v1", "env.num_envs=4", "env.workers=0")
    ends = []
    for name in ("straight", "again", "killed", "killed again"):
        run = training(tmp_path / name, plain)
        if name in ("straight", "again"):
            run.execute()
        else:
            killed(run, 200)
            run = resumed(tmp_path / name, plain)
        ends.append(run.digest)
    assert ends[0] == ends[1] and ends[2] == ends[3] and ends[0] != ends[2]


def test_a_digest_tells_every_bit_apart() -> None:
    state = {"agent": [torch.zeros(2), 1], "env": {"c": torch.ones(1, dtype=torch.bfloat16)}, "best_rank": [1.0]}
    same = {"env": {"c": torch.ones(1, dtype=torch.bfloat16)}, "agent": [torch.zeros(2), 1], "best_rank": [2.0]}
    assert state_digest(state) == state_digest(same) and len(state_digest(state)) == 64
    others: list[dict[str, Any]] = [
        *[{**state, "agent": [torch.zeros(2), 1.0]}, {**state, "agent": [torch.zeros(1, 2), 1]}],
        *[{**state, "agent": [torch.tensor([0.0, -0.0]), 1]}, {**state, "agent": (torch.zeros(2), 1)}],
        *[{**state, "agent": [torch.zeros(2).double(), 1]}, {"agent": state["agent"]}],
    ]
    assert len({state_digest(other) for other in [state, *others]}) == len(others) + 1
