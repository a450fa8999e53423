"""Rocket as a TorchRL environment: W matches at once of car soccer, every car an agent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Unbounded

from ..foundation.processes import TIMEOUT
from ..foundation.tensors import chosen, looks_are_free, of_agents, put_where, with_ends
from ..recording import EpisodeRecorder, EpisodeRecording
from ..states import Opening, StartPool
from ..world import Mirror, Sides, World, check_known, check_within
from . import rules
from .actions import action_spec, controls
from .field import Field
from .match import STATISTICS, RocketMatch, RocketMatchOptions, conclude, open_match, play, statistics
from .observation import DriverFeatures, mirror, size
from .players import SIDES
from .rewards import make_weights
from .rocketsim.backend import Simulators
from .simulation import PLAIN, compiled_kernels
from .starts import RocketStarts


class Rocket(World):
    """Car soccer with six degrees of freedom, batched: two teams of one to three cars, the first goal ends a match.

    In a curriculum (:meth:`set_stage`) teams grow from one car to ``blue`` and ``orange``: with two each the stages are
    1v1, 1v2, 2v2. A stage applies to the episodes that begin in it; cars beyond its teams are inactive.

    Cars are agents: the first half is blue and attacks +y; the others are orange and observe the world turned by pi, so
    that all play as if they were blue. If the teams differ in size, the smaller one's last cars are inactive:
    ``("agents", "active") [W, C]`` is False for them. A step is ``tick_skip`` ticks of 1/120 s.

    ``("agents", "observation") [W, C, F]`` is ``rlbot180`` (F = 180, positions over 4096 uu, speeds over 2300 uu/s,
    spins over 5.5 rad/s):

    0 to 21: position, velocity, spin, rotation (forward, right, up), boost, on ground, flip left, demolished; 22 to 36:
    ball position, velocity, spin, place and velocity relative to the car; 37 to 40: where and when (share of 4 s) the
    car can meet the ball; 41 to 47: height of the ball in five bands, an aerial ball within 2000 uu, cosine to it; 48
    to 112: two mates and three rivals, 13 numbers each (position, velocity, both relative, boost); 113 to 172: ten
    nearest pads, 6 numbers each (position, there, big, distance); 173 to 179: kick-off, time over 300 s, score, phase
    of play in four bands. ``compact`` is 0 to 36, 13 numbers of every other car, and which of the 34 pads are there.

    ``("agents", "action")``: ``multi [W, C, 8]``, five bins of throttle, steer, pitch, yaw, roll, then jump, boost,
    handbrake; ``lookup90 [W, C]``, one of 90 usual combinations; ``box8 [W, C, 8]`` within [-1, 1].

    ``("episode", ...) [W, 1]`` is updated in every step and final at ``done``: for blue ``return``, ``goals_for``,
    ``goals_against``, ``success`` (it scored) and ``reward_<term>``, the weighted sums that make up the return (means
    over its cars); ``length`` in steps, ``time`` in s; for both teams ``touches_``, ``demos_`` and
    ``boost_collected_`` followed by ``blue`` or ``orange``.

    With ``backend="rocketsim"`` RocketSim computes the ticks in worker processes; everything else is unchanged. Its
    matches cannot be saved: after :meth:`load_state_dict` new episodes begin. A worker that dies or hangs is replaced
    and its episodes are truncated; :attr:`worker_failures` counts these workers.

    Args:
        num_worlds: number of worlds W.
        blue, orange: number of cars of each team, 1 to 3.
        team_size: number of cars of both teams, in place of ``blue`` and ``orange``.
        tick_skip: number of ticks per step.
        observation: form of the observation: ``"rlbot180"`` or ``"compact"``.
        actions: form of the actions: ``"multi"``, ``"lookup90"`` or ``"box8"``.
        rewards: set of reward terms: ``"sparse"``, ``"dense"`` or ``"hybrid"``; see :mod:`rlstack.envs.rocket.rewards`.
        reward_weights: weights of single terms, in place of the usual ones; the set's factor of a term's group still
            counts, so that terms of a group that the set lacks stay without effect.
        kick_offs, random_states, aerials: weights of the three kinds of initial states.
        max_seconds: time in s after which an episode is truncated.
        idle_seconds: time in s without a touch of the ball after which an episode is truncated.
        ramps: whether the edges between walls, floor and ceiling are round; otherwise walls are bumpers.
        compiled: whether to compile ticks and forecasts with ``torch.compile`` (minutes the first time; same results to
            rounding).
        backend: simulator: ``"torch"``, in this process, or ``"rocketsim"``, the original one.
        workers: number of processes with the original simulator, at least one.
        worker_timeout: seconds that a worker may take for a step before it counts as hung.

    Attributes:
        worlds: the whole simulation state, world-last.

    Raises:
        ValueError: an option is impossible; the message says what is allowed.
    """

    replay_ending = ".npz"
    evaluation_options: ClassVar[dict[str, Any]] = {"kick_offs": 1.0, "random_states": 0.0, "aerials": 0.0}
    observing = ("rlstack.envs.rocket.match:observe",)
    _pool: StartPool[Opening[RocketMatch]]

    def __init__(
        self,
        num_worlds: int = 64,
        blue: int = 1,
        orange: int = 1,
        team_size: int | None = None,
        tick_skip: int = 8,
        observation: Literal["rlbot180", "compact"] = "rlbot180",
        actions: Literal["multi", "lookup90", "box8"] = "multi",
        rewards: Literal["sparse", "dense", "hybrid"] = "hybrid",
        reward_weights: dict[str, float] | None = None,
        kick_offs: float = 1.0,
        random_states: float = 0.0,
        aerials: float = 0.0,
        max_seconds: float = 300.0,
        idle_seconds: float = 30.0,
        ramps: bool = True,
        compiled: bool = False,
        backend: Literal["torch", "rocketsim"] = "torch",
        workers: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int | None = 0,
        worker_timeout: float = TIMEOUT,
    ) -> None:
        super().__init__(num_worlds, device, dtype, seed)
        if worker_timeout <= 0:
            raise ValueError(f"worker_timeout: {worker_timeout} is not a positive number of seconds")
        check_within("tick_skip", tick_skip, 1, 10 * rules.TICKS_PER_SECOND, "ticks of a step")
        for name, seconds in (("max_seconds", max_seconds), ("idle_seconds", idle_seconds)):
            check_within(name, seconds, 1 / rules.TICKS_PER_SECOND, 1e6, "seconds")
        self.worlds: RocketMatch
        if team_size is not None:
            blue = orange = team_size
        self.starts = self._whole = RocketStarts(blue, orange, float(kick_offs), float(random_states), float(aerials))
        self._stage: int | None = None
        self._sizes = self.starts.ladder()
        self.num_stages = len(self._sizes) if len(self._sizes) > 1 else 0
        self.stage_names = tuple(f"{own}v{others}" for own, others in self._sizes)
        self._actions = actions
        field = Field(True, rules.LOW_RAMP, rules.HIGH_RAMP) if ramps else Field(True)
        weights = tuple(make_weights(rewards, reward_weights).values())
        most, idle = (round(seconds * rules.TICKS_PER_SECOND) for seconds in (max_seconds, idle_seconds))
        self.options = {
            **{"blue": blue, "orange": orange, "tick_skip": tick_skip, "actions": actions, "ramps": ramps},
            **{"max_seconds": float(max_seconds), "idle_seconds": float(idle_seconds)},
        }
        """The options that recordings keep."""
        self._options = RocketMatchOptions(
            observation, weights, tick_skip, most, idle, field, not looks_are_free(self.device)
        )
        self.kernels = compiled_kernels(num_worlds if self._options.dense else 1024) if compiled else PLAIN
        """The functions of a tick."""
        self.controls: Tensor | None = None
        """The controls of the last step, ``[8, C, W]``, None before the first."""
        self._pool = StartPool(self._start, partial(Opening.restored, RocketMatch))
        self.input_features = partial(DriverFeatures, observation, self.starts.cars)
        features = size(observation, self.starts.cars)
        self._simulators: Simulators | None = None
        check_known("backend", [backend], ("torch", "rocketsim"))
        if workers < 0:
            raise ValueError(f"workers: {workers} is not a number of processes")
        if backend == "rocketsim":
            if compiled:
                raise ValueError("compiled: only the torch backend has anything to compile")
            self.saves_episodes = False
            shape = num_worlds, self.starts.cars, tick_skip
            self._simulators = Simulators(*shape, workers, ramps, dtype, self.device, worker_timeout)
        lead, real = (num_worlds, self.starts.cars), {"dtype": dtype, "device": self.device}
        shown = {"observation": Unbounded(shape=(*lead, features), **real)}
        self.declare_specs(shown, action_spec(actions, lead, dtype, self.device), STATISTICS, self.starts.cars)

    def _enter_stage(self, stage: int | None) -> None:
        """Sets the teams of future episodes; None: those of the options."""
        self._stage = stage
        self.starts = self._whole if stage is None else self._whole.of_size(*self._sizes[stage])
        self._pool.clear()

    # -- reset ---------------------------------------------------------------------------------------------------

    def sides(self) -> Sides:
        return SIDES

    def mirror(self) -> Mirror:
        """See :func:`rlstack.envs.rocket.observation.mirror`."""
        return mirror(self._options.observation, self._actions, self.starts.cars)

    def _restart(self, worlds: Tensor | None) -> None:
        if worlds is None:
            begun = self._start(self.num_worlds)
            self.worlds, self._observation = begun.state, begun.shown
        else:
            fresh, places = self._pool.take(len(worlds))
            self.worlds.copy_worlds(worlds, fresh.state, places)
            # Not in place, since batches refer to these tensors.
            self._observation = self._observation.index_copy(0, worlds, fresh.shown[places])
        if self._simulators is not None:
            self._simulators.begin(self.worlds.world, worlds)
        self._count()

    def _restart_where(self, ended: Tensor) -> bool:
        if self._simulators is not None:
            return False
        fresh, places = self._pool.take_where(ended)
        put_where(ended, self.worlds.items(), fresh.state.items(), places)
        # Not in place, since batches refer to these tensors.
        self._observation = chosen(ended, fresh.shown, places, self._observation)
        self._count()
        return True

    def _start(self, count: int) -> Opening[RocketMatch]:
        return open_match(self.starts.draw(count, self.generator, self.float_dtype), self._options)

    def _count(self) -> None:
        self._episode = torch.stack(statistics(self.worlds))
        # A copy, since a restart of the match writes in place.
        self._active = ~self.worlds.world.cars.gone.T.isinf()

    # -- step ----------------------------------------------------------------------------------------------------

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        chosen = controls(self._actions, self._chosen(tensordict)).to(self.float_dtype)
        with torch.no_grad():
            self.controls = chosen
            if self._simulators is None:
                self.worlds, outcome = play(self.worlds, chosen, self._options, self.kernels)
            else:
                world, events, lost = self._simulators.advance(self.worlds.world, chosen)
                self.worlds, outcome = conclude(self.worlds, world, events, self._options)
                outcome = outcome._replace(truncated=outcome.truncated | (lost & ~outcome.terminated))
        self._observation = outcome.observation
        self._count()
        reward = outcome.reward.T.to(self.float_dtype)
        return with_ends(self._current(), reward, outcome.terminated, outcome.truncated, self._active)

    def _current(self) -> TensorDict:
        seen = {"observation": self._observation, "active": self._active}
        return of_agents(seen, dict(zip(STATISTICS, self._episode.unbind(0))))

    # -- the simulator's processes -----------------------------------------------------------------------------------

    @property
    def worker_failures(self) -> int:
        """Number of worker processes that have died or hung, and were replaced."""
        return 0 if self._simulators is None else self._simulators.failures

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Ends worker processes; the world can no longer be stepped."""
        super().close(raise_if_closed=raise_if_closed)
        if self._simulators is not None:
            self._simulators.close()

    # -- checkpoint ----------------------------------------------------------------------------------------------

    def _state_to_save(self) -> dict[str, Any]:
        return {
            "stage": self._stage,
            "match": dict(self.worlds.map(torch.clone).items()),  # restarts write into the state in place
            "observation": self._observation,
            "pool": self._pool.state_dict(),
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        self._enter_stage(state.get("stage"))
        items = {name: value.to(self.device, copy=True) for name, value in state["match"].items()}
        self.worlds = RocketMatch.from_items(items)
        self._observation = state["observation"].to(self.device)
        self._pool.load_state_dict(state["pool"], self.device)
        self._count()
        if self._simulators is not None:  # it cannot resume a match
            self._restart(None)

    def recorder(self, worlds: Sequence[int], titles: Sequence[str] | None = None) -> EpisodeRecorder[Any]:
        """See :meth:`~rlstack.envs.world.WorldHooks.recorder`."""
        from .recording import RocketRecorder  # which loads what draws

        return RocketRecorder(self, worlds, titles)

    @staticmethod
    def load_replay(path: str | Path) -> EpisodeRecording:
        """See :func:`rlstack.envs.rocket.recording.load_replay`."""
        from .recording import load_replay

        return load_replay(path)
