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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import torch

import rlstack
from experiments.results import markdown, saved
from rlstack import envs
from rlstack.agents.optimizer import Compiler
from rlstack.config import load_group
from rlstack.envs.foundation.files import write_json
from rlstack.training.acceleration import keep_compiled_code

from . import timing
from .reference_ppo import reference_ppo
from .speed import stepping

Train = Callable[[int], None]
"""Makes this many further steps."""

PACKAGES = {"stable-baselines3": "stable_baselines3", "vmas": "vmas"}
"""Peers that may be missing, by the module that they need."""
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
        ways: function of each library, ``rlstack`` first.
        compiles: whether the first steps compile, so that the warm-up takes a whole round.
    """

    subject: str
    steps: int
    ways: Mapping[str, Callable[[], Train]]
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


def our_steps(compiled: bool = False) -> Train:
    """In batched CartPole, under random actions."""
    advance = stepping("cartpole", 1, compiled=compiled)(WORLDS)
    return lambda steps: advance(steps // WORLDS)


def gymnasium_steps(statistics: bool = False) -> Train:
    """In Gymnasium's batched CartPole, under random actions."""
    env = gymnasium.make_vec("CartPole-v1", WORLDS, vectorization_mode="vector_entry_point")
    if statistics:
        env = gymnasium.wrappers.vector.RecordEpisodeStatistics(env)
    env.reset(seed=0)

    def advance(steps: int) -> None:
        for _ in range(steps // WORLDS):
            env.step(torch.randint(2, (WORLDS,)).numpy())

    return advance


def vmas_steps() -> Train:
    """In VMAS's scenario ``simple``, under random actions."""
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
    ways: dict[str, Callable[[], Train]] = {
        "rlstack": partial(ours, name, env, **settings),
        "stable-baselines3": partial(stable_baselines3, name.upper(), env, **options),
    }
    ways |= {"reference": partial(reference_ppo, *env)} if name == "ppo" else {}
    return Work(subject, steps, ways, settings.get("compiled", False))


_PPO = partial(beside_sb3, name="ppo", env=CARTPOLE, steps=16_384)
_DQN = partial(beside_sb3, name="dqn", env=("CartPole-v1", 1), steps=8_000, exploration_initial_eps=0.05)
_SAC = partial(beside_sb3, name="sac", env=("Pendulum-v1", 1))
_COMPILED, _BFLOAT16 = {"compiled": True}, {"precision": "bfloat16"}
_STEPS: dict[str, Callable[[], Train]] = {
    "rlstack": our_steps,
    "gymnasium": gymnasium_steps,
    "gymnasium, with statistics": partial(gymnasium_steps, statistics=True),
    "vmas": vmas_steps,
}
WORK = {
    "ppo": _PPO("PPO, CartPole-v1, 8 envs, batch 64, 10 epochs", settings=PPO),
    "ppo_compiled": _PPO("the same, ours compiled", settings=PPO | _COMPILED),
    "dqn": _DQN("DQN, CartPole-v1, 1 env, batch 32, an update every 4 steps", settings=DQN),
    "dqn_compiled": _DQN("the same, ours compiled", settings=DQN | _COMPILED),
    "sac": _SAC("SAC, Pendulum-v1, 1 env, batch 256, an update every step", 500, settings=SAC),
    "sac_bfloat16": _SAC("the same, ours in bfloat16", 500, settings=SAC | _BFLOAT16),
    "sac_compiled": _SAC("the same, ours compiled", 1000, settings=SAC | _COMPILED),
    "sac_compiled_bfloat16": _SAC(
        "the same, ours in bfloat16 and compiled", 1000, settings=SAC | _COMPILED | _BFLOAT16
    ),
    "batched": Work("PPO, our batched CartPole (`agent=ppo env=cartpole`)", 131_072, {"rlstack": batched}),
    "step": Work("1024 small worlds under random actions (our CartPole)", 300 * WORLDS, _STEPS),
    "step_compiled": Work(
        "the same, ours compiled", 300 * WORLDS, {**_STEPS, "rlstack": partial(our_steps, True)}, compiles=True
    ),
}


def compare(work: Work, rounds: int) -> dict[str, Any]:
    """Measures the installed libraries in steps per CPU-second, with our ratio to each, and names the missing ones."""
    there = {name: way() for name, way in work.ways.items() if installed(name)}
    for train in there.values():
        train(work.steps if work.compiles else work.steps // 4)
    times = timing.in_turns({name: partial(train, work.steps) for name, train in there.items()}, rounds)
    speeds = {name: [work.steps / seconds for seconds in own] for name, own in times.items()}
    ratios = {name: [a / b for a, b in zip(speeds["rlstack"], own)] for name, own in speeds.items()}
    del ratios["rlstack"]
    return {
        "speeds": {name: timing.summarised(own) for name, own in speeds.items()},
        "ratios": {name: timing.summarised(own) for name, own in ratios.items()},
        "absent": [name for name in work.ways if name not in there],
    }


def installed(name: str) -> bool:
    """Whether a peer can be imported."""
    return name not in PACKAGES or importlib.util.find_spec(PACKAGES[name]) is not None


def table(result: Mapping[str, Any]) -> str:
    """Returns the tasks of a result file, one row per peer."""
    rows = []
    for name, work in WORK.items():
        if (measured := result["work"].get(name)) is None:
            continue
        day = ", ".join(filter(None, [measured["date"][:10], measured.get("instruction_set")]))
        first = [work.subject, f"{measured['speeds']['rlstack']['median']:,.0f}"]
        for peer, ratio in measured["ratios"].items():
            shown = "{median:.2f} ({least:.2f} to {most:.2f})".format(**ratio)
            rows.append([*first, f"{peer}: {measured['speeds'][peer]['median']:,.0f}", shown, day])
            first = ["", ""]
        if not measured["ratios"]:
            rows.append([*first, "", "", day])
    return markdown("work | rlstack | peer | ratio | measured on", rows)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="*", metavar="WORK", help=f"what to measure: {', '.join(WORK)} (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=timing.RESULTS / "peers.json")
    timing.add_options(parser)
    options = parser.parse_args(arguments)
    if unknown := set(options.work) - set(WORK):
        parser.error(f"unknown work {', '.join(sorted(unknown))}; known: {', '.join(WORK)}")
    before = timing.earlier(options)
    torch.set_num_threads(1)
    about = timing.circumstances("peers") | {name: version(name) for name in PACKAGES if installed(name)}
    about |= {"gymnasium": version("gymnasium"), "unit": "environment steps per CPU-second"}
    when = {key: about[key] for key in ("date", "instruction_set")}
    kept, measured = saved(options.out).get("work", {}), dict[str, Any]()
    for name in options.work or WORK:
        measured[name] = {**compare(WORK[name], options.rounds), **when}
        write_json(options.out, {**about, "work": {**kept, **measured}})
        print(table({"work": {name: measured[name]}}), flush=True)
        if absent := measured[name]["absent"]:
            print(f"not installed: {', '.join(absent)}")
    return timing.verdict({**about, "work": measured}, before, options.fail_if_slower)


if __name__ == "__main__":
    raise SystemExit(main())
