"""Echelon as a TorchRL environment: W matches at once of two teams of mechs, every mech an agent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded

from rlstack.envs.foundation.tensors import of_agents, with_ends

from ..foundation.tensors import STATE, chosen, looks_are_free, put_where
from ..recording import EpisodeRecorder, EpisodeRecording
from ..states import Opening, StartPool
from ..world import MOST_STEPS, Sides, World, check_known, check_within, flag_spec
from .actions import AXES, BUTTON_CHOICES, BUTTONS, KINDS, counts, mask_size, orders_of
from .maps import make_maps
from .match import PLAIN, STATISTICS, EchelonMatch, EchelonOptions, open_match, play, statistics
from .match import compiled as compiled_kernels
from .observation import size as observation_size
from .players import SIDES, bot_weights, fire_range
from .projectiles import Which
from .rewards import make_weights
from .rules import MAP, MOST
from .state import EchelonStarts
from .tables import Tables


class Echelon(World):
    """Teams of mechs fight for a zone, batched: blue against red on square maps, four decisions a second.

    A team has one or two packs of a heavy, two mediums, a light and a scout; smaller teams take a medium, the heavy,
    the scout, a medium, the light, in this order. Blue's slots are agents, and with ``opponent="policy"`` red's follow;
    ``("agents", "active") [W, A]`` is False for empty slots and for the dead. A decision is five sub-steps of 0.05 s.

    ``("agents", "observation") [W, A, F]``, F = 346 for a pack against a pack, all in the mech's own axes (forward,
    left, up): 0 to 35 itself: class (scout, light, medium, heavy), targeted, under fire, painted, shut down, heat above
    85 %, hp, heat, lack of stability, where the last damage came from (2), missile coming, sensor quality, jammed, ECM,
    ECCM, suppressed, AMS, velocity (3), clocks of laser, missile, kinetics and painter, in the zone, way to its centre
    (2), radius, control, own and the enemy's score, time; 36 to 39 noise of enemies ahead, left, behind, right; then
    the other slots of the team and all enemies, 24 numbers each, see :mod:`rlstack.envs.echelon.observation`; 9 x 9
    heights of
    the ground two voxels apart; direction to the zone (2), distance to its edge, whether it is in sight, the map's
    middle (2), height, ground, fallen or legged.

    ``("agents", "action")``: ``hybrid``, a dict of ``axes [W, A, 4]`` (forward, strafe to the left, jet, yaw),
    ``buttons [W, A, 5]`` (primary, vent, secondary with ECM and ECCM for scouts, tertiary, smoke) and ``target [W, A]``
    (0: none); ``multi [W, A, 10]``, the same with bins of the axes; ``box [W, A, 9 + n]`` within [-1, 1].
    ``("agents", "action_mask")`` marks the choices that a mech has, and the targets that it sees; see
    :mod:`rlstack.envs.echelon.actions`.

    ``("episode", ...) [W, 1]`` is updated in every step and final at ``done``: for blue ``return``, ``success`` (it
    won), ``lost``, ``draw`` (nobody won), ``hp_margin`` and ``reward_<term>``, the weighted sums that make up the
    return (means over its mechs); ``length`` in decisions, ``time`` in s; for both teams ``score_``, ``damage_``,
    ``kills_`` and so on, followed by ``blue`` or ``red``.

    Args:
        num_worlds: number of worlds W.
        blue, red: number of mechs of each team, 1 to 10.
        opponent: player of red: the bots ``"heuristic"``, ``"veteran"``, ``"rush"``, ``"random"``, or ``"policy"``
            (agents).
        opponent_mix: weights of several bots, one of which is drawn for every episode, in place of ``opponent``.
        fire_probability: probability that a bot that would fire does so; of two numbers, one in between is drawn for
            every episode.
        fire_stages: the same for each stage of a curriculum, in place of ``fire_probability``.
        visibility: ``"full"``, or ``"partial"``, in which agents see only enemies within reach of their sensors.
        state: whether to show critics, beside the observation, the one that full visibility would give:
            ``("agents", "state") [W, A, F]``; needs ``visibility="partial"``.
        actions: form of the actions: ``"hybrid"``, ``"multi"`` or ``"box"``.
        reward_weights: weights of single terms, in place of the usual ones; see :mod:`rlstack.envs.echelon.rewards`.
        reward_scale: factor of all terms.
        vent_blocks_fire: whether mechs cannot fire while venting.
        max_steps: number of decisions after which an episode is truncated; a score of half its seconds wins.
        size: number of voxels along the side of a map, an even number from 48 to 128.
        maps, map_seed: number and seed of the maps; evaluations use other maps.
        symmetric_maps: whether maps look the same from both starts.
        compiled: whether to compile the simulation with ``torch.compile`` (minutes; same results to rounding).

    Attributes:
        worlds: the whole simulation state, world-last.

    Raises:
        ValueError: an option is impossible; the message says what is allowed.
    """

    observing = ("rlstack.envs.echelon.match:observe",)
    _pool: StartPool[Opening[EchelonMatch]]
    replay_ending = ".json"
    evaluation_options: ClassVar[dict[str, Any]] = {"fire_probability": 1.0, "fire_stages": None, "map_seed": 1_000_003}
    tie_breaker: ClassVar[str] = "hp_margin"
    two_sided_options: ClassVar[dict[str, Any]] = {"opponent": "policy", "opponent_mix": None}

    def __init__(
        self,
        num_worlds: int = 64,
        blue: int = 5,
        red: int = 5,
        opponent: Literal["heuristic", "veteran", "rush", "random", "policy"] = "heuristic",
        opponent_mix: dict[str, float] | None = None,
        fire_probability: float | list[float] = 1.0,
        fire_stages: list[float | list[float]] | None = None,
        visibility: Literal["full", "partial"] = "full",
        state: bool = False,
        actions: Literal["hybrid", "multi", "box"] = "multi",
        reward_weights: dict[str, float] | None = None,
        reward_scale: float = 0.1,
        vent_blocks_fire: bool = True,
        max_steps: int = 256,
        size: int = MAP,
        maps: int = 512,
        map_seed: int = 0,
        symmetric_maps: bool = True,
        compiled: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int | None = 0,
    ) -> None:
        super().__init__(num_worlds, device, dtype, seed)
        check_within("max_steps", max_steps, 1, MOST_STEPS, "decisions")
        check_within("reward_scale", reward_scale, 1e-6, 1e6, "(0 would leave nothing to learn)")
        check_known("visibility", [visibility], ("full", "partial"))
        check_known("actions", [actions], KINDS)
        check_within("blue", blue, 1, MOST, "mechs")
        check_within("red", red, 1, MOST, "mechs")
        if state and visibility == "full":
            raise ValueError("state: with visibility=full agents see all of it already, give visibility=partial")
        self.worlds: EchelonMatch
        self._teams = 2 if opponent == "policy" else 1
        self._actions = actions
        bots, fire = bot_weights(opponent, opponent_mix), fire_range(fire_probability)
        self._stages = [fire_range(stage, "fire_stages") for stage in fire_stages or ()]
        self.num_stages = len(self._stages)
        self._stage: int | None = None
        weights = [weight * reward_scale for weight in make_weights(reward_weights).values()]
        self.tables = Tables(make_maps(maps, map_seed, symmetric_maps, size), (blue, red), dtype, self.device)
        mechs = self.tables.mechs
        lead = (num_worlds, self._teams * mechs)
        shown: dict[str, TensorSpec] = {
            "observation": Unbounded(shape=(*lead, observation_size(mechs)), dtype=dtype, device=self.device),
            "active": flag_spec(*lead, device=self.device),
        }
        if state:
            shown[STATE] = shown["observation"].clone()
        action = action_spec(actions, lead, mechs, dtype, self.device)
        if masked := mask_size(actions, mechs):
            shown["action_mask"] = Binary(masked, shape=(*lead, masked), dtype=torch.bool, device=self.device)
        self.choices = counts(mechs) if actions == "multi" else None
        self.declare_specs(shown, action, STATISTICS, lead[1])
        hides = visibility == "partial"
        self.starts = EchelonStarts(self.tables, hides, bots, fire)
        scale = torch.tensor(weights, dtype=dtype, device=self.device).view(-1, 1, 1, 1)
        which: Which = "all" if not looks_are_free(self.device) else "padded" if compiled else "flying"
        kinds = tuple(kind for kind, weight in enumerate(bots) if weight > 0)
        common = (scale, actions, self._teams, hides, vent_blocks_fire, kinds, max_steps, which)
        self.match_options = EchelonOptions(*common, shows_all=state)
        """The options of a decision, for recordings."""
        self.options = {
            **{"blue": blue, "red": red, "opponent": opponent, "visibility": visibility, "max_steps": max_steps},
            **{"vent_blocks_fire": vent_blocks_fire, "size": size, "maps": maps, "map_seed": map_seed},
            **{"symmetric_maps": symmetric_maps},
        }
        """The options of the game, for recordings."""
        self.orders: Tensor | None = None
        """Orders of the agents in the last decision, ``[teams, 10, n, W]``, None before the first."""
        self._told: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._kernels = compiled_kernels(PLAIN) if compiled else PLAIN
        self._pool = StartPool(self._start, partial(Opening.restored, EchelonMatch))
        if self._stages:
            self._enter_stage(0)

    def _enter_stage(self, stage: int) -> None:
        self._begin_at(stage)
        low, high = self._stages[stage]
        words = np.random.SeedSequence((self.generator.initial_seed(), stage)).generate_state(1)
        own = torch.Generator(self.device).manual_seed(int(words[0]))  # a stage draws none of the world's numbers
        matches = [self.worlds] if hasattr(self, "worlds") else []
        if self._pool.opening is not None:
            matches.append(self._pool.opening.state)
        for match in matches:
            match.state.fire_prob.uniform_(low, high, generator=own)

    def _begin_at(self, stage: int) -> None:
        """Lets new episodes begin in a stage."""
        self._stage = stage
        self.starts = EchelonStarts(self.tables, self.starts.partial, self.starts.bots, self._stages[stage])

    # -- reset ---------------------------------------------------------------------------------------------------

    def sides(self) -> Sides:
        return SIDES

    def _restart(self, worlds: Tensor | None) -> None:
        if worlds is None:
            begun = self._start(self.num_worlds)
            self.worlds, self._shown = begun.state, begun.shown
        else:
            fresh, places = self._pool.take(len(worlds))
            self.worlds.copy_worlds(worlds, fresh.state, places)
            # Not in place, since batches refer to these tensors.
            self._shown = {
                name: value.index_copy(0, worlds, fresh.shown[name][places]) for name, value in self._shown.items()
            }
        self._count()

    def _restart_where(self, ended: Tensor) -> bool:
        fresh, places = self._pool.take_where(ended)
        put_where(ended, self.worlds.items(), fresh.state.items(), places)
        # Not in place, since batches refer to these tensors.
        self._shown = {name: chosen(ended, fresh.shown[name], places, value) for name, value in self._shown.items()}
        self._count()
        return True

    def _start(self, count: int) -> Opening[EchelonMatch]:
        return open_match(self.starts.draw(count, self.generator, self.float_dtype), self.tables, self.match_options)

    def _count(self) -> None:
        self._episode = torch.stack(statistics(self.worlds, self.tables))
        self._active = self.worlds.state.alive[: self._teams].flatten(0, 1).T.contiguous()

    # -- step ----------------------------------------------------------------------------------------------------

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        actions = self._chosen(tensordict)
        with torch.no_grad():
            orders = orders_of(self._actions, actions, self._teams, self.tables.mechs).to(self.float_dtype)
            for halves, exact, counts in self._told:
                flat, exact = orders.permute(3, 0, 1, 2).flatten(0, 1), exact.to(orders)
                if counts is not None:
                    exact = torch.where(counts[:, None, None], exact, flat.index_select(0, halves))
                flat = flat.index_copy(0, halves, exact)
                orders = flat.unflatten(0, (self.num_worlds, self._teams)).permute(1, 2, 3, 0).contiguous()
            self._told.clear()
            self.orders = orders
            self.worlds, outcome = play(self.worlds, orders, self.tables, self.match_options, self._kernels)
        self._shown = outcome.shown
        self._count()
        reward = outcome.reward.flatten(0, 1).T.contiguous()
        return with_ends(self._current(), reward, outcome.terminated, outcome.truncated, self._active)

    def tell(self, halves: Tensor, orders: Tensor, counts: Tensor | None = None) -> None:
        """Sets exact orders for the next decision, in place of these teams' actions.

        Args:
            halves: indices ``[k]``, 2 w + team.
            orders: orders ``[k, 10, n]``.
            counts: ``[k]`` bool, the orders that count; None: all.
        """
        self._told.append((halves, orders, counts))

    def _current(self) -> TensorDict:
        seen = {"observation": self._shown["observation"], "active": self._active}
        if "mask" in self._shown:
            seen["action_mask"] = self._shown["mask"]
        if STATE in self._shown:
            seen[STATE] = self._shown[STATE]
        return of_agents(seen, dict(zip(STATISTICS, self._episode.unbind(0))))

    # -- checkpoint ----------------------------------------------------------------------------------------------

    def _state_to_save(self) -> dict[str, Any]:
        # Restarts write into the state in place.
        match = {name: value.clone() for name, value in self.worlds.items()}
        return {"match": match, "shown": self._shown, "pool": self._pool.state_dict(), "stage": self._stage}

    def _load_state(self, state: dict[str, Any]) -> None:
        items = {name: value.to(self.device, copy=True) for name, value in state["match"].items()}
        self.worlds = EchelonMatch.from_items(items)
        self._shown = {name: value.to(self.device) for name, value in state["shown"].items()}
        stage = state.get("stage")  # which states of earlier versions lack
        if stage is not None and stage < self.num_stages:
            self._begin_at(stage)
        self._pool.load_state_dict(state["pool"], self.device)
        self._count()

    def recorder(self, worlds: Sequence[int], titles: Sequence[str] | None = None) -> EpisodeRecorder[Any]:
        """See :meth:`~rlstack.envs.world.WorldHooks.recorder`."""
        from .recording import EchelonRecorder  # which loads what draws

        return EchelonRecorder(self, worlds, titles)

    @staticmethod
    def load_replay(path: str | Path) -> EpisodeRecording:
        """See :mod:`rlstack.envs.echelon.replay`."""
        from .recording import load_replay

        return load_replay(path)


def action_spec(
    kind: str, lead: tuple[int, int], mechs: int, dtype: torch.dtype, device: torch.device | None
) -> TensorSpec:
    """Returns the spec of every agent's action; ``lead`` is ``(W, A)``."""
    here: dict[str, Any] = {"device": device}
    if kind == "multi":
        choices = counts(mechs)
        return MultiCategorical(choices, shape=(*lead, len(choices)), dtype=torch.int64, **here)
    if kind == "box":
        return Bounded(-1.0, 1.0, shape=(*lead, AXES + BUTTONS + mechs), dtype=dtype, **here)
    parts = {
        "axes": Bounded(-1.0, 1.0, shape=(*lead, AXES), dtype=dtype, **here),
        "buttons": MultiCategorical(list(BUTTON_CHOICES), shape=(*lead, BUTTONS), dtype=torch.int64, **here),
        "target": Categorical(mechs + 1, shape=lead, dtype=torch.int64, **here),
    }
    return Composite(parts, shape=lead, **here)
