"""Compares speed with other libraries on the same work, alternately, in one process, on one thread.

    python -m experiments.benchmarks.peers [ppo sac ...] [--rounds 5]       # stable-baselines3: extra sb3

Figures are environment steps per CPU-second of collecting and learning together after a warm-up; a ratio compares two
adjacent rounds. Libraries that are not installed are skipped and named.

``ppo``, ``dqn`` and ``sac`` are stable-baselines3's default settings: PPO CartPole-v1 (8 envs, 2048 steps, batch 64, 10
epochs, 2x64 tanh), DQN CartPole-v1 (1 env, batch 32, one update every 4 steps, 2x64 relu; epsilon at its final .05 in
both), SAC Pendulum-v1 (1 env, batch 256, one update a step, 2x256 relu). ``reference`` is ``reference_ppo.py``.
``sac_bfloat16`` is the same SAC with our forward passes in bfloat16, theirs in float32; ``..._compiled`` are the same
with our updates and policy compiled (``compile=true``), after compiling. ``batched`` is ``agent=ppo
env=cartpole``. ``step`` steps 1024 worlds under random actions: our CartPole, Gymnasium's vectorised one, the same with
the return and length of each episode, which ours counts, and VMAS's scenario ``simple`` without resets. Gymnasium
computes in float64, returns the state of a world once a step (ours twice, before and after a reset), and spends a step
on each reset. Result in ``results/peers.json``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gymnasium
import torch

import rlstack
from rlstack import envs
from rlstack.agents.optimizer import Compiler
from rlstack.config import load_group
from rlstack.training.acceleration import keep_compiled_code

from . import comparing
from .reference_ppo import reference_ppo
from .speed import circumstances

RESULT = Path(__file__).parent / "results" / "peers.json"
Train = Callable[[int], None]
"""Makes this many further steps."""

PACKAGES = {name: name.replace("-", "_") for name in ("stable-baselines3", "vmas", "benchmarl", "pufferlib")}
"""Peers by the module that they need."""
CARTPOLE, PENDULUM = ("CartPole-v1", 8), ("Pendulum-v1", 1)
PPO: dict[str, Any] = {"steps_per_batch": 2048, "minibatch_size": 64, "epochs": 10, "hidden": [64, 64], "lr": 3e-4}
DQN: dict[str, Any] = {
    **{"hidden": [64, 64], "batch_size": 32, "buffer_size": 1_000_000, "learning_starts": 100, "lr": 1e-4},
    **{"steps_per_batch": 4, "frames_per_update": 4, "target_every": 10_000, "double": False, "epsilon": 0.05},
}
SAC: dict[str, Any] = {
    **{"hidden": [256, 256], "batch_size": 256, "buffer_size": 1_000_000, "random_frames": 100},
    **{"learning_starts": 100, "frames_per_update": 1},
}
WORLDS = 1024


@dataclass(frozen=True)
class Work:
    """A task that several libraries can do.

    Attributes:
        subject: name in the table.
        steps: number of steps in a round.
        ways: function of each library, ``rlstack`` first; None if it is not written for a library.
        compiles: whether the first steps compile, so that the warm-up takes a whole round.
    """

    subject: str
    steps: int
    ways: Mapping[str, Callable[[], Train] | None]
    compiles: bool = False


def learner(env: Any, name: str, compiled: bool = False, **settings: Any) -> Train:
    """Our collector and an agent."""
    agent = rlstack.make_agent(name, env, 1_000_000, **settings)
    if compiled:
        keep_compiled_code()
        agent.compile(Compiler())
    batches: Iterator[Any] = iter(rlstack.make_collector(env, agent.policy(explore=True), agent.config.steps_per_batch))
    frames = 0

    def train(steps: int) -> None:
        nonlocal frames
        goal = frames + steps
        while frames < goal:
            batch = next(batches)
            frames += batch.numel()
            agent.learn(rlstack.flatten_agents(batch, None), frames)

    return train


def ours(name: str, env: tuple[str, int], **settings: Any) -> Train:
    """In Gymnasium's environments."""
    return learner(envs.make("gymnasium", id=env[0], num_envs=env[1], seed=0), name, **settings)


def batched() -> Train:
    """The recipe for the batched CartPole."""
    recipe = load_group("recipe", "cartpole_ppo")
    return learner(envs.make("cartpole", **recipe["env"]), "ppo", **recipe["agent"])


def stable_baselines3(algorithm: str, env: tuple[str, int], **options: Any) -> Train:
    """At its defaults."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.env_util import make_vec_env

    made = make_vec_env(env[0], env[1], seed=0)
    model = getattr(sb3, algorithm)("MlpPolicy", made, seed=0, device="cpu", **options)
    return lambda steps: model.learn(steps, reset_num_timesteps=False)


def our_steps() -> Train:
    env = envs.make("cartpole", num_worlds=WORLDS)
    root = env.reset()

    def advance(steps: int) -> None:
        nonlocal root
        for _ in range(steps // WORLDS):
            _, root = env.step_and_maybe_reset(root.set("action", torch.randint(2, (WORLDS,))))

    return advance


def gymnasium_steps(statistics: bool = False) -> Train:
    env = gymnasium.make_vec("CartPole-v1", WORLDS, vectorization_mode="vector_entry_point")
    if statistics:
        env = gymnasium.wrappers.vector.RecordEpisodeStatistics(env)
    env.reset(seed=0)

    def advance(steps: int) -> None:
        for _ in range(steps // WORLDS):
            env.step(torch.randint(2, (WORLDS,)).numpy())

    return advance


def vmas_steps() -> Train:
    import vmas

    env = vmas.make_env("simple", num_envs=WORLDS, device="cpu", continuous_actions=False, seed=0)
    env.reset()

    def advance(steps: int) -> None:
        for _ in range(steps // WORLDS):
            env.step([torch.randint(5, (WORLDS, 1))])

    return advance


def beside_sb3(
    subject: str, steps: int, name: str, env: tuple[str, int], settings: dict[str, Any], **options: Any
) -> Work:
    """Ours and stable-baselines3's, and for PPO the reference."""
    ways: dict[str, Callable[[], Train] | None] = {
        "rlstack": partial(ours, name, env, **settings),
        "stable-baselines3": partial(stable_baselines3, name.upper(), env, **options),
    }
    ways |= {"reference": partial(reference_ppo, *env)} if name == "ppo" else {}
    return Work(subject, steps, ways, settings.get("compiled", False))


_PPO = "PPO, CartPole-v1, 8 envs, batch 64, 10 epochs"
_DQN = "DQN, CartPole-v1, 1 env, batch 32, an update every 4 steps"
_SAC = "SAC, Pendulum-v1, 1 env, batch 256, an update every step"
_DQN_ENV = ("CartPole-v1", 1)

WORK = {
    "ppo": beside_sb3(_PPO, 16_384, "ppo", CARTPOLE, PPO),
    "ppo_compiled": beside_sb3("the same, ours compiled", 16_384, "ppo", CARTPOLE, {**PPO, "compiled": True}),
    "dqn": beside_sb3(_DQN, 8_000, "dqn", _DQN_ENV, DQN, exploration_initial_eps=0.05),
    "dqn_compiled": beside_sb3(
        "the same, ours compiled", 8_000, "dqn", _DQN_ENV, {**DQN, "compiled": True}, exploration_initial_eps=0.05
    ),
    "sac": beside_sb3(_SAC, 500, "sac", PENDULUM, SAC),
    "sac_bfloat16": beside_sb3("the same, ours in bfloat16", 500, "sac", PENDULUM, {**SAC, "precision": "bfloat16"}),
    "sac_compiled": beside_sb3("the same, ours compiled", 1000, "sac", PENDULUM, {**SAC, "compiled": True}),
    "sac_compiled_bfloat16": beside_sb3(
        "the same, ours in bfloat16 and compiled",
        1000,
        "sac",
        PENDULUM,
        {**SAC, "compiled": True, "precision": "bfloat16"},
    ),
    "batched": Work(
        "PPO, our batched CartPole (`agent=ppo env=cartpole`)",
        131_072,
        {"rlstack": batched, "pufferlib": None, "benchmarl": None},
    ),
    "step": Work(
        "1024 small worlds under random actions (our CartPole)",
        300 * WORLDS,
        {
            "rlstack": our_steps,
            "gymnasium": gymnasium_steps,
            "gymnasium, with statistics": partial(gymnasium_steps, statistics=True),
            "vmas": vmas_steps,
        },
    ),
}


def compare(work: Work, rounds: int) -> dict[str, Any]:
    """Measures the installed libraries in steps per CPU-second, with our ratio to each, and names the missing ones."""
    there = {name: way() for name, way in work.ways.items() if way is not None and installed(name)}
    for train in there.values():
        train(work.steps if work.compiles else work.steps // 4)
    speeds: dict[str, list[float]] = {name: [] for name in there}
    for turn in range(rounds):
        for name in list(there) if turn % 2 else list(there)[::-1]:
            before = time.process_time()
            there[name](work.steps)
            speeds[name].append(work.steps / (time.process_time() - before))
    ratios = {
        name: _spread([a / b for a, b in zip(speeds["rlstack"], values)])
        for name, values in speeds.items()
        if name != "rlstack"
    }
    absent = {name: "not measured" if installed(name) else "not installed" for name in work.ways if name not in there}
    return {"speeds": {name: _spread(values) for name, values in speeds.items()}, "ratios": ratios, "absent": absent}


def markdown(result: Mapping[str, Any]) -> str:
    """Formats the tasks of a result file for a page, one row per peer."""
    lines = ["| work | rlstack | peer | ratio | measured on |", "|---|---|---|---|---|"]
    for name, work in WORK.items():
        if name not in result["work"]:
            continue
        found = result["work"][name]
        ours = f"{found['speeds']['rlstack']['median']:,.0f}"
        day = ", ".join([found["date"][:10], *filter(None, [found.get("instruction_set")])])
        rows = [
            (
                f"{peer}: {found['speeds'][peer]['median']:,.0f}",
                "{median:.2f} ({least:.2f} to {most:.2f})".format(**ratio),
            )
            for peer, ratio in found["ratios"].items()
        ]
        for place, (peer, ratio) in enumerate(rows or [("", "")]):
            lines.append(f"| {'' if place else work.subject} | {'' if place else ours} | {peer} | {ratio} | {day} |")
    return "\n".join(lines) + "\n"


def installed(name: str) -> bool:
    """Whether a peer can be imported."""
    return name not in PACKAGES or importlib.util.find_spec(PACKAGES[name]) is not None


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def lines(name: str, result: Mapping[str, Any]) -> list[str]:
    """Formats a result for the terminal, one row per library."""
    shown = []
    for way, speed in result["speeds"].items():
        ratio = result["ratios"].get(way)
        beside = f"ratio {ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['most']:.2f})" if ratio else ""
        spread = f"{speed['median']:>11,.0f} ({speed['least']:,.0f} to {speed['most']:,.0f})"
        shown.append(f"{name:<13} {way:<18} {spread:<40} {beside}".rstrip())
    return shown + [f"{name:<13} {way:<18} {why}" for way, why in result["absent"].items()]


def versions() -> dict[str, str]:
    """Returns the versions of the installed peers and of Gymnasium."""
    found = {}
    for name in ("gymnasium", *PACKAGES):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="*", metavar="WORK", help=f"what to measure: {', '.join(WORK)} (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULT)
    comparing.add_options(parser)
    options = parser.parse_args(arguments)
    if unknown := set(options.work) - set(WORK):
        parser.error(f"unknown work {', '.join(sorted(unknown))}; known: {', '.join(WORK)}")
    before = comparing.earlier(options)
    torch.set_num_threads(1)
    names = options.work or list(WORK)
    # Tasks that are not measured keep their last figures.
    kept = json.loads(options.out.read_text())["work"] if options.out.is_file() else {}
    result = {**circumstances("peers"), **versions(), "unit": "environment steps per CPU-second", "work": kept}
    when = {key: result[key] for key in ("date", "instruction_set")}
    for name in names:
        result["work"][name] = {**compare(WORK[name], options.rounds), **when}
        print("\n".join(lines(name, result["work"][name])), flush=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    measured = {**result, "work": {name: result["work"][name] for name in names}}
    return comparing.verdict(measured, before, options.fail_if_slower)


if __name__ == "__main__":
    raise SystemExit(main())
