"""Playing games: many worlds at once, every game to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchrl.envs import EnvBase

import envs
from envs.working import Work, working
from envs.world import Sides, hooks_of
from rlstack.config import ConfigError
from rlstack.evaluation.evaluator import MOST_STEPS, evaluation_world
from rlstack.runs.seeding import own_randomness

from .players import Player, Source, make_player, name_of
from .records import Game
from .replays import BestGames
from .seats import EMPTY, Seats
from .sides import sides_of

WORLDS = 128
"""Worlds stepped at once unless said otherwise."""


class Arena:
    """A two-sided world as it judges (``evaluation_options``), and players that were made for it.

    Args:
        world: name for :func:`envs.make`.
        options: its constructor arguments.
        num_worlds: worlds stepped at once; fewer where there are fewer games.
        device: of the worlds and the players.
        max_steps: a game that has not ended after so many steps is judged as it stands; None: the world's own rule.

    Raises:
        ConfigError: no such world or option, or a world without two sides.

    Attributes:
        sample: one world, to make players for.
        sides: what is known of its two sides.
        players: by name.
    """

    def __init__(
        self,
        world: str,
        options: Mapping[str, Any],
        num_worlds: int = WORLDS,
        device: torch.device | str = "cpu",
        max_steps: int | None = None,
    ) -> None:
        if num_worlds < 1:
            raise ConfigError(f"num_worlds: {num_worlds} is not a positive number of worlds")
        self.world, self.options, self.num_worlds, self.device = world, dict(options), num_worlds, device
        self.sample = self.build(1, 0)
        self.sides: Sides = sides_of(self.sample)
        self.max_steps = max_steps or hooks_of(self.sample).evaluation_steps or MOST_STEPS
        self.players: dict[str, Player] = {}

    def build(self, num_worlds: int, seed: int) -> EnvBase:
        """So many worlds."""
        try:
            options = {**self.options, **envs.world_hooks(self.world).two_sided_options}
            return evaluation_world(self.world, options, num_worlds, self.device, seed)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"env: {error}") from None

    def add(self, source: Source | Player, name: str | None = None) -> str:
        """Makes a player known; returns what it is called here: a name that is taken gets a number.

        Raises:
            ConfigError: no such player, or one that cannot act in this world.
        """
        player = source if isinstance(source, Player) else make_player(source, self.sample, name)
        called = base = name or (player.name if isinstance(source, Player) else name_of(source))
        number = 1
        while called in self.players:
            number += 1
            called = f"{base}-{number}"
        player.name = called
        self.players[called] = player
        return called

    def play(
        self,
        schedule: Sequence[tuple[str, str]],
        seed: int = 0,
        best: BestGames | None = None,
    ) -> list[Game]:
        """Plays games, each world a fixed number of them one after another, so that short games are no likelier.

        Args:
            schedule: the players of each game, who drives the first side first; see :func:`pairing`.
            seed: of worlds and players: the same seed gives the same games.
            best: records the games and keeps the best of them.

        Returns the games in the order of the schedule.

        Raises:
            ConfigError: a player that is not known.
        """
        unknown = {name for pair in schedule for name in pair} - self.players.keys()
        if unknown:
            raise ConfigError(
                f"{sorted(unknown)[0]!r} does not play here, known: {', '.join(self.players) or 'nobody'}"
            )
        if not schedule:
            return []
        count = min(self.num_worlds, len(schedule))
        env = self.build(count, seed)
        env.set_seed(int(np.random.SeedSequence((seed, len(schedule))).generate_state(1)[0]))
        names = list(dict.fromkeys(name for pair in schedule for name in pair))
        pairs = torch.tensor([[names.index(name) for name in pair] for pair in schedule], device=env.device)
        with torch.no_grad(), own_randomness(seed), working("playing", "games", len(schedule)) as work:
            seats = Seats(env, [self.players[name] for name in names])
            seats.begin()
            played = _Round(env, seats, pairs, self.sides, self.max_steps)
            played.run(work, None if best is None else _Watch(best, schedule))
        env.close()
        return played.games(schedule)


def pairing(first: str, second: str, games: int) -> list[tuple[str, str]]:
    """So many games of two players, sides swapped in every other one."""
    return [(first, second) if game % 2 == 0 else (second, first) for game in range(games)]


class _Round:
    """The games of a schedule: game g is played in world ``g % W``, as its ``g // W``-th.

    Args:
        pairs: ``[games, 2]`` indices of players.
    """

    def __init__(self, env: EnvBase, seats: Seats, pairs: Tensor, sides: Sides, max_steps: int) -> None:
        self._env, self._seats, self._pairs, self._sides = env, seats, pairs, sides
        self._max_steps, self._worlds = max_steps, env.batch_size[0]
        self._game = torch.arange(self._worlds, device=pairs.device)  # which game each world plays
        self._steps = torch.zeros(self._worlds, dtype=torch.int64, device=pairs.device)
        games = len(pairs)
        self._points = torch.zeros(2, games, dtype=torch.float64, device=pairs.device)
        self._length = torch.zeros(games, dtype=torch.float64, device=pairs.device)
        self._finished = torch.zeros(games, dtype=torch.float64, device=pairs.device)

    def games(self, schedule: Sequence[tuple[str, str]]) -> list[Game]:
        """What came of them, after :meth:`run`."""
        rows = torch.stack((*self._points, self._length, self._finished), -1).tolist()
        return [Game(*pair, row[0], row[1], int(row[2]), bool(row[3])) for pair, row in zip(schedule, rows)]

    def run(self, work: Work, watch: _Watch | None = None) -> None:
        """Plays all of them."""
        root = self._env.reset()
        if watch is not None:
            watch.best.watch(self._env)
        self._seats.seat(self._game.clone(), self._pairs[self._game])
        ended = 0
        while True:
            root.set(("agents", "action"), self._seats.act(root.get("agents")))
            done, root = self._stepped(root, watch)
            over = self._take(done.get("next"))
            ended += len(over)
            work.reach(ended)
            if not len(over):
                continue
            if watch is not None:
                self._tell(watch, over)
            if ended == len(self._pairs):
                return
            root = self._next_games(over, done.get("next"), root)
            if watch is not None:
                watch.best.restarted()

    def _stepped(self, root: Any, watch: _Watch | None) -> tuple[Any, Any]:
        if watch is None:
            return self._env.step_and_maybe_reset(root)
        done = self._env.step(root)
        watch.best.add()  # what a world ended with is there only now
        return done, self._env.maybe_reset(self._env.step_mdp(done))

    def _tell(self, watch: _Watch, over: Tensor) -> None:
        for world, game in zip(over.tolist(), self._game[over].tolist()):
            first, second = self._points[:, game].tolist()
            players = watch.schedule[game]
            told = Game(players[0], players[1], first, second, int(self._length[game]))
            watch.best.finish(world, game, told)

    def _take(self, following: Any) -> Tensor:
        """Keeps the results of games that have ended; returns their worlds."""
        self._steps += 1
        done = following.get("done").reshape(self._worlds)
        late = self._steps >= self._max_steps
        over = ((done | late) & (self._game < len(self._pairs))).nonzero()[:, 0]
        if len(over):
            games = self._game[over]
            self._points[:, games] = self._sides.score(following)[over].T.to(self._points)
            self._length[games] = self._steps[over].double()
            terminated = following.get("terminated").reshape(self._worlds)
            self._finished[games] = terminated[over].double()
        self._steps[done | late] = 0
        return over

    def _next_games(self, over: Tensor, following: Any, root: Any) -> Any:
        """Seats the players of the next games; those that were cut short restart by force."""
        self._game[over] += self._worlds
        plays_on = over[self._game[over] < len(self._pairs)]
        cut = over[~following.get("done").reshape(self._worlds)[over]]
        if len(cut):
            mask = torch.zeros(self._worlds, 1, dtype=torch.bool, device=over.device)
            mask[cut] = True
            root = self._env.reset(root.set("_reset", mask))
        if len(plays_on):
            self._seats.seat(plays_on, self._pairs[self._game[plays_on]])
        if len(plays_on) < len(over):
            idle = over[self._game[over] >= len(self._pairs)]
            self._seats.seat(idle, torch.full((len(idle), 2), EMPTY, device=over.device))
        return root


class _Watch(NamedTuple):
    """Who records the games of which schedule."""

    best: BestGames
    schedule: Sequence[tuple[str, str]]
