"""Evaluates a trained agent: ``python -m rlstack.evaluate checkpoint=runs/<run>``, or ``agent=legacy ...``."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from omegaconf import DictConfig

from rlstack.command import hydra_command, open_group
from rlstack.config import ConfigError, Interval, build, load_group, to_plain

if TYPE_CHECKING:  # importing torch takes seconds, which a mistyped key need not cost
    import torch

    from rlstack.agents import Agent
    from rlstack.evaluation.evaluator import EpisodeSet

_LONGEST = 60  # letters of opponents in a folder's name


@dataclass
class EvaluateConfig:
    """See ``conf/evaluate.yaml`` for what each key does."""

    checkpoint: str | None
    which: Literal["latest", "best"]
    policy: Literal["greedy", "explore"]
    episodes: Annotated[int, Interval(low=1)]
    episodes_file: str | None
    seed: Annotated[int, Interval(low=0, high=2**32 - 1)]
    device: str
    output: str | None
    plots: bool
    video: bool
    agent: dict[str, Any] | None = None
    env: dict[str, Any] | None = None
    opponents: list[Any] | None = None
    allow: list[str] = field(default_factory=list)


@dataclass
class Candidate:
    """An agent to evaluate.

    Attributes:
        agent: which acts.
        env: group of the world it acts in.
        name: for people.
        folder: of its evaluations.
        stem: how the names of its results begin.
        player: its name in games.
        frames: it has trained for.
    """

    agent: Agent
    env: dict[str, Any]
    name: str
    folder: Path
    stem: str = ""
    player: str = "agent"
    frames: int = 0


def run(cfg: DictConfig) -> None:
    """Loads the agent, plays the episodes, prints the table and leaves everything in one folder."""
    config = build(EvaluateConfig, cfg)
    foreign = "algorithm" in (config.agent or {})
    if foreign and config.checkpoint is not None:
        raise ConfigError("agent: a checkpoint brings its agent; give keys of it alone, such as agent.cvar=0.25")
    if config.checkpoint is None and not foreign:
        raise ConfigError("checkpoint: missing, give a run directory or a checkpoint file: checkpoint=runs/<run>")
    if foreign and config.policy == "explore":
        raise ConfigError(
            "policy: explore is for a checkpoint; an agent from elsewhere acts in the one way that it has"
        )
    if foreign and config.which == "best":
        raise ConfigError("which: best is for checkpoint=<run>; with agent=legacy agent.kind=rlstack: agent.which=best")
    if config.opponents == []:
        raise ConfigError("opponents: [] has nobody to play against, give one at least, such as opponents=[random]")
    if config.opponents is not None and config.episodes_file is not None:
        raise ConfigError("episodes_file: given episodes cannot be played against opponents, leave one of them out")

    from rlstack.runs.worlds import choose_device
    from rlstack.training.memory import check_fits, episodes_of

    device = choose_device(config.device)
    check_fits("the evaluation", [episodes_of(config.episodes, "episodes")])
    judged = from_elsewhere(config, device) if foreign else from_checkpoint(config, device)
    (judge if config.opponents is None else play_games)(config, judged, device)


def judge(config: EvaluateConfig, judged: Candidate, device: torch.device) -> None:
    """Plays the world's episodes."""
    from rlstack.evaluation.evaluator import evaluate
    from rlstack.evaluation.pictures import PER_LEVEL, save_pictures
    from rlstack.runs.run_directory import removed_if_empty
    from rlstack.runs.worlds import world_options

    episode_set = read_episodes(config.episodes_file, judged.env["name"])
    folder = output_folder(config, judged)
    with removed_if_empty(folder):
        evaluation = evaluate(
            judged.agent.policy(explore=config.policy == "explore"),
            judged.env["name"],
            world_options(judged.env),
            episodes=config.episodes,
            seed=config.seed,
            device=device,
            record=PER_LEVEL if config.plots or config.video else 0,
            episode_set=episode_set,
            name=judged.name,
        )
    evaluation.save(folder / "evaluation.json")
    pictures = save_pictures(evaluation, folder, config.plots, config.video)

    print(f"{evaluation.policy} in {judged.env['name']}, seed {config.seed}")
    evaluation.print_table()
    if evaluation.cut:
        count = f"{evaluation.cut} of {len(evaluation.levels)} episodes"
        print(f"{count} had not ended after {evaluation.max_steps:,} steps, and are judged as they stood")
    if trouble := evaluation.trouble():
        print(trouble)
    for path in (folder / "evaluation.json", *pictures):
        print(f"wrote {path}")


def play_games(config: EvaluateConfig, judged: Candidate, device: torch.device) -> None:
    """Plays games against each of ``opponents``, half of them on either side."""
    from rlstack.play.challenge import anchored_ratings, challenge
    from rlstack.play.matches import GameRunner
    from rlstack.play.players import PolicyPlayer
    from rlstack.play.replays import BestGames
    from rlstack.runs.worlds import world_options

    world, games, seed = judged.env["name"], config.episodes, config.seed
    runner = GameRunner(world, world_options(judged.env), device=device)
    ratings = anchored_ratings(runner)
    others = [runner.add(source) for source in config.opponents or []]
    policy = judged.agent.policy(explore=config.policy == "explore")
    player = runner.add(PolicyPlayer(runner.sample, policy, judged.player))
    best = BestGames(world, 1, player) if config.video and BestGames.can_record(world) else None
    folder = output_folder(config, judged)
    print(f"{judged.name} in {world}, seed {seed}, {games} games against each")
    more: dict[str, Any] = {"plots": config.plots, "policy": judged.name, "env": judged.env}
    written = challenge(runner, player, others, games, seed, ratings, folder, judged.frames, best, **more)
    for path in written + (best.save(folder) if best is not None else []):
        print(f"wrote {path}")


def from_checkpoint(config: EvaluateConfig, device: torch.device) -> Candidate:
    """An agent of ours, with the changes that ``agent.<key>`` makes to how it acts.

    Raises:
        ConfigError: no such checkpoint, impossible changes, or a world that does not fit the agent.
    """
    from rlstack.evaluation.evaluator import check_fit
    from rlstack.runs.loading import load, overrides
    from rlstack.runs.run_directory import named

    loaded = load(named(str(config.checkpoint), "checkpoint"), device=device, which=config.which, agent=config.agent)
    env = _without_opponents(config, config.env or loaded.config["env"])
    check_fit(loaded.agent, env)
    changes = overrides(config.agent or {})
    name = f"{loaded.path} ({config.policy}, {loaded.frames:,} frames{', ' if changes else ''}{changes})"
    stem = f"{loaded.frames:012d}" if loaded.run_dir else f"{loaded.path.stem}_{loaded.frames:012d}"
    folder = (loaded.run_dir or loaded.path.parent) / "evaluations"
    player = loaded.run_dir.name if loaded.run_dir else loaded.path.stem
    return Candidate(loaded.agent, env, name, folder, "_".join([stem, *_as_names(changes)]), player, loaded.frames)


def from_elsewhere(config: EvaluateConfig, device: torch.device) -> Candidate:
    """The agent of the group ``agent``, built for the world that it is to act in.

    Raises:
        ConfigError: no world is given, the agent cannot be loaded or act in it, or it would have to be trained first.
    """
    from rlstack.agents import agent_class, build_agent
    from rlstack.agents.legacy import Legacy
    from rlstack.evaluation.evaluator import judging_world

    assert config.agent is not None
    if not issubclass(agent_class(config.agent["algorithm"]), Legacy):
        name = config.agent.get("name")
        raise ConfigError(f"agent={name}: would have to be trained first; give checkpoint=, or agent=legacy")
    if config.env is None:
        raise ConfigError("env: missing, an agent from elsewhere needs a world: env=<group>")
    env = _without_opponents(config, config.env)
    agent = build_agent(config.agent, judging_world(env), 1, device)
    source = f"{config.agent['kind']}:{config.agent['path']}"
    path = Path(str(config.agent["path"]))
    called = _as_names(path.stem if path.is_file() else path.name)
    given = {**config.agent, "path": str(path.resolve()) if path.exists() else str(path)}
    folder = "_".join([config.agent["kind"], *called, _short_hash(given)])
    return Candidate(agent, env, source, Path("runs") / folder / "evaluations", player=" ".join(called) or "agent")


def _without_opponents(config: EvaluateConfig, env: dict[str, Any]) -> dict[str, Any]:
    """The group of the world to act in: in games both sides of it are there, whoever trained against whom."""
    from rlstack.runs.opponents import without_opponents

    return without_opponents(env) if config.opponents is not None else env


def output_folder(config: EvaluateConfig, judged: Candidate) -> Path:
    """The folder of the results, with a name of its own for every agent, seed, policy and world.

    Raises:
        ConfigError: the folder cannot be made.
    """
    from rlstack.runs.run_directory import make_folder

    parts = [judged.stem] if judged.stem else []
    parts += [f"seed{config.seed}"]
    parts += ["explore"] if config.policy == "explore" else []
    parts += _world_names(config.env) if config.env else []
    parts += _opponent_names(config.opponents) if config.opponents else []
    parts += [Path(config.episodes_file).name.partition(".")[0]] if config.episodes_file else []
    return make_folder(judged.folder / "_".join(parts) if config.output is None else Path(config.output), "output")


def read_episodes(file: str | None, world: str) -> EpisodeSet | None:
    """The episodes of a file, in the world's own format, as one level; None without a file.

    Raises:
        ConfigError: the world has no such format, or the file is missing or wrong.
    """
    if file is None:
        return None
    import envs
    from rlstack.evaluation.evaluator import EpisodeSet

    try:
        configs = envs.world_hooks(world).load_episodes(file)
    except (OSError, EOFError, zlib.error, RecursionError) as error:
        raise ConfigError(f"episodes_file: {file} cannot be read ({error})") from None
    except ValueError as error:
        raise ConfigError(f"episodes_file: {error}") from None
    if configs is None:
        raise ConfigError(f"episodes_file: the world {world!r} cannot start given episodes")
    if not configs:
        raise ConfigError(f"episodes_file: {file} holds no episodes")
    return EpisodeSet(configs, ["all"] * len(configs))


# -- names of folders: the same whenever agent, world and opponents are the same ----------------------------------


def _world_names(env: dict[str, Any]) -> list[str]:
    """A world's name, which of many it is (``id``), and a hash of options that are not those of its yaml."""
    from rlstack.evaluation.evaluator import OURS

    name, which = str(env.get("name")), env.get("id")
    try:
        usual = load_group("env", name)
    except ConfigError:  # a world without a yaml
        usual = {}
    ignored = ("name", "id", *OURS)
    options, usual = ({key: entries[key] for key in entries if key not in ignored} for entries in (env, usual))
    called = [*_as_names(name), *(_as_names(str(which)) if which is not None else [])]
    return [*called, *([] if options == usual else [_short_hash(options)])]


def _opponent_names(opponents: list[Any]) -> list[str]:
    """Whom games are played against, or a hash of it where that is long."""
    plain = all(isinstance(source, str) for source in opponents)
    text = "_".join(Path(source).name for source in opponents) if plain else ""
    called = _as_names(text) if 0 < len(text) <= _LONGEST else [_short_hash({"opponents": opponents})]
    return ["against", *called]


def _short_hash(content: dict[str, Any]) -> str:
    """Six letters that tell contents apart."""
    return hashlib.sha256(json.dumps(to_plain(content), sort_keys=True).encode()).hexdigest()[:6]


def _as_names(text: str) -> list[str]:
    """Words that can be part of a folder's name."""
    kept = "".join(letter if letter.isalnum() or letter in "=.-_" else " " for letter in text.replace("agent.", ""))
    return kept.split()


main = hydra_command("evaluate", open_group("agent"))(run)

if __name__ == "__main__":
    main()
