"""Players, which control one side of a world: at random, by its rules, or by any agent; and the two sides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import Binary, Composite
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.agents.base import AgentPolicy
from rlstack.agents.interface import MASK, Interface
from rlstack.agents.legacy import KINDS, load_policy, parse
from rlstack.config import ConfigError
from rlstack.config.errors import did_you_mean
from rlstack.envs.foundation.tensors import looks_are_free
from rlstack.envs.world import GROUP, MEMORY, Sides, Told, WorldHooks, hooks_of

# -- sides -------------------------------------------------------------------------------------------------------------


EMPTY = -1
"""Assignment of a side without a player: its actions are given from outside."""


def sides_of(env: EnvBase) -> Sides:
    """Returns the two sides of a world, looking inside wrappers.

    Raises:
        ConfigError: the world has no sides, its agents do not form two halves, or their actions have several parts.
    """
    hooks = hooks_of(env)
    name = type(env if type(hooks) is WorldHooks else hooks.innermost).__name__
    sides = hooks.sides()
    if sides is None:
        names = []
        for world in envs.names():
            with suppress(ValueError):  # an installed package may be broken
                if (other := envs.world_hooks(world)).sides is not WorldHooks.sides:
                    names.append(other.__name__)
        known = ", ".join(names)
        raise ConfigError(f"{name} does not have two sides that play against each other; known: {known}")
    if GROUP not in env.observation_spec.keys():  # noqa: SIM118
        raise ConfigError(f"{name} has no agents under {GROUP!r}, but two sides need at least one each")
    agents = env.observation_spec[GROUP].shape[1]
    if agents % 2:
        raise ConfigError(f"{name} has {agents} agents, but two sides need an even number")
    if isinstance(action := env.full_action_spec[GROUP, "action"], Composite):
        parts = ", ".join(map(str, action.keys()))
        raise ConfigError(f"{name}: actions of several parts ({parts}) are not possible in games, choose another form")
    return sides


def half_worlds(agents: TensorDictBase) -> TensorDictBase:
    """Reshapes agents ``[W, A]`` to half-worlds ``[2 W, A / 2]``: rows 2 w and 2 w + 1 are the sides of world w."""
    worlds, count = agents.batch_size[:2]
    return agents.reshape(2 * worlds, count // 2)


def of_first(spec: Any, agents: int) -> Any:
    """Returns the spec of the first ``agents`` agents from a spec ``[W, A, ...]``."""
    if isinstance(spec, Composite):
        entries = {key: of_first(entry, agents) for key, entry in spec.items()}
        return Composite(entries, shape=(spec.shape[0], agents, *spec.shape[2:]), device=spec.device)
    if isinstance(spec, Binary) and spec.ndim == 2:  # TorchRL treats the agents as one binary vector
        return Binary(n=agents, shape=(spec.shape[0], agents), dtype=spec.dtype, device=spec.device)
    return spec[:, :agents].clone()


class Seats:
    """The sides of W worlds with the player of each. A step calls each player once, for all its sides.

    Args:
        env: the world with both sides.
        players: the available players.

    Attributes:
        assignment: ``[W, 2]`` int64, indices of players or :data:`EMPTY`.
    """

    def __init__(self, env: EnvBase, players: Sequence[Player] = ()) -> None:
        sides_of(env)
        self._env, self.players = env, list(players)
        self._spec = Interface.of(env).action
        self.assignment = torch.full((env.batch_size[0], 2), EMPTY, dtype=torch.int64, device=env.device)
        self._rows: list[tuple[int, Tensor]] | None = None

    def assign(self, players: Tensor) -> None:
        """Assigns players ``[W, 2]``, whose recurrent states stay."""
        self.assignment, self._rows = players, None

    def seat(self, begins: Tensor, players: Tensor) -> None:
        """Assigns players ``[W, 2]`` to the worlds of a mask ``[W]``, in which episodes begin."""
        self.assign(torch.where(begins[:, None], players, self.assignment))
        self.begin(begins)

    def begin(self, begins: Tensor | None = None) -> None:
        """Resets the recurrent states of all players in the worlds of a mask ``[W]`` (None: all)."""
        rows = None if begins is None else begins[:, None].expand(-1, 2).flatten()
        for player in self.players:
            player.begin(rows)

    def act(self, agents: TensorDictBase, given: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """Returns the actions ``[W, A, ...]`` of all agents.

        Args:
            agents: entries ``[W, A]``: ``observation``, and ``active`` and ``action_mask`` if the world has them.
            given: ``[W, A, ...]``, actions of agents without a player; None: zeros.
            rows: half-worlds ``[n]``, ascending, that may have players. If given, every player acts in all of them, and
                the assignment decides under masks whose action counts: nothing is read on the host.
        """
        worlds, count = agents.batch_size[:2]
        lead = (2 * worlds, count // 2)
        shape, dtype = (*lead, *self._spec.shape), self._spec.dtype
        actions = torch.zeros(shape, dtype=dtype, device=agents.device) if given is None else given.reshape(shape)
        halves = half_worlds(agents.select("observation", "active", MASK, strict=False))
        if rows is not None:
            seated, acted = self.assignment.flatten().index_select(0, rows), actions.index_select(0, rows)
            for index, player in enumerate(self.players):
                counts = seated == index
                chosen = player.act(self._env, halves, rows, counts).to(actions.dtype)
                acted = torch.where(counts.view(-1, *[1] * (acted.dim() - 1)), chosen, acted)
            return actions.index_copy(0, rows, acted).reshape(worlds, count, *self._spec.shape)
        if self._rows is None:  # players by index with their rows, ascending
            drivers, order = self.assignment.flatten().sort(stable=True)
            present, counts = drivers.unique_consecutive(return_counts=True)
            groups = order.split(counts.tolist())
            self._rows = [(index, rows) for index, rows in zip(present.tolist(), groups) if index != EMPTY]
        for index, own in self._rows:
            chosen = self.players[index].act(self._env, halves, own).to(actions.dtype)
            actions = chosen if len(own) == len(actions) else actions.index_copy(0, own, chosen)
        return actions.reshape(worlds, count, *self._spec.shape)


# -- players -----------------------------------------------------------------------------------------------------------


RANDOM = "random"
SELF = "self"
"""Name of the learner as an opponent in training; it acts at random until it follows the learner's policy."""
_ENDINGS = (".pt", ".pth", ".zip", ".onnx")
Source = str | Mapping[str, Any]
"""Where a player comes from: a name or ``kind:path``, or a mapping of ``player`` and options (``which: best``)."""


class Player(ABC):
    """Acts for half-worlds (see :func:`half_worlds`), perhaps with a recurrent state for each row.

    Args:
        name: name in displays and results.

    Attributes:
        recordable: whether a GPU can record what it does.
        phase: what its actions depend on beside tensors.
    """

    recordable = True
    phase: Any = None

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def act(self, env: EnvBase, halves: TensorDictBase, rows: Tensor, counts: Tensor | None = None) -> Tensor:
        """Returns actions ``[n, A / 2, ...]`` of the rows ``[n]``, ascending, of half-worlds ``[2 W, A / 2]``.

        Args:
            counts: ``[n]`` bool, the rows whose actions count; None: all.
        """

    def become(self, other: Player) -> bool:
        """Takes over the weights of another player; returns False if it is of another kind."""
        return False

    def begin(self, rows: Tensor | None = None) -> None:
        """Resets the recurrent state where a mask ``[2 W]`` is set (None: all).

        There episodes begin, or another player was in control.
        """
        return

    def state_dict(self) -> dict[str, Any]:
        """Returns the recurrent states of unfinished episodes."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        return


class ScriptedPlayer(Player):
    """A player that comes with the world and may read its whole state; see :class:`rlstack.envs.world.Sides`.

    Args:
        script: name among the world's players.
        name: name in displays, if different.
    """

    def __init__(self, env: EnvBase, script: str, name: str | None = None) -> None:
        super().__init__(name or script)
        self._script = sides_of(env).scripted[script]

    def act(self, env: EnvBase, halves: TensorDictBase, rows: Tensor, counts: Tensor | None = None) -> Tensor:
        if looks_are_free(rows.device):
            worlds, place = torch.unique(rows // 2, return_inverse=True)
            own = 2 * place + rows % 2
        else:  # in all worlds, since finding out in which it acts would wait for the GPU
            worlds, own = torch.arange(len(halves) // 2, device=rows.device), rows
        try:
            actions = self._script(hooks_of(env).innermost, worlds)
        except ValueError as error:
            raise ConfigError(f"{self.name}: {error}") from None
        if isinstance(actions, Told):
            hooks_of(env).tell(rows, actions.exact[own], counts)
            actions = actions.actions
        return actions.reshape(len(worlds) * 2, actions.shape[1] // 2, *actions.shape[2:])[own]


class RandomPolicy(TensorDictModuleBase):
    """Draws uniform actions, only legal ones if the world has masks."""

    phase = None

    def __init__(self, env: EnvBase) -> None:
        super().__init__()
        self.in_keys: list[Any] = []
        self.out_keys = [(GROUP, "action")]
        self._interface = Interface.of(env)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        agents, interface = tensordict.get(GROUP), self._interface
        mask = agents.get(MASK) if interface.masked else None
        action = interface.random_action(agents.batch_size, agents.device, mask)
        return tensordict.set((GROUP, "action"), interface.to_env(action))


class PolicyPlayer(Player):
    """A policy for the world that decides for every agent separately.

    A policy that writes its recurrent state into the tensordict, as rlstack's agents do, is called with its rows only.
    A policy that stores the state itself (and resets it with ``reset``) is always called with all rows.
    """

    def __init__(self, policy: TensorDictModuleBase, name: str) -> None:
        super().__init__(name)
        self.recordable = hasattr(policy, "phase")
        self.follow(policy)

    def follow(self, policy: TensorDictModuleBase) -> None:
        """Acts as this policy from now on, from the beginning of an episode."""
        self._policy = policy
        self._carries = (GROUP, MEMORY) in list(policy.out_keys)
        keeps = callable(getattr(policy, "reset", None)) and getattr(policy, "recurrent", True)
        self._keeps_itself = keeps and not self._carries
        self._memory: Tensor | None = None  # [2 W, A / 2, M], recurrent state in the tensordict
        self._begun: Tensor | None = None  # [2 W], rows to reset in a policy that stores the state itself; None: all
        self._ours = next((part for part in policy.modules() if isinstance(part, AgentPolicy)), None)

    @property
    def phase(self) -> Any:
        return getattr(self._policy, "phase", None)

    def become(self, other: Player) -> bool:
        ours, theirs = self._ours, other._ours if isinstance(other, PolicyPlayer) else None
        if SELF in (self.name, other.name):  # whose weights are the learner's own
            return False
        if ours is None or theirs is None or ours.recipe != theirs.recipe:
            return False
        self._policy.load_state_dict(other._policy.state_dict())  # type: ignore[attr-defined]
        ours.catch_up()
        return True

    def act(self, env: EnvBase, halves: TensorDictBase, rows: Tensor, counts: Tensor | None = None) -> Tensor:
        everyone = self._keeps_itself or len(rows) == len(halves)
        shown = halves if everyone else halves[rows]
        root = TensorDict({GROUP: shown}, [len(shown)], shown.device)
        if self._keeps_itself:
            none = torch.zeros(len(halves), dtype=torch.bool, device=rows.device)
            begun, self._begun = ~none if self._begun is None else self._begun, none
            root.set("is_init", begun[:, None])
        if self._memory is not None:
            root.set((GROUP, MEMORY), self._memory if everyone else self._memory[rows])
        acted = self._policy(root)
        if self._carries:
            memory = acted.get(("next", GROUP, MEMORY))
            if not everyone:
                old = memory.new_zeros(len(halves), *memory.shape[1:]) if self._memory is None else self._memory
                memory = old.index_copy(0, rows, memory)
            self._memory = memory
        action = acted.get((GROUP, "action"))
        return action[rows] if everyone and len(rows) < len(halves) else action

    def begin(self, rows: Tensor | None = None) -> None:
        if rows is None:
            self._memory = self._begun = None
            if self._keeps_itself:
                self._policy.reset()
            return
        if self._memory is not None:
            self._memory = self._memory.masked_fill(rows[:, None, None], 0.0)
        if self._begun is not None:
            self._begun = self._begun | rows

    def state_dict(self) -> dict[str, Any]:
        return {} if self._memory is None else {"memory": self._memory.clone()}  # recorded steps write into it

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.begin()
        self._memory = state["memory"].clone() if "memory" in state else None


# -- players by their source ---------------------------------------------------------------------------------------


def make_player(source: Source, env: EnvBase, name: str | None = None) -> Player:
    """Makes a player from its source.

    A source is ``random``, a name of the world's players (Rocket: ``rule``), a run directory or checkpoint, or
    ``kind:path`` with options; see :func:`~rlstack.agents.legacy.load_policy`.

    Args:
        env: the world with both sides that the player will play in.
        name: name of the player; None means :func:`name_of`.

    Raises:
        ConfigError: there is no such player, or it cannot act in this world.
    """
    text, options = read_source(source)
    check_source(source, env)
    called = name or name_of(source)
    if text == RANDOM:
        return PolicyPlayer(RandomPolicy(env), called)
    if text in sides_of(env).scripted:
        return ScriptedPlayer(env, text, called)
    return PolicyPlayer(load_policy(with_kind(text), env, **options), called)


def check_source(source: Source, env: EnvBase, more: Sequence[str] = ()) -> None:
    """Raises a :class:`ConfigError` unless the player exists; does not load it.

    Args:
        more: names of further players.
    """
    text, options = read_source(source)
    own = [RANDOM, *sides_of(env).scripted, *more]
    if text in own:
        if options:
            raise ConfigError(f"opponent {text!r} takes no options, got {', '.join(options)}")
        return
    try:
        parse(with_kind(text))
    except ConfigError as error:
        if ":" in text and not Path(text).exists():
            raise ConfigError(f"opponent {error}") from None
        others = f"a run directory, a checkpoint, or kind:path with one of the kinds {', '.join(KINDS)}"
        known = f"{did_you_mean(text, own)}allowed: {', '.join(own)}, {others}"
        raise ConfigError(f"opponent {text!r} is unknown, {known}") from None


def read_source(source: Source) -> tuple[str, dict[str, Any]]:
    """Splits a source into text and options; raises a :class:`ConfigError` if it has another form."""
    if isinstance(source, str) and source:
        return source, {}
    if isinstance(source, Mapping) and isinstance(source.get("player"), str) and source["player"]:
        return source["player"], {str(key): value for key, value in source.items() if key != "player"}
    forms = "a name, a path or kind:path, or {player: kind:path, <option>: <value>}"
    raise ConfigError(f"opponent {source!r}: give {forms}")


def with_kind(source: str) -> str:
    """Returns the source, without the prefix ``checkpoint:``, which means a checkpoint of rlstack."""
    kind, colon, path = source.partition(":")
    return f"rlstack:{path}" if colon and kind == "checkpoint" and not Path(source).exists() else source


def name_of(source: Source) -> str:
    """Returns a player's name from its source: the name, run's folder, file without suffix, or callable."""
    text, _ = read_source(source)
    last = Path(text.rpartition(":")[2] or text)
    return last.stem if last.suffix in _ENDINGS else last.name or text


def free_name(name: str, taken: Collection[str]) -> str:
    """Returns the name, with the first free number if it is taken."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free


def named(players: list[Any] | dict[str, Any] | None) -> dict[str, Source]:
    """Returns players by name; a name that is taken gets a number."""
    if isinstance(players, dict):
        for source in players.values():
            read_source(source)
        return dict(players)
    result: dict[str, Source] = {}
    for source in players or []:
        result[free_name(name_of(source), result)] = source
    return result
