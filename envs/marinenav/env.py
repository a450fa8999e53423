"""MarineNav as a TorchRL environment: W worlds of up to A autonomous surface vessels that must reach their goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded

from ..base import World
from . import simulation
from .curriculum import Curriculum
from .features import EncounterFeatures
from .from_config import load_worlds
from .noise import SampledNoise
from .perception import Draws, Percept, candidate_pairs, perceive
from .reset import random_worlds
from .rules import OBSERVED_OBJECTS, Rules
from .state import WorldState

_POOL_LIMIT = 4096


class RobotStates(NamedTuple):
    """Read-only view of the current step, robots of world w in row w."""

    pose: Tensor  # [W, A, 3] x, y in m, heading in [0, 2 pi)
    velocity: Tensor  # [W, A, 3] over ground, m/s and rad/s
    velocity_r: Tensor  # [W, A, 3] relative to the water, world axes
    thrust: Tensor  # [W, A, 2] left, right, N


class MarineNav(World):
    """The multi-vessel navigation world of arXiv 2412.09466, batched.

    Every robot sees itself (``"self" [W, A, 7]``: goal 2, velocity 2, yaw rate, thrusts 2, in its body frame, SI
    units) and at most five objects (``"objects" [W, A, 5, 5]``: position 2, velocity 2, radius; ``"mask" [W, A, 5]``),
    chooses thrust rates, and is deactivated when it collides or arrives. One step is 0.5 s.

    Args:
        num_worlds: W, worlds stepped at once.
        num_robots, num_obstacles, num_cores, min_start_goal_dis: of a random world, when there is no curriculum.
        curriculum: levels of random worlds, see :class:`Curriculum`; replaces the four numbers above.
        continuous_actions: ``[W, A, 2]`` thrust rates in units of 1000 N/s (not clipped), else ``[W, A]`` in 0..24.
        perception_noise: noisy object positions, velocities and radii.
        max_steps: the step after this many is the time-out.
        timeout_is_terminal: report a time-out as ``terminated``, the published learners' rule; else ``truncated``.
        end_on_collision: a world ends at the first collision, the published evaluation's rule.
        timestep_penalty, colregs_penalty, collision_penalty, goal_reward: reward terms.
        discount: of the reported ``discounted_return``.
        compiled: compile the simulation with ``torch.compile`` (about a minute once; same results to rounding).
    """

    evaluation_options: ClassVar[dict[str, Any]] = {
        "curriculum": None,
        "end_on_collision": True,
        "timeout_is_terminal": False,
        "max_steps": 1000,
        "perception_noise": True,
        "timestep_penalty": -0.1,
        "colregs_penalty": -0.1,
        "collision_penalty": -5.0,
        "goal_reward": 10.0,
        "discount": 0.99,
    }
    input_features = EncounterFeatures

    def __init__(
        self,
        num_worlds: int = 64,
        num_robots: int = 5,
        num_obstacles: int = 4,
        num_cores: int = 0,
        min_start_goal_dis: float = 40.0,
        curriculum: Mapping[str, Any] | None = None,
        continuous_actions: bool = True,
        perception_noise: bool = True,
        max_steps: int = 1000,
        timeout_is_terminal: bool = False,
        end_on_collision: bool = False,
        timestep_penalty: float = -0.1,
        colregs_penalty: float = -0.1,
        collision_penalty: float = -5.0,
        goal_reward: float = 10.0,
        discount: float = 0.99,
        compiled: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int | None = 0,
    ) -> None:
        super().__init__(num_worlds, device, dtype, seed)
        self.curriculum = Curriculum.from_options(
            curriculum, num_robots, num_obstacles, num_cores, min_start_goal_dis
        )
        self.num_robots = self.curriculum.most_robots
        self.timeout_is_terminal, self.end_on_collision = timeout_is_terminal, end_on_collision
        self.perception_noise = perception_noise
        self.options = simulation.StepOptions(continuous_actions, max_steps, discount)
        self.total_steps = 0
        self._default_rules = Rules(
            timestep_penalty=float(timestep_penalty),
            colregs_penalty=float(colregs_penalty),
            collision_penalty=float(collision_penalty),
            goal_reward=float(goal_reward),
        )
        prepare: Callable[[Any], Any] = torch.compile(dynamic=False) if compiled else lambda function: function
        self._advance_physics, self._perceive = prepare(simulation.advance), prepare(perceive)
        self._judge = prepare(simulation.judge)
        self._noise_source: Callable[[Tensor], Draws] | None = None
        self._use_rules(self._default_rules)
        self._make_specs()

    # -- specs ---------------------------------------------------------------------------------------------------

    def _make_specs(self) -> None:
        lead = (self.num_worlds, self.num_robots)
        here: dict[str, Any] = {"device": self.device}
        real: dict[str, Any] = {"dtype": self.float_dtype, **here}

        def bounded(low: Sequence[float], high: Sequence[float], *shape: int) -> Bounded:
            bounds = (torch.tensor(edge, **real).expand(*shape, len(edge)).clone() for edge in (low, high))
            return Bounded(*bounds, shape=(*shape, len(low)), **real)

        def flag(*shape: int) -> Binary:
            return Binary(n=shape[-1], shape=shape, dtype=torch.bool, **here)

        # Far beyond what thrust, drag and 1001 steps allow.
        far, fast, low_thrust, high_thrust = 1.0e4, 100.0, -1.0e4, 1.0e4
        self_high, self_low = [far, far, fast, fast, fast], [-far, -far, -fast, -fast, -fast]
        thing = [100.0, 100.0, fast, fast, 100.0]
        observation = Composite(
            {
                "self": bounded([*self_low, low_thrust, low_thrust], [*self_high, high_thrust, high_thrust], *lead),
                "objects": bounded([-value for value in thing], thing, *lead, OBSERVED_OBJECTS),
                "mask": flag(*lead, OBSERVED_OBJECTS),
            },
            shape=lead,
            **here,
        )
        agents = Composite(
            {
                "observation": observation,
                "active": flag(*lead),
                "info": Bounded(simulation.ABSENT, simulation.AFTER_GOAL, shape=lead, dtype=torch.int64, **here),
                "colregs": flag(*lead),
                "phi": Bounded(0.0, 3.2, shape=lead, **real),
                "energy": Bounded(0.0, 1.0e6, shape=lead, **real),
            },
            shape=lead,
            **here,
        )
        world = (self.num_worlds, 1)
        statistics = ("return", "discounted_return", "length", "time", "energy", "success", "collision", "level")
        episode = Composite(
            {name: Unbounded(shape=world, **real) for name in statistics}, shape=(self.num_worlds,), **here
        )
        self.observation_spec = Composite({"agents": agents, "episode": episode}, shape=(self.num_worlds,), **here)
        if self.options.continuous:
            action = Bounded(-1.0, 1.0, shape=(*lead, 2), **real)
        else:
            action = Categorical(25, shape=lead, dtype=torch.int64, **here)
        ends = {name: flag(*lead, 1) for name in ("done", "terminated", "truncated")}

        def group(leaves: dict[str, Any], **root: Any) -> Composite:
            return Composite({"agents": Composite(leaves, shape=lead, **here), **root}, shape=lead[:1], **here)

        self.action_spec = group({"action": action})
        self.reward_spec = group({"reward": Unbounded(shape=(*lead, 1), **real)})
        self.done_spec = group(ends, **{name: flag(*world) for name in ends})

    # -- reset ---------------------------------------------------------------------------------------------------

    def reset_to(self, configs: Sequence[Mapping[str, Any]]) -> TensorDict:
        """Starts one given episode per world (episode-file dicts, see ``episodes.py``), honouring all they say.

        A world that ends and is reset alone starts its episode again; a full ``reset()`` returns to random worlds.

        Raises:
            ValueError: number of configs differs from ``num_worlds``, or a config is invalid (it says how).
        """
        from .episodes import validate_episode

        if len(configs) != self.num_worlds:
            raise ValueError(f"{len(configs)} episodes for num_worlds={self.num_worlds}: give one per world")
        for config in configs:
            validate_episode(config)
        self._state, rules = load_worlds(configs, self.num_robots, self.float_dtype, self.device)
        self._use_rules(rules)
        self._observation = self._observe(self._state)
        self._episodes = (self._state.map(torch.clone), self._observation)
        return self._current_with_done()

    def set_noise_source(self, source: Callable[[Tensor], Draws] | None) -> None:
        """Takes perception noise from ``source(candidates [N, A, W] bool) -> Draws``; None: from the generator."""
        self._noise_source = source

    def _use_rules(self, rules: Rules) -> None:
        self._rules = rules
        self._noise = SampledNoise(rules.r_kappa, self.generator, self.float_dtype)
        self._episodes: tuple[WorldState, TensorDict] | None = None
        self._pool: tuple[WorldState, TensorDict, int] | None = None
        self._pool_used = 0

    def _restart(self, worlds: Tensor | None) -> None:
        if worlds is None:
            if self._rules is not self._default_rules:
                self._use_rules(self._default_rules)
            self._state, self._observation = self._random_worlds(self.num_worlds)
            return
        if self._episodes is not None:
            state, observation = self._episodes
            self._state.copy_worlds(worlds, state, worlds)
            fresh = observation[worlds]
        else:
            fresh = self._take_from_pool(len(worlds), worlds)
        # Never in place: batches hold these tensors.
        self._observation = self._observation.apply(lambda old, new: old.index_copy(0, worlds, new), fresh)

    def _take_from_pool(self, count: int, worlds: Tensor) -> TensorDict:
        """Moves ``count`` unused worlds of the pool into the state; refills the pool when too few are left.

        Generating thousands of worlds at once makes a reset cost next to nothing.
        """
        phase = self.curriculum.phase(self.total_steps)
        if self._pool is None or self._pool[2] != phase or self._pool_used + count > self._pool[0].steps.numel():
            state, observation = self._random_worlds(max(count, min(_POOL_LIMIT, max(64, self.num_worlds))))
            self._pool, self._pool_used = (state, observation, phase), 0
        state, observation, _ = self._pool
        chosen = slice(self._pool_used, self._pool_used + count)
        self._pool_used += count
        self._state.copy_worlds(worlds, state, chosen)
        return observation[chosen]

    def _random_worlds(self, count: int) -> tuple[WorldState, TensorDict]:
        level = self.curriculum.draw(self.total_steps, count, self.generator)
        state = random_worlds(level, self.curriculum.levels, self.generator, self.float_dtype)
        return state, self._observe(state)

    def _observe(self, state: WorldState) -> TensorDict:
        """The perception call of a reset; it may already set flags."""
        percept = perceive(state.scene, self._rules, self._draw_noise(state))
        state.collided |= percept.collided & state.active
        state.reached |= percept.reached & state.active
        info = torch.where(state.present, simulation.NORMAL, simulation.ABSENT)
        return self._root(state, percept, info, torch.zeros_like(state.energy))

    def _draw_noise(self, state: WorldState) -> Draws | None:
        if self._noise_source is not None:
            return self._noise_source(candidate_pairs(state.obstacle_present, state.active))
        if not self.perception_noise:
            return None
        num_obstacles, (robots, worlds) = state.obstacles.shape[1], state.active.shape
        return self._noise.draw(num_obstacles + robots - 1, robots, worlds)

    # -- step ----------------------------------------------------------------------------------------------------

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        action = tensordict.get(("agents", "action"))
        action = action.permute(2, 1, 0) if self.options.continuous else action.T
        before = self._state
        moved, d0, d1 = self._advance_physics(before, action, self._rules, self.options.continuous)
        percept = self._perceive(moved.scene, self._rules, self._draw_noise(moved))
        self._state, out = self._judge(moved, percept, d0 - d1, self._rules, self.options)
        self.total_steps += self.num_worlds
        self._observation = self._root(self._state, percept, out.info, out.energy)
        return self._with_ends(self._observation, before.active, out)

    def _with_ends(self, root: TensorDict, was_active: Tensor, out: simulation.StepOutputs) -> TensorDict:
        """Adds reward and the three end flags, of robots and of worlds."""
        state = self._state
        time_out = out.time_out & (state.active | was_active)
        truncated = torch.zeros_like(time_out) if self.timeout_is_terminal else time_out & was_active
        done = time_out | ~state.active
        agents = root.get("agents").copy()
        agents.set("reward", out.reward.T[..., None].contiguous())
        for name, value in (("done", done), ("terminated", done & ~truncated), ("truncated", truncated)):
            agents.set(name, value.T[..., None].contiguous())
        world_done = out.time_out | ~state.active.any(0)
        if self.end_on_collision:
            world_done = world_done | state.collided.any(0)
        world_truncated = torch.zeros_like(world_done) if self.timeout_is_terminal else out.time_out
        following = root.copy()
        following.set("agents", agents)
        following.set("done", world_done[:, None])
        following.set("terminated", (world_done & ~world_truncated)[:, None])
        following.set("truncated", world_truncated[:, None])
        return following

    def _root(self, state: WorldState, percept: Percept, info: Tensor, energy: Tensor) -> TensorDict:
        """Everything but reward and end flags."""
        worlds = state.steps.numel()
        lead = (worlds, state.active.shape[0])
        observation = TensorDict(
            {
                "self": _worlds_first(percept.self_state),
                "objects": _worlds_first(percept.objects),
                "mask": _worlds_first(percept.mask),
            },
            batch_size=lead,
            device=self.device,
        )
        agents = TensorDict(
            {
                "observation": observation,
                "active": state.active.T.contiguous(),
                "info": info.T.contiguous(),
                "colregs": percept.colregs.T.contiguous(),
                "phi": percept.phi.T.contiguous(),
                "energy": energy.T.contiguous(),
            },
            batch_size=lead,
            device=self.device,
        )
        return TensorDict(
            {"agents": agents, "episode": self._episode(state)}, batch_size=lead[:1], device=self.device
        )

    def _episode(self, state: WorldState) -> TensorDict:
        """Statistics of the episode so far, means over the robots a world has; final where the world is done."""
        count = state.present.sum(0)

        def mean(values: Tensor) -> Tensor:
            return (values.sum(0) / count)[:, None]

        kind = self.float_dtype
        return TensorDict(
            {
                "return": mean(state.returns),
                "discounted_return": mean(state.discounted),
                "length": state.steps.to(kind)[:, None],
                "time": mean(state.time),
                "energy": mean(state.energy),
                "success": (state.reached | ~state.present).all(0).to(kind)[:, None],
                "collision": state.collided.any(0).to(kind)[:, None],
                "level": state.level.to(kind)[:, None],
            },
            batch_size=[state.steps.numel()],
            device=self.device,
        )

    def _current(self) -> TensorDict:
        return self._observation.copy()

    def _current_with_done(self) -> TensorDict:
        return self._current().update(self.full_done_spec.zero())

    @property
    def state(self) -> RobotStates:
        """Pose, velocities and thrust of the current step."""
        state = self._state
        parts = (state.pose, state.velocity, state.velocity_r, state.thrust)
        return RobotStates(*(part.permute(2, 1, 0) for part in parts))

    @property
    def worlds(self) -> WorldState:
        """The whole simulation state, world-last."""
        return self._state

    # -- checkpoint ----------------------------------------------------------------------------------------------

    def _set_seed(self, seed: int | None) -> None:
        super()._set_seed(seed)
        self._pool = None

    def _state_to_save(self) -> dict[str, Any]:
        if self._rules is not self._default_rules:
            raise RuntimeError("worlds that replay given episodes (reset_to) cannot be checkpointed; reset() first")
        saved: dict[str, Any] = {"total_steps": self.total_steps, "pool_used": self._pool_used}
        saved["state"] = dict(self._state.items())
        saved["observation"] = self._observation.to_dict()
        if self._pool is not None:
            state, observation, phase = self._pool
            saved["pool"] = {"state": dict(state.items()), "observation": observation.to_dict(), "phase": phase}
        return saved

    def _load_state(self, state: dict[str, Any]) -> None:
        def restore(part: dict[str, Any]) -> tuple[WorldState, TensorDict]:
            worlds = WorldState(**{name: value.to(self.device, copy=True) for name, value in part["state"].items()})
            observation = TensorDict(part["observation"], device=self.device).auto_batch_size_(1)
            agents = observation.get("agents").auto_batch_size_(2)
            agents.get("observation").auto_batch_size_(2)
            return worlds, observation.to(self.device)

        self._use_rules(self._default_rules)
        self.total_steps, self._pool_used = state["total_steps"], state["pool_used"]
        self._state, self._observation = restore(state)
        if "pool" in state:
            self._pool = (*restore(state["pool"]), state["pool"]["phase"])


def _worlds_first(value: Tensor) -> Tensor:
    """``[..., W]`` to contiguous ``[W, ...]`` as one two-dimensional transposition, which torch does in blocks."""
    return value.reshape(-1, value.shape[-1]).T.contiguous().view(value.shape[-1], *value.shape[:-1])
