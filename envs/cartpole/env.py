"""CartPole as a TorchRL environment: a cart balances a pole (Barto, Sutton & Anderson 1983), W times at once.

Rules, numbers and time limit are those of Gymnasium's CartPole-v1.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Categorical, Unbounded

from ..foundation.compilation import Compiled
from ..foundation.tensors import unchecked
from ..world import MOST_STEPS, Mirror, World, check_within

GRAVITY, CART_MASS, POLE_MASS, HALF_POLE = 9.8, 1.0, 0.1, 0.5  # m/s^2, kg, kg, m
FORCE, SECONDS = 10.0, 0.02  # N, s a step
MOST_X, MOST_ANGLE, STARTS_WITHIN = 2.4, math.radians(12), 0.05
PAPER, RAIL, LIMIT, CART, POLE = "#f7f7f5", "#9a9a9a", "#c83c3c", "#2b4a6f", "#d98a3d"
_MASS = CART_MASS + POLE_MASS
_ARM = POLE_MASS * HALF_POLE / _MASS
_WEIGHT, _INERTIA = GRAVITY / _ARM, 4 / 3 * HALF_POLE / _ARM
_FLAGS = "done", "terminated", "truncated"


class Constants(NamedTuple):
    """Numbers of the simulation as tensors: an operation on 1,024 worlds takes twice as long with a Python number."""

    thrusts: Tensor  # [2], of the choices: the force on the cart divided by the mass of cart and pole, m/s^2
    limits: Tensor  # [W, 4], of the state; not broadcast, which takes three times as long
    weight: Tensor  # [], like the following
    inertia: Tensor
    one: Tensor
    most_steps: Tensor


def simulate(state: Tensor, length: Tensor, choice: Tensor, constants: Constants) -> tuple[Tensor, ...]:
    """Returns the next state and length, whether a pole has fallen, whether the time is up, and whether either is so.

    Args:
        state: ``[W, 4]``: position (m), speed, angle of the pole (rad, 0 is upright), its speed.
        length: steps of the episode so far ``[W, 1]``.
        choice: ``[W]``, 1 to push to the right, 0 to the left.
    """
    c = constants
    columns = place, speed, angle, turn = state.unbind(-1)
    cosine, sine = angle.cos(), angle.sin()
    push = torch.addcmul(c.thrusts.index_select(0, choice), turn.square(), sine, value=_ARM)  # m/s^2
    # (GRAVITY sine - push cosine) / (4/3 HALF_POLE - _ARM cosine^2)
    turning = torch.addcmul(c.weight * sine, push, cosine, value=-1 / _ARM) / (c.inertia - cosine.square())
    pushing = torch.addcmul(push, turning, cosine, value=-_ARM)
    rates = speed, pushing, turn, turning
    if torch.compiler.is_compiling():  # into one loop over the worlds, which a stack of columns would take apart
        place, speed, angle, turn = (torch.add(old, rate, alpha=SECONDS) for old, rate in zip(columns, rates))
        state = torch.stack((place, speed, angle, turn)).t()  # to write it row by row takes longer
        fallen = ((place.abs() > MOST_X) | (angle.abs() > MOST_ANGLE)).unsqueeze(-1)
    else:
        state = torch.add(state, torch.stack(rates, -1), alpha=SECONDS)
        # Whether any of four flags is set, read as one number: any() takes four times as long.
        fallen = (state.abs() > c.limits).view(torch.int32).bool()
    length = length + c.one
    late = length >= c.most_steps
    return state, length, fallen, late, fallen | late


def step(state: Tensor, length: Tensor, choice: Tensor, starts: Tensor, constants: Constants) -> tuple[Tensor, ...]:
    """A step with the restarts after it, for a compiler, which makes it one loop over the worlds.

    Args:
        state, length, choice: see :func:`simulate`.
        starts: ``[W, 4]`` initial states, for the worlds whose episode ends.

    Returns state and length after the step, the reward, whether the episode is over, a pole has fallen, the time is up;
    then state, its copy and length at the next step, and three flags that are not set.
    """
    after, steps, fallen, late, done = simulate(state, length, choice, constants)
    state, length = torch.where(done, starts, after), steps.masked_fill(done, 0)
    none = [torch.zeros_like(done) for _ in range(3)]
    return after, steps, torch.ones_like(steps), done, fallen, late, state, state.clone(), length, *none


def _other(action: Tensor) -> Tensor:
    return 1 - action


class CartPole(World):
    """``observation [W, 4]`` is the state of :func:`simulate`. Every step's reward is 1.

    ``action [W]`` is 1 to push the cart to the right, 0 to the left.

    An episode terminates beyond 2.4 m or 12 degrees, and is truncated after ``max_steps``. ``("episode", "return")``
    and ``("episode", "length")``, ``[W, 1]``, are updated in every step and final at ``done``.

    Args:
        num_worlds: number of worlds W.
        compiled: whether to compile steps with ``torch.compile``, which takes seconds the first time. Same results to
            rounding, but other initial states on a CPU, where they are drawn for all worlds in every step.

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
        compiled: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int | None = 0,
    ) -> None:
        super().__init__(num_worlds, device, dtype, seed)
        check_within("max_steps", max_steps, 1, MOST_STEPS, "steps")
        self.max_steps = max_steps
        state = Unbounded((num_worlds, 4), dtype=dtype, device=self.device)
        self.declare_specs({"observation": state}, Categorical(2, shape=(num_worlds,), device=self.device))
        push, free = FORCE / _MASS, math.inf
        made: dict[str, Any] = {"dtype": dtype, "device": self.device}
        thrusts, limits = torch.tensor((-push, push), **made), torch.tensor((MOST_X, free, MOST_ANGLE, free), **made)
        numbers = torch.tensor((_WEIGHT, _INERTIA, 1, max_steps), **made).unbind()
        self._constants = Constants(thrusts, limits.repeat(num_worlds, 1), *numbers)
        self._whole_step = (
            Compiled(step, "cartpole", fixed=self.device.type == "cpu", constants=(4,), dynamic=False)
            if compiled
            else None
        )

    @property
    def draws_to_restart_alone(self) -> bool:  # type: ignore[override]
        return self._whole_step is None

    def mirror(self) -> Mirror:
        """Swaps left and right."""
        return Mirror(operator.neg, _other)

    def _starts(self, count: int) -> Tensor:
        """Draws initial states ``[count, 4]``."""
        drawn = torch.empty(count, 4, dtype=self.float_dtype, device=self.device)
        return drawn.uniform_(-STARTS_WITHIN, STARTS_WITHIN, generator=self.generator)

    def _restart(self, worlds: Tensor | None) -> None:
        if worlds is None:
            self.state = self._starts(self.num_worlds)
            self.length = self.state.new_zeros(self.num_worlds, 1)
            return
        # Not in place, since batches refer to these tensors.
        self.state = self.state.index_copy(0, worlds, self._starts(len(worlds)))
        self.length = self.length.index_fill(0, worlds, 0)

    def _restart_where(self, ended: Tensor) -> bool:
        ended = ended.unsqueeze(-1)
        self.state = torch.where(ended, self._starts(self.num_worlds), self.state)
        self.length = self.length.masked_fill(ended, 0)
        return True

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        given = self.state, self.length, self._chosen(tensordict)
        if self._whole_step is None:
            self.state, self.length, fallen, late, done = simulate(*given, self._constants)
            reward = torch.ones_like(self.length)
        else:
            # Not the state itself: a tensor given twice would be compiled as one.
            stepped = self._whole_step(*given, torch.zeros_like(self.state), self._constants)
            state, self.length, reward, done, fallen, late, *_ = stepped
            self.state = state.contiguous()
        return self._current(reward=reward, done=done, terminated=fallen, truncated=late)

    def _advance_and_restart(self, tensordict: TensorDictBase) -> tuple[TensorDict, TensorDict]:
        if self._whole_step is None:
            return super()._advance_and_restart(tensordict)
        given = self.state, self.length, self._chosen(tensordict), self._starts(self.num_worlds), self._constants
        after, steps, reward, *ends, self.state, observation, self.length, none, fallen, late = self._whole_step(*given)
        following = self._shown(after, steps, reward=reward, **dict(zip(_FLAGS, ends)))
        return following, self._shown(observation, self.length, done=none, terminated=fallen, truncated=late)

    def _current(self, **more: Tensor) -> TensorDict:
        return self._shown(self.state.clone(), self.length, **more)  # a policy may normalise it in place

    def _shown(self, observation: Tensor, length: Tensor, **more: Tensor) -> TensorDict:
        # The public constructor checks every entry, which takes as long as the simulation.
        lead, device = self.batch_size, self.device
        episode = unchecked({"return": length, "length": length}, lead, device)
        return unchecked({"observation": observation, "episode": episode, **more}, lead, device)

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
