"""Arena as a TorchRL environment: W games at once of a ship against spawners and the enemies they make."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, TensorSpec

from ..foundation.tensors import chosen, looks_are_free, unchecked
from ..recording import EpisodeRecorder
from ..states import Opening, StartPool
from ..world import Mirror, World, check_known
from .events import ArenaDraws, begin, draw_everywhere
from .observation import GROUPS, SIZE, TargetFeatures, mirror, observe
from .rules import STAGES, make_rules, make_tables
from .simulation import PLAIN, advance, compiled_kernels, trimmed
from .state import ArenaState

STATISTICS = (
    *("return", "length", "success", "time", "phase", "spawners", "enemies", "health"),
    *("damage_dealt", "damage_taken"),
)
"""The statistics of an episode."""

_SIGNED = ("player_state", "combat_targets")
_TRIM_EVERY = 128


class Arena(World):
    """A single-agent shooter, batched: five phases, each cleared when its spawners are destroyed.

    ``action [W]`` is one of 5 (style 1: wait, thrust, turn left, turn right, shoot) or of 6 (style 2: wait, up, down,
    left, right, shoot). ``observation [W, 32]``, all within [-1, 1]:

    0 to 9: x, y, velocity x, y, rotation (a full turn is 1), health, time until the next shot, phase, share of the
    phase's spawners left, time left; 10 to 15: distance, bearing, 1 of the nearest and the second nearest enemy; 16 to
    23: distance, bearing, 1, health of the two nearest spawners; 24 to 26: distance and bearing of the nearest enemy
    shot, enemy shots within 150 px (1: five or more); 27 to 30: distances from the left, right, upper and lower edge;
    31: enemies alive. Distances are shares of the diagonal, a bearing of 0.5 is dead ahead; missing objects have
    distance 1, bearing 0.5 and zeros. As a dict the same numbers are ``player_state`` (0 to 6), ``combat_targets`` (10
    to 26), ``mission_progress`` (7 to 9), ``spatial_awareness`` (27 to 30), ``enemy_count`` (31).

    ``("episode", ...) [W, 1]`` (updated in each step, final at ``done``): ``return``, ``length``, ``success`` (won),
    ``time`` (s at 60 steps a second), ``phase`` (cleared so far), ``spawners`` and ``enemies`` (destroyed), ``health``,
    ``damage_dealt`` and ``damage_taken`` (health lost to and by the player's hits).

    Args:
        num_worlds: number of worlds W.
        style: controls: 1 (turn and thrust) or 2 (four directions).
        observation: form of the observation, ``"flat"`` or ``"dict"``.
        stage: stage of the curriculum, 0 to 5; lower ones are easier and shape the reward more. None is the game
            itself. :meth:`set_stage` changes it at any time.
        start_phases: phases, 0 to 4, one of which is drawn at every reset.
        start_health: health of the player at a reset, or the ends of a range from which it is drawn; None: full.
        reward_weights: single rewards in place of the game's own, see :data:`rlstack.envs.arena.rules.REWARDS`; for
            training, since evaluations pay the game's.
        max_steps: time limit in steps; None: the game's own, 3000.
        timeout_is_terminal: whether the time limit is ``terminated``, the original rule, or ``truncated``.
        compiled: whether to compile the simulation with ``torch.compile`` (a minute; same results to rounding).

    Attributes:
        worlds: the whole simulation state, world-last.

    Raises:
        ValueError: an option is impossible; the message says what is allowed.
    """

    evaluation_options: ClassVar[dict[str, Any]] = {
        "stage": None,
        "start_phases": [0],
        "start_health": None,
        "reward_weights": None,
        "max_steps": None,
        "timeout_is_terminal": False,
    }
    observing = ("rlstack.envs.arena.env:observe",)
    num_stages = len(STAGES)
    _pool: StartPool[Opening[ArenaState]]

    def __init__(
        self,
        num_worlds: int = 64,
        style: int = 1,
        observation: Literal["flat", "dict"] = "flat",
        stage: int | None = None,
        start_phases: list[int] | None = None,
        start_health: float | list[float] | None = None,
        reward_weights: dict[str, float] | None = None,
        max_steps: int | None = None,
        timeout_is_terminal: bool = False,
        compiled: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int | None = 0,
    ) -> None:
        super().__init__(num_worlds, device, dtype, seed)
        check_known("observation", [observation], ("flat", "dict"))
        # Looked up here, where ``rlstack explain speed`` replaces it.
        self._kernels = compiled_kernels() if compiled else PLAIN._replace(observe=observe)
        self._is_sparse = looks_are_free(self.device)
        self._pool = StartPool(self._start, partial(Opening.restored, ArenaState))
        self._rules_at = partial(make_rules, style, max_steps=max_steps, rewards=reward_weights)
        self._enter_stage(stage)
        phases = [0] if start_phases is None else list(start_phases)
        if not phases or not set(phases) <= set(range(len(self.rules.phases))):
            raise ValueError(f"start_phases: {phases} must be one or more of 0 to {len(self.rules.phases) - 1}")
        full = self.rules.max_health
        health = full if start_health is None else start_health
        ends = [health] if isinstance(health, int | float) else list(health)
        if len(ends) not in (1, 2) or not 0 < ends[0] <= ends[-1] <= full:
            raise ValueError(f"start_health: {health} is not a number, or two in order, above 0 and at most {full:g}")
        self._start_phases = torch.tensor(phases, device=self.device)
        self._start_health, self.timeout_is_terminal = (ends[0], ends[-1]), timeout_is_terminal
        self._grouped = observation == "dict"
        self.input_features = None if self._grouped else TargetFeatures
        self._steps = 0
        action = Categorical(self.rules.num_actions, shape=(num_worlds,), dtype=torch.int64, device=self.device)

        def within(low: float, size: int) -> Bounded:
            return Bounded(low, 1.0, shape=(num_worlds, size), dtype=dtype, device=self.device)

        seen: TensorSpec = within(-1.0, SIZE)
        if self._grouped:
            sizes = {name: part.stop - part.start for name, part in GROUPS.items()}
            parts = {name: within(-1.0 if name in _SIGNED else 0.0, size) for name, size in sizes.items()}
            seen = Composite(parts, shape=(num_worlds,), device=self.device)
        self.declare_specs({"observation": seen}, action, STATISTICS)

    @property
    def stage(self) -> int | None:
        """Stage of the curriculum."""
        return self._stage

    @property
    def phase(self) -> int | None:
        return self._stage

    def _enter_stage(self, stage: int | None) -> None:
        """Sets the stage, which takes effect at once except for existing spawners."""
        self.rules, self._stage = self._rules_at(stage), stage
        self._tables = make_tables(self.rules, self.float_dtype, self.device)
        self._draws = ArenaDraws(self.rules, self.num_worlds, self.generator, self.float_dtype)
        self._pool.clear()

    # -- reset ---------------------------------------------------------------------------------------------------

    def _restart(self, worlds: Tensor | None) -> None:
        if worlds is None:
            begun = self._start(self.num_worlds)
            self.worlds, (self._observation, self._episode) = begun.state, begun.shown
            return
        fresh, places = self._pool.take(len(worlds))
        self.worlds.restart(worlds, fresh.state, places)
        # Not in place, since batches refer to these tensors.
        observation, statistics = fresh.shown
        self._observation = self._observation.index_copy(0, worlds, observation[places])
        self._episode = self._episode.index_copy(1, worlds, statistics[:, places])

    def _restart_where(self, ended: Tensor) -> bool:
        fresh, places = self._pool.take_where(ended)
        self.worlds.restart_where(ended, fresh.state, places)
        # Not in place, since batches refer to these tensors.
        observation, statistics = fresh.shown
        self._observation = chosen(ended, observation, places, self._observation)
        self._episode = torch.where(ended, statistics.index_select(1, places), self._episode)
        return True

    def _start(self, count: int) -> Opening[ArenaState]:
        jitter, phases = self._draws.jitter(count), self._start_phases
        drawn: dict[str, Any] = {"generator": self.generator, "device": self.device}
        phases = phases.expand(count) if len(phases) == 1 else phases[torch.randint(len(phases), (count,), **drawn)]
        low, high = self._start_health
        health = torch.full((count,), low, dtype=self.float_dtype, device=self.device)
        if low < high:
            health = health + (high - low) * torch.rand(count, **drawn).to(health)
        slots = self._kernels.slots if self._is_sparse else self.rules.enemy_shot_slots
        state = begin(phases, health, jitter, slots, self.rules, self._tables)
        return Opening(state, [observe(state, self.rules, self._tables), self._statistics(state)])

    # -- step ----------------------------------------------------------------------------------------------------

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        before = self.worlds, self._chosen(tensordict), self.rules, self._tables
        if self._is_sparse:
            self.worlds, outcome = advance(*before, self._draws, self._kernels)
            self._steps += 1
            if self._steps % _TRIM_EVERY == 0:
                self.worlds = trimmed(self.worlds, self._kernels)
        else:
            drawn = draw_everywhere(self.worlds, self._draws, self.rules)
            self.worlds, outcome = self._kernels.dense(*before, drawn)
        self._observation, self._episode = outcome.observation, self._statistics(self.worlds)
        terminated, late = outcome.terminated[:, None], outcome.time_out[:, None]
        if self.timeout_is_terminal:
            terminated, late = terminated | late, torch.zeros_like(late)
        ends = {
            "reward": outcome.reward.to(self.float_dtype)[:, None],
            "done": terminated | late,
            "terminated": terminated,
            "truncated": late > terminated,  # of booleans: late and not terminated
        }
        return self._current().update(ends)

    def _statistics(self, state: ArenaState) -> Tensor:
        """Returns ``[statistics, W]`` in the order of ``STATISTICS``."""
        won = (state.phase >= len(self.rules.phases)).to(self.float_dtype)
        rows = [state.returns.to(self.float_dtype), state.step, won, state.step / 60]
        rows += [state.phase, state.spawner_kills, state.kills, state.health, state.damage_dealt, state.damage_taken]
        return torch.stack(rows)

    def _current(self) -> TensorDict:
        lead = self.batch_size
        columns = {name: row[:, None] for name, row in zip(STATISTICS, self._episode.unbind(0))}
        episode = unchecked(columns, batch_size=lead, device=self.device)
        observation: Any = self._observation
        if self._grouped:
            parts = {name: observation[:, part] for name, part in GROUPS.items()}
            observation = unchecked(parts, batch_size=lead, device=self.device)
        entries = {"observation": observation, "episode": episode}
        return unchecked(entries, batch_size=lead, device=self.device)

    # -- checkpoint ----------------------------------------------------------------------------------------------

    def _state_to_save(self) -> dict[str, Any]:
        return {
            "stage": self._stage,
            "state": dict(self.worlds.map(torch.clone).items()),  # steps write into the state in place
            "observation": self._observation,
            "episode": self._episode,
            "pool": self._pool.state_dict(),
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        self._enter_stage(state["stage"])
        self.worlds = ArenaState(**{name: value.to(self.device, copy=True) for name, value in state["state"].items()})
        if not self._is_sparse:
            self.worlds = self.worlds.with_bullet_slots(self.rules.enemy_shot_slots)
        self._observation = state["observation"].to(self.device)
        self._episode = state["episode"].to(self.device)
        self._pool.load_state_dict(state["pool"], self.device)

    def mirror(self) -> Mirror:
        """See :func:`rlstack.envs.arena.observation.mirror`."""
        return mirror(self.rules.style)

    def recorder(self, worlds: Sequence[int], titles: Sequence[str] | None = None) -> EpisodeRecorder[Any]:
        """See :meth:`~rlstack.envs.world.WorldHooks.recorder`."""
        from .recording import ArenaRecorder  # which loads what draws

        return ArenaRecorder(self, worlds, titles)
