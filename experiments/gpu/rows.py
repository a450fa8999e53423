"""The rows of the GPU command, the most important first."""

from __future__ import annotations

from typing import Any

from rlstack.agents import agent_class
from rlstack.agents.choosing import Choosing
from rlstack.config import conf_dir, load_group

from .runner import Row

_HERE = "experiments.gpu"
WORLDS: dict[str, dict[str, Any]] = {
    "marinenav": {"max_steps": 6},
    "echelon": {"max_steps": 6, "maps": 8, "blue": 2, "red": 2},
    "arena": {"max_steps": 6},
    "rocket": {"max_seconds": 0.4},
    "cartpole": {"max_steps": 6},
}
"""Options with which episodes end within the compared steps."""
_MARINENAV = ["env=marinenav", "env.max_steps=12"]
_CHOICES = [*_MARINENAV, "env.continuous_actions=false"]
_ARENA = ["env=arena", "env.max_steps=12"]
_BOX = ["env=echelon", "env.actions=box"]
_FLEET: dict[str, Any] = {
    **{"name": "marinenav", "options": {"num_robots": 5, "num_obstacles": 4}, "unit": "robot-steps/s", "each": 5}
}
_MEMORY = "agent.recurrent={kind: lstm, size: 32, sequence_length: 4}"


def all_rows() -> list[Row]:
    """Returns checks, then speeds, then both for compiled code, which takes a minute each to compile."""
    return [*checks(), *speeds(), *compiled()]


def checks() -> list[Row]:
    """Returns checks of every world and agent, of waits, resuming and CUDA graphs."""
    rows = [_check(f"world {name}", "world", name=name, options=options) for name, options in WORLDS.items()]
    rows += [_check(f"update {name}", "agent", overrides=overrides) for name, overrides in agents().items()]
    steady = [["agent=ppo", f"env={world}"] for world in ("marinenav", "echelon", "arena", "rocket", "cartpole")]
    steady += [[f"agent={name}", *_MARINENAV] for name in ("sac", "acqn")] + [["agent=dqn", *_ARENA]]
    rows += [
        _check(f"no waits {agent[6:]} {world[4:]}", "waiting_for_nothing", overrides=[agent, world, *more])
        for agent, world, *more in steady
    ]
    rows += [
        _check("resume ppo cartpole", "resumed", overrides=["agent=ppo", "env=cartpole", "env.num_worlds=16"]),
        _check("resume sac marinenav", "resumed", overrides=["agent=sac", *_MARINENAV, "env.num_worlds=8"]),
    ]
    quick = {"ppo": _MARINENAV, "dqn": _CHOICES, "td3": _MARINENAV}
    rows += [
        _check(f"CUDA graphs {name}", "quick_updates", overrides=[f"agent={name}", *world], compiles=False)
        for name, world in quick.items()
    ]
    return rows


def agents() -> dict[str, list[str]]:
    """Returns the overrides that check each learning agent of ``conf/agent``, and some of their options."""
    names = sorted(path.stem for path in (conf_dir() / "agent").glob("*.yaml") if path.stem != "legacy")
    found = {name: [f"agent={name}", *_world_of(name)] for name in names}
    return found | {
        "ppo, choices": ["agent=ppo", *_ARENA],
        "ppo, memory": ["agent=ppo", *_MARINENAV, _MEMORY],
        "sac, choices": ["agent=sac", *_CHOICES],
    }


def _world_of(agent: str) -> list[str]:
    if agent == "ppo_published":  # the recipe of Arena's original learner
        return _ARENA
    if agent == "cql":  # TorchRL's loss takes observations of one tensor
        return _BOX
    options = load_group("agent", agent)
    judged = {network["kind"] for network in options.get("networks", {}).values()}
    chooses = issubclass(agent_class(options["algorithm"]), Choosing) or "action_values" in judged
    return _CHOICES if chooses else _MARINENAV


def speeds() -> list[Row]:
    """Returns measurements of worlds alone, of training and of updates."""
    eager = ["compile=false"]
    return [
        _speed("marinenav alone, 8,192 worlds", "stepping", num_worlds=8192, **_FLEET),
        _speed("marinenav alone, 65,536 worlds", "stepping", num_worlds=65_536, **_FLEET),
        _speed(
            "marinenav acqn trained", "training", overrides=["agent=acqn", "env=marinenav", *eager], unit="frames/s"
        ),
        _speed("cartpole ppo trained", "training", overrides=["agent=ppo", "env=cartpole", *eager], unit="frames/s"),
        _speed(
            "cartpole ppo trained, 8,192 worlds",
            "training",
            overrides=["agent=ppo", "env=cartpole", "env.num_worlds=8192", "agent.minibatch_size=16384", *eager],
            unit="frames/s",
        ),
        _speed("sac updates", "updating", name="sac"),
        _speed("td3 updates", "updating", name="td3"),
        _speed("sac updates, CUDA graphs", "updating", name="sac", how="graphs"),
        _speed("td3 updates, CUDA graphs", "updating", name="td3", how="graphs"),
        _speed("echelon ppo trained", "training", overrides=["agent=ppo", "env=echelon", *eager], unit="frames/s"),
        _speed("arena ppo trained", "training", overrides=["agent=ppo", "env=arena", *eager], unit="frames/s"),
        _speed("rocket ppo trained", "training", overrides=["agent=ppo", "env=rocket", *eager], unit="frames/s"),
    ]


def compiled() -> list[Row]:
    """Returns the rows that need a compiler."""
    fleet = {**_FLEET, "options": {**_FLEET["options"], "compiled": True}}
    overrides = ["agent=dqn", *_CHOICES]
    return [
        _check("compiled update dqn", "quick_updates", 120, overrides=overrides, compiles=True),
        _check("compiled world marinenav", "quick_world", 120, name="marinenav", options=WORLDS["marinenav"]),
        _speed("sac updates, compiled", "updating", 120, name="sac", how="compiled"),
        _speed("td3 updates, compiled", "updating", 120, name="td3", how="compiled"),
        _speed("marinenav alone, compiled, 65,536 worlds", "stepping", 120, num_worlds=65_536, **fleet),
    ]


def _check(title: str, function: str, limit: float = 60.0, **arguments: Any) -> Row:
    return Row(title, "correctness", f"{_HERE}.correctness:{function}", arguments, limit)


def _speed(title: str, function: str, limit: float = 60.0, **arguments: Any) -> Row:
    return Row(title, "speed", f"{_HERE}.speed:{function}", arguments, limit)
