"""Small Gymnasium environments with known numbers, and a rollout.

Worker processes import this module, so it does not import torch.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

TOYS = __name__
"""The module for an ``id`` of these environments."""


def rolled(env: Any, steps: int, action: Any = None) -> Any:
    """Returns ``[W, steps]`` by the fast path, with given actions ``[steps, W, ...]`` or random ones."""
    import torch

    tensordict, taken = env.reset(), []
    for step in range(steps):
        tensordict = env.rand_action(tensordict) if action is None else tensordict.set("action", action[step])
        now, tensordict = env.step_and_maybe_reset(tensordict)
        taken.append(now)
    return torch.stack(taken, -1)


class Structured(gymnasium.Env[Any, Any]):
    """A Dict observation with all spaces that can be encoded; it contains the action."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (4, 5, 3), np.uint8),
            "pair": spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiBinary(2)]),
            "speed": spaces.Box(-1.0, 1.0, ()),
        }
    )
    action_space = spaces.MultiDiscrete([3, 2], start=[1, 0])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._show(1, 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.steps += 1
        return self._show(*action), float(self.steps), self.steps == 4, False, {}

    def _show(self, choice: int, switch: int) -> dict[str, Any]:
        camera = np.full((4, 5, 3), self.steps, np.uint8)
        return {"camera": camera, "pair": (choice, np.array([switch, 1], np.int8)), "speed": np.float32(0.25)}


class Masked(gymnasium.Env[Any, Any]):
    """In step k only action k modulo 3 is legal, others raise an error.

    Args:
        form: the mask is in the info as ``action_mask``, as ``action_masks`` (``plural``), in the info of a reset only
            (``at first``), or as numbers to add to logits (``numbers``); or it is an entry of a Dict ``observation``
            or of a Dict ``below`` it.
    """

    observation_space: spaces.Space[Any] = spaces.Box(0.0, 10.0, (1,))
    action_space = spaces.Discrete(3, start=5)

    def __init__(self, form: str = "info") -> None:
        self.form, own, mask = form, self.observation_space, spaces.MultiBinary(3)
        if form == "observation":
            self.observation_space = spaces.Dict({"observation": own, "action_mask": mask})
        if form == "below":
            self.observation_space = spaces.Dict({"ship": spaces.Dict({"speed": own, "action_mask": mask})})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._shown()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action - 5 == self.steps % 3, f"illegal {action} in step {self.steps}"
        self.steps += 1
        observation, info = self._shown()
        return observation, 1.0, False, self.steps == 7, info

    def _shown(self) -> tuple[Any, dict[str, Any]]:
        seen, mask = np.array([self.steps], np.float32), np.eye(3, dtype=np.int8)[self.steps % 3]
        if self.form == "observation":
            return {"observation": seen, "action_mask": mask}, {}
        if self.form == "below":
            return {"ship": {"speed": seen, "action_mask": mask}}, {}
        if self.form == "at first" and self.steps:
            return seen, {}
        told = np.where(mask, 0.0, -np.inf) if self.form == "numbers" else mask
        return seen, {"action_masks" if self.form == "plural" else "action_mask": told}


class Counting(gymnasium.Env[Any, Any]):
    """Shows the number of its step; an episode has ``limit`` steps."""

    observation_space = spaces.Box(0.0, 100.0, (1,))
    action_space = spaces.Discrete(2)
    limit, steps, episodes = 5.0, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.episodes = 0, self.episodes + 1
        self._break(self.episodes > 2)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self._break(True)
        return np.full(1, self.steps, np.float32), 1.0, self.steps == self.limit, False, {}

    def _break(self, may: bool) -> None:
        """Is called in every reset, where it ``may`` fail from the third on, and in every step."""


class Drawn(Counting):
    """``render`` draws step k in the form ``kind``."""

    metadata = {"render_modes": ["human", "rgb_array"]}

    def __init__(self, kind: str = "colours", render_mode: str | None = None) -> None:
        self.kind, self.render_mode = kind, render_mode
        # As in Gymnasium's template of an environment, here with one mode.
        assert kind != "human" or render_mode in (None, "human")

    def render(self) -> Any:
        height = 20 + 10 * self.steps if self.kind == "grows" else 20
        if self.kind == "breaks" and self.steps == 3:
            raise ArithmeticError("the lamp broke")
        if self.kind in ("human", "text"):
            return None if self.kind == "human" else "....\n"
        if self.kind == "vector":
            return np.zeros(7)
        picture = np.full((height, 16, 3), 51 * (self.steps + 1) % 256, np.uint8)
        if self.kind == "fractions":
            return picture / 255
        if self.kind == "floats":
            return picture.astype(np.float32)
        return picture[..., 0] if self.kind == "grey" else picture[..., :1] if self.kind == "one channel" else picture


class MaskedByMethod(Masked):
    """The same mask by sb3-contrib's method."""

    def action_masks(self) -> Any:
        return super()._shown()[1]["action_mask"]

    def _shown(self) -> tuple[Any, dict[str, Any]]:
        return super()._shown()[0], {}


class Fragile(Counting):
    """Fails in a step of an episode or in a reset: with an exception, by ending its process, or by hanging.

    Args:
        how: ``raises``, ``dies``, ``hangs`` or ``exits``.
        at: step of the failure; 0 is a reset, the third or a later one.
        once: file that exists once the environment has failed, which it does only once; None: it fails each time.
    """

    limit = np.inf

    def __init__(self, how: str = "raises", at: int = 3, once: str | None = None) -> None:
        self.how, self.at, self.once = how, at, once

    def _break(self, may: bool) -> None:
        if not may or self.steps != self.at:
            return
        if self.once is not None:
            try:
                open(self.once, "x").close()
            except FileExistsError:  # it has already failed, perhaps just now in another process
                return
        if self.how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "exits":
            sys.exit(0)
        if self.how == "hangs":
            time.sleep(1e6)
        raise ArithmeticError("the mast broke")


class Answering(gymnasium.Env[Any, Any]):
    """Answers with what it is given.

    Args:
        space: its observation space; None for four numbers.
        first: the first observation, None for that of every step.
        fits: the observation of every step but one.
        at: the step that answers with ``answer`` instead, or raises an error; 0 is the third reset or a later one.
        raises: the error.
        answer: the parts of that answer.
    """

    action_space = spaces.Discrete(2)

    def __init__(
        self,
        space: Any = None,
        first: Any = (0.0,) * 4,
        fits: Any = (0.0,) * 4,
        at: int = 1,
        raises: Exception | None = None,
        **answer: Any,
    ) -> None:
        self.observation_space, self.first, self.fits = space or spaces.Box(-1.0, 1.0, (4,)), first, fits
        self.at, self.raises, self.answer, self.resets = at, raises, answer, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps, self.resets = 0, self.resets + 1
        if self.resets > 1:
            self._break()
        return self.first, {}

    def step(self, action: int) -> tuple[Any, ...]:
        self.steps += 1
        self._break()
        parts = {"observation": self.fits, "reward": 1.0, "terminated": False, "truncated": False, "info": {}}
        return tuple((parts | (self.answer if self.steps == self.at else {})).values())

    def _break(self) -> None:
        if self.raises is not None and self.steps == self.at:
            raise self.raises


class Noisy(gymnasium.Env[Any, Any]):
    """Returns its own random numbers as observations; ends at random."""

    observation_space = spaces.Box(0.0, 1.0, (2,))
    action_space = spaces.Box(-2.0, 3.0, (2, 2))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.random(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        reward = float(action.sum())
        action *= 0.0  # an environment may change its arguments
        return self.np_random.random(2, np.float32), reward, bool(self.np_random.random() < 0.2), False, {}


class Unbounded(Noisy):
    """Its actions have no bounds."""

    action_space = spaces.Box(-np.inf, np.inf, (2,))


def bounded() -> gymnasium.Env[Any, Any]:
    """Returns the same with bounds."""
    return gymnasium.wrappers.TransformAction(Unbounded(), lambda action: action, spaces.Box(-1.0, 1.0, (2,)))


class Landing(Masked):
    """Lands in step 3 if its last action is 1, and then says so."""

    action_space = spaces.Discrete(2)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps == 3
        return self._shown()[0], 1.0, over, False, {"is_success": np.bool_(action == 1)} if over else {}

    def _shown(self) -> tuple[Any, dict[str, Any]]:
        return super()._shown()[0], {}


class Old(gymnasium.Env[Any, Any]):
    """Has the interface of Gymnasium before version 0.26.

    Args:
        reset: ``plain`` returns only an observation, ``seedless`` takes no seed, ``new`` is correct.
        parts: the parts that a step returns.
    """

    observation_space = spaces.Box(0.0, 1.0, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, reset: str = "new", parts: int = 4) -> None:
        show = np.zeros(1, np.float32)
        self._outcome = (show, 1.0, False, False, {}, None)[:parts] if parts > 4 else (show, 1.0, False, {})
        answers: dict[str, Any] = {
            "plain": lambda *, seed=None, options=None: show,
            "seedless": lambda: show,
            "new": lambda *, seed=None, options=None: (show, {}),
        }
        self.reset = answers[reset]  # type: ignore[method-assign]

    def step(self, action: int) -> Any:
        return self._outcome


class Licensed(Counting):
    """Writes its beginning and its end to a file, and does not begin beside ``most`` others.

    Args:
        book: file with a line ``+<id>`` for each that has begun and ``-<id>`` for each that was closed.
        most: number that may live at once, in all processes together.
        breaks: whether the ninth episode fails.
    """

    def __init__(self, book: str, most: int = 99, breaks: bool = False) -> None:
        with open(book, "a+", encoding="ascii") as lines:
            lines.seek(0)
            text = lines.read()
            if (alive := text.count("+") - text.count("-")) >= most:
                raise ConnectionError(f"{alive} of {most} licences are in use")
            lines.write(f"+{os.getpid()}.{id(self)}\n")
        self.book, self.breaks = book, breaks

    def _break(self, may: bool) -> None:
        if self.breaks and self.episodes > 8 and self.steps:
            raise ArithmeticError("the mast broke")

    def close(self) -> None:
        with open(self.book, "a", encoding="ascii") as lines:
            lines.write(f"-{os.getpid()}.{id(self)}\n")
