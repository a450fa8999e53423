"""The rows of the GPU command, the most important first."""

from __future__ import annotations

from typing import Any

from rlstack.config import conf_dir

from .runner import Row

_HERE = "experiments.gpu"
MACHINE = Row("machine", "machine", f"{_HERE}.machine:machine", limit=120.0)
WORLDS: dict[str, dict[str, Any]] = {
    "rocket": {"max_seconds": 0.2},
    "echelon": {"max_steps": 3, "maps": 8, "blue": 2, "red": 2},
    "marinenav": {"max_steps": 6},
    "arena": {"max_steps": 6},
    "cartpole": {"max_steps": 6},
}
"""Options with which episodes end within the compared steps; the slowest world comes first."""
_MARINENAV = ["env=marinenav", "env.max_steps=12"]
_CHOICES = [*_MARINENAV, "env.continuous_actions=false"]
_ARENA = ["env=arena", "env.max_steps=12"]
_FLEET: dict[str, Any] = {
    **{"name": "marinenav", "options": {"num_robots": 5, "num_obstacles": 4}},
    **{"num_worlds": 65_536, "unit": "robot-steps/s", "each": 5},
}
_MEMORY = "agent.recurrent={kind: lstm, size: 32, sequence_length: 4}"
_MANY = [
    *("agent=ppo", "env=cartpole", "env.num_worlds=8192", "agent.minibatch_size=16384"),
    *("total_frames=1_000_000_000", "log_every=50_000_000"),
]
_FOUR = [*_MANY, "agent.minibatch_size=65536", "agent.epochs=4", "agent.steps_per_batch=32"]
"""32 steps, then 4 epochs of 4 minibatches."""


_SOLVED = ["agent=ppo", "env=cartpole", "eval.episodes=100"]
_CROSSED = ["experiment=marinenav/gpu", "eval.episodes=50", "compile=false"]


def _crowd(world: str, worlds: int, steps: int) -> list[str]:
    """Returns the overrides of a training in many worlds: some steps, then 4 epochs of large minibatches."""
    sizes = [f"env.num_worlds={worlds}", f"agent.steps_per_batch={steps}", "agent.epochs=4"]
    minibatch = f"agent.minibatch_size={min(max(worlds * steps // 4, 16_384), 65_536)}"
    return ["agent=ppo", f"env={world}", *sizes, minibatch, "total_frames=1_000_000_000", "log_every=50_000_000"]


def all_rows() -> list[Row]:
    """Returns checks, then speeds."""
    return [*checks(), *speeds()]


def checks() -> list[Row]:
    """Returns checks of every world and agent, of waits, resuming, CUDA graphs and compiled code."""
    rows = [_check(f"world {name}", "world", name=name, options=options) for name, options in WORLDS.items()]
    rows += [
        _check("resume ppo cartpole", "resumed", overrides=["agent=ppo", "env=cartpole", "env.num_worlds=16"]),
        _check("resume sac marinenav", "resumed", overrides=["agent=sac", *_MARINENAV, "env.num_worlds=8"]),
        _check("seeds ppo cartpole", "many_seeds", overrides=["agent=ppo", "env=cartpole", "env.num_worlds=16"]),
        _check("seeds ppo recipe", "many_seeds", overrides=["agent=ppo", "env=cartpole"], frames=200_000, small=False),
        _check("seeds sac marinenav", "many_seeds", overrides=["agent=sac", *_MARINENAV, "env.num_worlds=8"]),
    ]
    for name, overrides in agents().items():
        # A number of TorchRL's loss is in float32 whatever the networks are in.
        more = {"dtypes": ("float32",)} if name == "cql" else {}
        rows.append(_check(f"update {name}", "agent", overrides=overrides, **more))
    steady = [["agent=ppo", f"env={world}"] for world in ("marinenav", "echelon", "arena", "rocket", "cartpole")]
    steady += [[f"agent={name}", *_MARINENAV] for name in ("sac", "acqn")] + [["agent=dqn", *_ARENA]]
    rows += [
        _check(f"no waits {agent[6:]} {world[4:]}", "waiting_for_nothing", overrides=[agent, world, *more])
        for agent, world, *more in steady
    ]
    rows += [_check(f"recorded {name}", "recorded", 90, **arguments) for name, arguments in _recorded().items()]
    return [
        *rows,
        _check("compiled update dqn", "compiled_updates", 120, overrides=["agent=dqn", *_CHOICES]),
        _check("compiled world marinenav", "compiled_world", 120, name="marinenav", options=WORLDS["marinenav"]),
    ]


def agents() -> dict[str, list[str]]:
    """Returns the overrides that check each learning agent of ``conf/agent``, and some of their options."""
    names = sorted(path.stem for path in (conf_dir() / "agent").glob("*.yaml") if path.stem != "legacy")
    return {name: [f"agent={name}"] for name in names} | {
        "ppo choices": ["agent=ppo", *_ARENA],
        "ppo memory": ["agent=ppo", *_MARINENAV, _MEMORY],
        "sac choices": ["agent=sac", *_CHOICES],
    }


def _recorded() -> dict[str, dict[str, Any]]:
    """Returns runs whose replays are compared with what is computed: every world, and agents that are recorded."""
    few = "env.num_worlds=16"
    worlds: dict[str, dict[str, Any]] = {
        "ppo rocket": {
            "overrides": ["env=rocket", few, "env.max_seconds=0.4", "agent.steps_per_batch=4"],
            "frames": 1024,
        },
        "ppo echelon": {"overrides": ["env=echelon", few, "env.max_steps=12"], "frames": 4096},
        "ppo arena": {"overrides": [*_ARENA, few]},
        "ppo arena stacked": {"overrides": [*_ARENA, few, "env.action_repeat=2", "env.frame_stack=2"]},
        "ppo opponents": {
            "overrides": ["env=echelon", few, "env.max_steps=12", "env.opponents={players: [self, heuristic]}"],
            "frames": 4096,
        },
        "ppo cartpole": {"overrides": ["env=cartpole", few]},
        "ppo memory": {"overrides": [*_MARINENAV, few, _MEMORY]},
    }
    found = {name: {**more, "overrides": ["agent=ppo", *more["overrides"]]} for name, more in worlds.items()}
    names = "a2c acqn crossq ddpg dqn iqn ppo pqn qrdqn rainbow sac td3 torchrl_ppo torchrl_sac tqc"
    return found | {name: {"overrides": [f"agent={name}", few, "env.max_steps=12"]} for name in names.split()}


def speeds() -> list[Row]:
    """Returns measurements of worlds alone, of training and of updates, with eager kernels and with compiled ones.

    Their seconds are those of an H100, and of compiled ones what is left once their code has been compiled.
    """

    def both(title: str, function: str, eager: float, compiled: float, **arguments: Any) -> tuple[Row, Row]:
        plain = _speed(title, function, eager, compiles=False, **arguments)
        return plain, _speed(f"{title} compiled", function, compiled, compiles=True, **arguments)

    cartpole, cartpole_compiled = both("cartpole ppo 8192 worlds", "training", 8, 15, overrides=_FOUR)
    alone, alone_compiled = both("marinenav alone 65536 worlds", "stepping", 8, 20, **_FLEET)
    sac, sac_compiled = both("sac updates", "updating", 5, 10, name="sac")
    td3, td3_compiled = both("td3 updates", "updating", 5, 10, name="td3")
    acqn, acqn_compiled = both("marinenav acqn", "training", 8, 25, overrides=["experiment=marinenav/gpu"])
    arena, arena_compiled = both("arena ppo", "training", 9, 25, overrides=_crowd("arena", 8192, 32))
    echelon, echelon_compiled = both("echelon ppo", "training", 15, 40, overrides=_crowd("echelon", 2048, 8))
    rocket, rocket_compiled = both("rocket ppo", "training", 20, 290, overrides=_crowd("rocket", 16_384, 4))
    solved = _speed("cartpole ppo solved", "solving", 14, overrides=_SOLVED, metric="eval/return", wanted=475.0)
    crossed = {"overrides": _CROSSED, "metric": "eval/success", "wanted": 0.99, "frozen": True}
    free = [
        _speed(f"{name} not deterministic", function, seconds, compiles=False, **more)
        for name, function, seconds, more in (
            ("cartpole ppo 8192 worlds", "training", 8, {"overrides": [*_FOUR, "deterministic=false"]}),
            ("marinenav acqn", "training", 8, {"overrides": ["experiment=marinenav/gpu", "deterministic=false"]}),
            ("sac updates", "updating", 5, {"name": "sac", "deterministic": False}),
        )
    ]
    return [
        *(cartpole, cartpole_compiled, solved, alone, alone_compiled, sac, td3, arena, rocket, echelon),
        _speed("marinenav acqn solved", "solving", 100, **crossed),
        _speed("cartpole ppo 8 seeds", "many_seeds", 20, overrides=["agent=ppo", "env=cartpole"]),
        *(arena_compiled, echelon_compiled, acqn, acqn_compiled, sac_compiled, td3_compiled, *free),
        *both("cartpole ppo 8192 worlds small minibatches", "training", 6, 15, overrides=_MANY),
        rocket_compiled,
    ]


def _check(title: str, function: str, limit: float = 60.0, **arguments: Any) -> Row:
    return Row(title, "correctness", f"{_HERE}.correctness:{function}", arguments, limit)


def _speed(title: str, function: str, seconds: float, **arguments: Any) -> Row:
    limit = max(45.0, 2 * seconds, 240.0 if arguments.get("compiles") else 0.0)
    return Row(title, "speed", f"{_HERE}.speed:{function}", arguments, limit, seconds)
