"""Pictures of episodes: files about those an evaluation has recorded, and animations of one that is being played.

A world's recordings draw themselves (:class:`envs.recording.EpisodeRecording`). A world without recordings may have a
``render`` method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase

from envs.keys import GROUP
from envs.recording import EpisodeRecorder
from envs.rendering.canvas import Picture
from envs.rendering.films import Animation, save_animation, save_grid
from envs.world import hooks_of

from .evaluator import MOST_STEPS, EpisodeStatistics
from .results import Evaluation

PER_LEVEL = 6
"""Recorded episodes per level, which make one row of the grid."""
_SHOWN = ("return", "success", "length")
_KEPT = 300  # pictures of a simulator that draws by itself
ActingPolicy: TypeAlias = TensorDictModuleBase | Callable[[TensorDictBase], TensorDictBase]


# -- files -------------------------------------------------------------------------------------------------------


def save_pictures(evaluation: Evaluation, folder: Path, plots: bool = True, video: bool = True) -> list[Path]:
    """Writes ``trajectories.png`` (all recorded episodes), ``best.mp4`` and ``worst.mp4`` (of them) as asked.

    Returns the files written; none for an evaluation without recordings.
    """
    recordings, written = evaluation.recordings, []
    if plots and recordings:
        written.append(folder / "trajectories.png")
        columns = min(PER_LEVEL, next(iter(recordings.values())).overview_columns)
        save_grid(written[-1], (recording.overview() for recording in recordings.values()), columns)
    if video and recordings:
        for name, index in best_and_worst(evaluation).items():
            written.append(folder / f"{name}.mp4")
            save_animation(recordings[index].animation(), written[-1])
    return written


def best_and_worst(evaluation: Evaluation) -> dict[str, int]:
    """Indices of the recorded episodes that went best and worst: by success, then return, then the hardest level.

    Where all went the same way, only ``best`` is there.
    """
    columns = [evaluation.episodes[name] for name in ("success", "return") if name in evaluation.episodes]

    def rank(index: int) -> list[float]:
        return [float(column[index]) for column in columns]

    recorded = list(reversed(evaluation.recordings))  # levels ascend
    best, worst = max(recorded, key=rank), min(recorded, key=rank)
    return {"best": best} if rank(best) == rank(worst) else {"best": best, "worst": worst}


# -- animations --------------------------------------------------------------------------------------------------


class EpisodeAnimation(Protocol):
    """An animation of an episode that may still go on; see :class:`envs.rendering.films.Animation`."""

    @property
    def per_second(self) -> float:
        """Units of time in a second."""

    @property
    def span(self) -> tuple[float, float]:
        """First and last time."""

    @property
    def over(self) -> bool:
        """The episode has ended."""

    @property
    def caption(self) -> str:
        """Episode, step and statistics so far."""

    def draw(self, time: float, pause: float = 0.0, /) -> Picture:
        """The picture at a time, or ``pause`` after the end, uint8 ``[H, W, 3]``."""

    def grow(self) -> None:
        """Takes the episode one step further."""


class LiveEpisode:
    """An episode of a policy in the only world of an env; reset, but without a step.

    Args:
        env: of one world.
        policy: an env's tensordict in, the same with actions out.
        seed: of the env and of all random draws: the same one, and ``number``, give the same episode.
        number: of the episode, from 1.
    """

    def __init__(self, env: EnvBase, policy: ActingPolicy, seed: int, number: int = 1) -> None:
        forget = getattr(policy, "reset", None)
        if callable(forget):  # policies from elsewhere with a memory
            forget()
        drawn = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
        env.set_seed(drawn)
        torch.manual_seed(drawn)
        self.env, self.number, self.steps, self.over = env, number, 0, False
        self.latest: TensorDictBase = env.reset()
        self._policy, self._root = policy, self.latest
        self._statistics = EpisodeStatistics(env, self._root)
        self._most = hooks_of(env).evaluation_steps or MOST_STEPS

    @torch.no_grad()
    def step(self) -> None:
        """One step, unless it is over."""
        if self.over:
            return
        self.latest = self.env.step(self._policy(self._root))
        self.steps += 1
        self.over = not self._statistics.take(self.latest, self.steps) or self.steps >= self._most
        if not self.over:
            self._root = self.env.maybe_reset(self.env.step_mdp(self.latest))

    @property
    def caption(self) -> str:
        """The line below a picture, such as ``episode 1, step 20: return 3.5, success 0``."""
        values = self._statistics.values
        told = ", ".join(f"{name} {float(values[name]):.4g}" for name in _SHOWN if name in values)
        return f"episode {self.number}, step {self.steps}" + (f": {told}" if told else "")


class LiveAnimation(ABC):
    """An episode in play, each step of which it takes down."""

    _episode: LiveEpisode

    @property
    def over(self) -> bool:
        return self._episode.over

    @property
    def caption(self) -> str:
        return self._episode.caption

    def grow(self) -> None:
        self._episode.step()
        self._take()

    @abstractmethod
    def _take(self) -> None:
        """Takes down the present state."""


class RecordedAnimation(LiveAnimation):
    """An episode in play, drawn from the recording that the world's recorder makes of it.

    Args:
        episode: without a step.
        recorder: of its env.
    """

    def __init__(self, episode: LiveEpisode, recorder: EpisodeRecorder[Any, Any]) -> None:
        self._episode, self._recorder = episode, recorder
        recorder.add()
        self._animation: Animation = recorder.recordings()[0].animation()
        self._drawn_steps = 0

    @property
    def per_second(self) -> float:
        return self._animation.per_second

    def _take(self) -> None:
        self._recorder.add()

    def _latest(self) -> Animation:
        if self._drawn_steps != self._episode.steps:
            self._animation = self._animation.longer(self._recorder.recordings()[0])
            self._drawn_steps = self._episode.steps
        return self._animation

    @property
    def span(self) -> tuple[float, float]:
        return self._latest().span

    def draw(self, time: float, pause: float = 0.0, /) -> Picture:
        return self._latest().draw(time, pause)


class RenderedAnimation(LiveAnimation):
    """An episode in play whose env draws its present state (``render``): the latest pictures are kept.

    Raises:
        RuntimeError: it draws none.
    """

    def __init__(self, episode: LiveEpisode) -> None:
        self._episode, self._pictures = episode, deque[Picture](maxlen=_KEPT)
        self.per_second = hooks_of(episode.env).pictures_per_second
        self._take()

    def _take(self) -> None:
        picture = np.asarray(self._episode.env.render())[..., :3]
        height, width = (length - length % 2 for length in picture.shape[:2])  # as films need it
        self._pictures.append(picture[:height, :width].copy())

    @property
    def span(self) -> tuple[float, float]:
        return float(self._episode.steps - len(self._pictures) + 1), float(self._episode.steps)

    def draw(self, time: float, pause: float = 0.0, /) -> Picture:
        return self._pictures[max(int(time - self.span[0]), 0)]


class FinishedAnimation:
    """The animation of an episode that has ended, such as a replay."""

    over = True

    def __init__(self, animation: Animation, caption: str) -> None:
        self.caption, self.draw = caption, animation.draw
        self.per_second, self.span = animation.per_second, animation.span

    def grow(self) -> None:
        """Nothing is left to play."""


def animate(episode: LiveEpisode) -> EpisodeAnimation | None:
    """An episode as an animation that grows with it; None for a world that draws nothing."""
    recorder = hooks_of(episode.env).recorder([0], [f"episode {episode.number}"])
    try:
        return RenderedAnimation(episode) if recorder is None else RecordedAnimation(episode, recorder)
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def numbers(tensordict: TensorDictBase, most: int = 8) -> str:
    """Observation, action and reward of a step as text, at most ``most`` numbers of each."""
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
