"""MarineNav as a TorchRL environment: W worlds of up to A autonomous surface vessels that must reach their goals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, TensorSpec, Unbounded

from ..foundation.tensors import GROUP, STATE, counting
from ..recording import EpisodeRecorder
from ..states import StartPool
from ..world import MOST_STEPS, Mirror, World, check_within, flag_spec
from .episodes import episode_options, evaluation_set, load_episodes, load_worlds, validate_episode
from .noise import SampledNoise
from .perception import CONTINUOUS, DISCRETE, EncounterFeatures, NoiseDraws, candidate_pairs, nearest_obstacle
from .players import PLAYERS, sail
from .reset import LevelSchedule, random_worlds
from .rules import OBSERVED_OBJECTS, MarineNavRules
from .simulation import (
    ABSENT,
    AFTER_GOAL,
    SAFETY_STATISTICS,
    Report,
    StepOptions,
    advance,
    begin_anew,
    begun,
    compiled_for_speed,
    conclude,
    look_around,
    measured,
    safety_statistics,
)
from .state import MEASURED, OBSTACLE, OWN, ROBOT, WorldState, true_state

_SMALLEST_POOL = 64
_STATISTICS = ("return", "discounted_return", "length", "time", "energy", "success", "collision", "level")
# Far beyond what thrust, drag and 1001 steps allow.
_FAR, _FAST, _THRUST, _NEAR = 1.0e4, 100.0, 1.0e4, 100.0


class RobotStates(NamedTuple):
    """A copy of the current step, robots of world w in row w."""

    pose: Tensor  # [W, A, 3] x, y in m, heading in [0, 2 pi)
    velocity: Tensor  # [W, A, 3] over ground, m/s and rad/s
    velocity_r: Tensor  # [W, A, 3] relative to the water, world axes
    thrust: Tensor  # [W, A, 2] left, right, N


@dataclass(frozen=True)
class MarineNavStart:
    """Random worlds at the beginning of an episode, with their observations.

    Attributes:
        observation: the observations that :meth:`MarineNav.reset` returns.
        phase: phase of the curriculum in which they were drawn.
    """

    state: WorldState
    observation: TensorDict
    phase: int

    def __len__(self) -> int:
        return self.state.steps.numel()

    def saved(self) -> dict[str, Any]:
        """Returns a nested dict of tensors and numbers."""
        return {"phase": self.phase, "state": dict(self.state.items()), "observation": self.observation.to_dict()}

    @classmethod
    def restored(cls, saved: dict[str, Any], device: torch.device) -> MarineNavStart:
        """Inverts :meth:`saved`."""
        return cls(*_restored(saved, device), saved["phase"])


def _restored(saved: dict[str, Any], device: torch.device) -> tuple[WorldState, TensorDict]:
    """Returns state and observation from the entries ``"state"`` and ``"observation"`` of a saved dict."""
    saved_state = {name: value.to(device, copy=True) for name, value in saved["state"].items()}
    nothing = {name: torch.zeros_like(saved_state["energy"]) for name in MEASURED}  # older states lack them
    state = WorldState(**{**nothing, **saved_state})
    observation = TensorDict(saved["observation"], device=device).auto_batch_size_(1)
    agents = observation.get(GROUP).auto_batch_size_(2)
    agents.get("observation").auto_batch_size_(2)
    return state, observation.to(device)


class MarineNav(World):
    """The multi-vessel navigation world of arXiv 2412.09466, batched.

    Every robot observes itself (``"self" [W, A, 7]``: goal 2, velocity 2, yaw rate, thrusts 2, in its body frame, SI
    units) and up to five objects (``"objects" [W, A, 5, 5]``: position 2, velocity 2, radius; ``"mask" [W, A, 5]``),
    chooses thrust rates, and becomes inactive when it collides or arrives. One step is 0.5 s.

    Args:
        num_worlds: number of worlds W.
        num_robots, num_obstacles, num_cores, min_start_goal_dis: size of a random world without a curriculum.
        curriculum: levels of random worlds, which replace the four numbers above; see :class:`LevelSchedule`.
        continuous_actions: whether actions are thrust rates ``[W, A, 2]`` in units of 1000 N/s (the thrust is clipped,
            not the rate), or indices ``[W, A]`` in 0..24.
        perception_noise: whether positions, velocities and radii of objects are noisy.
        max_steps: number of steps after which the next one is the time-out.
        timeout_is_terminal: whether a time-out is ``terminated``, the published learners' rule, or ``truncated``.
        end_on_collision: whether a world ends at the first collision, the published evaluation's rule.
        timestep_penalty, colregs_penalty, collision_penalty, goal_reward: terms of the reward.
        discount: discount of the reported ``discounted_return``.
        measure_safety: whether episodes also report :data:`~rlstack.envs.marinenav.simulation.SAFETY_STATISTICS`.
        state: whether to show critics, beside the observation, the world without noise and limits of perception:
            ``("agents", "state") [W, A, S]``, see :func:`~rlstack.envs.marinenav.state.true_state`.
        compiled: whether to compile the simulation with ``torch.compile`` (half a minute; same results to rounding).

    Attributes:
        worlds: the whole simulation state, world-last.
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
        "measure_safety": True,
    }
    replaces: ClassVar[dict[str, tuple[str, ...]]] = {
        "curriculum": ("num_robots", "num_obstacles", "num_cores", "min_start_goal_dis")
    }
    decided_by_episodes = (
        *("curriculum", *replaces["curriculum"]),
        *("timestep_penalty", "colregs_penalty", "collision_penalty", "goal_reward"),
    )
    evaluation_steps = 1000
    clamps_actions = False
    observing = ("rlstack.envs.marinenav.simulation:perceive", "rlstack.envs.marinenav.simulation:show")
    input_features = EncounterFeatures
    nearest_obstacle = staticmethod(nearest_obstacle)
    evaluation_set = staticmethod(evaluation_set)
    episode_options = staticmethod(episode_options)
    load_episodes = staticmethod(load_episodes)
    _pool: StartPool[MarineNavStart]

    def __init__(
        self,
        num_worlds: int = 64,
        num_robots: int = 5,
        num_obstacles: int = 4,
        num_cores: int = 0,
        min_start_goal_dis: float = 40.0,
        curriculum: dict[str, Any] | None = None,
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
        measure_safety: bool = False,
        state: bool = False,
        compiled: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int | None = 0,
    ) -> None:
        super().__init__(num_worlds, device, dtype, seed)
        self.curriculum = LevelSchedule.from_options(
            curriculum, num_robots, num_obstacles, num_cores, min_start_goal_dis
        )
        self.num_robots = max(level.num_robots for level in self.curriculum.levels)  # worlds are padded to them
        self.num_stages = self.curriculum.num_stages
        self.perception_noise = perception_noise
        self.measure_safety = measure_safety
        self._shows_state = state
        self._obstacles = max(level.num_obstacles for level in self.curriculum.levels)
        self.options = StepOptions(continuous_actions, max_steps, discount, timeout_is_terminal, end_on_collision)
        self._total_steps = 0
        check_within("max_steps", max_steps, 0, MOST_STEPS, "steps")
        check_within("discount", discount, 0, 1)
        rewards: dict[str, Any] = {"timestep_penalty": timestep_penalty, "colregs_penalty": colregs_penalty}
        rewards |= {"collision_penalty": collision_penalty, "goal_reward": goal_reward}
        for name, value in rewards.items():
            check_within(name, value, -1e6, 1e6)
            rewards[name] = float(value)
        self._default_rules = MarineNavRules(**rewards)
        prepare: Callable[[Any], Any] = compiled_for_speed if compiled else lambda function: function
        self._advance_physics, self._conclude = prepare(advance), prepare(conclude)
        self._look_around, self._begin_anew = prepare(look_around), prepare(begin_anew)
        # The pool has as many worlds as the batch, so that code compiled for the batch also serves the pool.
        size = num_worlds if compiled else max(num_worlds, _SMALLEST_POOL)
        self._pool = StartPool(self._random_worlds, MarineNavStart.restored, size)
        self._noise_source: Callable[[Tensor], NoiseDraws] | None = None
        self._episodes: tuple[WorldState, TensorDict] | None = None
        self._use_rules(self._default_rules)

        lead, here = (num_worlds, self.num_robots), {"device": self.device}
        real: dict[str, Any] = {"dtype": dtype, **here}

        def within(limits: list[float], *lead: int) -> Bounded:
            high = torch.tensor(limits, **real).expand(*lead, len(limits)).clone()
            return Bounded(-high, high, shape=high.shape, **real)

        seen = {
            "self": within([_FAR, _FAR, _FAST, _FAST, _FAST, _THRUST, _THRUST], *lead),
            "objects": within([_NEAR, _NEAR, _FAST, _FAST, _NEAR], *lead, OBSERVED_OBJECTS),
            "mask": Binary(OBSERVED_OBJECTS, shape=(*lead, OBSERVED_OBJECTS), dtype=torch.bool, **here),
        }
        shown = {
            "observation": Composite(seen, shape=lead, **here),
            "active": flag_spec(*lead, **here),
            "info": Bounded(ABSENT, AFTER_GOAL, shape=lead, dtype=torch.int64, **here),
            "colregs": flag_spec(*lead, **here),
            "phi": Bounded(0.0, 3.2, shape=lead, **real),
            "energy": Bounded(0.0, 1.0e6, shape=lead, **real),
        }
        if self._shows_state:
            size = OWN + ROBOT * (self.num_robots - 1) + OBSTACLE * self._obstacles
            shown[STATE] = Unbounded((*lead, size), **real)
        action: TensorSpec = Categorical(25, shape=lead, dtype=torch.int64, **here)
        if self.options.continuous:
            action = Bounded(-1.0, 1.0, shape=(*lead, 2), **real)
        statistics = (*_STATISTICS, *(SAFETY_STATISTICS if self.measure_safety else ()))
        self.declare_specs(shown, action, statistics, self.num_robots)

    @property
    def total_steps(self) -> int:
        """Number of steps of all worlds together, which determines the curriculum's phase."""
        return self._total_steps

    def count_on_from(self, steps: int) -> None:
        """See :attr:`total_steps`."""
        self._total_steps = steps

    # -- reset ---------------------------------------------------------------------------------------------------

    def reset_to(self, configs: Sequence[dict[str, Any]]) -> TensorDict:
        """Starts one given episode per world (dicts of an episode file, see ``episodes.py``).

        A world that ends and is reset by itself repeats its episode; a full ``reset()`` returns to random worlds.

        Raises:
            ValueError: the number of configs differs from ``num_worlds``, or a config is invalid.
        """
        if len(configs) != self.num_worlds:
            raise ValueError(f"{len(configs)} episodes for num_worlds={self.num_worlds}: give one per world")
        for config in configs:
            validate_episode(config)
        state, rules = load_worlds(configs, self.num_robots, self.float_dtype, self.device)
        self._use_rules(rules)
        self.worlds, self._observation = self._observe(state.map(torch.Tensor.contiguous))  # restarts write into views
        self._episodes = (self.worlds.map(torch.clone), self._observation)
        self._begun, self._continue_after_load = True, False
        return self._current().update(self.full_done_spec.zero())

    def set_noise_source(self, source: Callable[[Tensor], NoiseDraws] | None) -> None:
        """Takes perception noise from ``source(candidates [N, A, W] bool) -> NoiseDraws``; None: from the generator."""
        self._noise_source = source

    def _use_rules(self, rules: MarineNavRules) -> None:
        self._rules = rules
        self._noise = SampledNoise(rules.r_kappa, self.generator, self.float_dtype)
        self._episodes = None
        self._pool.clear()

    def _restart(self, worlds: Tensor | None) -> None:
        if worlds is None:
            if self._rules is not self._default_rules:
                self._use_rules(self._default_rules)
            begun = self._random_worlds(self.num_worlds)
            self.worlds, self._observation = begun.state, begun.observation
            return
        source: Tensor | slice
        if self._episodes is not None:
            (state, observation), source = self._episodes, worlds
        else:
            begun, source = self._prepared().take(len(worlds))
            state, observation = begun.state, begun.observation
        self.worlds.copy_worlds(worlds, state, source)
        fresh = observation[source]
        # Not in place, since batches refer to these tensors.
        self._observation = self._observation.apply(lambda old, new: old.index_copy(0, worlds, new), fresh)

    def _restart_where(self, ended: Tensor) -> bool:
        if self._episodes is not None:
            (state, observation), places = self._episodes, counting(self.num_worlds, torch.int64, self.device)
        else:
            begun, places = (self._prepared() if self._pool.is_due else self._pool).take_where(ended)
            state, observation = begun.state, begun.observation
        fresh, old = (dict(every.items(True, True)) for every in (observation, self._observation))
        self.worlds, left = self._begin_anew(self.worlds, old, state, fresh, ended, places)
        # Not in place, since batches refer to these tensors.
        self._observation = self._observation.copy().update(left)
        return True

    def make_ready(self, steps: int) -> None:
        if self._episodes is None:  # worlds that began given episodes begin these again
            self._prepared()
            super().make_ready(steps)

    def _prepared(self) -> StartPool[MarineNavStart]:
        """Returns the pool of random worlds of the curriculum's current phase."""
        opening = self._pool.opening
        if opening is not None and opening.phase != self.curriculum.phase(self._total_steps):
            self._pool.clear()
        return self._pool

    def _enter_stage(self, stage: int) -> None:
        self.curriculum = self.curriculum.at(stage)

    def _random_worlds(self, count: int) -> MarineNavStart:
        level = self.curriculum.draw(self._total_steps, count, self.generator)
        state = random_worlds(level, self.curriculum.levels, self.generator, self.float_dtype)
        return MarineNavStart(*self._observe(state), self.curriculum.phase(self._total_steps))

    def _observe(self, state: WorldState) -> tuple[WorldState, TensorDict]:
        """Computes the observations of a reset."""
        state, report = self._look_around(state, self._rules, self._draw_noise(state))
        if self.measure_safety:
            state = begun(state, self._rules)
            report["episode"] |= safety_statistics(state)
        self._show_state(state, report)
        return state, self._as_tensordict(report)

    def _show_state(self, state: WorldState, report: Report) -> None:
        """Adds what only critics see to a report, if it is shown."""
        if self._shows_state:
            report[GROUP][STATE] = true_state(state, self._obstacles, self.options.max_steps)

    def _draw_noise(self, state: WorldState) -> NoiseDraws | None:
        if self._noise_source is not None:
            return self._noise_source(candidate_pairs(state.obstacle_present, state.active))
        if not self.perception_noise:
            return None
        num_obstacles, (robots, worlds) = state.obstacles.shape[1], state.active.shape
        return self._noise.draw(num_obstacles + robots - 1, robots, worlds)

    # -- step ----------------------------------------------------------------------------------------------------

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        action = self._chosen(tensordict)
        action = action.permute(2, 1, 0) if self.options.continuous else action.T
        moved, progress = self._advance_physics(self.worlds, action, self._rules, self.options.continuous)
        noise = self._draw_noise(moved)
        position, asked, active = self.worlds.pose[:2], self._observation.get((GROUP, "colregs")).T, moved.active
        self.worlds, root, ends = self._conclude(moved, progress, self._rules, self.options, noise)
        if self.measure_safety:
            self.worlds = measured(self.worlds, position, asked, active, self._rules)
            root["episode"] |= safety_statistics(self.worlds)
        self._show_state(self.worlds, root)
        self._total_steps += self.all_worlds
        self._observation = self._as_tensordict(root)
        return self._as_tensordict({**root, **ends, GROUP: root[GROUP] | ends[GROUP]})

    def _as_tensordict(self, report: Report) -> TensorDict:
        worlds, robots = report[GROUP]["active"].shape
        observation = TensorDict(report[GROUP]["observation"], [worlds, robots], self.device)
        agents = TensorDict({**report[GROUP], "observation": observation}, [worlds, robots], self.device)
        episode = TensorDict(report["episode"], [worlds], self.device)
        return TensorDict({**report, GROUP: agents, "episode": episode}, [worlds], self.device)

    def _current(self) -> TensorDict:
        return self._observation.copy()

    @property
    def state(self) -> RobotStates:
        """Returns pose, velocities and thrust of the current step."""
        state = self.worlds
        parts = (state.pose, state.velocity, state.velocity_r, state.thrust)
        return RobotStates(*(part.permute(2, 1, 0).clone(memory_format=torch.contiguous_format) for part in parts))

    # -- checkpoint ----------------------------------------------------------------------------------------------

    def _state_to_save(self) -> dict[str, Any]:
        if self._rules is not self._default_rules:
            raise RuntimeError("worlds that replay given episodes (reset_to) cannot be checkpointed; reset() first")
        return {
            "total_steps": self._total_steps,
            "stage": self.curriculum.stage,
            "state": dict(self.worlds.map(torch.clone).items()),  # resets write into the state in place
            "observation": self._observation.to_dict(),
            "pool": self._pool.state_dict(),
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        self._use_rules(self._default_rules)
        self._total_steps = state["total_steps"]
        if "stage" in state:  # not in states of earlier versions
            self.curriculum = self.curriculum.at(state["stage"])
        self.worlds, self._observation = _restored(state, self.device)
        self._pool.load_state_dict(state["pool"], self.device)

    def players(self) -> dict[str, Callable[[Any], Tensor]]:
        """``apf``, an artificial potential field, and ``orca``, reciprocal velocity obstacles; see ``players.py``."""
        return {name: partial(sail, choose, continuous=self.options.continuous) for name, choose in PLAYERS.items()}

    def mirror(self) -> Mirror | str:
        """Swaps port and starboard; impossible if the rules of the road, which lack this symmetry, cost reward."""
        if self._default_rules.colregs_penalty:
            return "its rules of the road ask for turns to starboard alone; set env.colregs_penalty=0"
        return CONTINUOUS if self.options.continuous else DISCRETE

    def recorder(self, worlds: Sequence[int], titles: Sequence[str] | None = None) -> EpisodeRecorder[Any]:
        """See :meth:`~rlstack.envs.world.WorldHooks.recorder`."""
        from .recording import MarineNavRecorder  # which loads what draws

        return MarineNavRecorder(self, worlds, titles)
