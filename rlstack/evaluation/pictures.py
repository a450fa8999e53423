"""Pictures of episodes: files of the episodes that an evaluation recorded, and animations of an episode in play.

A world's recordings draw themselves (:class:`rlstack.envs.recording.EpisodeRecording`). A world with a ``render``
method instead has the pictures of its first world recorded. Animations play in a window that can pause and seek, in a
terminal, or into a film.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np
import torch
from PIL import Image
from rich.color import Color
from rich.console import Console, Group
from rich.live import Live
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase

from rlstack.config.errors import writing
from rlstack.data.recordings import TransitionRecorder
from rlstack.envs.foundation.tensors import GROUP
from rlstack.envs.recording import EpisodeRecorder, EpisodeRecording
from rlstack.envs.rendering.canvas import Colour, Picture, WrittenText, captioned, texts_apart
from rlstack.envs.rendering.films import Animation, in_grid, possible_fps, save_animation, save_film, save_picture
from rlstack.envs.rendering.rendered import RenderedRecorder, rendered
from rlstack.envs.rendering.window import Window
from rlstack.envs.world import hooks_of

from .evaluator import MOST_STEPS, EpisodeStatistics
from .results import Evaluation

FILES = ("trajectories.png", "best.mp4", "worst.mp4", "first.mp4")
"""Names of the files of :func:`save_pictures`."""
PER_LEVEL = 6
"""The number of recorded episodes per level, which form one row of the grid."""
_SHOWN = ("return", "success", "length")
ActingPolicy: TypeAlias = TensorDictModuleBase | Callable[[TensorDictBase], TensorDictBase]


# -- files -------------------------------------------------------------------------------------------------------


def save_pictures(evaluation: Evaluation, folder: Path, plots: bool = True, video: bool = True) -> list[Path]:
    """Writes ``trajectories.png`` (all recorded episodes), and ``best.mp4`` and ``worst.mp4`` of them.

    A world that only has ``render`` has one recorded episode: ``first.mp4``.

    Returns the written files; none for an evaluation without recordings.
    """
    recordings, written = evaluation.recordings, []
    if plots and recordings:
        written.append(folder / "trajectories.png")
        first = next(iter(recordings.values()))
        columns = min(PER_LEVEL, first.overview_columns)
        title = f"{len(recordings)} of {len(evaluation.levels)} episodes of {evaluation.world}"
        grid = in_grid((recording.overview() for recording in recordings.values()), columns)
        save_picture(written[-1], captioned(grid, title, first.legend()))
    if video and recordings:
        for name, index in best_and_worst(evaluation).items():
            written.append(folder / f"{name}.mp4")
            save_animation(recordings[index].animation(), written[-1])
    return written


def best_and_worst(evaluation: Evaluation) -> dict[str, int]:
    """Returns the indices of the best and worst recorded episodes: by success, then return, then the hardest level.

    If all are equal, there is only ``best``; if one of several episodes was recorded, it is ``first``.
    """
    if len(evaluation.recordings) == 1 < len(evaluation.levels):
        return {"first": next(iter(evaluation.recordings))}
    returns = "discounted_return" if "discounted_return" in evaluation.episodes else "return"  # as in the table
    columns = [evaluation.episodes[name] for name in ("success", returns) if name in evaluation.episodes]
    ranks = {index: [float(column[index]) for column in columns] for index in reversed(evaluation.recordings)}
    best, worst = max(ranks, key=ranks.__getitem__), min(ranks, key=ranks.__getitem__)  # levels ascend
    return {"best": best} if ranks[best] == ranks[worst] else {"best": best, "worst": worst}


# -- animations --------------------------------------------------------------------------------------------------


class LiveEpisode:
    """An episode of a policy in an env with one world; it is reset, but not yet stepped.

    Args:
        env: env with one world.
        policy: module that adds actions to an env's tensordict.
        seed: seed of the env and of all random draws; the same seed and ``number`` give the same episode.
        number: number of the episode, from 1.
        transitions: recorder of its decisions.
    """

    def __init__(
        self,
        env: EnvBase,
        policy: ActingPolicy,
        seed: int,
        number: int = 1,
        transitions: TransitionRecorder | None = None,
    ) -> None:
        if callable(forget := getattr(policy, "reset", None)):  # foreign policies with a recurrent state
            forget()
        drawn = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
        env.set_seed(drawn)
        torch.manual_seed(drawn)
        self.env, self.number, self.steps, self.over = env, number, 0, False
        self.latest: TensorDictBase = env.reset()
        self._policy, self._root, self._transitions = policy, self.latest, transitions
        self._statistics = EpisodeStatistics(env, self._root)
        self._most = hooks_of(env).evaluation_steps or MOST_STEPS

    @torch.no_grad()
    def step(self) -> None:
        """Makes one step, unless the episode has ended."""
        if self.over:
            return
        going_on = self._statistics.running
        self.latest = self.env.step(self._policy(self._root))
        self.steps += 1
        self.over = not self._statistics.take(self.latest, self.steps) or self.steps >= self._most
        if self._transitions is not None:
            self._transitions.add(self.latest, going_on & ~self._statistics.spoiled)
            if self.over:
                self._transitions.end()
        if not self.over:
            self._root = self.env.maybe_reset(self.env.step_mdp(self.latest))

    @property
    def caption(self) -> str:
        """Returns the line below a picture, such as ``episode 1, step 20: return 3.5, success 0``."""
        values = self._statistics.values
        scores = ", ".join(f"{name} {float(values[name]):.4g}" for name in _SHOWN if name in values)
        return f"episode {self.number}, step {self.steps}" + (f": {scores}" if scores else "")


class RecordedAnimation:
    """An episode in play, drawn from the recording that its recorder makes.

    Args:
        episode: the episode, not yet stepped.
        recorder: recorder of its env.
    """

    def __init__(self, episode: LiveEpisode, recorder: EpisodeRecorder[Any] | RenderedRecorder) -> None:
        self._episode, self._recorder = episode, recorder
        recorder.add()
        (recording,) = recorder.recordings()
        self._animation: Animation = recording.animation()
        self.legend, self.per_second = recording.legend(), self._animation.per_second
        self._drawn_steps = 0

    @property
    def over(self) -> bool:
        """Returns True once the episode has ended."""
        return self._episode.over

    @property
    def caption(self) -> str:
        """Returns episode, step and statistics so far."""
        return self._episode.caption

    def grow(self) -> None:
        """Advances the episode by one step."""
        self._episode.step()
        self._recorder.add()

    def _latest(self) -> Animation:
        if self._drawn_steps != self._episode.steps:
            self._animation = self._animation.longer(self._recorder.recordings()[0])
            self._drawn_steps = self._episode.steps
        return self._animation

    @property
    def span(self) -> tuple[float, float]:
        """Returns the first and last time."""
        return self._latest().span

    def draw(self, time: float, pause: float = 0.0, /) -> Picture:
        """Draws the picture at a time, or ``pause`` after the end, uint8 ``[H, W, 3]``."""
        return self._latest().draw(time, pause)


class FinishedAnimation:
    """The animation of an episode that has ended, such as a replay."""

    over = True

    def __init__(self, recording: EpisodeRecording, caption: str) -> None:
        animation = recording.animation()
        self.caption, self.legend, self.draw = caption, recording.legend(), animation.draw
        self.per_second, self.span = animation.per_second, animation.span

    def grow(self) -> None:
        """Does nothing, as the episode has ended."""


EpisodeAnimation: TypeAlias = RecordedAnimation | FinishedAnimation
"""An animation of an episode that may still be in play; see :class:`rlstack.envs.rendering.films.Animation`."""


def animate(episode: LiveEpisode) -> EpisodeAnimation | None:
    """Returns an animation that grows with an episode, or None for a world that cannot be drawn."""
    env = episode.env
    recorder = hooks_of(env).recorder([0], [f"episode {episode.number}"]) or rendered(env)
    return None if recorder is None else RecordedAnimation(episode, recorder)


def numbers(tensordict: TensorDictBase, most: int = 8) -> str:
    """Returns observation, action and reward of a step as text, at most ``most`` numbers of each."""
    parts = []
    for name, place in (("observation", tensordict), ("action", tensordict), ("reward", tensordict.get("next"))):
        agents = place.get(GROUP, None)
        value = place.get(name, None) if agents is None else agents.get(name, None)
        if isinstance(value, TensorDictBase):
            value = torch.cat([leaf.double().flatten() for leaf in value.values(True, True)])
        if isinstance(value, Tensor):
            flat = value.flatten().tolist()
            parts.append(f"{name} " + " ".join(f"{number:.3g}" for number in flat[:most]) + " .." * (len(flat) > most))
    return "  ".join(parts)


# -- playing -----------------------------------------------------------------------------------------------------------

_FPS = 30.0
_LONGEST = 0.2  # s skipped at once when drawing is slow
_SEEK_SECONDS = 0.2  # s per picture while an arrow key is held
HOLD_SECONDS = 1.5
"""Seconds for which the last picture is shown."""
_HALF_BLOCK = "\N{UPPER HALF BLOCK}"


def show(
    animation: EpisodeAnimation,
    screen: Window,
    speed: float = 1.0,
    hold: float = HOLD_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Shows an animation until its last picture was shown for ``hold`` seconds, or the screen is closed.

    The space bar pauses and continues, the arrow keys seek, Enter restarts. If drawing is too slow, pictures are
    skipped; if the world is too slow, its time passes more slowly.
    """
    now, runs, pressed, before = animation.span[0], True, False, clock()
    passed = 0.0
    while screen.is_open:
        held = screen.held
        if "space" in held and not pressed:
            runs = not runs
        pressed = "space" in held
        seconds = speed * passed * runs + _SEEK_SECONDS * (("Right" in held) - ("Left" in held))
        first = animation.span[0]
        now = first if "Return" in held else max(now + seconds * animation.per_second, first)
        last = _grown(animation, now)
        if now - last > hold * animation.per_second:
            return
        screen.show(animation.draw(max(min(now, last), animation.span[0]), max(now - last, 0.0)))
        sleep(max(before + 1 / _FPS - clock(), 0.0))
        after = clock()
        passed, before = min(max(after - before, 1 / _FPS), _LONGEST), after


def frames(
    animation: EpisodeAnimation, speed: float, fps: float = _FPS, hold: float = HOLD_SECONDS
) -> Iterator[Picture]:
    """Yields the pictures of a whole episode at even times, with its last picture repeated for ``hold`` seconds."""
    first, step = animation.span[0], speed * animation.per_second / fps
    count = 0
    while (now := first + count * step) <= _grown(animation, now):
        yield animation.draw(now)
        count += 1
    last = animation.span[1]
    for place in range(1, math.ceil(hold * fps) + 1):
        yield animation.draw(last, place * speed * animation.per_second / fps)


def record(animations: Iterator[EpisodeAnimation], path: Path, speed: float) -> None:
    """Writes episodes one after another as MP4 or GIF.

    Raises:
        ConfigError: the folder cannot be written to.
        ValueError: the file name has another ending.
    """
    fps = possible_fps(path, 15.0) if path.suffix.lower() == ".gif" else _FPS
    pictures = (picture for animation in animations for picture in frames(animation, speed, fps))
    first = next(pictures)
    height, width = first.shape[:2]
    with writing(f"record: {path}"):
        save_film(path, fps, (width, height), chain([first], pictures))


def _grown(animation: EpisodeAnimation, now: float) -> float:
    """Grows the animation until ``now`` or its end, and returns its last time."""
    while not animation.over and animation.span[1] < now:
        animation.grow()
    return animation.span[1]


# -- terminal ----------------------------------------------------------------------------------------------------


class TerminalScreen:
    """Shows pictures as coloured half blocks; a context that restores the terminal.

    Text that a world writes on its pictures becomes letters of the terminal, in its place if there is room, otherwise
    below. A legend and the caption follow, a line each.

    Args:
        stream: stream of the terminal.
        present: returns the animation that is being shown.
    """

    is_open = True
    held: Collection[str] = ()  # a terminal does not report which keys are held

    def __init__(self, stream: TextIO, present: Callable[[], EpisodeAnimation]) -> None:
        self._present = present
        self._console = Console(file=stream, force_terminal=True)
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._stack, self._texts = ExitStack(), list[WrittenText]()

    def __enter__(self) -> TerminalScreen:
        self._texts = self._stack.enter_context(texts_apart())
        self._stack.enter_context(self._live)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, picture: Picture) -> None:
        """Shows a picture as large as fits, and the text written since the last one."""
        columns, lines = self._console.size
        legend = Text(no_wrap=True, overflow="crop")
        for sign, words, colour in self._present().legend:
            if len(legend) + len(words) + 5 < columns:
                legend.append(sign, Style(color=Color.from_rgb(*colour))).append(f" {words}   ")
        last = [legend] if legend else []
        last.append(Text(self._present().caption, no_wrap=True, overflow="crop"))
        drawn, left = blocks(picture, columns, max(lines - len(last), 1), self._texts)
        self._texts.clear()
        self._live.update(Group(drawn, *([Text("   ".join(left))] if left else []), *last), refresh=True)


def blocks(picture: Picture, columns: int, lines: int, texts: Sequence[WrittenText] = ()) -> tuple[Segments, list[str]]:
    """Converts a picture ``[H, W, 3]`` to lines of coloured text, with its proportions, at most of the given size.

    Args:
        texts: texts to be put over it.

    Returns the lines, and the texts for which there was no room.
    """
    height, width = picture.shape[:2]
    scale = min(columns / width, 2 * lines / height)
    size = max(int(width * scale), 1), max(2 * int(height * scale / 2), 2)
    pixels = np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX)).tolist()
    letters, left = _placed(texts, scale, size[0], size[1] // 2)
    drawn = []
    for row, (top, bottom) in enumerate(zip(pixels[0::2], pixels[1::2])):
        for column, (upper, lower) in enumerate(zip(top, bottom)):
            sign, ink = letters.get(row, {}).get(column, (_HALF_BLOCK, upper))
            drawn.append(Segment(sign, _style(tuple(ink), tuple(lower))))
        drawn.append(Segment.line())
    return Segments(Segment.simplify(drawn)), left


@lru_cache(maxsize=2**16)
def _style(ink: Colour, paper: Colour) -> Style:
    return Style(color=Color.from_rgb(*ink), bgcolor=Color.from_rgb(*paper))


def _placed(
    texts: Sequence[WrittenText], scale: float, columns: int, rows: int
) -> tuple[dict[int, dict[int, tuple[str, Colour]]], list[str]]:
    """Returns letters by row and column, each text at most a row from its place, and the texts that do not fit."""
    letters: dict[int, dict[int, tuple[str, Colour]]] = {}
    left = []
    for index, text in enumerate(texts):
        later = texts[index + 1 :]
        if any(text.text == other.text and abs(text.x - other.x) + abs(text.y - other.y) < 4 for other in later):
            continue  # the shadow of the text that follows
        start = min(max(round(text.x * scale - text.align * len(text.text)), 0), columns - len(text.text))
        taken, row = range(start - 1, start + len(text.text) + 1), int(text.y * scale / 2)
        near = [place for place in (row, row + 1, row - 1) if 0 <= place < rows]
        chosen = next((place for place in near if not letters.get(place, {}).keys() & taken), None)
        if start < 0 or chosen is None:
            left.append(text.text)
            continue
        letters.setdefault(chosen, {}).update((start + k, (sign, text.colour)) for k, sign in enumerate(text.text))
    return letters, left
