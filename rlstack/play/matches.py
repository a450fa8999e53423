"""Plays games in many worlds at once, every game to its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.config import ConfigError
from rlstack.envs.foundation.tensors import GROUP
from rlstack.envs.foundation.work import Work, working
from rlstack.envs.world import Sides, hooks_of
from rlstack.evaluation.evaluator import MOST_STEPS, evaluation_world
from rlstack.runs.seeding import own_randomness

from .games import GameResult, Schedule
from .players import RANDOM, Player, Source, free_name, make_player, name_of, read_source
from .ratings import Ratings, rating_system
from .replays import BestGames
from .sides import EMPTY, Seats, sides_of

WORLDS = 128
"""Default number of worlds stepped at once."""


class GameRunner:
    """A two-sided world with its ``evaluation_options``, and players for it.

    Args:
        world: name of the world for :func:`rlstack.envs.make`.
        options: constructor arguments of the world.
        num_worlds: number of worlds stepped at once; fewer if there are fewer games.
        device: device of the worlds and the players.
        max_steps: number of steps after which an unfinished game is scored as it stands; None: the world's rule.
        kept: options that ``evaluation_options`` do not override.

    Raises:
        ConfigError: there is no such world or option, or the world does not have two sides.

    Attributes:
        sample: one world, for which players are made.
        sides: description of the world's two sides.
        players: the players by name.
    """

    def __init__(
        self,
        world: str,
        options: Mapping[str, Any],
        num_worlds: int = WORLDS,
        device: torch.device | str = "cpu",
        max_steps: int | None = None,
        kept: Collection[str] = (),
    ) -> None:
        self.world, self.options, self.num_worlds, self.device = world, dict(options), num_worlds, device
        self._kept = kept
        self.sample = self.build(1, 0)
        self.sides: Sides = sides_of(self.sample)
        self.max_steps = max_steps or hooks_of(self.sample).evaluation_steps or MOST_STEPS
        self.players: dict[str, Player] = {}

    def build(self, num_worlds: int, seed: int) -> EnvBase:
        """Builds ``num_worlds`` worlds."""
        try:
            options = {**self.options, **envs.world_hooks(self.world).two_sided_options}
            return evaluation_world(self.world, options, num_worlds, self.device, seed, self._kept)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"env: {error}") from None

    def add(self, source: Source | Player, name: str | None = None) -> str:
        """Adds a player; returns its name here, with a number if the name is taken.

        Raises:
            ConfigError: there is no such player, it cannot act in this world, or it has the name of one of the world's
                own players, whose ratings are fixed.
        """
        wanted = name or (source.name if isinstance(source, Player) else name_of(source))
        if not isinstance(source, Player) and wanted in self.reserved and wanted != read_source(source)[0]:
            fault = f"{wanted!r} is a player of the world itself, so no other can have this name"
            raise ConfigError(f"players: {fault}; name {source!r} otherwise, as {{<name>: {source}}}")
        player = source if isinstance(source, Player) else make_player(source, self.sample, name)
        player.name = free_name(wanted, self.players)
        self.players[player.name] = player
        return player.name

    @property
    def reserved(self) -> set[str]:
        """Names of the world's own players."""
        return {RANDOM, *self.sides.scripted, *self.sides.anchors}

    def ratings(self, system: str = "elo", options: Mapping[str, Any] | None = None) -> Ratings:
        """Returns a rating system without games, in which the world's own players have fixed ratings."""
        return rating_system(system, **{"anchors": dict(self.sides.anchors), **(options or {})})

    def play(
        self,
        schedule: Schedule,
        seed: int = 0,
        best: BestGames | None = None,
        finished: Callable[[GameResult], None] = lambda game: None,
    ) -> list[GameResult]:
        """Plays games, a fixed number in each world one after another, so that short games are not favoured.

        Args:
            schedule: the players of each game; see :func:`~rlstack.play.games.pairing`.
            seed: seed of worlds and players: the same seed gives the same games.
            best: records the games and keeps the best of them.
            finished: called with each game when it ends.

        Returns the games in the order of the schedule.

        Raises:
            ConfigError: a player is unknown.
        """
        names = list(dict.fromkeys(name for pair in schedule for name in pair))
        for name in names:
            if name not in self.players:
                raise ConfigError(f"{name!r} is not a player here; known: {', '.join(self.players) or 'nobody'}")
        if not schedule:
            return []
        with closing(self.build(min(self.num_worlds, len(schedule)), seed)) as env:
            env.set_seed(int(np.random.SeedSequence((seed, len(schedule))).generate_state(1)[0]))
            with torch.no_grad(), own_randomness(seed), working("playing", "games", len(schedule)) as work:
                return _Round(self, env, names, schedule, best).run(work, finished)


class _Round:
    """The games of a schedule: world ``g % W`` plays game g as its ``g // W``-th."""

    def __init__(
        self, runner: GameRunner, env: EnvBase, names: list[str], schedule: Schedule, best: BestGames | None
    ) -> None:
        self._runner, self._env, self._schedule, self._best = runner, env, schedule, best
        self._worlds = env.batch_size[0]
        self._seats = Seats(env, [runner.players[name] for name in names])
        self._seats.begin()
        pairs = [[names.index(name) for name in pair] for pair in schedule]
        self._pairs = torch.tensor(pairs, device=env.device)  # [games, 2]
        self._game = torch.arange(self._worlds, device=env.device)  # number of the game in each world
        self._steps = torch.zeros(self._worlds, dtype=torch.int64, device=env.device)
        # Points of both sides, steps, and whether the game ended by the world's rules.
        self._results = torch.zeros(len(pairs), 4, dtype=torch.float64, device=env.device)

    def run(self, work: Work, finished: Callable[[GameResult], None]) -> list[GameResult]:
        """Plays all of them."""
        root = self._env.reset()
        if self._best is not None:
            self._best.watch(self._env)
        self._seats.seat(self._game.clone(), self._pairs[self._game])
        ended = 0
        while ended < len(self._pairs):
            root.set((GROUP, "action"), self._seats.act(root.get(GROUP)))
            following, root = self._step(root)
            over = self._take(following)
            ended += len(over)
            work.reach(ended)
            if not len(over):
                continue
            for game in self._game[over].tolist():
                finished(self._result(game))
            if self._best is not None:
                for world, game in zip(over.tolist(), self._game[over].tolist()):
                    self._best.finish(world, game, self._result(game))
            self._game[over] += self._worlds
            cut = over[~following.get("done").reshape(self._worlds)[over]]
            if len(cut):  # the worlds whose games were cut short
                mask = torch.zeros(self._worlds, 1, dtype=torch.bool, device=over.device)
                mask[cut] = True
                root = self._env.reset(root.set("_reset", mask))
            plays_on = self._game[over] < len(self._pairs)
            seated = torch.full((len(over), 2), EMPTY, device=over.device)
            seated[plays_on] = self._pairs[self._game[over[plays_on]]]
            self._seats.seat(over, seated)
            if self._best is not None:
                self._best.restarted()
        return [self._result(game) for game in range(len(self._pairs))]

    def _result(self, game: int) -> GameResult:
        first, second, steps, finished = self._results[game].tolist()
        return GameResult(*self._schedule[game], first, second, int(steps), bool(finished))

    def _step(self, root: Any) -> tuple[Any, Any]:
        """Steps all worlds; returns the entries under ``"next"``, and the next root."""
        if self._best is None:
            done, root = self._env.step_and_maybe_reset(root)
            return done.get("next"), root
        done = self._env.step(root)
        self._best.add()  # the last state of a finished world exists only here
        return done.get("next"), self._env.maybe_reset(self._env.step_mdp(done))

    def _take(self, following: Any) -> Tensor:
        """Stores the results of finished games; returns their worlds."""
        self._steps += 1
        done, terminated = (following.get(key).reshape(self._worlds) for key in ("done", "terminated"))
        late = self._steps >= self._runner.max_steps
        over = ((done | late) & (self._game < len(self._pairs))).nonzero()[:, 0]
        if len(over):
            points = self._runner.sides.score(following).to(self._results)
            rows = torch.cat((points, self._steps[:, None], terminated[:, None]), -1)
            self._results[self._game[over]] = rows[over]
        self._steps[done | late] = 0
        return over
