"""Evaluates a trained agent: ``rlstack evaluate checkpoint=runs/<run>``, or ``checkpoint=sb3:model.zip``."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module, words_as
from rlstack.config import ConfigError, Interval, build, load_group
from rlstack.config.overrides import given_keys
from rlstack.training.run import TrainedRun

if TYPE_CHECKING:  # importing torch takes seconds, which a mistyped key need not cost
    import torch
    from tensordict.nn import TensorDictModuleBase

    from rlstack.agents import Agent
    from rlstack.evaluation.evaluator import EpisodeSet
    from rlstack.evaluation.results import Evaluation
    from rlstack.runs.loading import LoadedRun

_TRAINED = ("greedy", "explore")
USUAL_EPISODES = 60  # the default of conf/evaluate.yaml


@dataclass
class EvaluateConfig:
    """See ``conf/evaluate.yaml`` for what each key does."""

    checkpoint: str | None
    which: Literal["latest", "best"]
    policy: str
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
    transitions: str | None = None
    allow: list[str] = field(default_factory=list)


@dataclass
class Candidate:
    """The player to evaluate.

    Attributes:
        policy: its policy.
        env: options of the world it acts in.
        name: its name in what is printed.
        folder: folder of its evaluations; None writes files only to ``output``.
        stem: beginning of the names of its results.
        player: its name in games.
        frames: number of frames it was trained for.
    """

    policy: TensorDictModuleBase
    env: dict[str, Any]
    name: str
    folder: Path | None
    stem: str = ""
    player: str = "agent"
    frames: int = 0


Judged: TypeAlias = Union[str, Path, TrainedRun, "LoadedRun", "Agent", "TensorDictModuleBase", Callable[..., Any]]


@as_module
def evaluate(
    judged: Judged | None = None,
    env: Any = None,
    /,
    *words: str,
    opponents: list[Any] | None = None,
    quiet: bool = False,
    **keys: Any,
) -> Any:
    """Evaluates an agent as the command ``rlstack evaluate`` does.

    Args:
        judged: a run's folder or a checkpoint, :func:`rlstack.train`'s or :func:`rlstack.load`'s result, or
            ``kind:path`` of an agent from elsewhere; or an object that acts: an agent, a policy that TorchRL's
            collectors accept, or a function of observations (kind ``callable`` of :func:`rlstack.load_policy`).
        env: option of the group ``env``, or a class; None for the world that a run was trained in.
        words: arguments as on the command line, such as ``"env.max_steps=200"``.
        opponents: opponents to play games against instead; the content of ``results.json`` is then returned.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/evaluate.yaml``, such as ``episodes`` and ``seed``.

    Returns the :class:`rlstack.evaluation.results.Evaluation`. Results for an agent from a file go where the command
    writes them; those for an object that acts only to ``output``.

    Raises:
        ConfigError: the keys are wrong, or the agent cannot act in this world; the message has one line.

    Example:
        >>> evaluation = rlstack.evaluate("runs/<run>", episodes=100)
        >>> evaluation.summary()["eval/return"], evaluation.episodes["length"]
        >>> rlstack.evaluate(lambda observation: (observation[:, 2] > 0).astype(int), "cartpole")
    """
    given, acting = list(words), None
    if isinstance(env, str) and "=" in env:
        given.insert(0, env)
    elif env is not None:
        keys = {"env": env, **keys}
    if opponents is not None:
        keys = {**keys, "opponents": opponents}
    if isinstance(judged, str | Path | TrainedRun):
        keys = {**keys, "checkpoint": judged}
    else:
        acting = judged
    return command.call(lambda cfg: run(cfg, acting), given, keys, quiet)


def run(cfg: DictConfig, acting: Any = None) -> Evaluation | dict[str, Any]:
    """Loads the agent, plays the episodes, prints the table and writes everything into one folder.

    Args:
        acting: an object that acts, in place of a loaded agent; see :func:`evaluate`.
    """
    config = build(EvaluateConfig, cfg)
    if config.checkpoint is not None and ":" in config.checkpoint and "algorithm" not in (config.agent or {}):
        from rlstack.agents.legacy import parse

        kind, path = parse(config.checkpoint)
        if kind not in ("rlstack", "zoo", "hf"):  # replaced by the agent that acts like it
            config.checkpoint = None
            config.agent = load_group("agent", "legacy", {**(config.agent or {}), "kind": kind, "path": path})
    _check(config, acting)
    from torchrl.envs.utils import ExplorationType, set_exploration_type

    from rlstack import envs
    from rlstack.evaluation.evaluator import as_evaluated
    from rlstack.runs.worlds import choose_device
    from rlstack.training.preflight import check_fits, episodes_of
    from rlstack.training.recorded import check_target

    check_target(config.transitions)
    device = choose_device(config.device)
    check_fits("the evaluation", [episodes_of(config.episodes, "episodes")])
    if acting is not None:
        judged, device = from_object(config, acting, device)
    elif config.policy not in _TRAINED:
        judged = from_world(config)
    elif config.checkpoint is None:
        judged = from_elsewhere(config, device)
    else:
        judged = from_checkpoint(config, device)
    world, given = judged.env["name"], given_keys("env")
    decided = envs.world_hooks(world).decided_by_episodes if config.opponents is None else ()
    for key in sorted(given.intersection(decided)):
        reason = "since the episodes of an evaluation determine it; rlstack watch can play others"
        raise ConfigError(f"env.{key}: has no effect, {reason}")
    judged = replace(judged, env=as_evaluated(world, judged.env, given))
    drawn = ExplorationType.RANDOM if config.policy == "explore" else ExplorationType.DETERMINISTIC
    with nullcontext() if acting is None else set_exploration_type(drawn):
        return (judge if config.opponents is None else play_games)(config, judged, device)


def _check(config: EvaluateConfig, acting: Any) -> None:
    """Raises an error for keys that do not go together."""
    foreign, trained = "algorithm" in (config.agent or {}), config.policy in _TRAINED
    games = config.opponents is not None
    given = [value for value in (config.checkpoint, config.agent, acting) if value is not None]
    for wrong, message in (
        (not trained and given, f"policy: {config.policy!r}, allowed with a checkpoint or an agent: greedy, explore"),
        (not trained and games, "opponents: a world's own players are compared in a league, see rlstack league"),
        (foreign and config.checkpoint is not None, "agent: a checkpoint contains its agent; set agent.cvar=0.25"),
        (acting is not None and len(given) > 1, "checkpoint, agent: the agent is already given"),
        (
            trained and config.checkpoint is None and not foreign and acting is None,
            "checkpoint: missing; name a run's folder or a checkpoint file: checkpoint=runs/<run>",
        ),
        (
            foreign and config.policy == "explore" and not (config.agent or {}).get("epsilon"),
            "policy: explore is for a checkpoint; an agent from elsewhere explores by agent.epsilon=0.1",
        ),
        (foreign and config.which == "best", "which: an agent from elsewhere takes agent.which"),
        (config.opponents == [], "opponents: [] names nobody to play against"),
        (games and config.episodes_file, "episodes_file: given episodes cannot be played against opponents"),
        (games and config.transitions, "transitions: games cannot be recorded; leave out opponents"),
    ):
        if wrong:
            raise ConfigError(message)


def judge(config: EvaluateConfig, judged: Candidate, device: torch.device) -> Evaluation:
    """Plays episodes of the world."""
    from rlstack.data.recordings import TransitionRecorder
    from rlstack.evaluation.evaluator import evaluate, interface_of
    from rlstack.evaluation.pictures import FILES, PER_LEVEL, save_pictures
    from rlstack.runs.manifest import seal, unseal
    from rlstack.runs.run_directory import removed_if_empty
    from rlstack.runs.worlds import world_options
    from rlstack.training.recorded import write_recorded

    interface = None if config.transitions is None else interface_of(judged.env)
    recorder = None if interface is None else TransitionRecorder(interface.group)
    episode_set = read_episodes(config.episodes_file, judged.env["name"])
    folder = output_folder(config, judged)
    with nullcontext() if folder is None else removed_if_empty(folder):
        evaluation = evaluate(
            judged.policy,
            judged.env["name"],
            world_options(judged.env),
            episodes=config.episodes,
            seed=config.seed,
            device=device,
            record=PER_LEVEL if folder is not None and (config.plots or config.video) else 0,
            episode_set=episode_set,
            name=judged.name,
            transitions=recorder,
            kept=given_keys("env"),
        )
    written: list[Path | str] = []
    if folder is not None:
        unseal(folder)
        for name in FILES:  # of an earlier evaluation, such as of an agent's file that has been replaced
            (folder / name).unlink(missing_ok=True)
        evaluation.save(folder / "evaluation.json")
        written = [folder / "evaluation.json"]
    if recorder is not None and interface is not None and config.transitions is not None:
        written.append(write_recorded(config.transitions, recorder.transitions(), interface, judged.name))
    if folder is not None:  # last, since drawing takes long
        pictures = save_pictures(evaluation, folder, config.plots, config.video)
        seal(folder, ["evaluation.json", *(path.name for path in pictures)])
        written += pictures

    print(f"{evaluation.policy} in {judged.env['name']}, seed {config.seed}")
    evaluation.print_table()
    if evaluation.cut:
        count = f"{evaluation.cut} of {len(evaluation.levels)} episodes"
        print(f"{count} had not ended after {evaluation.max_steps:,} steps and were scored as they stood")
    if trouble := evaluation.trouble():
        print(trouble)
    for path in written:
        print(f"wrote {path}")
    return evaluation


def play_games(config: EvaluateConfig, judged: Candidate, device: torch.device) -> dict[str, Any]:
    """Plays games against each of ``opponents``, half on either side; returns the content of ``results.json``."""
    from rlstack.play.matches import BestGames, GameRunner
    from rlstack.play.players import PolicyPlayer, free_name, name_of, read_source
    from rlstack.play.results import challenge
    from rlstack.runs.worlds import world_options

    world, games, seed = judged.env["name"], config.episodes, config.seed
    runner = GameRunner(world, world_options(judged.env), device=device, kept=given_keys("env"))
    others = []
    for source in config.opponents or []:
        name = name_of(source)
        free = name if read_source(source)[0] == name else free_name(name, runner.reserved)
        others.append(runner.add(source, free))
    player = runner.add(PolicyPlayer(judged.policy, free_name(judged.player, runner.reserved)))
    best = BestGames(world, 1, player) if config.video and BestGames.can_record(world) else None
    folder = output_folder(config, judged)
    if folder is None:
        raise ConfigError("output: missing, the folder that the games are written to")
    print(f"{judged.name} in {world}, seed {seed}, {games} games against each")
    more: dict[str, Any] = {"plots": config.plots, "policy": judged.name, "env": judged.env}
    written = challenge(runner, player, others, games, seed, runner.ratings(), folder, judged.frames, best, **more)
    for path in written + (best.save(folder) if best is not None else []):
        print(f"wrote {path}")
    return dict(json.loads((folder / "results.json").read_text(encoding="utf-8")))


def from_object(config: EvaluateConfig, acting: Any, device: torch.device) -> tuple[Candidate, torch.device]:
    """Returns an object that acts, see :func:`evaluate`, and the device on which it does.

    Raises:
        ConfigError: no world is given, or the object cannot act in it.
    """
    from tensordict.nn import TensorDictModuleBase
    from torch import nn

    from rlstack.agents import Agent
    from rlstack.agents.compatibility import telling
    from rlstack.agents.interface import Interface
    from rlstack.agents.legacy import KINDS
    from rlstack.config.rooms import target
    from rlstack.evaluation.evaluator import check_fit, judging_world
    from rlstack.runs.loading import LoadedRun

    of_run = None
    if isinstance(acting, LoadedRun):
        acting, of_run = acting.agent, acting.config["env"]
    env = world_for(config, of_run)
    name = str(getattr(acting, "__qualname__", type(acting).__qualname__))
    if isinstance(acting, Agent):
        check_fit(acting, env)
        policy, device = acting.policy(explore=config.policy == "explore"), acting.device
        return Candidate(policy, env, f"{name} ({config.policy})", None, player=name), device
    if isinstance(acting, nn.Module):
        device = next((parameter.device for parameter in acting.parameters()), device)
    with judging_world(env) as world:
        world = world.to(device)
        if isinstance(acting, TensorDictModuleBase):
            policy, interface = acting, Interface.of(world)
            with telling(interface, name):
                seen = acting(world.reset())
            if (key := interface.key("action")) not in seen.keys(True):
                raise ConfigError(f"{name}: writes {', '.join(map(str, acting.out_keys))}, the world takes {key!r}")
        elif callable(acting) or hasattr(acting, "act") or hasattr(acting, "predict"):
            policy = target(KINDS["callable"].policy)(acting, world)
        else:
            raise ConfigError(f"{name}: neither a run nor a policy")
    return Candidate(policy, env, f"{name} ({config.policy})", None, player=name), device


def from_checkpoint(config: EvaluateConfig, device: torch.device) -> Candidate:
    """Returns an agent from a checkpoint, with the changes that ``agent.<key>`` makes to how it acts.

    Raises:
        ConfigError: the checkpoint does not exist, the changes are impossible, or the world does not fit the agent.
    """
    from rlstack.evaluation.evaluator import as_names, check_fit
    from rlstack.runs.loading import load, overrides
    from rlstack.runs.run_directory import named

    loaded = load(named(str(config.checkpoint), "checkpoint"), device=device, which=config.which, agent=config.agent)
    env = world_for(config, loaded.config["env"])
    check_fit(loaded.agent, env)
    changes = overrides(config.agent or {})
    name = f"{loaded.path} ({config.policy}, {loaded.frames:,} frames{', ' if changes else ''}{changes})"
    stem = f"{loaded.frames:012d}" if loaded.run_dir else f"{loaded.path.stem}_{loaded.frames:012d}"
    player = loaded.run_dir.name if loaded.run_dir else loaded.path.stem
    policy = loaded.agent.policy(explore=config.policy == "explore")
    stem = "_".join([stem, *as_names(changes)])
    return Candidate(policy, env, name, loaded.folder / "evaluations", stem, player, loaded.frames)


def from_elsewhere(config: EvaluateConfig, device: torch.device) -> Candidate:
    """Returns the agent of the group ``agent``, built for the world in which it will act.

    Raises:
        ConfigError: no world is given, the agent cannot be loaded or cannot act in it, or the agent is untrained.
    """
    from rlstack.agents import agent_class, build_agent
    from rlstack.agents.legacy import Legacy
    from rlstack.evaluation.evaluator import as_names, judging_world, short_hash

    assert config.agent is not None
    if not issubclass(agent_class(config.agent["algorithm"]), Legacy):
        name = config.agent.get("name")
        raise ConfigError(f"agent={name}: would have to be trained first; set checkpoint=, or agent=legacy")
    env = world_for(config, None)
    with judging_world(env) as world:
        agent = build_agent(config.agent, world, 1, device)
    source = f"{config.agent['kind']}:{config.agent['path']}"
    path = Path(str(config.agent["path"]))
    called = as_names(path.stem if path.is_file() else path.name)
    given = {**config.agent, "path": str(path.resolve()) if path.exists() else str(path)}
    folder = "_".join([config.agent["kind"], *called, short_hash(given)])
    policy = agent.policy(explore=config.policy == "explore")
    return Candidate(policy, env, source, Path("runs") / folder / "evaluations", player=" ".join(called) or "agent")


def from_world(config: EvaluateConfig) -> Candidate:
    """Returns a player that comes with the world.

    Raises:
        ConfigError: the world has no player of that name.
    """
    from rlstack.config.errors import did_you_mean
    from rlstack.envs.world import hooks_of
    from rlstack.evaluation.evaluator import judging_world
    from rlstack.play.versus import own_policy

    options = world_for(config, None)
    world = options["name"]
    with judging_world(options) as env:
        if config.policy not in (known := hooks_of(env).players()):
            allowed = [*_TRAINED, *known]
            guess = did_you_mean(config.policy, allowed)
            raise ConfigError(f"policy: {world} has no {config.policy!r}, {guess}allowed: {', '.join(allowed)}")
        policy = own_policy(env, config.policy)
    assert policy is not None
    folder = Path("runs") / f"{world}_{config.policy}" / "evaluations"
    return Candidate(policy, options, config.policy, folder, player=config.policy)


def world_for(config: EvaluateConfig, of_run: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the options of the world, that of a run by default; in games without opponents: both sides are agents."""
    from rlstack.runs.worlds import chosen_world

    env = chosen_world(config.env, of_run)
    if config.opponents is None:
        return env
    from rlstack.play.register import without_opponents

    return without_opponents(env)


def output_folder(config: EvaluateConfig, judged: Candidate) -> Path | None:
    """Returns the folder of the results, named after agent, seed, policy and world; None for no files.

    Raises:
        ConfigError: the folder cannot be created.
    """
    from rlstack.evaluation.evaluator import opponent_names, world_names
    from rlstack.runs.run_directory import make_folder

    if config.output is not None:
        return make_folder(Path(config.output), "output")
    if judged.folder is None:
        return None
    parts = [*filter(None, [judged.stem]), f"seed{config.seed}"]
    if config.episodes != USUAL_EPISODES and not config.episodes_file:
        parts += [f"{config.episodes}{'games' if config.opponents else 'episodes'}"]
    parts += ["explore"] if config.policy == "explore" else []
    parts += world_names(judged.env) if config.env else []
    parts += opponent_names(config.opponents) if config.opponents else []
    parts += [Path(config.episodes_file).name.partition(".")[0]] if config.episodes_file else []
    return make_folder(judged.folder / "_".join(parts), "output")


def read_episodes(file: str | None, world: str) -> EpisodeSet | None:
    """Returns the episodes of a file in the world's own format, as one level; None without a file.

    Raises:
        ConfigError: the world has no such format, or the file is missing or invalid.
    """
    if file is None:
        return None
    from rlstack import envs
    from rlstack.evaluation.evaluator import EpisodeSet

    try:
        configs = envs.world_hooks(world).load_episodes(file)
    except (OSError, EOFError, zlib.error, RecursionError) as error:
        raise ConfigError(f"episodes_file: {file} cannot be read ({error})") from None
    except ValueError as error:
        raise ConfigError(f"episodes_file: {error}") from None
    if configs is None:
        raise ConfigError(f"episodes_file: the world {world!r} cannot start episodes from a file")
    if not configs:
        raise ConfigError(f"episodes_file: {file} holds no episodes")
    return EpisodeSet(configs, ["all"] * len(configs))


command = HydraCommand("evaluate", words_as("checkpoint"))
main = command.line(run)

if __name__ == "__main__":
    main()
