"""Pictures of episodes: files of the episodes that an evaluation recorded, and animations of an episode in play.

A world's recordings draw themselves (:class:`rlstack.envs.recording.EpisodeRecording`). A world with a ``render``
method instead has the pictures of its first world recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase

from rlstack.data.recordings import TransitionRecorder
from rlstack.envs.foundation.tensors import GROUP
from rlstack.envs.recording import EpisodeRecorder, EpisodeRecording
from rlstack.envs.rendering.canvas import Picture, captioned
from rlstack.envs.rendering.films import Animation, in_grid, save_animation, save_picture
from rlstack.envs.rendering.rendered import RenderedRecorder, rendered
from rlstack.envs.world import hooks_of

from .evaluator import MOST_STEPS, EpisodeStatistics
from .results import Evaluation

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
    columns = [evaluation.episodes[name] for name in ("success", "return") if name in evaluation.episodes]
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
