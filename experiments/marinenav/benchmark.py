"""A reproducible benchmark of MarineNav: 1,800 frozen episodes, with success, safety and time of every player.

    python -m experiments.marinenav.benchmark apf orca runs/quality/seed0 marinenav:<files of a published agent>
    python -m experiments.marinenav.benchmark marinenav:<files> runs/quality/seed0 --episodes public

A player is one of the world's own (``apf``, ``orca``), a run or checkpoint, or ``kind:path`` of an agent from
elsewhere; an option follows an ``@``: ``runs/quality/seed0@agent.cvar=0.5``. All play by the published definition,
greedily and with noise: an episode succeeds when every robot reaches its goal, and the first collision ends it.

``--episodes frozen`` (the default) are those of ``episodes.json.gz``, 300 of each of the six published levels in their
order, whose SHA-256 is :data:`SHA256`; ``--freeze`` writes it anew. ``--episodes public`` are the 720 on which the
published agents were measured (evaluation seeds 253 to 264, ten a level). Results beside this file:
``benchmark_<episodes>.json``; the table of the public episodes also compares every player with the first over the
episodes that both solve, and ``benchmark_public.png`` draws that for players named ``<recipe>, risk <level>``. Players
measured earlier keep their rows. ``python -m experiments.tables`` writes both tables into the README.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensordict.nn import TensorDictModuleBase

from experiments.results import interval, markdown, saved
from experiments.runs import options
from rlstack import envs
from rlstack.agents.legacy import load_policy, parse
from rlstack.config import ConfigError
from rlstack.envs.marinenav.episodes import PUBLISHED_LEVELS, evaluation_set, load_episodes
from rlstack.evaluation.evaluator import EpisodeSet, evaluate
from rlstack.evaluation.figures import saved_figure
from rlstack.play.versus import own_policy
from rlstack.runs.loading import load
from rlstack.runs.worlds import world_options
from rlstack.training.environment import machine

HERE = Path(__file__).parent
FROZEN = HERE / "episodes.json.gz"
SHA256 = "fb53b846c8dd8e8290051c7f408cdb72f9f01ad17b485f0f20e4754afb2022f3"
"""SHA-256 of the text in ``episodes.json.gz``."""
PER_LEVEL, SEED = 300, 1000
PUBLIC_SEEDS = range(253, 265)
COLUMNS = ("time", "energy", "path", "closest", "near_miss", "rule_time", "violation_time")


def freeze(path: Path) -> str:
    """Writes the episodes; returns the SHA-256 of their text."""
    text = json.dumps(evaluation_set(PER_LEVEL, SEED)[0], separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(text, mtime=0))
    return hashlib.sha256(text).hexdigest()


def frozen() -> EpisodeSet:
    """Reads the frozen episodes.

    Raises:
        ValueError: the file differs from the frozen one.
    """
    if hashlib.sha256(gzip.decompress(FROZEN.read_bytes())).hexdigest() != SHA256:
        raise ValueError(f"{FROZEN} is not the file that was frozen: its SHA-256 is another")
    return EpisodeSet(load_episodes(FROZEN), _levels(PER_LEVEL))


def public() -> EpisodeSet:
    """Returns the 720 episodes of the published agents, ordered by level."""
    sets = [evaluation_set(10, seed)[0] for seed in PUBLIC_SEEDS]
    levels = range(len(PUBLISHED_LEVELS))
    ordered = [config for level in levels for part in sets for config in part[10 * level : 10 * (level + 1)]]
    return EpisodeSet(ordered, _levels(10 * len(PUBLIC_SEEDS)))


def _levels(each: int) -> list[str]:
    return [str(level) for level in range(len(PUBLISHED_LEVELS)) for _ in range(each)]


def entrant(player: str) -> tuple[TensorDictModuleBase, dict[str, Any]]:
    """Returns the greedy policy of a player, and the options of its worlds.

    Raises:
        ValueError: there is no such player.
    """
    source, _, option = player.partition("@")
    worlds = {kind: envs.make("marinenav", num_worlds=1, continuous_actions=kind) for kind in (True, False)}
    if source in worlds[True].players():
        policy = own_policy(worlds[True], source)
        assert policy is not None
        return policy, {}
    kind, path = parse(source)
    if kind == "rlstack":
        key, _, value = option.removeprefix("agent.").partition("=")
        loaded = load(path, agent={key: json.loads(value)} if option else None)
        return loaded.agent.policy(explore=False), world_options(loaded.config["env"])
    try:
        return load_policy(source, worlds[True]), {}
    except ConfigError:  # a player with 25 discrete actions
        return load_policy(source, worlds[False]), {"continuous_actions": False}


def both_solve(first: dict[str, Any], other: dict[str, Any]) -> dict[str, Any] | None:
    """Returns time and energy of the other relative to the first over the episodes that both solve, None without any.

    Intervals are 95 % bootstraps of the ratio over these episodes.
    """
    both = np.array(first["success"]) * np.array(other["success"]) > 0
    if not both.any():
        return None
    compared: dict[str, Any] = {"episodes": int(both.sum())}
    for name in ("time", "energy"):
        theirs, ours = (np.array(row[name])[both] for row in (first, other))
        chosen = np.random.default_rng(0).integers(len(ours), size=(2000, len(ours)))
        ratios = ours[chosen].mean(1) / theirs[chosen].mean(1)
        bounds = np.quantile(ratios, (0.025, 0.975)).tolist()
        compared[name] = {"ratio": float(ours.mean() / theirs.mean()), "interval": bounds}
    return compared


def table(content: dict[str, Any]) -> str:
    """Returns a row for each player; for the public episodes compared with the first player, without gaps and rules."""
    compared = ("time", "energy") if content["episodes"] == "public" else ()
    forms = dict(zip(COLUMNS, (".1f", ",.0f", ".1f", ".2f", ".1%", ".2f", ".2f"), strict=True))
    forms = {name: form for name, form in forms.items() if not compared or name in compared}
    rows = []
    for player, row in content["players"].items():
        if player.startswith(("earlier", "time")):  # recipes that are no longer shipped
            continue
        overall, levels = row["levels"][-1], row["levels"][:-1]
        bounds = overall["success_low"], overall["success_high"]
        by_level = " ".join(f"{level['success']:.2f}" for level in levels)
        cells = [player, interval(overall["success"], bounds, ".3f"), by_level]
        cells += ["" if overall[name] is None else f"{overall[name]:{form}}" for name, form in forms.items()]
        pair = row.get("both_solve")
        cells += [interval(pair[name]["ratio"], pair[name]["interval"], ".3f") if pair else "" for name in compared]
        rows.append(cells)
    heads = "player | success (95 %) | by level 0-5 | time, s | energy, J"
    heads += "" if compared else " | path, m | closest, m | near misses | rule asks, s | of it ignored, s"
    return markdown(heads + "".join(f" | {name}, both solve" for name in compared), rows)


def run(players: Sequence[str], which: str, out: Path, names: Sequence[str] | None = None) -> str:
    """Measures players, keeps the rows of others, and returns the table."""
    episodes = public() if which == "public" else frozen()
    file = out / f"benchmark_{which}.json"
    results = saved(file).get("players", {})
    for player, name in zip(players, names or players, strict=True):
        policy, worlds = entrant(player)
        played = evaluate(policy, "marinenav", worlds, 1, SEED, episode_set=episodes, name=player)
        values = {key: [round(x, 3) for x in played.episodes[key].tolist()] for key in ("success", "time", "energy")}
        results[name] = {"levels": played.table(), "episodes": values}
    first = next(iter(results.values()))["episodes"]
    for row in list(results.values())[1:]:
        row["both_solve"] = both_solve(first, row["episodes"])
    content = {"episodes": which, "machine": machine(), "players": results}
    file.write_text(json.dumps(content, separators=(",", ":")) + "\n")
    if which == "public":
        draw(content, out / "benchmark_public.png")
    return table(content)


def draw(content: dict[str, Any], file: Path) -> None:
    """Draws success over time relative to the first player, with a line for each recipe through its levels of risk."""
    first = next(iter(content["players"].values()))["levels"][-1]["success"]
    lines: dict[str, list[tuple[float, float, str]]] = {}
    for name, row in content["players"].items():
        recipe, _, level = name.rpartition(", risk ")
        if recipe and row["both_solve"]:
            point = row["both_solve"]["time"]["ratio"], row["levels"][-1]["success"], level
            lines.setdefault(recipe, []).append(point)
    with saved_figure(file, "AC-IQN on MarineNav by recipe and level of risk", size=(7.5, 4.5)) as (axis,):
        for number, (recipe, points) in enumerate(lines.items()):
            ratios, rates, levels = zip(*sorted(points, key=lambda point: float(point[2])), strict=True)
            axis.plot(ratios, rates, marker="o", label=recipe)
            for point in zip(ratios, rates, levels, strict=True):
                aside = (4, -10) if number % 2 else (-4, 6)
                axis.annotate(point[2], point[:2], xytext=aside, textcoords="offset points", fontsize=8)
        axis.scatter([1], [first], color="grey", label=next(iter(content["players"])))
        axis.axvline(1, color="grey", linestyle=":")
        axis.set(xlabel="time to the goal over the published agent's, both solve", ylabel="success, public episodes")


def main() -> None:
    """Command line."""
    parser = options(__doc__, __file__)
    parser.add_argument("players", nargs="*")
    parser.add_argument("--names", nargs="+", help="of the players in the table, in their order")
    parser.add_argument("--episodes", choices=("frozen", "public"), default="frozen")
    parser.add_argument("--freeze", action="store_true", help="write the frozen episodes anew")
    arguments = parser.parse_args()
    if arguments.names and len(arguments.names) != len(arguments.players):
        parser.error("--names: one for each player")
    if arguments.freeze:
        print(f"{FROZEN}: SHA-256 {freeze(FROZEN)}")
    if arguments.players:
        print(run(arguments.players, arguments.episodes, arguments.out, arguments.names))


if __name__ == "__main__":
    main()
