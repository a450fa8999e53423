"""Shows an agent acting: ``rlstack watch checkpoint=runs/<run>``, in a window, a terminal, a film, or its rewards."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Collection, Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module, words_as
from rlstack.config import ConfigError, Interval, build
from rlstack.config.errors import did_you_mean
from rlstack.config.overrides import given_keys

if TYPE_CHECKING:  # importing torch takes seconds, which a mistyped key need not cost
    from torchrl.envs import EnvBase

    from rlstack.data.recordings import TransitionRecorder
    from rlstack.diagnostics.reward_terms import RewardBreakdown
    from rlstack.envs.rendering.window import Window
    from rlstack.evaluation.pictures import ActingPolicy, EpisodeAnimation, LiveEpisode

_FILMS = (".mp4", ".gif")
_TRAINED = ("greedy", "explore")
_RANDOM, _SCRIPTED = "random", "scripted"


@dataclass
class WatchConfig:
    """See ``conf/watch.yaml`` for what each key does."""

    checkpoint: str | None
    which: Literal["latest", "best"]
    policy: str
    episodes: Annotated[int, Interval(low=1)] | None
    seed: Annotated[int, Interval(low=0, high=2**32 - 1)]
    speed: Annotated[float, Interval(low=0, open_low=True)]
    show: Literal["auto", "window", "terminal", "numbers", "rewards"]
    record: str | None
    replay: str | None
    device: str
    transitions: str | None = None
    agent: dict[str, Any] | None = None
    env: dict[str, Any] | None = None
    allow: list[str] = field(default_factory=list)


@as_module
def watch(*words: str, quiet: bool = False, **keys: Any) -> Any:
    """Shows an agent at play as the command ``rlstack watch`` does.

    Args:
        words: arguments as on the command line.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/watch.yaml``.

    Returns one line for each episode; with ``show="rewards"`` the
    :class:`rlstack.diagnostics.reward_terms.RewardBreakdown` of one.

    Example:
        >>> rlstack.watch(checkpoint="runs/<run>", record="film.mp4", episodes=3)
    """
    return command.call(run, words, keys, quiet)


def run(cfg: DictConfig) -> list[str] | RewardBreakdown:
    """Loads a policy and its world and shows episodes; Ctrl-C ends it without an error, except while recording."""
    config = build(WatchConfig, cfg)
    if config.show == "rewards":
        return show_rewards(config)
    if config.record is not None and Path(config.record).suffix.lower() not in _FILMS:
        raise ConfigError(f"record: {config.record} must end in {' or '.join(_FILMS)}")
    if config.record is not None and config.show == "numbers":
        raise ConfigError("record: a film cannot show numbers; leave out show=numbers")
    if config.replay is not None and (config.checkpoint or config.env or config.show == "numbers"):
        raise ConfigError("replay: a recording takes neither checkpoint, env nor show=numbers; leave them out")
    if config.replay is not None and config.transitions is not None:
        raise ConfigError("transitions: a replay holds no observations; leave out replay")
    if config.checkpoint is not None:
        from rlstack.runs.run_directory import named

        config.checkpoint = named(config.checkpoint, "checkpoint")
    from rlstack.agents.interface import Interface
    from rlstack.data.recordings import TransitionRecorder
    from rlstack.evaluation.pictures import FinishedAnimation
    from rlstack.training.recorded import check_target, write_recorded

    check_target(config.transitions)
    captions: list[str] = []
    with ExitStack() as opened:
        shown: WatchedPolicy | None = None
        if config.replay is None:
            shown = find_policy(config, given_keys("env"))
            opened.callback(shown.env.close)
            if config.transitions is not None:
                shown = shown._replace(transitions=TransitionRecorder(Interface.of(shown.env).group))
        try:
            if shown is not None:
                _play(config, shown, captions)
            else:
                from rlstack.play.matches import read_replay

                file = Path(str(config.replay))
                _present(config, iter([FinishedAnimation(read_replay(file), file.name)]), str(file))
        except KeyboardInterrupt:
            if config.record is not None:
                raise
        for caption in captions:
            print(caption)
        if config.transitions is not None and shown is not None and shown.transitions is not None:
            interface, made = Interface.of(shown.env), shown.transitions.transitions()
            print(f"wrote {write_recorded(config.transitions, made, interface, shown.name)}")
    if config.record is not None:
        print(f"wrote {config.record}")
    return captions


def _play(config: WatchConfig, shown: WatchedPolicy, captions: list[str]) -> None:
    """Plays the episodes in pictures, or in numbers if these are asked for or the world draws none."""
    from rlstack.evaluation.pictures import numbers

    if config.show != "numbers":
        with closing(_animations(config, shown, captions)) as animations:
            if (first := next(animations, None)) is not None:
                return _present(config, chain([first], animations), shown.name)
        fault = f"show: {shown.world} draws no pictures"
        if config.show != "auto" or config.record is not None:
            raise ConfigError(fault)
        config.episodes = config.episodes or 1
        print(f"{fault}; show=auto shows its numbers")
    for episode in _episodes(config, shown):
        while not episode.over:
            episode.step()
            print(f"{episode.steps:>5}  {numbers(episode.latest)}", flush=True)
        captions.append(episode.caption)


def _present(config: WatchConfig, animations: Iterator[EpisodeAnimation], title: str) -> None:
    """Writes a film, or shows the animations one after another in a window or a terminal.

    Raises:
        ConfigError: neither is available.
    """
    from rlstack.envs.rendering.window import TkWindow
    from rlstack.evaluation.pictures import HOLD_SECONDS, TerminalScreen, record, show

    if config.record is not None:
        record(animations, Path(config.record), config.speed)
        return
    shown, hold = [next(animations)], HOLD_SECONDS
    screen: Window | None = None
    if config.show == "window" or (config.show == "auto" and has_display()):
        height, width = shown[0].draw(shown[0].span[0]).shape[:2]
        try:
            screen = TkWindow((width, height), title)
            hold = HOLD_SECONDS if config.replay is None else math.inf
        except ValueError as error:
            if config.show == "window" or not sys.stdout.isatty():
                raise ConfigError(f"show: {error}; use show=terminal or record=film.mp4") from None
    elif config.show == "auto" and not sys.stdout.isatty():
        raise ConfigError("show: there is no display and no terminal; use record=film.mp4 or show=numbers")
    with ExitStack() as stack:
        screen = screen or stack.enter_context(TerminalScreen(sys.stdout, lambda: shown[-1]))
        for animation in chain([shown[0]], animations):
            shown[:] = [animation]
            show(animation, screen, config.speed, hold)
            if not screen.is_open:
                return


def has_display() -> bool:
    """Returns whether a window can be opened here."""
    named = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.platform in ("darwin", "win32") or bool(named)


def _episodes(config: WatchConfig, shown: WatchedPolicy) -> Iterator[LiveEpisode]:
    """Yields the episodes: without end only if somebody watches, in a terminal or a window."""
    from rlstack.evaluation.pictures import LiveEpisode

    watched = sys.stdout.isatty() or config.show in ("auto", "window")
    endless = config.episodes is None and config.record is None and watched
    for number in count(1) if endless else range(1, (config.episodes or 1) + 1):
        yield LiveEpisode(shown.env, shown.policy, config.seed, number, shown.transitions)


def _animations(
    config: WatchConfig, shown: WatchedPolicy, captions: list[str]
) -> Generator[EpisodeAnimation, None, None]:
    """Yields the episodes one after another, none of a world that cannot be drawn.

    Appends the caption of each one shown to ``captions``.
    """
    from rlstack.evaluation.pictures import animate

    for episode in _episodes(config, shown):
        try:
            animation = animate(episode)
        except ValueError as error:
            raise ConfigError(f"show: {error}") from None
        if animation is None:
            return
        try:
            yield animation
        finally:
            captions.append(animation.caption)


def show_rewards(config: WatchConfig) -> RewardBreakdown:
    """Plays an episode, prints one line for each term of its reward, and draws the plots."""
    if config.checkpoint is None:
        raise ConfigError("checkpoint: missing; name a run's folder or a checkpoint file: checkpoint=runs/<run>")
    from rlstack.diagnostics.reward_terms import draw_curves, draw_episode, play_episode, read_curves
    from rlstack.evaluation.evaluator import check_fit
    from rlstack.runs.loading import load
    from rlstack.runs.run_directory import make_folder, named
    from rlstack.runs.worlds import chosen_world, world_options

    loaded = load(named(config.checkpoint, "checkpoint"), which=config.which, agent=config.agent)
    env = chosen_world(config.env, loaded.config["env"])
    check_fit(loaded.agent, env)
    policy = loaded.agent.policy(explore=config.policy == "explore")
    episode = play_episode(policy, env["name"], world_options(env), config.seed, given_keys("env"))
    folder = Path(config.record) if config.record else (loaded.run_dir or loaded.path.parent) / "rewards"
    make_folder(folder, "record")
    steps = len(next(iter(episode.terms.values())))
    print(f"an episode of {steps} steps in {env['name']}, seed {config.seed}: return {episode.returned:.3f}")
    for name, values in sorted(episode.terms.items(), key=lambda entry: -abs(entry[1].sum())):
        if values.any():
            print(f"  {name:<18} {values.sum():>9.3f}   paid in {(values != 0).mean():.0%} of the steps")
    draw_episode(episode, folder / "episode.png", f"{env['name']}, seed {config.seed}: return {episode.returned:.2f}")
    print(f"wrote {folder / 'episode.png'}")
    if loaded.run_dir is not None:
        draw_curves(*read_curves(loaded.run_dir / "metrics.csv"), folder / "curves.png")
        print(f"wrote {folder / 'curves.png'}")
    return episode


# -- who acts ----------------------------------------------------------------------------------------------------


class WatchedPolicy(NamedTuple):
    """A policy, and the env of one world in which it acts."""

    world: str
    env: EnvBase
    policy: ActingPolicy
    name: str
    transitions: TransitionRecorder | None = None


def find_policy(config: WatchConfig, given: Collection[str] = ()) -> WatchedPolicy:
    """Builds the world and the policy that acts in it.

    Args:
        given: options of the world that the user gave, which an evaluation would otherwise override.

    Raises:
        ConfigError: the agent, player, world or option does not exist, or the agent does not fit the world; the
            message has one line.
    """
    from rlstack import envs
    from rlstack.agents.interface import Interface, difference
    from rlstack.agents.legacy import load_policy, parse
    from rlstack.evaluation.evaluator import evaluation_world
    from rlstack.runs.loading import load
    from rlstack.runs.worlds import choose_device, chosen_world, world_options

    device = choose_device(config.device)
    kind, path = (None, "") if config.checkpoint is None else parse(config.checkpoint)
    if kind is None and config.policy in _TRAINED:
        raise ConfigError("checkpoint: missing; set checkpoint=runs/<run>, policy=random or policy=scripted")
    if kind is None and config.agent is not None:
        raise ConfigError(f"agent: policy={config.policy} takes no options")
    if kind is not None and config.policy not in _TRAINED:
        guess = did_you_mean(config.policy, _TRAINED)
        raise ConfigError(f"policy: {config.policy!r}, {guess}allowed with a checkpoint: {', '.join(_TRAINED)}")
    if kind not in (None, "rlstack") and config.policy == "explore":
        raise ConfigError("policy: only rlstack's agents can explore; an agent from elsewhere acts in one way")
    loaded = load(path, device, config.which, config.agent) if kind == "rlstack" else None
    group = chosen_world(config.env, None if loaded is None else loaded.config["env"])
    scripted = config.checkpoint is None and config.policy != _RANDOM
    if scripted:
        from rlstack.play.register import OPTION, without_opponents

        both = envs.world_hooks(group["name"]).two_sided_options
        for key in sorted({OPTION, *both} & set(given)):
            if group.get(key) != both.get(key):
                raise ConfigError(f"env.{key}: policy={config.policy} controls all agents; leave it out")
        group, given = {**without_opponents(group), **both}, [*given, *both]
    try:
        env = evaluation_world(group["name"], world_options(group), 1, device, kept=given, draws=True)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"env: {error}") from None
    policy: ActingPolicy
    if loaded is not None:
        if (fault := difference(loaded.agent.interface, Interface.of(env))) is not None:
            raise ConfigError(f"env={group['name']} does not fit the agent: {fault}")
        policy = loaded.agent.policy(explore=config.policy == "explore")
    elif config.checkpoint is not None:
        policy = load_policy(config.checkpoint, env, **(config.agent or {}))
    elif scripted:
        from rlstack.play.versus import own_players, own_policy

        own = own_players(env)
        chosen = own_policy(env, own[0] if config.policy == _SCRIPTED and own else config.policy)
        if chosen is None:
            known = [_RANDOM, *([_SCRIPTED] if own else []), *own]
            guess = did_you_mean(config.policy, known)
            raise ConfigError(f"policy: {group['name']} has no {config.policy!r}, {guess}available: {', '.join(known)}")
        policy = chosen
    else:
        policy = env.rand_action
    who = config.policy if config.checkpoint is None else config.checkpoint
    return WatchedPolicy(group["name"], env, policy, f"{who} in {group['name']}")


command = HydraCommand("watch", words_as("checkpoint"))
main = command.line(run)

if __name__ == "__main__":
    main()
