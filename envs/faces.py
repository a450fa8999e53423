"""Our worlds as Gymnasium environments, one world of one agent at a time, for libraries that take such.

    import envs                                    # or gymnasium.make("envs:rlstack/Arena-v0"), which needs no import

    gymnasium.make("rlstack/Arena-v0", style=2)
    gymnasium.make("rlstack/MarineNav-v0", num_obstacles=8)

Keyword arguments are the options of the world. A single world takes as long for a step as a batch of hundreds: who can
step batches should use ``envs.make``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from .keys import GROUP

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torchrl.data import TensorSpec

    from .world import World

FACES: dict[str, dict[str, Any]] = {
    "rlstack/Arena-v0": {"world": "arena"},
    "rlstack/MarineNav-v0": {"world": "marinenav", "num_robots": 1},
}
"""Registered environments and the options they begin with."""


def register_faces() -> None:
    """Makes :data:`FACES` known to ``gymnasium.make``; those that are known stay as they are."""
    for name, options in FACES.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point="envs.faces:SingleWorld", kwargs=options)


class SingleWorld(gymnasium.Env[Any, Any]):
    """One world with one agent.

    Spaces follow from the world's specs: numbers are a Box, flags a MultiBinary, choices Discrete, nested observations
    a Dict. ``info`` holds the world's episode statistics so far, at the end also ``is_success`` where the world knows
    of success. Time limits are the world's own.

    Args:
        world: a name or path for :func:`envs.make`.
        render_mode: ``"rgb_array"`` for :meth:`render`, or None.
        options: of the world.

    Raises:
        ValueError: an unknown world or option, an impossible value, or a world of several agents.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, world: str, render_mode: str | None = None, **options: Any) -> None:
        from . import registry

        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode: {render_mode!r} is unknown, allowed: rgb_array and None")
        self.world: World = registry.make(world, num_worlds=1, **options)
        self.render_mode = render_mode
        self._recorder: Any = None
        self._animation: Any = None
        self._group = GROUP if GROUP in self.world.observation_spec.keys() else None  # noqa: SIM118
        agents = self.world.full_action_spec[GROUP].shape[1] if self._group else 1
        if agents != 1:
            raise ValueError(f"{world}: a Gymnasium environment is of a single agent, these options make {agents}")
        self.observation_space = _space(self._part(self.world.observation_spec, "observation"))
        self.action_space = _space(self._part(self.world.full_action_spec, "action"))
        self._is_seeded = False

    def _part(self, entries: Any, name: str) -> Any:
        """The agent's entry of a tensordict or a composite spec, without batch dimensions."""
        if self._group:
            return entries.get((self._group, name))[0, 0] if _is_data(entries) else entries[self._group, name][0, 0]
        return entries.get(name)[0] if _is_data(entries) else entries[name][0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode; with a seed the same ones follow again. ``options`` have no meaning."""
        super().reset(seed=seed)
        if seed is not None or not self._is_seeded:
            self.world.set_seed(int(self.np_random.integers(2**31)))
            self._is_seeded = True
        self.world._restart(None)
        self._recorder = None
        root = self.world._current()
        return _arrays(self._part(root, "observation")), _statistics(root)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step of the world."""
        import torch
        from tensordict import TensorDict

        spec = self.world.full_action_spec[self._group, "action"] if self._group else self.world.action_spec
        chosen = torch.as_tensor(np.asarray(action), dtype=spec.dtype).reshape(spec.shape)
        entries: dict[str, Any] = {self._group: {"action": chosen}} if self._group else {"action": chosen}
        following = self.world._advance(TensorDict(entries, [1]))
        if self._recorder is not None:
            self._recorder.add()
        terminated, truncated = (bool(self._part(following, name)) for name in ("terminated", "truncated"))
        info = _statistics(following)
        if "success" in info and (terminated or truncated):
            info["is_success"] = info["success"] > 0
        observation = _arrays(self._part(following, "observation"))
        return observation, float(self._part(following, "reward")), terminated, truncated, info

    def render(self) -> Any:
        """A picture of the world as it stands, uint8 ``[height, width, 3]``; None without a ``render_mode``.

        It shows trails from the first picture of an episode on.
        """
        if self.render_mode is None:
            return None
        if self._recorder is None:
            self._recorder, self._animation = self.world.recorder([0], [""]), None
            self._recorder.add()
        recording = self._recorder.recordings()[0]
        self._animation = recording.animation() if self._animation is None else self._animation.longer(recording)
        return self._animation.draw(self._animation.span[1])

    def close(self) -> None:
        """Closes the world."""
        self.world.close(raise_if_closed=False)


def _is_data(entries: Any) -> bool:
    from tensordict import TensorDictBase

    return isinstance(entries, TensorDictBase)


def _space(spec: TensorSpec) -> spaces.Space[Any]:
    """The space of a spec without batch dimensions.

    Raises:
        ValueError: a kind of spec that has no such space.
    """
    from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded

    if isinstance(spec, Composite):
        return spaces.Dict({name: _space(part) for name, part in spec.items()})
    if isinstance(spec, Binary):
        return spaces.MultiBinary(spec.shape)
    if isinstance(spec, MultiCategorical):
        return spaces.MultiDiscrete(spec.nvec.reshape(-1).numpy())
    if isinstance(spec, Categorical):
        return spaces.Discrete(int(spec.space.n))
    if isinstance(spec, Bounded | Unbounded):
        dtype = np.dtype(str(spec.dtype).removeprefix("torch."))
        if isinstance(spec, Bounded):
            low, high = (end.cpu().numpy() for end in (spec.space.low, spec.space.high))
        else:
            low, high = np.full(spec.shape, -np.inf), np.full(spec.shape, np.inf)
        return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)
    raise ValueError(f"a {type(spec).__name__} has no Gymnasium space")


def _arrays(value: Any) -> Any:
    """An observation as its space has it: new arrays, flags as bytes."""
    if _is_data(value):
        return {name: _arrays(part) for name, part in value.items()}
    array = value.cpu().numpy().copy()
    return array.astype(np.int8) if array.dtype == np.bool_ else array


def _statistics(root: TensorDictBase) -> dict[str, Any]:
    episode = root.get("episode", None)
    return {} if episode is None else {name: float(value) for name, value in episode.items()}
