"""Plays games in many worlds at once, every game to its end, and keeps replays of the best."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.config import ConfigError
from rlstack.envs.foundation.tensors import GROUP
from rlstack.envs.foundation.work import Work, working
from rlstack.envs.recording import EpisodeRecording
from rlstack.envs.rendering.films import save_animation
from rlstack.envs.world import Sides, hooks_of
from rlstack.evaluation.evaluator import MOST_STEPS, evaluation_world
from rlstack.runs.seeding import own_randomness

from .games import GameResult, Schedule
from .players import EMPTY, RANDOM, Player, Seats, Source, free_name, make_player, name_of, read_source, sides_of
from .ratings import Ratings, rating_system

# -- replays -----------------------------------------------------------------------------------------------------------


class RecordedGame(NamedTuple):
    """A recorded game with its margin in points, its number and its length in steps."""

    lead: float
    number: int
    steps: int
    recording: Any


class BestGames:
    """Records games and keeps the best: those won by the most points, and among these the fastest.

    Args:
        world: name of the world.
        most: number of games to keep.
        of: the player whose wins are kept; None keeps the wins of every player.

    Raises:
        ConfigError: the world cannot be recorded or has no replays.

    Attributes:
        recorder: recorder of the worlds; it records a step after every step, before worlds restart.
    """

    def __init__(self, world: str, most: int, of: str | None = None) -> None:
        if not self.can_record(world):
            raise ConfigError(f"save: {world!r} has no replays; worlds that have them: {', '.join(_worlds())}")
        self.world, self.most, self.of = world, most, of
        self.games: list[RecordedGame] = []
        self.recorder: Any = None

    @staticmethod
    def can_record(world: str) -> bool:
        """Returns whether a world has replays."""
        return envs.world_hooks(world).replay_ending is not None

    def watch(self, env: EnvBase) -> None:
        """Records all worlds of an env that has just been reset."""
        self.recorder = hooks_of(env).recorder(range(env.batch_size[0]))
        self.recorder.add()

    def finish(self, world: int, number: int, game: GameResult) -> None:
        """Ends the game of a world, and keeps it if it is among the best so far.

        Args:
            number: number of the game in its schedule, from 0.
        """
        recording = self.recorder.finish(world)
        seen = game.seen_by(self.of or game.first)
        lead = seen.points_first - seen.points_second if self.of else abs(seen.points_first - seen.points_second)
        if lead > 0:
            recording = recording.named((game.first, game.second), f"game {number + 1}")
            games = [*self.games, RecordedGame(lead, number, game.steps, recording)]
            self.games = sorted(games, key=lambda kept: (-kept.lead, kept.steps))[: self.most]

    def save(self, folder: Path, video: bool = True) -> list[Path]:
        """Writes ``best_1.npz`` (or with the world's suffix), ``best_2.npz``, ..., best first; returns the paths.

        Each comes with a film and, if the world has one, a page for browsers.
        """
        written = []
        for place, kept in enumerate(self.games, 1):
            path = folder / f"best_{place}{envs.world_hooks(self.world).replay_ending}"
            kept.recording.save_replay(path)
            written.append(path)
            endings = [".html"] * kept.recording.has_page + [".mp4"] * video
            written += [_shown(kept.recording, path.with_suffix(ending)) for ending in endings]
        return written


def play_back(replay: Path, video: Path | None = None) -> Path:
    """Makes a film of a replay, by default an MP4 file beside it.

    Args:
        video: a path that ends in ``.mp4`` or ``.gif``, or in ``.html`` if the world has pages.

    Raises:
        ConfigError: the file is not a replay, or the suffix is another.
    """
    return _shown(read_replay(replay), video or replay.with_suffix(".mp4"))


def read_replay(replay: Path) -> EpisodeRecording:
    """Reads the recording in a replay of any world.

    Raises:
        ConfigError: the file is not a replay.
    """
    faults = []
    endings = {name: envs.world_hooks(name).replay_ending for name in _worlds()}
    for world in [name for name in endings if endings[name] == replay.suffix] or endings:
        try:
            return envs.world_hooks(world).load_replay(replay)
        except ValueError as error:
            faults.append(str(error))
    raise ConfigError(f"replay: {faults[0] if faults else 'no world has replays'}")


def _shown(recording: EpisodeRecording, path: Path) -> Path:
    """Makes a film or a page for browsers."""
    try:
        if path.suffix == ".html" and recording.has_page:
            recording.save_page(path)
        else:
            save_animation(recording.animation(), path)
    except ValueError as error:
        raise ConfigError(f"video: {error}") from None
    except OSError as error:
        raise ConfigError(f"video: {path} cannot be written ({error.strerror or error})") from None
    return path


def _worlds() -> list[str]:
    """Returns the names of worlds with replays."""
    return [name for name in envs.names() if BestGames.can_record(name)]


# -- games -------------------------------------------------------------------------------------------------------------


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
    ) -> list[GameResult]:
        """Plays games, a fixed number in each world one after another, so that short games are not favoured.

        Args:
            schedule: the players of each game; see :func:`~rlstack.play.games.pairing`.
            seed: seed of worlds and players: the same seed gives the same games.
            best: records the games and keeps the best of them.

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
                return self._play(env, names, schedule, best, work)

    def _play(
        self,
        env: EnvBase,
        names: list[str],
        schedule: Schedule,
        best: BestGames | None,
        work: Work,
    ) -> list[GameResult]:
        """Plays all games of a schedule: world ``g % W`` plays game g as its ``g // W``-th."""
        worlds, device = env.batch_size[0], env.device
        seats = Seats(env, [self.players[name] for name in names])
        seats.begin()
        pairs = torch.tensor([[names.index(name) for name in pair] for pair in schedule], device=device)  # [games, 2]
        number = torch.arange(worlds, device=device)  # of the game in each world
        steps = torch.zeros(worlds, dtype=torch.int64, device=device)
        results: dict[int, GameResult] = {}
        root = env.reset()
        if best is not None:
            best.watch(env)
        seats.seat(torch.ones_like(number, dtype=torch.bool), pairs[number])
        while len(results) < len(schedule):
            root.set((GROUP, "action"), seats.act(root.get(GROUP)))
            if best is None:
                stepped, root = env.step_and_maybe_reset(root)
            else:
                stepped = env.step(root)
                best.recorder.add()  # the last state of a finished world exists only here
                root = env.maybe_reset(env.step_mdp(stepped))
            following = stepped.get("next")
            steps += 1
            done, terminated = (following.get(key).reshape(worlds) for key in ("done", "terminated"))
            ended = done | (steps >= self.max_steps)
            over = (ended & (number < len(schedule))).nonzero()[:, 0]
            if len(over):
                points = self.sides.score(following)[over].double()
                columns = (over, number[over], points, steps[over], terminated[over])
                rows: Any = zip(*(column.tolist() for column in columns))
                for world, game, (first, second), length, by_rules in rows:
                    left, right = schedule[game]
                    results[game] = GameResult(left, right, first, second, length, by_rules)
                    if best is not None:
                        best.finish(world, game, results[game])
            steps[ended] = 0
            work.reach(len(results))
            if not len(over):
                continue
            number[over] += worlds
            cut = over[~done[over]]
            if len(cut):  # the worlds whose games were cut short
                mask = torch.zeros(worlds, 1, dtype=torch.bool, device=device)
                mask[cut] = True
                root = env.reset(root.set("_reset", mask))
            plays_on = over[number[over] < len(schedule)]
            seated = torch.full((worlds, 2), EMPTY, device=device)
            seated[plays_on] = pairs[number[plays_on]]
            seats.seat(torch.zeros_like(number, dtype=torch.bool).index_fill(0, over, True), seated)
            if best is not None:
                best.recorder.begin()
        return [results[game] for game in range(len(schedule))]
