"""A two-sided world with opponents inside: the learner controls one side, players from a pool the other; self-play."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor
from torchrl.data import Composite
from torchrl.envs import EnvBase

from rlstack.agents.base import Agent
from rlstack.agents.interface import MASK, Interface
from rlstack.config import ConfigError, Interval, build
from rlstack.config.errors import prefixed
from rlstack.config.options import Count
from rlstack.data.graphs import GRAPHS
from rlstack.envs.foundation.tensors import looks_are_free
from rlstack.envs.world import GROUP, World, hooks_of
from rlstack.envs.wrappers import Wrapper
from rlstack.training.hooks import Hook, Training

from .players import EMPTY, RANDOM, SELF, ScriptedPlayer, Seats, half_worlds, of_first, sides_of
from .pool import LEARNER, Opponent, Pool, make_sampler
from .register import without_opponents

CHECKPOINT = "checkpoint"
"""Name of the learner's newest snapshot in the stages of a curriculum."""
_STEPS = 64  # whose results a GPU keeps


@dataclass
class OpponentsConfig:
    """The option ``opponents`` of a world.

    Attributes:
        players: opponents from the beginning: ``random``, the world's players (``rule``), ``self`` (the learner with
            its current weights, which explores as the learner does), runs, ``kind:path``, or
            mappings ``{player: kind:path, <option>: <value>}``.
        side: the side that learns; ``both`` draws it for every episode.
        sampler: a name of :data:`~rlstack.play.pool.SAMPLERS`, or a mapping of ``name`` and its options.
        at_once: greatest number of different opponents at a time, each of which acts for all its worlds at once.
        refresh: number of episodes after which other opponents are drawn.
        snapshot_every: frames between two snapshots of the learner, which join the pool; null: none.
        promotion: share of at least 100 games since the last snapshot whose win adds the next; null: none.
        pool: folder of the snapshots; null: ``opponents`` in the run's folder.
        keep: greatest number of snapshots to draw from; null: all.
        loaded: number of opponents whose networks stay in RAM.
        memory: number of games after which an old result counts 1/e of a new one.
        evaluation: the same options for evaluations; null: those of training without ``self`` and new snapshots.
    """

    players: list[Any] = field(default_factory=lambda: ["random"])
    side: Literal["first", "second", "both"] = "first"
    sampler: str | dict[str, Any] = "uniform"
    at_once: Count = 8
    refresh: Count = 100
    snapshot_every: Count | None = None
    promotion: Annotated[float, Interval(low=0, high=1)] | None = None
    pool: str | None = None
    keep: Count | None = None
    loaded: Count = 20
    memory: Annotated[int, Interval(low=2)] = 100
    evaluation: list[Any] | None = None

    def __post_init__(self) -> None:
        if not self.players:
            raise ValueError("players: [] names nobody to begin against; give at least one, such as random")
        judges = [source for source in self.evaluation or self.players if source != SELF]
        if not judges or (self.evaluation and SELF in self.evaluation):
            raise ValueError("evaluation: self exists only during training; name others, such as evaluation: [random]")


def against(env: Any, opponents: Mapping[str, Any] | None) -> Any:
    """Returns the world with opponents inside; None leaves it unchanged.

    Raises:
        ConfigError: the world does not have two sides, a key or opponent is unknown, or a value is impossible.
    """
    if opponents is None:
        return env
    config = build(OpponentsConfig, opponents, "opponents")
    if not isinstance(env, World):
        raise ConfigError(f"opponents: {type(env).__name__} is not an rlstack.envs.world.World, only null is allowed")
    with prefixed("opponents"):
        return Versus(env, config)


class Versus(Wrapper):
    """One side of a two-sided world, ``("agents", ...) [W, A / 2]``; opponents control the other.

    An opponent stays for an episode. The pool's sampler draws a set of opponents at a time, and every world draws one
    of them. Statistics under ``episode`` are those of the learning side: if it is the second, pairs of both sides are
    swapped, ``return`` is the sum of its own rewards (mean over the agents that it began with), and ``success`` is
    whether it has more points; statistics that exist only for the first side are left out unless that side always
    learns.

    On a GPU nothing is read while worlds step: every opponent acts in all worlds, and masks decide. The pool hears of
    the last steps (64, or as many as a collector records) in :meth:`count_results`, and other opponents are drawn
    between the batches of a collector.

    Args:
        inner: the world with both sides as agents.
        config: options of the opponents.

    Raises:
        ConfigError: the world does not have two sides, or an opponent is unknown.
    """

    unrecorded = ("pool",)  # steps use the players at the seats alone

    def __init__(self, inner: World, config: OpponentsConfig) -> None:
        super().__init__(inner)
        self.config, self._sides = config, sides_of(inner)
        anchors = self._sides.anchors
        self.pool = Pool(config.players, config.pool, config.loaded, config.memory, anchors, keep=config.keep)
        self.pool.check(inner)
        self._sampler = make_sampler(config.sampler)
        self._agents = inner.observation_spec[GROUP].shape[1] // 2
        self._seats = Seats(inner)
        self._names: list[str] = []  # names of the players at the seats, "" for one that has left
        self._drawn: list[str] = []
        self._shares = torch.ones(1)  # share of worlds that meet each of them
        self._episodes = 0
        self._seated: set[int] = set()  # on a GPU, the seats at which games went on when results were counted last
        # On a GPU, of each step, 3 * opponent + 0, 1, 2 for a lost, drawn and won game; -1 where none has ended.
        self._log = torch.full((_STEPS, self.num_worlds), -1, device=self.device, dtype=torch.int32)
        self._unread = False  # whether results may have been logged
        self._met: list[str] | None = None
        self._guests: list[str] = []  # opponents of stages beyond those of the configuration
        self.snapshot_wanted = False
        self._every_world = torch.arange(self.num_worlds, device=self.device)
        self._both = torch.arange(2, device=self.device)
        self.learners = 2 * self._every_world + (config.side == "second")  # learning half-worlds
        self._returns = torch.zeros(self.num_worlds, device=self.device, dtype=torch.float64)
        self._sizes = torch.ones_like(self._returns)  # the number of agents with which the learning side began
        self._swaps = config.side != "first"
        self.observation_spec = self._halved(inner.observation_spec)
        self.action_spec = self._halved(inner.full_action_spec)
        self.reward_spec = self._halved(inner.full_reward_spec)
        self.done_spec = self._halved(inner.full_done_spec)

    def _halved(self, spec: Composite) -> Composite:
        """Returns the spec of one side."""
        entries = {key: value.clone() for key, value in spec.items()}
        if GROUP in entries:
            entries[GROUP] = of_first(spec[GROUP], self._agents)
        if self._swaps and "episode" in entries:
            own = self._sides.one_sided
            kept = {key: value for key, value in entries["episode"].items() if not key.startswith(own)}
            entries["episode"] = Composite(kept, shape=entries["episode"].shape, device=self.device)
        return Composite(entries, shape=spec.shape, device=self.device)

    def follow(self, policy: TensorDictModuleBase) -> None:
        """Makes the opponent ``self`` act as this policy, which shares the learner's parameters."""
        self.pool.learner(self.inner).follow(policy)

    # -- stages of a curriculum ----------------------------------------------------------------------------------

    def who_can_be_met(self) -> list[str]:
        """Returns the names that :meth:`meet` accepts."""
        own = [RANDOM, *self._sides.scripted, SELF, CHECKPOINT]
        return [*own, *(entry.name for entry in self.pool.entries if entry.name not in own)]

    def meet(self, names: Sequence[str] | None) -> None:
        """Sets the opponents of future episodes; None means those of the configuration, and snapshots.

        ``checkpoint`` is the newest snapshot; one is requested at once (:attr:`snapshot_wanted`). Before the first
        snapshot it is the learner itself.
        """
        self.snapshot_wanted = CHECKPOINT in (names or ())
        wanted = [SELF if name == CHECKPOINT else name for name in names or ()]
        for name in dict.fromkeys(wanted):
            if name not in {entry.name for entry in self.pool.entries}:
                self.pool.join(Opponent(name, name))
                self._guests.append(name)
        self._met = None if names is None else list(names)
        self._episodes = self.config.refresh  # others are drawn before the next game

    def new_snapshot(self) -> None:
        """Informs the world that a snapshot has joined the pool, for which a stage may have waited."""
        if self.snapshot_wanted:
            self.snapshot_wanted, self._episodes = False, self.config.refresh

    def candidates(self) -> list[int]:
        """Returns the indices in the pool of opponents that may be drawn."""
        entries, met = self.pool.entries, self._met
        if met is None:
            return [place for place, entry in enumerate(entries) if entry.name not in self._guests]
        names = [name for name in met if name != CHECKPOINT]
        if CHECKPOINT in met:
            newest = max(entries, key=lambda entry: entry.frames)
            names.append(newest.name if newest.frames else SELF)
        return [place for place, entry in enumerate(entries) if entry.name in names]

    # -- drawing opponents ---------------------------------------------------------------------------------------

    def _restart(self, worlds: Tensor | None) -> None:
        super()._restart(worlds)
        self._begin_games(self._every_world if worlds is None else worlds)

    def _restart_where(self, ended: Tensor) -> bool:
        if not super()._restart_where(ended):
            return False
        self._begin_games(ended)
        return True

    def _restart_seeded(self, seed: int | Sequence[int]) -> None:
        super()._restart_seeded(seed)
        if not np.ndim(seed):
            return self._begin_games(self._every_world)
        later = self.generator.get_state()
        for world, own in enumerate(seed):  # type: ignore[arg-type]
            # Other numbers than those of the world's initial state
            self.generator.manual_seed(int(np.random.SeedSequence((int(own), 1)).generate_state(1)[0]))
            self._begin_games(self._every_world[world : world + 1])
        self.generator.set_state(later)

    def _begin_games(self, worlds: Tensor) -> None:
        """Draws sides and opponents in the worlds of an index tensor, or of a mask ``[W]``, which is not read."""
        masked, free, sides = worlds.dtype == torch.bool, looks_are_free(self.device), self.learners % 2
        begins = worlds if masked else torch.zeros_like(self.learners, dtype=torch.bool).index_fill(0, worlds, True)
        count = len(worlds) if free else self.num_worlds  # on a GPU numbers are drawn for all

        def of_all(drawn: Tensor) -> Tensor:
            return torch.zeros_like(self.learners).index_copy(0, worlds, drawn) if free else drawn

        if self.config.side == "both":
            drawn = torch.randint(2, (count,), generator=self.generator, device=self.device)
            sides = torch.where(begins, of_all(drawn), sides)
            self.learners = 2 * self._every_world + sides
        self._returns = self._returns.masked_fill(begins, 0.0)  # not in place: batches may refer to it
        if self._swaps:
            self._sizes = torch.where(begins, self._there(self.inner._current().get(GROUP)).sum(-1), self._sizes)
        if not masked:
            if not self._drawn or self._episodes >= self.config.refresh:
                self._draw()
            self._episodes += len(worlds)
            self._unread = True  # others are seated
        if free:
            which = of_all(torch.multinomial(self._shares, count, replacement=True, generator=self.generator))
        else:
            which = torch.searchsorted(self._chances, self._numbers(count), right=True)
        learns = self._both == sides[:, None]  # [W, 2]
        self._seats.seat(begins, torch.where(learns, EMPTY, self._places[which][:, None]))

    def _numbers(self, count: int) -> Tensor:
        return torch.rand(count, generator=self.generator, device=self.device, dtype=torch.float64)

    def _draw(self) -> None:
        """Draws the next set of opponents; earlier ones are unloaded once no world plays against them.

        On a GPU the earlier set stays until the next one has room.
        """
        self.count_results()
        candidates = self.candidates()
        weights, most = self._sampler(self.pool.standings())[candidates], self.config.at_once
        chosen, shares = candidates, weights
        if len(candidates) > most:  # with replacement: an opponent with twice the weight is met twice as often
            if looks_are_free(self.device):
                drawn = torch.multinomial(weights, most, replacement=True, generator=self.generator)
            else:
                drawn = torch.searchsorted(_chances(weights), self._numbers(most).cpu(), right=True)
            chosen = [candidates[place] for place in drawn.tolist()]
            shares = torch.ones_like(weights[:most])
        names = [self.pool.entries[index].name for index in chosen]
        if looks_are_free(self.device):
            seated = [self._names[index] for index in self._seats.assignment.unique().tolist() if index != EMPTY]
            self._load([*seated, *names])
        elif not self._make_room(names):
            return
        self._drawn, self._shares, self._episodes = names, shares.to(self.generator.device), 0
        self._offer()

    def _offer(self) -> None:
        """Sets the tensors from which worlds draw, on a GPU always as many numbers, so that recordings go on."""
        places = [self._names.index(name) for name in self._drawn]
        if not looks_are_free(self.device):
            spare = max(self.config.at_once - len(places), 0)
            chances = _chances(self._shares[: len(places)].double().cpu())
            self._chances = torch.cat((chances, chances.new_ones(spare))).to(self.device)
            places += spare * [0]
        self._places = torch.tensor(places, device=self.device)

    def _make_room(self, drawn: list[str]) -> bool:
        """Seats opponents on a GPU, where each seat has tensors of its own, which recorded steps read.

        A seat at which no game goes on hands its tensors to the next opponent of its kind. Returns False if there are
        too few such seats, and twice as many as opponents play at a time.
        """
        new = [name for name in dict.fromkeys(drawn) if name not in self._names]
        free = [seat for seat, name in enumerate(self._names) if name not in drawn and seat not in self._seated]
        room = max(2 * self.config.at_once - len(self._names), 0)
        if self._drawn and len(new) > len(free) + room:
            return False
        for name in new:
            player, players = self.pool.player(name, self.inner), list(self._seats.players)
            seat = next((seat for seat in free if players[seat].become(player)), None)
            if seat is None:
                if not player.recordable and self.device.type in GRAPHS:
                    told = f"steps are not recorded as a CUDA graph: opponent {name} is an agent from elsewhere"
                    warnings.warn(told, stacklevel=2)
                seat = free[0] if free and not room else len(players)
                room -= seat == len(players)
                players[seat : seat + 1] = [player]
                self._seats.players = players  # another list, so that steps are recorded anew
                self.pool.release(name)
            self._names[seat : seat + 1] = [name]
            free = [other for other in free if other != seat]
        return True

    def _load(self, wanted: list[str]) -> None:
        """Loads exactly these players, and renumbers the seats."""
        names = list(dict.fromkeys(wanted))
        known = dict(zip(self._names, self._seats.players))
        players = [known.get(name) or self.pool.player(name, self.inner, names) for name in names]
        number = [*(names.index(name) if name in names else EMPTY for name in self._names), EMPTY]
        self._seats.players = players
        self._seats.assign(torch.tensor(number, device=self.device)[self._seats.assignment])  # EMPTY is -1, the last
        self._names = names
        if not looks_are_free(self.device):  # each seat's tensors are its own
            for name in names:
                self.pool.release(name)

    @property
    def recordable(self) -> bool:
        return self.inner.recordable and all(player.recordable for player in self._seats.players)

    @property
    def phase(self) -> Any:
        return self.inner.phase, self.pool.learner(self.inner).phase

    def make_ready(self, steps: int) -> None:
        """See :meth:`World.make_ready`; counts results, and draws other opponents if that is due."""
        self.inner.make_ready(steps)
        if looks_are_free(self.device):
            return
        self.count_results()
        if steps > len(self._log):
            self._log = self._log.new_full((steps, self.num_worlds), -1)
        if self._episodes >= self.config.refresh:
            self._draw()
        self._unread = True

    def count_results(self) -> None:
        """Tells the pool about games that have ended on a GPU, for which this waits; elsewhere it knows already."""
        if looks_are_free(self.device) or not self._unread:
            return
        seated = self._seats.assignment.amax(-1, keepdim=True).T
        found = torch.cat((self._log, seated.to(self._log.dtype))).cpu()
        self._log.fill_(-1)
        results, self._seated, self._unread = found[:-1], set(found[-1].tolist()), False
        ended = results[results >= 0].tolist()
        self._episodes += len(ended)
        self.pool.record([(self._names[result // 3], result % 3 / 2) for result in ended])

    # -- stepping ------------------------------------------------------------------------------------------------

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        everyone = self.inner._current().get(GROUP)
        chosen = tensordict.get((GROUP, "action"))
        given = chosen.new_zeros(2 * self.num_worlds, *chosen.shape[1:]).index_copy(0, self.learners, chosen)
        with torch.no_grad():
            given = given.reshape(self.num_worlds, 2 * self._agents, *chosen.shape[2:])
            rivals = None if looks_are_free(self.device) else self.learners ^ 1
            action = self._seats.act(everyone, given, rivals)
        agents = TensorDict({"action": action}, everyone.batch_size, self.device)
        following = self.inner._advance(TensorDict({GROUP: agents}, self.batch_size, self.device))
        if self._swaps:
            reward = half_worlds(following.get(GROUP))[self.learners].get("reward")[..., 0].double()
            self._returns = self._returns + (reward * self._there(everyone)).sum(-1) / self._sizes.clamp_min(1.0)
        done = following.get("done").reshape(self.num_worlds)
        if rivals is not None:
            results = torch.where(done, self._results(following), -1)
            self._log, self._unread = torch.cat((self._log[1:], results[None].to(self._log.dtype))), True
        elif bool(done.any()):
            ended = self._results(following)[done].tolist()
            self.pool.record([(self._names[result // 3], result % 3 / 2) for result in ended])
        return self._shown(following)

    def _results(self, following: TensorDictBase) -> Tensor:
        """Returns 3 * opponent + 0, 1 or 2 where the learner has fewer, as many or more points, ``[W]``."""
        points = self._sides.score(following).double()
        difference = (points[:, 0] - points[:, 1]) * (1 - 2 * (self.learners % 2))
        return 3 * self._seats.assignment.amax(-1) + 1 + difference.sign().long()  # the other seat is empty, -1

    def _shown(self, entries: TensorDictBase) -> TensorDict:
        """Returns the entries of the inner world from the view of the learning side."""
        shown = entries.copy()
        agents = entries.get(GROUP)
        ours = half_worlds(agents)[self.learners] if self._swaps else agents[:, : self._agents]
        shown.set(GROUP, ours)
        if self._swaps and "episode" in shown.keys():  # noqa: SIM118
            shown.set("episode", self._turned(entries))
        return shown

    def _there(self, agents: TensorDictBase) -> Tensor:
        """Returns 1 for the active agents of the learning side, 0 for others, ``[W, A / 2]``."""
        ours = half_worlds(agents)[self.learners]
        active = ours.get("active", None)
        return (torch.ones(ours.batch_size, device=self.device) if active is None else active).double()

    def _turned(self, entries: TensorDictBase) -> TensorDict:
        """Returns the statistics from the view of the learning side."""
        own, statistics = self._sides.one_sided, entries.get("episode").items()
        episode = {name: value for name, value in statistics if not name.startswith(own)}
        second = (self.learners % 2 == 1)[:, None]
        turned = dict(episode)
        for one, other in self._sides.mirrored:
            turned[one] = torch.where(second, episode[other], episode[one])
            turned[other] = torch.where(second, episode[one], episode[other])
        if "return" in episode:
            turned["return"] = self._returns.to(episode["return"])[:, None]
        if "success" in episode:
            points = self._sides.score(entries)
            lost = (points[:, 1:] > points[:, :1]).to(episode["success"].dtype)
            turned["success"] = torch.where(second, lost, episode["success"])
        return TensorDict(turned, self.batch_size, self.device)

    def _current(self) -> TensorDict:
        return self._shown(self.inner._current())

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Draws random actions of the learning side, legal ones if ``tensordict`` has masks."""
        mask = None if tensordict is None else tensordict.get((GROUP, MASK), None)
        seen = None if mask is None else TensorDict({(GROUP, MASK): torch.cat((mask, mask), 1)}, self.batch_size)
        whole = self.inner.rand_action(seen).get((GROUP, "action"))
        root = TensorDict({}, self.batch_size, self.device) if tensordict is None else tensordict
        return root.set((GROUP, "action"), whole[:, : self._agents])

    # -- checkpoint ----------------------------------------------------------------------------------------------

    def _state_to_save(self) -> dict[str, Any]:
        self.count_results()
        return super()._state_to_save() | {
            "pool": self.pool.state_dict(),
            "names": list(self._names),
            "drawn": list(self._drawn),
            "shares": self._shares,
            "episodes": self._episodes,
            "assignment": self._seats.assignment.clone(),
            "players": [player.state_dict() for player in self._seats.players],
            "own": self.learners,
            "returns": self._returns,
            "sizes": self._sizes,
            "stage": {"met": self._met, "guests": list(self._guests), "snapshot_wanted": self.snapshot_wanted},
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        super()._load_state(state)
        self.pool.load_state_dict(state["pool"])
        stage = state.get("stage") or {"met": None, "guests": [], "snapshot_wanted": False}  # older checkpoints
        self._met, self._guests, self.snapshot_wanted = stage["met"], list(stage["guests"]), stage["snapshot_wanted"]
        self._names, self._drawn, self._episodes = [], list(state["drawn"]), state["episodes"]
        self._shares = state["shares"].to(self.generator.device)
        self._seats.assignment.fill_(EMPTY)
        self._load(list(state["names"]))
        self._seats.assign(state["assignment"].to(self.device, copy=True))
        if self._drawn:
            self._offer()
        self._log.fill_(-1)
        self._unread = True  # to find out who plays
        for player, memory in zip(self._seats.players, state["players"]):
            player.load_state_dict(memory)
        self.learners, self._returns = state["own"].to(self.device), state["returns"].to(self.device)
        begun, sizes = self._there(self.inner._current().get(GROUP)).sum(-1), state.get("sizes")
        self._sizes = begun if sizes is None else sizes.to(self.device)  # older checkpoints lack them
        if not self.saves_episodes:  # the inner world began new episodes
            self._seats.begin()
            self._returns, self._sizes = torch.zeros_like(self._returns), begun


def _chances(shares: Tensor) -> Tensor:
    """Returns the sums up to each share, the last of which is more than any number drawn."""
    chances = shares.cumsum(0) / shares.sum()
    chances[-1] = 1.0
    return chances


class ScriptedPolicy(TensorDictModuleBase):
    """Controls every agent of an env as one of the world's players would, from the env's state.

    Args:
        env: a two-sided world, with or without opponents inside.
        name: name of the player, such as Rocket's ``rule``.
    """

    reads_state = True

    def __init__(self, env: EnvBase, name: str) -> None:
        super().__init__()
        self.in_keys, self.out_keys = [(GROUP, "observation")], [(GROUP, "action")]
        self._env: Any = env
        self._world: Any = env.inner if isinstance(env, Versus) else env  # both sides are agents
        self._player = ScriptedPlayer(self._world, name)

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        shown, halves = tensordict.get(GROUP), half_worlds(self._world._current().get(GROUP))
        one_side = isinstance(self._env, Versus)
        rows = self._env.learners if one_side else torch.arange(len(halves), device=shown.device)
        action = self._player.act(self._world, halves, rows)
        return tensordict.set((GROUP, "action"), action.reshape(*shown.batch_size, *action.shape[2:]))


def own_players(env: EnvBase) -> list[str]:
    """Returns the names of the players that come with a world."""
    sides = hooks_of(env).sides()
    return [*(() if sides is None else sides.scripted), *hooks_of(env).players()]


def own_policy(env: EnvBase, name: str) -> TensorDictModuleBase | None:
    """Returns a world's player as a policy; None if the world has no player of this name."""
    if (player := hooks_of(env).players().get(name)) is not None:
        interface = Interface.of(env)
        return TensorDictModule(player, [interface.key("observation")], [interface.key("action")])
    return ScriptedPolicy(env, name) if name in own_players(env) else None


# -- self-play ---------------------------------------------------------------------------------------------------------


PROMOTION_GAMES = 100
"""Number of games after a snapshot before the next promotion is possible."""


class SelfPlay(Hook):
    """Adds snapshots of a learner to the pool of a world with opponents, at intervals and on promotion.

    Every rank has such a pool with the same snapshots and the results of all ranks.

    Args:
        world: the world that the learner trains in.
        folder: folder of the snapshots, unless ``opponents.pool`` names one.
        config: configuration of the run, which every snapshot includes.
    """

    def __init__(self, world: Versus, folder: Path, config: Mapping[str, Any]) -> None:
        self._world, self._config = world, {**config, "env": without_opponents(config["env"])}
        if world.pool.directory is None:
            world.pool.directory = folder

    @classmethod
    def of(cls, training: Training) -> SelfPlay | None:
        """Returns self-play in a run's world, whose opponent ``self`` is the agent; None without opponents inside."""
        if not isinstance(training.env, Versus):
            return None
        training.env.follow(training.agent.policy(explore=True))
        return cls(training.env, training.run.path / "opponents", training.raw_config)

    def on_start(self, training: Training) -> None:
        if training.ranks.count > 1:
            self._world.pool.waiting = []

    def on_batch(self, training: Training, batch: TensorDictBase, metrics: Mapping[str, Any]) -> None:
        self._world.count_results()
        if training.ranks.count > 1:
            self._world.pool.settle(training.ranks.everyone)
        if joined := self.observe(training.frames, training.agent):
            training.event(joined)

    def observe(self, frames: int, agent: Agent) -> str | None:
        """Adds the agent to the pool if a snapshot is due; returns a line about it."""
        config, pool = self._world.config, self._world.pool
        passed, share = frames - pool.last_snapshot, pool.recent_wins / max(pool.recent_games, 1)
        if self._world.snapshot_wanted:
            why = "for this stage"
        elif config.snapshot_every is not None and passed >= config.snapshot_every:
            why = f"after {passed:,} frames"
        elif config.promotion is not None and pool.recent_games >= PROMOTION_GAMES and share >= config.promotion:
            why = f"won {share:.0%} of {pool.recent_games} games"
        else:
            return None
        state = {"frames": frames, "agent": agent.state_dict(), "config": self._config}
        entry = self._world.pool.add_snapshot(state, frames)
        self._world.new_snapshot()
        return f"{entry.name} joined the opponents ({why}), {len(pool.entries)} now"

    def on_log(self, training: Training) -> Mapping[str, float]:
        """Returns the rating, the number of opponents, and the share of games won, also against each fixed opponent.

        Those against ``self``, of which one side wins as many as the other, do not count.
        """
        pool = self._world.pool
        row = {"play/elo": pool.ratings.rating(LEARNER), "play/opponents": float(len(pool.entries))}
        known = [entry for entry in pool.entries if entry.games and entry.source != SELF]
        if known:
            row["play/win_rate"] = sum(entry.wins for entry in known) / sum(entry.games for entry in known)
        for entry in known:
            if not entry.frames:
                row[f"play/win_rate_{entry.name}"] = entry.wins / entry.games
        return row
