"""Offline runs: an agent with a replay buffer learns from recorded data (``data=``) without stepping a world.

The data fill its replay buffer, and the loop is that of every run. A frame is one transition drawn: there is an update
for every ``agent.batch_size`` frames, and ``total_frames`` divided by the number of transitions is the number of passes
over the data. Worlds serve only for evaluations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from rlstack.agents import Agent
from rlstack.agents.off_policy import OffPolicy
from rlstack.agents.recurrent import Recurrent
from rlstack.config import ConfigError
from rlstack.data.replay import Replay
from rlstack.envs.foundation.files import write_json

from .config import TrainConfig, needs_memory
from .hooks import Hook
from .recorded import RecordedTransitions, read_recorded

if TYPE_CHECKING:
    from .loop import Training

DATA_FILE = "data.json"
_UPDATES = 8
"""Updates in an iteration of the loop."""


def recorded_for(config: TrainConfig, agent: Agent) -> RecordedTransitions:
    """Reads the data of a run, for an agent like the run's own.

    Raises:
        ConfigError: the data do not fit the world, or such an agent cannot learn from data.
    """
    assert config.data is not None
    name = agent.config.name
    if not isinstance(agent, OffPolicy):
        raise ConfigError(f"data: {needs_memory(name)}")
    if not isinstance(agent.replay, Replay):
        raise ConfigError(
            f"data: agent={name} keeps its memory in a form of its own; agent.memory=prioritized does not"
        )
    if isinstance(agent, Recurrent):
        raise ConfigError("data: a recurrent agent needs sequences, not single transitions; set agent.recurrent=null")
    found = read_recorded(config.data, agent.interface, agent.config.n_step, agent.config.gamma)
    if agent.reward_scaler is not None and not found.ordered:
        raise ConfigError("data: agent.normalize_rewards=true needs whole episodes, a replay buffer holds none")
    if len(found.data) < agent.config.batch_size:
        few = f"{len(found.data):,} transitions are fewer than agent.batch_size={agent.config.batch_size:,}"
        raise ConfigError(f"data: {few}; record more, or set a smaller batch")
    return found


class OfflineCollector:
    """Yields empty batches for ever, so that the agent learns from its replay buffer.

    Args:
        env: the env whose batches they resemble.
        frames: number of transitions drawn between two batches.
    """

    def __init__(self, env: EnvBase, frames: int) -> None:
        self.frames = frames
        self._nothing: TensorDictBase = env.fake_tensordict().unsqueeze(-1)[..., :0]

    def __iter__(self) -> Iterator[TensorDictBase]:
        while True:
            yield self._nothing

    def reset(self) -> None:
        """Does nothing: there are no episodes."""

    def shutdown(self, close_env: bool = False) -> None:
        """Does nothing: the collector holds no worlds."""

    @classmethod
    def of(cls, config: TrainConfig, env: EnvBase) -> OfflineCollector:
        """Returns the collector of a run."""
        return cls(env, _UPDATES * config.agent["batch_size"])


class OfflineData(Hook):
    """Fills an agent's replay buffer with recorded data. Checkpoints hold the digest of the data instead.

    Args:
        recorded: the data.
    """

    name = "data"

    def __init__(self, recorded: RecordedTransitions) -> None:
        self._recorded = recorded
        self._known: dict[str, Any] | None = None

    def on_prepare(self, training: Training) -> None:
        """Fills the replay buffer.

        Raises:
            ConfigError: a resumed run has learned from other data.
        """
        agent, found, known = training.agent, self._recorded, self._known
        assert isinstance(agent, OffPolicy)
        if known is not None and known["sha256"] != found.digest:
            raise ConfigError(
                f"data: {found.source} is not what the run has learned from "
                f"(sha256 {found.digest[:16]}, not {known['sha256'][:16]})"
            )
        agent.load_data(found.data, seen=known is not None)
        self._memory = agent.replay
        if known is None:
            training.env.reset()  # creates a state to save
        else:
            self._memory.sampler.load_state_dict(known["sampler"])

    def on_start(self, training: Training) -> None:
        found = self._recorded
        if training.ranks.first:
            about = {"source": found.source, "transitions": len(found.data), "sha256": found.digest}
            write_json(training.run.path / DATA_FILE, about)
        training.event(f"data: {found}")

    def state_dict(self) -> dict[str, Any]:
        return {"sha256": self._recorded.digest, "sampler": dict(self._memory.sampler.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._known = state
