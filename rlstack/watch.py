"""Shows an agent as it acts: ``python -m rlstack.watch checkpoint=runs/<run>``, in a window, a terminal, or a film."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from omegaconf import DictConfig

from rlstack.command import given_keys, hydra_command, open_group
from rlstack.config import ConfigError, Interval, build

if TYPE_CHECKING:  # importing torch takes seconds, which a mistyped key need not cost
    from envs.drawing.window import Window
    from rlstack.watching.actors import Actor
    from rlstack.watching.reels import Reel

_FILMS = (".mp4", ".gif")


@dataclass
class WatchConfig:
    """See ``conf/watch.yaml`` for what each key does."""

    checkpoint: str | None
    which: Literal["latest", "best"]
    policy: str
    episodes: Annotated[int, Interval(low=1)] | None
    seed: Annotated[int, Interval(low=0, high=2**32 - 1)]
    speed: Annotated[float, Interval(low=0, open_low=True)]
    show: Literal["auto", "window", "terminal", "numbers"]
    record: str | None
    replay: str | None
    device: str
    agent: dict[str, Any] | None = None
    env: dict[str, Any] | None = None
    allow: list[str] = field(default_factory=list)


def run(cfg: DictConfig) -> None:
    """Finds who is to act and where, and shows it; Ctrl-C is a way to end, but for a film."""
    config = build(WatchConfig, cfg)
    _check(config)
    if config.checkpoint is not None:
        from rlstack.runs.latest import named

        config.checkpoint = named(config.checkpoint, "checkpoint")
    told: list[str] = []
    try:
        if config.replay is not None:
            _present(config, iter([_replay(config.replay)]), config.replay)
        else:
            from rlstack.watching.actors import find_actor

            actor = find_actor(config, given_keys("env"))
            if config.show == "numbers":
                _print_numbers(config, actor, told)
            else:
                with closing(_reels(config, actor, told)) as reels:
                    _present(config, reels, actor.name)
    except KeyboardInterrupt:
        if config.record is not None:
            raise
    for line in told:
        print(line)
    if config.record is not None:
        print(f"wrote {config.record}")


def _check(config: WatchConfig) -> None:
    if config.record is not None and Path(config.record).suffix.lower() not in _FILMS:
        raise ConfigError(f"record: {config.record} must end in {' or '.join(_FILMS)}")
    if config.record is not None and config.show == "numbers":
        raise ConfigError("record: numbers make no film, leave out show=numbers")
    if config.replay is not None and (config.checkpoint or config.env or config.show == "numbers"):
        raise ConfigError("replay: shows what has happened; leave out checkpoint, env and show=numbers")


def _present(config: WatchConfig, reels: Iterator[Reel], title: str) -> None:
    """A film, or a screen on which one reel follows the other."""
    from rlstack.watching.showing import HOLD_SECONDS, record, show

    if config.record is not None:
        record(reels, Path(config.record), config.speed)
        return
    shown = [next(reels)]
    with ExitStack() as stack:
        screen, is_window = _screen(config, shown[0], title, lambda: shown[-1].caption, stack)
        hold = math.inf if is_window and config.replay is not None else HOLD_SECONDS
        for reel in chain([shown[0]], reels):
            shown[:] = [reel]
            show(reel, screen, config.speed, hold)
            if not screen.is_open:
                return


def _screen(config: WatchConfig, reel: Reel, title: str, caption: Any, stack: ExitStack) -> tuple[Window, bool]:
    """What to show pictures on, and whether it is a window.

    Raises:
        ConfigError: no such thing here.
    """
    from envs.drawing.window import TkWindow
    from rlstack.watching.terminal import TerminalScreen

    display = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if config.show == "window" or (config.show == "auto" and display):
        height, width = reel.draw(reel.span[0]).shape[:2]
        try:
            return TkWindow((width, height), title), True
        except ValueError as error:
            if config.show == "window" or not sys.stdout.isatty():
                raise ConfigError(f"show: {error}; others: show=terminal, record=film.mp4") from None
    elif config.show == "auto" and not sys.stdout.isatty():
        raise ConfigError("show: here is no display and no terminal; give record=film.mp4, or show=numbers")
    return stack.enter_context(TerminalScreen(sys.stdout, caption)), False


def _numbers_of(config: WatchConfig) -> Iterator[int]:
    if config.episodes is None and config.record is None:
        return count(1)
    return iter(range(1, (config.episodes or 1) + 1))


def _reels(config: WatchConfig, actor: Actor, told: list[str]) -> Generator[Reel, None, None]:
    """The episodes, one after the other; ``told`` gets what came of those that were shown."""
    from rlstack.watching.reels import Episode, reel_of

    for number in _numbers_of(config):
        try:
            reel = reel_of(actor.world, Episode(actor.env, actor.policy, config.seed, number))
        except ValueError as error:
            raise ConfigError(f"show: {error}") from None
        if reel is None:
            raise ConfigError(f"show: {actor.world} draws no pictures; give show=numbers")
        try:
            yield reel
        finally:
            told.append(reel.caption)


def _print_numbers(config: WatchConfig, actor: Actor, told: list[str]) -> None:
    from rlstack.watching.reels import Episode, numbers

    for number in _numbers_of(config):
        episode = Episode(actor.env, actor.policy, config.seed, number)
        while not episode.over:
            episode.step()
            print(f"{episode.steps:>5}  {numbers(episode.latest)}", flush=True)
        told.append(episode.caption)


def _replay(path: str) -> Reel:
    from rlstack.play.replays import read_replay
    from rlstack.watching.reels import Replay, film_of

    world, recording = read_replay(Path(path))
    film = film_of(world, recording)
    assert film is not None, f"{world} has replays, but no module film"
    return Replay(film, Path(path).name)


def _arguments(arguments: list[str]) -> list[str]:
    return open_group("env")(open_group("agent")(arguments))


main = hydra_command("watch", _arguments)(run)

if __name__ == "__main__":
    main()
