"""Offline runs: an agent with a replay buffer learns from recorded data alone (``data=``), without steps of a world.

The data are its whole memory, and the loop is that of every run. A frame is one transition that is drawn: there is an
update for every ``agent.batch_size`` of them, so that ``total_frames`` over the number of transitions are the passes
over the data. Worlds serve evaluations alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from envs.whole_files import write_json
from rlstack.agents import Agent
from rlstack.agents.off_policy import OffPolicy
from rlstack.agents.recurrent import Recurrent
from rlstack.config import ConfigError
from rlstack.data import Replay

from .config import TrainConfig, needs_memory
from .hooks import Hook
from .recorded import RecordedTransitions, read_recorded

if TYPE_CHECKING:
    from .loop import Training

DATA_FILE = "data.json"
_UPDATES = 8
"""Updates between two looks at what is due."""


def recorded_for(config: TrainConfig, agent: Agent) -> RecordedTransitions:
    """The data of a run, for an agent like its own.

    Raises:
        ConfigError: they do not fit the world, or such an agent does not learn from data.
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
    return found


class OfflineCollector:
    """Yields batches without a step, for ever: so the agent learns from what it has.

    Args:
        env: whose batches they look like.
        frames: transitions to be drawn between two of them.
    """

    def __init__(self, env: EnvBase, frames: int) -> None:
        self.frames = frames
        self._nothing: TensorDictBase = env.fake_tensordict().unsqueeze(-1)[..., :0]

    def __iter__(self) -> Iterator[TensorDictBase]:
        while True:
            yield self._nothing

    def reset(self) -> None:
        """Begins new episodes: there are none."""

    def shutdown(self, close_env: bool = False) -> None:
        """Lets go of the worlds: it holds none."""

    @classmethod
    def of(cls, config: TrainConfig, env: EnvBase) -> OfflineCollector:
        """The collector of a run."""
        return cls(env, _UPDATES * config.agent["batch_size"])


class OfflineData(Hook):
    """Gives an agent recorded data as its whole memory. Checkpoints hold their digest instead of them.

    Args:
        recorded: the data.
    """

    name = "data"

    def __init__(self, recorded: RecordedTransitions) -> None:
        self._recorded = recorded
        self._known: dict[str, Any] | None = None

    def on_prepare(self, training: Training) -> None:
        """Fills the memory.

        Raises:
            ConfigError: a run that goes on has learned from other data.
        """
        agent, found, known = training.agent, self._recorded, self._known
        assert isinstance(agent, OffPolicy)
        if known is not None and known["sha256"] != found.digest:
            raise ConfigError(
                f"data: {found.source} is not what the run has learned from "
                f"(sha256 {found.digest[:16]}, not {known['sha256'][:16]})"
            )
        agent.study(found.data, seen=known is not None)
        self._memory = agent.replay
        if known is None:
            training.env.reset()  # so that there is a state to save
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
