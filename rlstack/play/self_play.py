"""Self-play: adds snapshots of the learner to the pool of its world's opponents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase

from rlstack.agents.base import Agent
from rlstack.training.hooks import Hook

from .pool import LEARNER
from .register import without_opponents
from .versus import Versus

if TYPE_CHECKING:
    from rlstack.training.loop import Training

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
        if training.ranks.count > 1:
            self._world.pool.settle(training.ranks.everyone)
        if joined := self.observe(training.frames, training.agent):
            training.event(joined)

    def on_log(self, training: Training) -> Mapping[str, Any]:
        return self.metrics()

    def observe(self, frames: int, agent: Agent) -> str | None:
        """Adds the agent to the pool if a snapshot is due; returns a line about it."""
        why = self._reason(frames)
        if why is None:
            return None
        state = {"frames": frames, "agent": agent.state_dict(), "config": self._config}
        entry = self._world.pool.add_snapshot(state, frames)
        self._world.new_snapshot()
        return f"{entry.name} joined the opponents ({why}), {len(self._world.pool)} now"

    def _reason(self, frames: int) -> str | None:
        config, pool = self._world.config, self._world.pool
        if self._world.snapshot_wanted:
            return "for this stage"
        passed = frames - pool.last_snapshot
        if config.snapshot_every is not None and passed >= config.snapshot_every:
            return f"after {passed:,} frames"
        share = pool.recent_wins / max(pool.recent_games, 1)
        if config.promotion is not None and pool.recent_games >= PROMOTION_GAMES and share >= config.promotion:
            return f"won {share:.0%} of {pool.recent_games} games"
        return None

    def metrics(self) -> dict[str, float]:
        """Returns the rating, the number of opponents, and the share of games won against each fixed opponent."""
        pool = self._world.pool
        row = {"play/elo": pool.ratings.rating(LEARNER), "play/opponents": float(len(pool))}
        known = [entry for entry in pool.entries if entry.games]
        if known:
            row["play/win_rate"] = sum(entry.wins for entry in known) / sum(entry.games for entry in known)
        for entry in known:
            if not entry.frames:
                row[f"play/win_rate_{entry.name}"] = entry.wins / entry.games
        return row
