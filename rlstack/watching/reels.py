"""Episodes as something to look at: pictures at any of the times that an episode has come to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase

from envs.drawing.canvas import Picture
from rlstack.evaluation.evaluator import MOST_STEPS, Scores, world_part

Policy: TypeAlias = TensorDictModuleBase | Callable[[TensorDictBase], TensorDictBase]

_SHOWN = ("return", "success", "length")
_KEPT = 300  # pictures of a simulator that draws by itself
_USUAL_RATE = 20.0


class Film(Protocol):
    """Pictures of a recording, such as :class:`envs.rocket.film.Film`.

    Attributes:
        per_second: units of time that are a second.
        span: first and last time.
    """

    per_second: float

    @property
    def span(self) -> tuple[float, float]: ...

    def draw(self, time: float, pause: float = 0.0, /) -> Picture:
        """The picture at a time, or for so long after the end, uint8 ``[H, W, 3]``."""


class Reel(Film, Protocol):
    """A film of an episode that may go on."""

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""

    @property
    def caption(self) -> str:
        """Where it is, in words."""

    def grow(self) -> None:
        """Takes the episode one step further."""


class Episode:
    """An episode of a policy in the only world of an env; begun, but without a step.

    Args:
        env: of one world.
        policy: an env's tensordict in, the same with actions out.
        seed: of the env and of all that draws: the same one, and ``number``, give the same episode.
        number: of the episode, from 1.
    """

    def __init__(self, env: EnvBase, policy: Policy, seed: int, number: int = 1) -> None:
        forget = getattr(policy, "reset", None)
        if callable(forget):  # policies from elsewhere with a memory
            forget()
        drawn = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
        env.set_seed(drawn)
        torch.manual_seed(drawn)
        self.env, self.number, self.steps, self.over = env, number, 0, False
        self.latest: TensorDictBase = env.reset()
        self._policy, self._root = policy, self.latest
        self._scores = Scores(env, self._root)
        self._most = getattr(env, "evaluation_steps", None) or MOST_STEPS

    @torch.no_grad()
    def step(self) -> None:
        """One step, unless it is over."""
        if self.over:
            return
        self.latest = self.env.step(self._policy(self._root))
        self.steps += 1
        self.over = not self._scores.take(self.latest, self.steps) or self.steps >= self._most
        if not self.over:
            self._root = self.env.maybe_reset(self.env.step_mdp(self.latest))

    @property
    def caption(self) -> str:
        """Such as ``episode 1, step 20: return 3.5, success 0``."""
        values = {name: float(self._scores.values[name]) for name in _SHOWN if name in self._scores.values}
        return (
            f"episode {self.number}, step {self.steps}"
            + (": " if values else "")
            + ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        )


class _Played:
    """What the reels of an episode in play share."""

    _episode: Episode

    @property
    def over(self) -> bool:
        return self._episode.over

    @property
    def caption(self) -> str:
        return self._episode.caption


class Recorded(_Played):
    """An episode that the world's recorder and renderer show.

    Args:
        episode: without a step.
        recorder: of its env.
        film: of a recording, and of an earlier film of the same episode.
    """

    def __init__(self, episode: Episode, recorder: Any, film: Callable[[Any, Any], Film]) -> None:
        self._episode, self._recorder, self._make = episode, recorder, film
        recorder.add()
        self._film = film(recorder.recordings()[0], None)
        self._shown = 0
        self.per_second = self._film.per_second

    def grow(self) -> None:
        self._episode.step()
        self._recorder.add()

    def _latest(self) -> Film:
        if self._shown != self._episode.steps:
            self._film = self._make(self._recorder.recordings()[0], self._film)
            self._shown = self._episode.steps
        return self._film

    @property
    def span(self) -> tuple[float, float]:
        return self._latest().span

    def draw(self, time: float, pause: float = 0.0, /) -> Picture:
        return self._latest().draw(time, pause)


class Rendered(_Played):
    """An episode of an env that draws itself as it stands (``render``): its latest pictures are kept.

    Raises:
        RuntimeError: it draws none.
    """

    def __init__(self, episode: Episode) -> None:
        self._episode, self._pictures = episode, deque[Picture](maxlen=_KEPT)
        self.per_second = float(getattr(episode.env, "pictures_per_second", _USUAL_RATE))
        self._take()

    def _take(self) -> None:
        picture = np.asarray(self._episode.env.render())[..., :3]
        height, width = (length - length % 2 for length in picture.shape[:2])  # as films need it
        self._pictures.append(picture[:height, :width].copy())

    def grow(self) -> None:
        self._episode.step()
        self._take()

    @property
    def span(self) -> tuple[float, float]:
        return float(self._episode.steps - len(self._pictures) + 1), float(self._episode.steps)

    def draw(self, time: float, pause: float = 0.0, /) -> Picture:
        return self._pictures[max(int(time - self.span[0]), 0)]


class Replay:
    """A film of an episode that has ended."""

    over = True

    def __init__(self, film: Film, caption: str) -> None:
        self._film, self.caption, self.per_second, self.span = film, caption, film.per_second, film.span

    def grow(self) -> None:
        """It is all there."""

    def draw(self, time: float, pause: float = 0.0, /) -> Picture:
        return self._film.draw(time, pause)


class Frames:
    """A film of a world that draws single frames: ``draw_frame(recording, t)`` in its module ``render``.

    Args:
        recording: of frames 0 to ``last``.
        renderer: ``STEPS_PER_SECOND`` there says how fast it is watched.
    """

    def __init__(self, recording: Any, renderer: Any, last: int, repeats: int = 1) -> None:
        self._recording, self._renderer = recording, renderer
        self.per_second = getattr(renderer, "STEPS_PER_SECOND", _USUAL_RATE) / repeats
        self.span = 0.0, float(last)

    def draw(self, time: float, pause: float = 0.0, /) -> Picture:
        picture: Picture = self._renderer.draw_frame(self._recording, int(time))
        return picture


def film_of(world: str, recording: Any) -> Film | None:
    """A recording as a film, for worlds whose module ``film`` draws what is between two steps, too."""
    part, renderer = world_part(world, "film"), world_part(world, "render")
    film: Film | None = None if part is None else part.Film(recording, getattr(renderer, "SIZE", (1280, 720)))
    return film


def reel_of(world: str, episode: Episode) -> Reel | None:
    """An episode as something to look at; None for a world that draws nothing."""
    env: Any = episode.env
    recording, renderer = world_part(world, "recording"), world_part(world, "render")
    if recording is not None and renderer is not None:

        def film(recorded: Any, earlier: Any) -> Film:
            if isinstance(earlier, Frames) or (earlier is None and world_part(world, "film") is None):
                return Frames(recorded, renderer, episode.steps, getattr(env, "repeats", 1))
            return film_of(world, recorded) if earlier is None else earlier.longer(recorded)  # type: ignore[return-value]

        return Recorded(episode, recording.Recorder(env, [0], [f"episode {episode.number}"]), film)
    try:
        return Rendered(episode)
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def numbers(tensordict: TensorDictBase, most: int = 8) -> str:
    """What agents saw, did and got in a step, a few numbers of each."""
    parts = []
    for name, place in (("observation", tensordict), ("action", tensordict), ("reward", tensordict.get("next"))):
        agents = place.get("agents", None)
        value = place.get(name, None) if agents is None else agents.get(name, None)
        if isinstance(value, TensorDictBase):
            value = torch.cat([leaf.double().flatten() for leaf in value.values(True, True)])
        if isinstance(value, Tensor):
            flat = value.flatten().tolist()
            parts.append(f"{name} " + " ".join(f"{number:.3g}" for number in flat[:most]) + " .." * (len(flat) > most))
    return "  ".join(parts)
