"""Rocket in a window: ``python -m envs.rocket.watch replay=<file.npz>``, or a match of two players of rules.

The space bar stops and goes on, the arrows go back and forth, Enter begins anew, Escape ends. Other settings,
``name=value``: ``blue`` and ``orange`` (cars of each team, of a new match), ``seed``, ``speed`` (1 is real time).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..drawing.window import TkWindow, Window
from . import rules
from .actions import chosen_for
from .env import Rocket
from .film import Film
from .recording import Recorder, Recording
from .render import SIZE
from .replay import load_replay
from .rule_policy import rule_controls

_FPS = 30
_SEEK_TICKS = 24.0  # per picture while an arrow is held
_SETTINGS: dict[str, Callable[[str], Any]] = {
    **{"replay": str, "blue": int, "orange": int, "seed": int, "speed": float}
}


def match(blue: int = 1, orange: int = 1, seed: int = 0, max_seconds: float = 60.0) -> Recording:
    """A match of the player of rules against itself, from the kick-off to its end.

    Raises:
        ValueError: impossible teams.
    """
    env = Rocket(num_worlds=1, blue=blue, orange=orange, seed=seed, max_seconds=max_seconds)
    recorder, root = Recorder(env, [0], ["rule against rule"]), env.reset()
    recorder.add()
    done = False
    with torch.no_grad():
        while not done:
            root["agents", "action"] = chosen_for("multi", rule_controls(env.worlds.world))
            root = env.step(root)["next"]
            recorder.add()
            done = bool(root["done"].all())
    return recorder.recordings()[0].named(("rule", "rule"), "rule against rule")


def watch(
    film: Film,
    window: Window,
    speed: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Shows a film until the window is closed; at its end the last picture stands still."""
    frames = film.recording.frames
    first, last = float(frames.clock[0]), float(frames.clock[-1])
    now, runs, pressed = first, True, False
    due = clock()
    while window.is_open:
        held = window.held
        if "space" in held and not pressed:
            runs = not runs
        pressed = "space" in held
        jump = _SEEK_TICKS * (("Right" in held) - ("Left" in held))
        now = first if "Return" in held else now + jump + (rules.TICKS_PER_SECOND * speed / _FPS if runs else 0.0)
        now = max(now, first)
        window.show(film.draw(min(now, last), max(now - last, 0.0)))
        due = max(due + 1 / _FPS, clock() - 1 / _FPS)
        sleep(max(due - clock(), 0.0))


def settings(arguments: Sequence[str]) -> dict[str, Any]:
    """What the command line asks for.

    Raises:
        ValueError: an unknown name, or a value that cannot be read.
    """
    chosen: dict[str, Any] = {}
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name not in _SETTINGS:
            raise ValueError(f"{argument}: unknown setting, allowed: {', '.join(_SETTINGS)}, such as replay=best_1.npz")
        try:
            chosen[name] = _SETTINGS[name](value)
        except ValueError:
            raise ValueError(f"{argument}: {name} must be a number") from None
    return chosen


def main(arguments: Sequence[str]) -> int:
    """Shows what is asked for, or says in one line why not; returns the exit status."""
    try:
        chosen = settings(arguments)
        speed, replay = chosen.pop("speed", 1.0), chosen.pop("replay", None)
        film = Film(match(**chosen) if replay is None else load_replay(replay), SIZE)
        watch(film, TkWindow(SIZE, "Rocket"), speed)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
