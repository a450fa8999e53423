"""Checks that the algorithms reach their reference scores: trains every study on several seeds and evaluates them.

    python -m experiments.reference_scores.scores --parallel 2                    # all
    python -m experiments.reference_scores.scores cartpole_ppo pendulum_sac       # some
    python -m experiments.reference_scores.scores cartpole_qrdqn --seeds 3 4      # adds seeds, results keep the others
    python -m experiments.reference_scores.scores --evaluate-only                        # runs that are there

A study is a file in ``conf/experiment/reference``, which holds every number; several share ``mujoco_ppo`` and
``mujoco_sac``. Interrupted runs continue from their last checkpoint. The last checkpoint of each seed (not the best
one) plays 100 episodes greedily in environments of another seed. Results beside this file: ``results/<study>.json``,
``results/curves.csv`` and ``curves.png``; ``python -m experiments.tables`` writes the table of the README.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.ticker import EngFormatter, MaxNLocator

from experiments.results import interval, markdown, picture, read_csv, write_csv
from experiments.runs import Job, check, complete, logged, train, trained_on
from rlstack.evaluation.statistics import bootstrap_interval, iqm

HERE = Path(__file__).parent
EPISODES, EVALUATION_SEED = 100, 1000
OURS = "experiments.reference_scores.deep_sea:DeepSea-v0"
"""The environment of these studies that is code of this folder, which a run's files may name."""


class Study(NamedTuple):
    """What a study must reach.

    Attributes:
        environment, algorithm: for the table.
        bar: lowest mean return over the final episodes; where ``of`` is "none above", the highest.
        of: in every seed, or in the mean over the seeds.
        recipe: file in ``conf/experiment/reference`` of a study that shares its recipe with other environments; the
            environment is then its ``env.id``. None: the study's name.
    """

    environment: str
    algorithm: str
    bar: float
    of: Literal["every seed", "mean", "none above"]
    recipe: str | None = None

    def passed(self, scores: Sequence[float]) -> bool:
        """Whether the seeds' mean returns are as they should be."""
        if self.of == "none above":
            return max(scores) <= self.bar
        return bool((min(scores) if self.of == "every seed" else np.mean(scores)) >= self.bar)


STUDIES = {
    "cartpole_ppo": Study("CartPole-v1", "PPO", 475, "every seed"),
    "cartpole_torchrl_ppo": Study("CartPole-v1", "PPO of TorchRL", 475, "every seed"),
    "cartpole_dqn": Study("CartPole-v1", "DQN", 475, "every seed"),
    "cartpole_rainbow": Study("CartPole-v1", "Rainbow", 475, "every seed"),
    "cartpole_qrdqn": Study("CartPole-v1", "QR-DQN", 475, "every seed"),
    "cartpole_iqn": Study("CartPole-v1", "IQN", 475, "every seed"),
    "cartpole_pqn": Study("CartPole-v1", "PQN", 475, "every seed"),
    "cartpole_hidden_ppo": Study("CartPole-v1 without velocities", "PPO, LSTM", 475, "every seed"),
    "cartpole_hidden_mlp": Study("CartPole-v1 without velocities", "PPO, no recurrent core", 200, "none above"),
    "cartpole_a2c": Study("CartPole-v1", "A2C", 450, "mean"),
    "acrobot_dqn": Study("Acrobot-v1", "DQN", -100, "mean"),
    "acrobot_ppo": Study("Acrobot-v1", "PPO", -90, "mean"),
    "mountaincar_rnd": Study("MountainCar-v0", "PPO, RND", -130, "every seed"),
    "mountaincar_ppo": Study("MountainCar-v0", "PPO, no bonus", -130, "mean"),
    "deepsea_rnd": Study("deep sea of 20 rows", "PPO, RND", 0.9, "every seed"),
    "deepsea_ppo": Study("deep sea of 20 rows", "PPO, no bonus", 0.1, "none above"),
    "lunarlander_ppo": Study("LunarLander-v3", "PPO", 200, "mean"),
    "lunarlander_dqn": Study("LunarLander-v3", "DQN", 150, "mean"),
    "lunarlander_iqn": Study("LunarLander-v3", "IQN", 150, "mean"),
    "pendulum_sac": Study("Pendulum-v1", "SAC", -200, "mean"),
    "pendulum_sac_critic_norm": Study("Pendulum-v1", "SAC, critic_norm and weight_norm", -200, "mean"),
    "pendulum_torchrl_sac": Study("Pendulum-v1", "SAC of TorchRL", -200, "mean"),
    "pendulum_tqc": Study("Pendulum-v1", "TQC", -200, "mean"),
    "pendulum_td3": Study("Pendulum-v1", "TD3", -200, "mean"),
    "pendulum_ddpg": Study("Pendulum-v1", "DDPG", -200, "mean"),
    "pendulum_acqn": Study("Pendulum-v1", "AC-IQN", -200, "mean"),
    "pendulum_ppo": Study("Pendulum-v1", "PPO", -250, "mean"),
    "pendulum_crossq": Study("Pendulum-v1", "CrossQ", -200, "mean"),
    "pendulum_redq": Study("Pendulum-v1", "REDQ", -200, "mean"),
    "halfcheetah_sac": Study("HalfCheetah-v5", "SAC", 4000, "mean"),
    "halfcheetah_sac_actor_every": Study("HalfCheetah-v5", "SAC, actor_every=2", 4000, "mean"),
    "halfcheetah_sac_critic_norm": Study("HalfCheetah-v5", "SAC, critic_norm", 4000, "mean"),
    "halfcheetah_sac_weight_norm": Study("HalfCheetah-v5", "SAC, critic_norm and weight_norm", 4000, "mean"),
    "halfcheetah_xqc": Study("HalfCheetah-v5", "XQC", 10_000, "mean"),
    "halfcheetah_tqc": Study("HalfCheetah-v5", "TQC", 4000, "mean"),
    "halfcheetah_ppo": Study("HalfCheetah-v5", "PPO", 4500, "mean", "mujoco_ppo"),
    "hopper_ppo": Study("Hopper-v5", "PPO", 1900, "mean", "mujoco_ppo"),
    "walker2d_ppo": Study("Walker2d-v5", "PPO", 2650, "mean", "mujoco_ppo"),
    "ant_ppo": Study("Ant-v5", "PPO", 870, "mean", "mujoco_ppo"),
    "humanoid_ppo": Study("Humanoid-v5", "PPO", 450, "mean", "mujoco_ppo"),
    "pong_ppo": Study("ALE/Pong-v5", "PPO", 0, "mean", "atari_ppo"),
    "halfcheetah_sac_million": Study("HalfCheetah-v5", "SAC", 9500, "mean", "mujoco_sac"),
    "hopper_sac": Study("Hopper-v5", "SAC", 2300, "mean", "mujoco_sac"),
    "walker2d_sac": Study("Walker2d-v5", "SAC", 3850, "mean", "mujoco_sac"),
    "ant_sac": Study("Ant-v5", "SAC", 4600, "mean", "mujoco_sac"),
    "humanoid_sac": Study("Humanoid-v5", "SAC", 5400, "mean", "mujoco_sac"),
}


def jobs(study: str, seeds: list[int], folder: Path) -> list[Job]:
    """The runs of a study."""
    recipe = STUDIES[study].recipe
    overrides = [f"experiment=reference/{recipe or study}"]
    if recipe is not None:
        overrides.append(f"env.id={STUDIES[study].environment}")
    return [(seed, folder / study, overrides) for seed in seeds]


def refuse_other_lengths(earlier: dict[str, Any], seeds: Sequence[int], frames: float) -> None:
    """Refuses to mix runs of different length in one result.

    Args:
        earlier: a result of :func:`judge`.
        seeds: to be measured.
        frames: for which they train.

    Raises:
        SystemExit: the result holds other seeds, which trained for other frames (by more than 1 %).
    """
    others = earlier["scores"].keys() - set(map(str, seeds))
    if others and abs(earlier["frames"] / frames - 1) > 0.01:
        lengths = f"seeds {', '.join(sorted(others))} after {earlier['frames']:,} frames, not {frames:,.0f}"
        raise SystemExit(
            f"{earlier['environment']}, {earlier['algorithm']}: the result file holds {lengths}; move it away"
        )


def judge(study: str, seeds: list[int], folder: Path, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """Final scores of the seeds that are there, and whether they reach the bar.

    Args:
        study: a key of :data:`STUDIES`.
        seeds: to evaluate.
        folder: of the runs.
        earlier: a result of this function, whose other seeds stay.

    Raises:
        SystemExit: these trained for other frames.
    """
    import torch

    import rlstack
    from rlstack.evaluation.evaluator import evaluate
    from rlstack.runs.worlds import world_options

    torch.set_num_threads(1)
    scores: dict[int, float] = {}
    seconds: dict[int, float] = {}
    frames, machines = 0, set()
    for seed in seeds:
        run = folder / study / f"seed{seed}"
        if not complete(run):
            continue
        loaded = rlstack.load(run, allow=[OURS])
        env, frames = loaded.config["env"], loaded.frames
        evaluation = evaluate(
            loaded.agent.policy(explore=False), env["name"], world_options(env), EPISODES, EVALUATION_SEED
        )
        scores[seed] = evaluation.summary()["eval/return"]
        machines.add(trained_on(run))
        seconds[seed] = logged(run, "time/cpu_seconds")[-1]["time/cpu_seconds"]
    if earlier is not None:
        refuse_other_lengths(earlier, seeds, frames)
        for key in sorted(earlier["scores"].keys() - set(map(str, scores))):
            scores[int(key)], seconds[int(key)] = earlier["scores"][key], earlier["cpu_seconds"][key]
            machines.update(earlier["machine"].split("; "))
    scores, seconds = dict(sorted(scores.items())), dict(sorted(seconds.items()))
    values, wanted = list(scores.values()), STUDIES[study]
    return {
        **wanted._asdict(),
        "frames": frames,
        "scores": scores,
        "mean": float(np.mean(values)),
        "iqm": iqm(values),
        "interval": list(bootstrap_interval(values)),
        "lowest": min(values),
        "passed": wanted.passed(values),
        "cpu_seconds": seconds,
        "machine": "; ".join(sorted(machines)),
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """Returns a row for each study."""
    limits = {"every seed": "each ≥", "mean": "mean ≥", "none above": "each ≤"}
    rows = []
    for result in results.values():
        one = len(result["scores"]) == 1
        middle = "" if one else interval(result["iqm"], result["interval"], ".1f")
        lowest = "" if one else f"{result['lowest']:.1f}"
        wanted = f"{limits[result['of']]} {result['bar']:g}{'' if result['passed'] else ': MISSED'}"
        seconds = f"{np.mean(list(result['cpu_seconds'].values())):.0f}"
        row = [result["environment"], result["algorithm"], f"{result['frames']:,}", len(result["scores"])]
        rows.append([*row, f"{result['mean']:.1f}", middle, lowest, wanted, seconds])
    heads = "env | algorithm | frames | seeds | mean | IQM, 95 % | lowest seed | wanted | CPU-s a seed"
    return markdown(heads, rows)


def measured(out: Path) -> dict[str, dict[str, Any]]:
    """The result files in the folder ``out``, by study, in the order of :data:`STUDIES`."""
    return {
        name: json.loads((out / f"{name}.json").read_text()) for name in STUDIES if (out / f"{name}.json").is_file()
    }


def write_curves(folder: Path, studies: list[str], seeds: list[int], out: Path) -> None:
    """Writes evaluations during training of these seeds of these studies to ``curves.csv``; rows of others stay."""
    rows = [
        {"study": study, "seed": str(seed), "frames": row["frames"], "return": row["eval/return"]}
        for study in studies
        for seed in seeds
        for row in read_csv(folder / study / f"seed{seed}" / "metrics.csv")
        if row.get("eval/return")
    ]
    new = {(row["study"], row["seed"]) for row in rows}
    kept = [row for row in read_csv(out / "curves.csv") if (row["study"], row["seed"]) not in new]
    write_csv(out / "curves.csv", ("study", "seed", "frames", "return"), kept + rows)


def draw(path: Path, results: dict[str, dict[str, Any]], file: Path) -> None:
    """Draws a panel for each study: each seed, their mean, and the bar."""
    rows = read_csv(path)
    width = 4
    height = max(-(-len(results) // width), 1)
    with picture(file, (4 * width, 2.8 * height), (height, width)) as axes:
        for axis in axes.flat[len(results) :]:
            axis.set_axis_off()
        for axis, (study, result) in zip(axes.flat, results.items()):
            curves: dict[str, list[tuple[float, float]]] = {}
            for row in rows:
                if row["study"] == study:
                    curves.setdefault(row["seed"], []).append((float(row["frames"]), float(row["return"])))
            for curve in curves.values():
                axis.plot(*zip(*curve), color="tab:blue", alpha=0.3, linewidth=1)
            if curves:
                shortest = min(curves.values(), key=len)
                mean = np.mean([[value for _, value in curve[: len(shortest)]] for curve in curves.values()], axis=0)
                axis.plot([frames for frames, _ in shortest], mean, color="tab:blue")
            axis.axhline(result["bar"], color="grey", linestyle=":")
            axis.set_title(fill(f"{result['environment']}, {result['algorithm']}", 40), fontsize=10)
            axis.xaxis.set_major_locator(MaxNLocator(4))
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes[0, 0].figure.supxlabel("frames")
        axes[0, 0].figure.supylabel("return of greedy episodes (dotted: to be reached)")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", help=f"of {', '.join(STUDIES)}; none: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--parallel", type=int, default=1, help="runs at once, one thread each")
    parser.add_argument("--folder", type=Path, default=Path("runs/reference"), help="of the run directories")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--evaluate-only", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    chosen = arguments.studies or list(STUDIES)
    unknown = [study for study in chosen if study not in STUDIES]
    if unknown:
        parser.error(f"unknown study {unknown[0]!r}; known: {', '.join(STUDIES)}")
    out = arguments.out / "results"
    known = {name: result for name, result in measured(out).items() if name in chosen}
    if not arguments.evaluate_only:
        for study, result in known.items():
            (settings,) = check(jobs(study, arguments.seeds[:1], arguments.folder))
            refuse_other_lengths(result, arguments.seeds, settings["total_frames"])
        wanted = [job for study in chosen for job in jobs(study, arguments.seeds, arguments.folder)]
        train(wanted, arguments.parallel)
    out.mkdir(parents=True, exist_ok=True)
    for study in chosen:
        if any(complete(arguments.folder / study / f"seed{seed}") for seed in arguments.seeds):
            result = judge(study, arguments.seeds, arguments.folder, known.get(study))
            (out / f"{study}.json").write_text(json.dumps(result, indent=2) + "\n")
            print(table({study: result}).splitlines()[-1], flush=True)
    write_curves(
        arguments.folder, [study for study in chosen if (out / f"{study}.json").is_file()], arguments.seeds, out
    )
    draw(out / "curves.csv", measured(out), arguments.out / "curves.png")


if __name__ == "__main__":
    main()
