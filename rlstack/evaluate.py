"""Evaluates a trained agent: ``python -m rlstack.evaluate checkpoint=runs/<run>``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf

from rlstack.command import hydra_command
from rlstack.config import ConfigError, Interval, build

if TYPE_CHECKING:  # importing torch takes seconds, which a mistyped key need not cost
    from rlstack.agents import Agent, Interface
    from rlstack.evaluation.evaluator import EpisodeSet
    from rlstack.training.loading import LoadedRun


@dataclass
class EvaluateConfig:
    """See ``conf/evaluate.yaml`` for what each key does."""

    checkpoint: str
    which: Literal["latest", "best"]
    policy: Literal["greedy", "explore"]
    episodes: Annotated[int, Interval(low=1)]
    episodes_file: str | None
    seed: Annotated[int, Interval(low=0, high=2**32 - 1)]
    device: str
    output: str | None
    plots: bool
    video: bool
    env: dict[str, Any] | None = None


def run(cfg: DictConfig) -> None:
    """Loads the agent, plays the episodes, prints the table and leaves everything in one folder."""
    if OmegaConf.is_missing(cfg, "checkpoint"):
        raise ConfigError("checkpoint: missing, give a run directory or a checkpoint file: checkpoint=runs/<run>")
    config = build(EvaluateConfig, cfg)

    from rlstack.evaluation.evaluator import evaluate
    from rlstack.evaluation.pictures import PER_LEVEL, save_pictures
    from rlstack.training.loading import load
    from rlstack.training.worlds import choose_device, world_options

    device = choose_device(config.device)
    loaded = load(config.checkpoint, device=device, which=config.which)
    env = config.env or loaded.config["env"]
    check_fit(loaded.agent, env)
    folder = output_folder(config, loaded)
    evaluation = evaluate(
        loaded.agent.policy(explore=config.policy == "explore"),
        env["name"],
        world_options(env),
        episodes=config.episodes,
        seed=config.seed,
        device=device,
        record=PER_LEVEL if config.plots or config.video else 0,
        episode_set=read_episodes(config.episodes_file, env["name"]),
        name=f"{loaded.path} ({config.policy}, {loaded.frames:,} frames)",
    )
    evaluation.save(folder / "evaluation.json")
    pictures = save_pictures(evaluation, folder, config.plots, config.video)

    print(f"{evaluation.policy} in {env['name']}, seed {config.seed}")
    evaluation.print_table()
    for path in (folder / "evaluation.json", *pictures):
        print(f"wrote {path}")


def output_folder(config: EvaluateConfig, loaded: LoadedRun) -> Path:
    """Where the results go: a name of its own for every agent, seed, policy, world and set of episodes.

    Raises:
        ConfigError: the folder cannot be made.
    """
    parts = [f"{loaded.frames:012d}_seed{config.seed}"]
    parts += ["explore"] if config.policy == "explore" else []
    parts += [str(config.env.get("name"))] if config.env else []
    parts += [Path(config.episodes_file).name.partition(".")[0]] if config.episodes_file else []
    folder = (loaded.run_dir or loaded.path.parent) / "evaluations" / "_".join(parts)
    folder = folder if config.output is None else Path(config.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output: {folder} cannot be made ({error.strerror})") from None
    return folder


def read_episodes(file: str | None, world: str) -> EpisodeSet | None:
    """The episodes of a file, in the world's own format, as one level; None without a file.

    Raises:
        ConfigError: the world has no such format, or the file is missing or wrong.
    """
    if file is None:
        return None
    from rlstack.evaluation.evaluator import EpisodeSet, world_part

    reader = world_part(world, "episodes")
    if reader is None:
        raise ConfigError(f"episodes_file: the world {world!r} cannot start given episodes")
    try:
        configs = reader.load_episodes(file)
    except (OSError, EOFError) as error:
        raise ConfigError(f"episodes_file: {file} cannot be read ({error})") from None
    except ValueError as error:
        raise ConfigError(f"episodes_file: {error}") from None
    if not configs:
        raise ConfigError(f"episodes_file: {file} holds no episodes")
    return EpisodeSet(configs, ["all"] * len(configs))


def check_fit(agent: Agent, env_config: dict[str, Any]) -> None:
    """Makes sure that the agent can see and act in a world.

    Raises:
        ConfigError: it cannot, or there is no such world.
    """
    from rlstack.agents import Interface
    from rlstack.evaluation.evaluator import evaluation_world
    from rlstack.training.worlds import world_options

    if not env_config.get("name"):
        raise ConfigError("env.name: missing, which world to evaluate in")
    try:
        env = evaluation_world(env_config["name"], world_options(env_config))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"env: {error}") from None
    offered, known = (_entries(interface) for interface in (Interface.of(env), agent.interface))
    for key in sorted(known.keys() | offered.keys()):
        if known.get(key) != offered.get(key):
            ours, theirs = known.get(key, "nothing"), offered.get(key, "nothing")
            raise ConfigError(f"env={env_config['name']} does not fit the agent: {key} is {theirs}, it knows {ours}")


def _entries(interface: Interface) -> dict[str, str]:
    """Kind, shape and type of everything an agent sees and does, in words."""
    from torchrl.data import Composite

    leaves = {"action": interface.action}
    if isinstance(interface.observation, Composite):
        for key, leaf in interface.observation.items(include_nested=True, leaves_only=True):
            leaves[key if isinstance(key, str) else ".".join(key)] = leaf
    else:
        leaves["observation"] = interface.observation
    kinds = {key: f"{type(leaf).__name__} {list(leaf.shape)} {leaf.dtype}" for key, leaf in leaves.items()}
    return kinds | {"agents": "several" if interface.group else "one"}


main = hydra_command("evaluate")(run)

if __name__ == "__main__":
    main()
