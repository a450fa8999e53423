"""Arena for human players: ``python -m rlstack.envs.arena.play style=1`` opens a window.

Arrow keys or WASD move, the space bar shoots, Enter starts a new game, Escape ends. Other settings, ``name=value``:
``stage`` (of the curriculum, 0 to 5), ``seed``, ``size`` (such as ``1000x800``).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from ..rendering.canvas import Picture
from ..rendering.window import TkWindow, Window
from .env import Arena
from .recording import SIZE, STEPS_PER_SECOND, ArenaRenderer, snapshot

_UP, _DOWN, _LEFT, _RIGHT = ("Up", "w"), ("Down", "s"), ("Left", "a"), ("Right", "d")
_MOVES = {1: (_UP, _LEFT, _RIGHT), 2: (_UP, _DOWN, _LEFT, _RIGHT)}
"""Keys of the actions 1, 2, ... of a style, followed by shooting."""
SHOOT, RESTART = "space", "Return"


def action(held: Collection[str], style: int, ready: bool, step: int) -> int:
    """Returns the action for the keys held down, one per step.

    Shooting has precedence if the gun is ``ready``; several directions alternate.
    """
    if ready and SHOOT in held:
        return len(_MOVES[style]) + 1
    moves = [number for number, keys in enumerate(_MOVES[style], 1) if any(key in held for key in keys)]
    return moves[step % len(moves)] if moves else 0


class Game:
    """A game for a human player.

    Args:
        options: options of :class:`Arena`.
        size: size of the pictures.

    Raises:
        ValueError: an option or the size is impossible.
    """

    def __init__(self, size: tuple[int, int] = SIZE, **options: Any) -> None:
        self._env = Arena(num_worlds=1, **options)
        self._renderer, self._pause = ArenaRenderer(self._env.rules, size), 0
        self._restart()

    def _restart(self) -> None:
        self._env.reset()
        self.now, self._pause = snapshot(self._env.worlds, 0, self._env.rules), 0

    def advance(self, held: Collection[str]) -> None:
        """Makes one step with these keys held down; after the end, Enter starts a new game."""
        rules = self._env.rules
        if RESTART in held and self.now.step > 0:
            self._restart()
        elif self.now.over(rules):
            self._pause += 1
        else:
            ready = self.now.shot_ready <= self.now.step + 1
            chosen = torch.tensor([action(held, rules.style, ready, self.now.step)])
            self._env.step(TensorDict({"action": chosen}, [1]))
            self.now = snapshot(self._env.worlds, 0, rules)

    def picture(self) -> Picture:
        """Draws the current state of the game."""
        return self._renderer.draw(self.now, self._pause)


def play(
    game: Game,
    window: Window,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Plays at 60 steps per second until the window is closed; a slow computer shows only every other step."""
    due, skipped = clock(), True
    while window.is_open:
        game.advance(window.held)
        due += 1 / STEPS_PER_SECOND
        skipped = clock() > due and not skipped
        if not skipped:
            window.show(game.picture())
        left = due - clock()
        if left > 0:
            sleep(left)
        else:
            due = max(due, clock() - 1 / STEPS_PER_SECOND)


def settings(arguments: Sequence[str]) -> dict[str, Any]:
    """Reads the command line into arguments of :class:`Game`.

    Raises:
        ValueError: a name is unknown, or a value cannot be parsed.
    """
    chosen: dict[str, Any] = {"seed": time.time_ns() % 2**31}
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name not in _SETTINGS:
            raise ValueError(f"{argument}: unknown setting, allowed: {', '.join(_SETTINGS)}, such as style=1")
        try:
            chosen[name] = _SETTINGS[name](value)
        except ValueError:
            example = "two numbers such as 800x640" if name == "size" else "a whole number"
            raise ValueError(f"{argument}: {name} must be {example}") from None
    return chosen


def _size(text: str) -> tuple[int, int]:
    width, height = map(int, text.split("x"))
    return width, height


_SETTINGS: dict[str, Callable[[str], Any]] = {"style": int, "stage": int, "seed": int, "size": _size}


def main(arguments: Sequence[str]) -> int:
    """Plays, or prints in one line why it cannot; returns the exit status."""
    try:
        chosen = settings(arguments)
        play(Game(**chosen), TkWindow(chosen.get("size", SIZE), "Arena"))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
