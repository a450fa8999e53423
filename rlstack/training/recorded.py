"""Recorded decisions and transitions: read, written, checked to fit the world that the agent learns for, learned from.

A file of decisions is an ``.npz`` without pickles: ``observation [N, ...]`` (``observation/<leaf>`` for structured
observations), ``action [N, ...]`` in the world's form, and ``action_mask [N, n]`` if the world has one. Files of
transitions (:mod:`rlstack.data.recordings`) contain these entries too, and recorded episodes of agents from elsewhere,
such as MarineNav's ``evaluations.npz``, can be read as well.

In an offline run (``data=``) an agent with a replay buffer learns from recorded data without stepping a world. The data
fill its replay buffer, and the loop is that of every run. A frame is one transition drawn: there is an update for every
``agent.batch_size`` frames, and ``total_frames`` divided by the number of transitions is the number of passes over the
data. Worlds serve only for evaluations.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Composite
from torchrl.envs import EnvBase

from rlstack.agents import Agent
from rlstack.agents.compatibility import check_bounds
from rlstack.agents.interface import MASK, Interface
from rlstack.agents.off_policy import OffPolicy
from rlstack.agents.recurrent import Recurrent
from rlstack.config import ConfigError
from rlstack.config.errors import nearest_path, prefixed, writing
from rlstack.config.rooms import registered
from rlstack.config.rooms import target as in_room
from rlstack.data.recordings import episode_lengths, save_arrays
from rlstack.data.replay import Replay
from rlstack.envs.foundation.files import check_archive, write_json
from rlstack.files.safe_load import load_arrays
from rlstack.runs.checkpoint import CheckpointError, content_digest
from rlstack.runs.hub import hub_data
from rlstack.runs.loading import checkpoint_file, read_agent
from rlstack.runs.run_directory import HUB, make_folder

from .config import TrainConfig, needs_memory
from .hooks import Hook, Training

Arrays = dict[str, NDArray[Any]]

MINARI, _MINARI = "minari:", "rlstack.adapters.minari"
_DECISION = ("observation", "action", MASK)
_FLAGS = ("next/terminated", "next/truncated")


class RecordedTransitions(NamedTuple):
    """Transitions to learn from.

    Attributes:
        data: ``[N]`` with ``observation``, ``action`` in the world's form, and ``next``: ``observation``, ``reward``,
            ``terminated``, ``truncated``; ``action_mask``, also in ``next``, if the world has one; ``gamma [N, 1]``
            if a reward is the sum of several steps.
        ordered: whether episodes follow one another, each in its order.
        source: description of the origin.
        digest: SHA-256 of the data.
    """

    data: TensorDict
    ordered: bool
    source: str
    digest: str

    def __str__(self) -> str:
        count = f"{len(self.data):,} transitions"
        following = self.data.get("next")
        ended = following.get("terminated") | following.get("truncated")
        episodes = f" in {len(episode_lengths(ended)):,} episodes" if self.ordered else ""
        return f"{count}{episodes} of {self.source} (sha256 {self.digest[:16]})"


def read_recorded(source: str, interface: Interface, n_step: int = 1, gamma: float = 0.99) -> RecordedTransitions:
    """Reads transitions from recorded episodes or from a run's replay buffer.

    Args:
        source: a file of :mod:`rlstack.data.recordings`; a folder of such files, read in the order of their names; a
            run, whose latest checkpoint has the replay buffer; ``minari:<name or path of a dataset>``; or
            ``hf:<user>/<name>``, such files on the Hugging Face Hub.
        interface: interface of the world that the agent learns for.
        n_step, gamma: the agent's options: a replay buffer holds returns of ``n_step`` steps.

    Raises:
        ConfigError: there is no such source, or it does not fit the world or the agent.
    """
    with prefixed("data"):
        data, ordered = _read(source, interface, n_step, gamma)
    return RecordedTransitions(data, ordered, source, content_digest(data.to_dict()))


def _read(source: str, interface: Interface, n_step: int, gamma: float) -> tuple[TensorDict, bool]:
    if source.startswith(MINARI):
        arrays = in_room(f"{_MINARI}:read_dataset")(source.removeprefix(MINARI))
        with prefixed(source):
            return _checked(arrays, interface, transitions=True), True
    path, files = Path(source), []
    if source.startswith(HUB):
        files = hub_data(source)
    elif (path / "checkpoints").is_dir() or path.suffix == ".pt":
        return _replay(path, interface, n_step, gamma), False
    elif not (files := sorted(path.glob("*.npz")) if path.is_dir() else [path]):
        raise ConfigError(f"{path} is neither a run nor a folder with recorded episodes (*.npz)")
    elif not path.exists():
        raise ConfigError(f"{path} does not exist{nearest_path(path)}")
    parts = [read_file(file, interface, transitions=True) for file in files]
    for part in parts:  # the recording of an episode ends with its file
        terminated, truncated = (part.get(("next", name)) for name in ("terminated", "truncated"))
        truncated[-1] |= ~terminated[-1]
    whole: Any = torch.cat(parts)
    return whole, True


def read_file(path: str | Path, interface: Interface, transitions: bool = False) -> TensorDict:
    """Reads the decisions in a file of recorded episodes, ``[N]`` as :func:`decisions` returns, or the transitions.

    Raises:
        ConfigError: there is no such file, it has another format, or it is of another world.
    """
    try:
        check_archive(path)
        with zipfile.ZipFile(path) as archive:
            members = set(archive.namelist())
        kinds = registered("RECORDINGS").items()  # of other projects, by a member of their files
        read = next((in_room(reader) for member, reader in kinds if member in members), load_arrays)
        arrays = read(path)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path} cannot be read as recorded episodes ({error})") from None
    with prefixed(path):
        return _checked(arrays, interface, transitions)


def check_target(target: str | None) -> None:
    """Raises a :class:`ConfigError` if :func:`write_recorded` could not write to ``target``; makes its folder."""
    if target is None:
        return
    if target.startswith(MINARI):
        in_room(f"{_MINARI}:check_new")(target.removeprefix(MINARI))
        return
    if not target.endswith(".npz"):
        raise ConfigError(f"transitions: {target} is neither a file episodes.npz nor minari:<name of a new dataset>")
    folder = make_folder(Path(target).parent, "transitions")
    if Path(target).is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"transitions: {target} cannot be written")


def write_recorded(target: str, data: TensorDict, interface: Interface, policy: str = "") -> str:
    """Writes transitions to a file of :mod:`rlstack.data.recordings` or a new Minari dataset; describes the result.

    Args:
        target: ``<file>.npz``, or ``minari:<name>``.
        data: transitions as in :class:`RecordedTransitions`, one episode after the other.
        interface: interface of their world.
        policy: name of the policy that acted, for the dataset's description.

    Raises:
        ConfigError: the target cannot be written.
    """
    check_target(target)
    with writing(f"transitions: {target}"):
        if target.startswith(MINARI):
            in_room(f"{_MINARI}:write_dataset")(target.removeprefix(MINARI), data, interface, policy)
        else:
            save_arrays(target, data)
    return f"{target} ({len(data):,} transitions)"


# -- decisions to imitate ---------------------------------------------------------------------------------------------


def decisions(sequences: TensorDictBase, ordered: bool = False) -> TensorDict:
    """Selects the entries of sequences ``[B, T]`` (see :func:`rlstack.flatten_agents`) that imitation needs.

    Returns the active entries as a flat batch ``[N]`` with ``observation``, ``action`` and, if there is one,
    ``action_mask``. Without an entry ``active`` all entries count; a batch may be flat already. With ``ordered``, which
    recurrent agents need, it returns ``[B, T]`` with ``active`` and ``("next", "done")``.
    """
    active = sequences.get("active", None)
    if not ordered:
        kept = sequences.select(*_DECISION, strict=False)
        return kept.reshape(-1) if active is None else kept[active]
    kept = sequences.select(*_DECISION, "active", ("next", "done"), strict=False)
    if active is None:
        kept.set("active", torch.ones(kept.batch_size, dtype=torch.bool, device=kept.device))
    return kept


# -- a run's replay buffer ---------------------------------------------------------------------------------------


def _replay(path: Path, interface: Interface, n_step: int, gamma: float) -> TensorDict:
    """Reads the transitions in the replay buffer of a run's latest checkpoint, over all its processes."""
    try:
        file = checkpoint_file(path, "latest")
        state = read_agent(file)
    except (CheckpointError, ConfigError) as error:
        raise ConfigError(str(error).removeprefix("checkpoint: ")) from None
    theirs = state["config"]["agent"]
    memories = [part.get("replay") for part in (state, *state.get("other_ranks", []))]
    rows = [memory.get("transitions") for memory in memories if isinstance(memory, Mapping)]
    rows = [part for part in rows if isinstance(part, Mapping) and part]
    if not rows or theirs.get("recurrent") is not None:
        held = "no replay buffer of single transitions"
        raise ConfigError(f"{file} holds {held} (agent={theirs['name']}, checkpoint.replay=true keeps one)")
    steps, discount = theirs.get("n_step", 1), theirs.get("gamma")
    if steps != n_step or (steps > 1 and discount != gamma):
        wanted = f"agent.n_step={steps}" + (f" agent.gamma={discount}" if steps > 1 else "")
        raise ConfigError(f"{file}: its replay buffer holds returns of {steps} steps; set {wanted}")
    arrays: Arrays = {}
    flat = [TensorDict(part).auto_batch_size_(1).flatten_keys("/") for part in rows]
    for name in flat[0].keys():  # noqa: SIM118
        arrays[name] = torch.cat([part.get(name) for part in flat]).numpy()
    if "next/done" in arrays and "next/terminated" in arrays:
        arrays["next/truncated"] = arrays.pop("next/done") & ~arrays["next/terminated"]
    if "action" in arrays:
        arrays["action"] = interface.to_env(torch.from_numpy(arrays["action"])).numpy()
    with prefixed(file):
        return _checked(arrays, interface, transitions=True)


# -- checks ------------------------------------------------------------------------------------------------------


def _checked(arrays: Arrays, interface: Interface, transitions: bool) -> TensorDict:
    """Returns the arrays ``[N, ...]`` as a batch ``[N]``, checked to fit the world."""
    if isinstance(interface.action, Composite):
        raise ConfigError(f"it holds one array of actions, the world has {interface.describe_action()}")
    observed: dict[str, Any] = {"observation": interface.observation}
    if isinstance(interface.observation, Composite):
        leaves = interface.observation.items(include_nested=True, leaves_only=True)
        observed = {"/".join(("observation", *((key,) if isinstance(key, str) else key))): leaf for key, leaf in leaves}
    wanted = {name: (spec.shape, spec.dtype) for name, spec in observed.items()}
    wanted["action"] = interface.action.shape, interface.action.dtype
    if interface.masked:
        wanted[MASK] = torch.Size([sum(interface.choices or ())]), torch.bool
    if transitions:
        wanted |= {f"next/{name}": form for name, form in wanted.items() if name != "action"}
        wanted |= {name: (torch.Size([1]), torch.bool) for name in _FLAGS}
        wanted["next/reward"] = torch.Size([1]), interface.dtype
        wanted |= {"gamma": (torch.Size([1]), interface.dtype)} if "gamma" in arrays else {}
    data: dict[str, Tensor] = {}
    for name, (shape, dtype) in wanted.items():
        if name not in arrays:
            raise ConfigError(f"{name} is missing, it holds {', '.join(sorted(arrays)) or 'nothing'}")
        array = arrays[name]
        if name == "action" and dtype.is_floating_point != (array.dtype.kind == "f"):
            raise ConfigError(f"action is {array.dtype}, the world takes {dtype}")
        if array.shape[1:] != tuple(shape) or array.ndim == 0 or array.dtype.kind not in "biuf":
            axes = ", ".join(map(str, ("N", *shape)))
            raise ConfigError(f"{name} is {array.dtype} {list(array.shape)}, the world has [{axes}]")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ConfigError(f"{name} is not finite everywhere")
        data[name] = torch.from_numpy(np.ascontiguousarray(array)).to(dtype)
    lengths = sorted({len(value) for value in data.values()})
    if len(lengths) > 1:
        raise ConfigError(f"arrays of different lengths: {', '.join(map(str, lengths))}")
    action = data["action"]
    if not len(action):
        raise ConfigError("there is nothing in it")
    if interface.choices is None:
        check_bounds(action, interface.action, "action")
    else:
        parts = action.reshape(len(action), -1)
        wrong = ((parts < 0) | (parts >= parts.new_tensor(interface.choices))).any(1)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            fault = f"action {action[row].tolist()} in row {row}"
            raise ConfigError(f"{fault}, the world has {interface.describe_action()}")
    batch: TensorDict = TensorDict(data, [lengths[0]]).unflatten_keys("/")
    return batch.auto_batch_size_(1)


# -- offline runs ------------------------------------------------------------------------------------------------------


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
            f"data: agent={name} has a replay buffer of its own, which data cannot fill; choose another agent"
        )
    if isinstance(agent, Recurrent):
        raise ConfigError("data: a recurrent agent needs sequences, not single transitions; set agent.recurrent=null")
    recorded = read_recorded(config.data, agent.interface, agent.config.n_step, agent.config.gamma)
    if agent.reward_scaler is not None and not recorded.ordered:
        raise ConfigError("data: agent.normalize_rewards=true needs whole episodes, a replay buffer holds none")
    if len(recorded.data) < agent.config.batch_size:
        few = f"{len(recorded.data):,} transitions are fewer than agent.batch_size={agent.config.batch_size:,}"
        raise ConfigError(f"data: {few}; record more, or set a smaller batch")
    return recorded


class OfflineCollector:
    """Yields empty batches for ever, so that the agent learns from its replay buffer.

    Args:
        config: configuration of the run.
        env: the env whose batches they resemble.

    Attributes:
        frames: number of transitions drawn between two batches.
    """

    def __init__(self, config: TrainConfig, env: EnvBase) -> None:
        self.frames = _UPDATES * config.agent["batch_size"]
        self._nothing: TensorDictBase = env.fake_tensordict().unsqueeze(-1)[..., :0]

    def __iter__(self) -> Iterator[TensorDictBase]:
        while True:
            yield self._nothing

    def reset(self) -> None:
        """Does nothing: there are no episodes."""

    def shutdown(self, close_env: bool = False) -> None:
        """Does nothing: the collector holds no worlds."""


class OfflineData(Hook):
    """Fills an agent's replay buffer with the run's recorded data. Checkpoints hold the digest of the data instead.

    Args:
        config: configuration of the run.
    """

    name = "data"

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._known: dict[str, Any] | None = None  # of a resumed run

    def on_prepare(self, training: Training) -> None:
        """Reads the data and fills the replay buffer.

        Raises:
            ConfigError: the data do not fit the agent and its world, or a resumed run has learned from other data.
        """
        agent, known = training.agent, self._known
        recorded = self._recorded = recorded_for(self._config, agent)
        assert isinstance(agent, OffPolicy)
        if known is not None and known["sha256"] != recorded.digest:
            raise ConfigError(
                f"data: {recorded.source} is not what the run has learned from "
                f"(sha256 {recorded.digest[:16]}, not {known['sha256'][:16]})"
            )
        agent.load_data(recorded.data, seen=known is not None)
        self._memory = agent.replay
        if known is None:
            training.env.reset()  # creates a state to save
        else:
            self._memory.sampler.load_state_dict(known["sampler"])

    def on_start(self, training: Training) -> None:
        recorded = self._recorded
        if training.ranks.first:
            about = {"source": recorded.source, "transitions": len(recorded.data), "sha256": recorded.digest}
            write_json(training.run.path / DATA_FILE, about)
        training.event(f"data: {recorded}")

    def state_dict(self) -> dict[str, Any]:
        return {"sha256": self._recorded.digest, "sampler": dict(self._memory.sampler.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._known = state
