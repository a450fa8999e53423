"""CartPole as a TorchRL environment: a cart balances a pole (Barto, Sutton & Anderson 1983), W times at once.

Rules, numbers and time limit are those of Gymnasium's CartPole-v1.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Categorical, Unbounded

from rlstack.envs.tensordicts import unchecked

from ..world import MOST_STEPS, Mirror, World, check_within

GRAVITY, CART_MASS, POLE_MASS, HALF_POLE = 9.8, 1.0, 0.1, 0.5  # m/s^2, kg, kg, m
FORCE, SECONDS = 10.0, 0.02  # N, s a step
MOST_X, MOST_ANGLE, STARTS_WITHIN = 2.4, math.radians(12), 0.05
PAPER, RAIL, LIMIT, CART, POLE = "#f7f7f5", "#9a9a9a", "#c83c3c", "#2b4a6f", "#d98a3d"


def advance(state: Tensor, action: Tensor) -> Tensor:
    """Returns the next state ``[W, 4]``: position (m), speed, angle of the pole (rad, 0 is upright), its speed.

    Args:
        action: ``[W]``, 1 pushes to the right, 0 to the left.
    """
    _, speed, angle, turn = state.unbind(-1)
    cosine, sine, mass = angle.cos(), angle.sin(), CART_MASS + POLE_MASS
    push = (FORCE * (2 * action - 1) + POLE_MASS * HALF_POLE * turn.square() * sine) / mass
    turning = (GRAVITY * sine - cosine * push) / (HALF_POLE * (4 / 3 - POLE_MASS / mass * cosine.square()))
    pushing = push - POLE_MASS * HALF_POLE / mass * turning * cosine
    return state + SECONDS * torch.stack((speed, pushing, turn, turning), -1)


def _other(action: Tensor) -> Tensor:
    return 1 - action


class CartPole(World):
    """``observation [W, 4]`` is the state of :func:`advance`, ``action [W]`` its action, every step's reward is 1.

    An episode terminates beyond 2.4 m or 12 degrees, and is truncated after ``max_steps``. ``("episode", "return")``
    and ``("episode", "length")``, ``[W, 1]``, are updated in every step and final at ``done``.

    Args:
        num_worlds: number of worlds W.

    Raises:
        ValueError: the number of worlds or steps is not positive.
    """

    pictures_per_second = 1 / SECONDS

    state: Tensor
    length: Tensor

    def __init__(
        self,
        num_worlds: int = 64,
        max_steps: int = 500,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int | None = 0,
    ) -> None:
        super().__init__(num_worlds, device, dtype, seed)
        check_within("max_steps", max_steps, 1, MOST_STEPS, "steps")
        self.max_steps = max_steps
        state = Unbounded((num_worlds, 4), dtype=dtype, device=self.device)
        self.declare_specs({"observation": state}, Categorical(2, shape=(num_worlds,), device=self.device))

    def mirror(self) -> Mirror:
        """Swaps left and right."""
        return Mirror(operator.neg, _other)

    def _starts(self, count: int) -> tuple[Tensor, Tensor]:
        """Draws initial states ``[count, 4]``; returns them and their lengths ``[count, 1]``, zeros."""
        drawn = torch.rand(count, 4, generator=self.generator, dtype=self.float_dtype, device=self.device)
        return (2 * drawn - 1) * STARTS_WITHIN, drawn.new_zeros(count, 1)

    def _restart(self, worlds: Tensor | None) -> None:
        start, zero = self._starts(self.num_worlds if worlds is None else len(worlds))
        # Not in place, since batches refer to these tensors.
        self.state = start if worlds is None else self.state.index_copy(0, worlds, start)
        self.length = zero if worlds is None else self.length.index_copy(0, worlds, zero)

    def _restart_where(self, ended: Tensor) -> bool:
        start, zero = self._starts(self.num_worlds)
        self.state, self.length = (
            torch.where(ended.unsqueeze(-1), new, old) for new, old in ((start, self.state), (zero, self.length))
        )
        return True

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        self.state, self.length = advance(self.state, self._chosen(tensordict)), self.length + 1
        x, _, angle, _ = self.state.abs().split(1, -1)
        fallen, late = (x > MOST_X) | (angle > MOST_ANGLE), self.length >= self.max_steps
        reward = torch.ones_like(self.length)
        return self._current(reward=reward, done=fallen | late, terminated=fallen, truncated=late)

    def _current(self, **more: Tensor) -> TensorDict:
        episode = self._tensordict({"return": self.length, "length": self.length})
        # A copy, since a policy may normalise an observation in place.
        return self._tensordict({"observation": self.state.clone(), "episode": episode, **more})

    def _tensordict(self, entries: dict[str, Any]) -> TensorDict:
        # The public constructor checks every entry, which takes as long as the simulation.
        return unchecked(entries, batch_size=self.batch_size, device=self.device)

    def render(self) -> Any:
        """Draws the first world, uint8 ``[320, 640, 3]``, 120 pixels per metre: a cart on a rail between its limits."""
        x, _, angle, _ = self.state[0].tolist()
        picture = Image.new("RGB", (1280, 640), PAPER)  # halved at the end to smooth the edges
        draw, metre, middle, axle = ImageDraw.Draw(picture), 240, 640, 470
        draw.line((0, 520, 1280, 520), RAIL, 4)
        for limit in (middle - MOST_X * metre, middle + MOST_X * metre):
            draw.line((limit, 490, limit, 550), LIMIT, 8)
        place, length = middle + x * metre, 2 * HALF_POLE * metre
        draw.rounded_rectangle((place - 60, axle - 20, place + 60, 516), 10, CART)
        tip = place + length * math.sin(angle), axle - length * math.cos(angle)
        draw.line((place, axle, *tip), POLE, 20)
        for (across, down), radius, colour in (((place, axle), 9, POLE), (tip, 9, POLE), ((place, axle), 4, PAPER)):
            draw.ellipse((across - radius, down - radius, across + radius, down + radius), colour)
        return np.asarray(picture.reduce(2))

    def _state_to_save(self) -> dict[str, Any]:
        return {"state": self.state, "length": self.length}

    def _load_state(self, state: dict[str, Any]) -> None:
        self.state, self.length = (state[name].to(self.device) for name in ("state", "length"))
