"""The contract of a world: the hooks that it may implement, and the base class of all batched worlds."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded
from torchrl.envs import EnvBase, TransformedEnv
from typing_extensions import Self

from .foundation.tensors import ACTION_MASK as ACTION_MASK
from .foundation.tensors import GROUP as GROUP
from .foundation.tensors import MEMORY as MEMORY
from .foundation.tensors import STATE as STATE
from .foundation.tensors import keep_freed_memory, looks_are_free, unchecked
from .states import StartPool, mapped

if TYPE_CHECKING:
    from .recording import EpisodeRecorder, EpisodeRecording

MOST_STEPS = 1_000_000_000
"""Greatest number of steps in an episode; step counters are integers in floating-point statistics."""

Act = Callable[[Any, Tensor | None], dict[str, Tensor]]
"""A policy on plain tensors: maps an observation and an action mask (or None) to ``action`` and further entries, in
tensors that share no memory with others."""


# -- two sides that play against each other ------------------------------------------------------------------------


class Told(NamedTuple):
    """A scripted player's choice that the world's actions are too coarse to express.

    Attributes:
        actions: the nearest actions, ``[n, A, ...]``.
        exact: the choice for :meth:`WorldHooks.tell`, ``[2 n, ...]``: rows 2 k and 2 k + 1 are the sides of the k-th of
            the n worlds.
    """

    actions: Tensor
    exact: Tensor


Scripted = Callable[[Any, Tensor], Tensor | Told]
"""A player that comes with a world: maps the world and the indices ``[n]`` of some of its worlds to actions
``[n, A, ...]`` of all their agents."""


@dataclass(frozen=True)
class Sides:
    """The two sides of a world: the first and the second half of its agents ``[W, A]``.

    A side with fewer agents has inactive ones (``("agents", "active")`` is False). Both sides observe the world as if
    they were the first, so any policy can control either.

    Attributes:
        names: names of the sides.
        score: function from the entries under ``"next"`` to the points ``[W, 2]``; the side with more points wins.
        scripted: players that come with the world, by name.
        anchors: ratings of players by name, which fix Elo's scale in this world.
        mirrored: pairs of statistics under ``episode`` that swap when seen from the other side.
        one_sided: prefixes of statistics that exist only for the first side.
    """

    names: tuple[str, str]
    score: Callable[[TensorDictBase], Tensor]
    scripted: Mapping[str, Scripted] = field(default_factory=dict)
    anchors: Mapping[str, float] = field(default_factory=dict)
    mirrored: tuple[tuple[str, str], ...] = ()
    one_sided: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mirror:
    """A reflection under which the rules of a world are symmetric.

    The mirrored action in a mirrored state leads to the mirrored next state with the same reward, or, where the rules
    draw random numbers, does so in distribution. Each function takes entries with any batch dimensions ``[...]`` in the
    form of the world's specs, returns new ones and is its own inverse. The functions must be picklable, since agents
    carry them to other processes.

    Attributes:
        observation: maps an observation to that of the mirrored state.
        action: maps an action to the mirrored one.
        mask: maps ``action_mask [..., n]`` to that of the mirrored state; None if masks do not change.
    """

    observation: Callable[[Any], Any]
    action: Callable[[Any], Any]
    mask: Callable[[Tensor], Tensor] | None = None


# -- the contract --------------------------------------------------------------------------------------------------


class WorldHooks:
    """The hooks of a world beyond TorchRL's ``EnvBase``, each with its default.

    :class:`World` inherits them; any other ``EnvBase`` may, too. :func:`hooks_of` returns the hooks of an env, and
    :func:`rlstack.envs.world_hooks` those of a world by its name; other envs have the defaults below.
    """

    # -- properties of the class, before a world is built --------------------------------------------------------

    evaluation_options: ClassVar[dict[str, Any]] = {}
    """Constructor options with which the world evaluates as published; for evaluations and matches."""
    evaluation_steps: int | None = None
    """Steps after which the published evaluation scores an unfinished episode; None lets every episode end."""
    two_sided_options: ClassVar[dict[str, Any]] = {}
    """Constructor options that make both sides agents, in a two-sided world whose second side may be bots."""
    drawing_options: ClassVar[dict[str, dict[str, Any]]] = {}
    """Constructor options (all mappings) that ``rlstack watch`` and ``rlstack evaluate`` set so that the world can draw
    itself."""
    tie_breaker: ClassVar[str] = "return"
    """Statistic that decides between evaluations with equal success; more is better. Used for ``best.pt``."""
    observing: ClassVar[tuple[str, ...]] = ()
    """Functions (``package.module:function`` or ``...:Class.method``) that compute observations.
    ``rlstack explain speed`` measures their share of a step."""

    @staticmethod
    def evaluation_set(per_level: int, seed: int) -> tuple[Sequence[Any], Sequence[str]] | None:
        """Returns the fixed episodes of evaluations; None if evaluations use random ones.

        Returns:
            The argument of :meth:`reset_to` and the name of each episode's level, with ``per_level`` episodes a level.
        """
        return None

    @staticmethod
    def episode_options(configs: Sequence[Any]) -> dict[str, Any]:
        """Returns constructor options that a world needs to start these episodes with :meth:`reset_to`."""
        return {}

    decided_by_episodes: ClassVar[tuple[str, ...]] = ()
    """Constructor options that have no effect in episodes begun by :meth:`reset_to`, which bring their own."""

    replaces: ClassVar[dict[str, tuple[str, ...]]] = {}
    """Constructor options that others have no effect beside, unless they are None."""

    @staticmethod
    def load_episodes(path: str | Path) -> list[Any] | None:
        """Reads episodes for :meth:`reset_to` from a file, for ``rlstack evaluate``; None if a world cannot.

        Raises:
            ValueError: the file holds something else; the message is one line.
        """
        return None

    replay_ending: ClassVar[str | None] = None
    """Suffix of replays, such as ``.npz``, for leagues and ``rlstack watch``; None for a world without replays."""

    @staticmethod
    def load_replay(path: str | Path) -> EpisodeRecording:
        """Reads a file of this world's :meth:`EpisodeRecording.save_replay`.

        Raises:
            ValueError: the file is missing, damaged, or not a replay of this world; the message is one line.
        """
        raise NotImplementedError("this world has no replays")

    # -- properties of an env ------------------------------------------------------------------------------------

    input_features: Callable[[], Any] | None = None
    """Makes a module without parameters that maps an observation ``[..., F]`` (or a dict of them) to a network's
    inputs, for agents with ``inputs: features``; None means the observation itself."""
    nearest_obstacle: Callable[[Any], Tensor] | None = None
    """Returns the distance ``[...]`` in m of the nearest obstacle in an observation, for agents that adapt to risk."""
    carries_memory: bool = False
    """Whether the env passes a policy's recurrent state under :data:`MEMORY` to the next step, with zeros after an
    episode's end. If not, recurrent policies keep the state themselves."""
    saves_episodes: bool = False
    """Whether a loaded state continues its episodes; False for simulators that cannot be saved."""
    num_stages: int = 0
    """Number of stages of difficulty for :meth:`set_stage` and curricula; 0 for none."""
    stage_names: tuple[str, ...] = ()
    """Names of the stages, which curricula may use."""
    pictures_per_second: float = 20.0
    """Steps per second at which to show a world that draws itself only by :meth:`render`."""

    @property
    def innermost(self) -> Any:
        """Returns the env inside all wrappers."""
        return self

    @property
    def total_steps(self) -> int:
        """Number of steps of all worlds together, for schedules."""
        return 0

    def count_on_from(self, steps: int) -> None:
        """Sets :attr:`total_steps`, for collector workers that replace others."""

    @property
    def worker_failures(self) -> int:
        """Number of processes with simulators that have been replaced, for the log of a run."""
        return 0

    # -- methods of an env ---------------------------------------------------------------------------------------

    def set_stage(self, stage: int) -> None:
        """Sets the difficulty of all worlds to a stage of a curriculum; draws no random numbers.

        Args:
            stage: number of the stage from 0, the easiest, to ``num_stages - 1``.

        Raises:
            ValueError: the world has no such stage.
        """
        raise ValueError(f"{type(self).__name__} has no stage {stage}: it has none")

    def reset_to(self, configs: Sequence[Any]) -> TensorDictBase:
        """Starts given episodes, one in each of the first worlds; returns what ``reset`` returns."""
        raise NotImplementedError(f"{type(self).__name__} cannot start episodes from a file")

    def set_noise_source(self, source: Any) -> None:
        """Sets the source of the noise in observations, for evaluations; None means the world's own."""
        raise NotImplementedError(f"{type(self).__name__} has no noise that could come from elsewhere")

    def players(self) -> Mapping[str, Callable[[Any], Tensor]]:
        """Returns the players of a world without sides by name: functions from an observation ``[...]`` to actions
        ``[...]``, for ``rlstack evaluate`` and ``rlstack watch`` with ``policy=<name>``.
        """
        return {}

    def mirror(self) -> Mirror | str:
        """Returns the mirror symmetry of its rules, or a text that says why there is none.

        Agents with ``symmetry: augment`` use it to learn.
        """
        return "it declares no mirror"

    def sides(self) -> Sides | None:
        """Returns the two sides that its agents form; None for a world without opponents."""
        return None

    def tell(self, half_worlds: Tensor, exact: Tensor, counts: Tensor | None = None) -> None:
        """Sets scripted players' choices for the next step that actions cannot express; see :class:`Told`.

        Args:
            half_worlds: indices ``[n]``, 2 w + s for side s of world w.
            exact: choices ``[n, ...]``.
            counts: ``[n]`` bool, the choices that count; None: all.
        """
        raise NotImplementedError(f"{type(self).__name__} takes actions alone")

    collect: Callable[[Act, int], TensorDict] | None = None
    """Makes T steps with a policy from the current state and returns a batch ``[W, T]``, for the collector on the CPU;
    None unless the world makes many steps at once faster than one by one."""

    def recorder(self, worlds: Sequence[int], titles: Sequence[str] | None = None) -> EpisodeRecorder[Any] | None:
        """Returns a recorder of these worlds; None for a world without recordings.

        Evaluations, leagues and ``rlstack watch`` use it. The arguments are those of
        :class:`~rlstack.envs.recording.EpisodeRecorder`.
        """
        return None

    def render(self) -> Any:
        """Draws the first world, uint8 ``[height, width, 3]``.

        ``rlstack watch`` and evaluations make films of it for a world without recordings.
        """
        raise NotImplementedError(f"{type(self).__name__} draws no pictures")


def hooks_of(env: Any) -> WorldHooks:
    """Returns the hooks of an env, looking inside TorchRL's transforms.

    Other envs have the defaults. So have worlds inside ``ParallelEnv`` and ``SerialEnv``, which may run in other
    processes.
    """
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env if isinstance(env, WorldHooks) else WorldHooks()


_FLAGS = ("done", "terminated", "truncated")
_NEW = "new"
"""Entry of the state of a world before its first reset."""


# -- batched worlds ------------------------------------------------------------------------------------------------


class World(WorldHooks, EnvBase):
    """A batch of ``num_worlds`` independent worlds, ``batch_size [W]``.

    A subclass declares its specs (:meth:`declare_specs`), has its options as constructor arguments, and implements
    :meth:`_advance` (one step of all worlds), :meth:`_restart` (new episodes in some) and :meth:`_current` (their
    observations).
    Episode statistics, time limits and deactivation belong in the world: a transform for them would cost more than the
    simulation. On the CPU the process keeps the memory that it frees; see :func:`keep_freed_memory`.

    The recurrent state that a policy writes to ``("next", "memory")`` or ``("next", "agents", "memory")``, ``[W, M]``
    or ``[W, A, M]``, is at the next step under ``"memory"`` or ``("agents", "memory")``, zero after an episode's end.

    As a context manager a world closes itself. ``reset(seed=...)`` takes one seed, or one for each world; see
    :meth:`_reset`. Actions outside the spec are made valid by :meth:`_chosen`.

    Args:
        num_worlds: number of worlds W.
        device: device of state and outputs.
        dtype: type of all floating-point tensors.
        seed: seed of the world's generator, the only source of its randomness.
    """

    batch_locked = True
    carries_memory = saves_episodes = True
    clamps_actions: bool = True
    """Whether continuous actions are clipped to the spec's bounds; False if the rules accept larger ones."""
    draws_to_restart_alone: ClassVar[bool] = False
    """Whether only :meth:`_restart` draws random numbers, from :attr:`generator`, and the state to save has a row for
    each world. Then the worlds of several seeds can step as one batch."""
    choices: Sequence[int] | None = None
    """Number of choices of each part of an action, if :meth:`rand_action` should draw only allowed ones."""
    _pool: StartPool[Any] | None = None
    """Initial states made in advance, which a new seed invalidates."""
    _begun = False
    _given: tuple[tuple[Any, ...], dict[str, Any]]
    _reader: tuple[bool, Reader] | None = None

    def __init__(self, num_worlds: int, device: torch.device | str, dtype: torch.dtype, seed: int | None) -> None:
        if not isinstance(num_worlds, (int, np.integer)) or num_worlds < 1:
            raise ValueError(f"num_worlds: {num_worlds!r} is not a positive whole number of worlds")
        super().__init__(device=torch.device(device), batch_size=[num_worlds])
        if self.device.type == "cpu":
            keep_freed_memory()
        self.num_worlds = self.all_worlds = num_worlds
        self.float_dtype = dtype
        self.generator = torch.Generator(device=self.device)
        self._continue_after_load = False
        self._set_seed(0 if seed is None else seed)

    def declare_specs(
        self,
        shown: Mapping[str, TensorSpec],
        action: TensorSpec,
        statistics: Sequence[str] = ("return", "length"),
        agents: int | None = None,
    ) -> None:
        """Sets the specs of a batch of worlds: the given ones, a reward, and the flags of an episode's end.

        Args:
            shown: specs of ``observation [W, ...]`` and further entries; with several agents ``[W, A, ...]``, and an
                entry ``active`` is added unless given.
            action: spec of the action, ``[W, ...]`` or ``[W, A, ...]``.
            statistics: names of the episode statistics, ``("episode", name) [W, 1]``.
            agents: number of agents A; None for a world without the group ``agents``.
        """
        lead = (self.num_worlds,) if agents is None else (self.num_worlds, agents)

        def number(*shape: int) -> Unbounded:
            return Unbounded(shape, dtype=self.float_dtype, device=self.device)

        def entries(content: Mapping[str, TensorSpec], **root: TensorSpec) -> Composite:
            if agents is None:
                return Composite({**content, **root}, shape=lead, device=self.device)
            group = Composite(dict(content), shape=lead, device=self.device)
            return Composite({GROUP: group, **root}, shape=lead[:1], device=self.device)

        def flags(*shape: int) -> dict[str, TensorSpec]:
            return {name: flag_spec(*shape, 1, device=self.device) for name in _FLAGS}

        if ACTION_MASK in shown and type(action) in _UNDER_ANY_MASK:  # not Echelon's numbers and choices together
            action = action.clone()
            action.__class__ = _UNDER_ANY_MASK[type(action)]
        known = {name: number(self.num_worlds, 1) for name in statistics}
        if agents is not None and "active" not in shown:
            shown = {**shown, "active": flag_spec(*lead, device=self.device)}
        self.observation_spec = entries(shown, episode=Composite(known, shape=lead[:1], device=self.device))
        alone = agents is None and not isinstance(action, Composite)  # a dict alone would be taken for its entries
        self.action_spec = action if alone else entries({"action": action})
        self.reward_spec = entries({"reward": number(*lead, 1)})
        self.done_spec = entries(flags(*lead), **({} if agents is None else flags(self.num_worlds)))

    @abstractmethod
    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        """Steps all worlds; returns all entries under ``"next"``."""

    @abstractmethod
    def _restart(self, worlds: Tensor | None) -> None:
        """Begins new episodes in the worlds of an index tensor (None: all)."""

    @abstractmethod
    def _current(self) -> TensorDict:
        """Returns observations and other root entries of all worlds in their current state, without end flags."""

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Draws actions; only allowed ones if :attr:`choices` is declared and ``tensordict`` has an ``action_mask``."""
        where = (GROUP,) if GROUP in self.full_action_spec.keys() else ()  # noqa: SIM118
        mask = None if tensordict is None or self.choices is None else tensordict.get((*where, ACTION_MASK), None)
        if mask is None or tensordict is None or self.choices is None:
            if where or tensordict is None:
                return super().rand_action(tensordict)
            for key in self.action_keys:  # an eighth of the time
                tensordict.set(key, self.full_action_spec[key].rand())
            return tensordict
        parts = mask.reshape(-1, mask.shape[-1]).split(list(self.choices), -1)
        # If a mask allows no choice of a part, draw any.
        drawn = [(part | ~part.any(-1, keepdim=True)).float().multinomial(1) for part in parts]
        key = (*where, "action")
        return tensordict.set(key, torch.cat(drawn, -1).reshape(self.full_action_spec[key].shape))

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self._check_begun()
        return self._advance(tensordict)

    def _check_begun(self) -> None:
        if not self._begun:
            raise RuntimeError(f"{type(self).__name__}: reset() comes before the first step")

    def _chosen(self, tensordict: TensorDictBase) -> Any:
        """Returns the actions of ``tensordict``, made valid by :func:`reader`, for :meth:`_advance`.

        Nested actions are returned as a dict. With TorchRL's ``run_type_checks``, choices out of range raise an error.

        Raises:
            ValueError: the action is missing or has another shape than its spec.
        """
        strict = self.run_type_checks
        if self._reader is None or self._reader[0] != strict:
            group = GROUP in self.full_action_spec.keys()  # noqa: SIM118
            key: Any = (GROUP, "action") if group else "action"
            name = f"{type(self).__name__}: action"
            read = reader(self.full_action_spec[key], name, self.clamps_actions, strict)

            def given_action(given: TensorDictBase) -> Any:
                if (action := given.get(key, None)) is None:
                    raise ValueError(f"{name}: missing, the tensordict has no entry {key!r}")
                return read(action)

            self.__dict__["_reader"] = strict, given_action
        return self._reader[1](tensordict)  # type: ignore[index]

    def _reset(
        self, tensordict: TensorDictBase | None = None, *, seed: int | Sequence[int] | None = None, **_: Any
    ) -> TensorDict:
        """Resets as ``reset`` does.

        Args:
            tensordict: may have a mask ``_reset [W, 1]`` of the worlds to restart.
            seed: seed of the world's generator, as for ``set_seed``, or a seed for each world. A world begins the same
                episode with the same seed, regardless of the other worlds' seeds and number.

        Raises:
            ValueError: the number of seeds is not that of the worlds, or seeds come with a mask.
        """
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if seed is not None:
            if mask is not None:
                raise ValueError("seed: seeds are for a reset of all worlds, not of some")
            self._continue_after_load = False
            self._restart_seeded(seed)
        elif mask is not None:
            self._restart(mask.reshape(self.num_worlds).nonzero()[:, 0])
        elif self._continue_after_load:
            self._continue_after_load = False
        else:
            self._restart(None)
        self._begun = True
        return self._current()

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """See :meth:`torchrl.envs.EnvBase.reset`; the first reset begins all worlds, whatever its mask."""
        if tensordict is not None and not self._begun:
            tensordict = tensordict.exclude("_reset")
        return super().reset(tensordict, **kwargs)

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Makes one step and restarts finished worlds. The result equals that of TorchRL's method, at less cost."""
        self._check_begun()
        left = tensordict.get("next", None)
        following, root = self._advance_and_restart(tensordict)
        if left is not None:
            hand_on(left, following)
        tensordict.set("next", following)
        if left is not None:
            hand_on(following, root, forget=True)
        return tensordict, root

    def _advance_and_restart(self, tensordict: TensorDictBase) -> tuple[TensorDict, TensorDict]:
        """Steps all worlds and restarts those that end; returns all entries under ``"next"``, and the next root."""
        following = self._advance(tensordict)
        return following, self._following_root(following)

    def _following_root(self, following: TensorDict) -> TensorDict:
        """Restarts the worlds that ended in a step, whose entries under ``"next"`` are given; returns the next root."""
        finished = following.get("done")
        ended = finished.squeeze(-1)
        any_ended = not looks_are_free(self.device) and self._restart_where(ended)  # which does not read the mask
        if not any_ended and (worlds := ended.nonzero().squeeze(-1)).shape[0] > 0:
            self._restart(worlds)
            any_ended = True
        root = self._current()
        none = torch.zeros(len(_FLAGS), *finished.shape, dtype=torch.bool, device=self.device)
        flags = dict(zip(_FLAGS, none.unbind(0)))
        root = unchecked(dict(root.items(), **flags), root.batch_size, root.device)
        for key in self.done_keys:
            if key not in flags:  # an agent's
                value = following.get(key)
                # As booleans, a > b is a and not b.
                root.set(key, value > finished.view(-1, *[1] * (value.dim() - 1)) if any_ended else value)
        return root

    def _restart_seeded(self, seed: int | Sequence[int]) -> None:
        """Begins new episodes in all worlds from a seed, or in each from its own."""
        if np.ndim(seed):
            seeds = [int(own) for own in seed]  # type: ignore[union-attr]
            if len(seeds) != self.num_worlds or min(seeds) < 0:
                raise ValueError(f"seed: {len(seeds)} seeds for {self.num_worlds} worlds; give a number >= 0 for each")
            self._restart_each(seeds)
        else:
            self._set_seed(int(seed))  # type: ignore[arg-type]
            self._restart(None)

    def _restart_each(self, seeds: list[int]) -> None:
        """Begins a new episode in each world from its own seed."""
        self._restart(None)
        for world, own in enumerate(seeds):
            self._set_seed(own)
            with nullcontext() if self._pool is None else self._pool.one_by_one():
                self._restart(torch.tensor([world], device=self.device))
        self._go_on_from(seeds)

    def _go_on_from(self, seeds: Sequence[int]) -> None:
        """Makes later random numbers depend on the seeds of all worlds."""
        self._set_seed(int(np.random.SeedSequence(seeds).generate_state(1)[0]))

    def _restart_where(self, ended: Tensor) -> bool:
        """Restarts worlds ``[W]`` bool without reading the mask; returns False if the world does not implement it."""
        return False

    @property
    def recordable(self) -> bool:
        """Whether a GPU can record its steps: not those of simulators outside torch."""
        return self.saves_episodes

    @property
    def phase(self) -> Any:
        """What steps depend on beside tensors, such as the rules of a stage: a recording is made for each."""
        return None

    def make_ready(self, steps: int) -> None:
        """Prepares ``steps`` steps on a GPU: until they are over, no initial states are made.

        A collector that records steps calls it before each batch, since making them cannot be recorded.
        """
        if self._pool is not None and not looks_are_free(self.device):
            self._pool.make_ready(self.num_worlds, steps, self.device)

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Restarts finished worlds, as :meth:`torchrl.envs.EnvBase.maybe_reset` does."""
        kept = TensorDict({}, self.batch_size, self.device)  # a restart clears the flags
        hand_on(tensordict, kept, forget=True)
        tensordict = super().maybe_reset(tensordict)
        hand_on(kept, tensordict)
        return tensordict

    @property
    def _step_mdp(self) -> Callable[[TensorDictBase], TensorDictBase]:
        """TorchRL's function from a step to the next root, which keeps only the entries of the specs."""
        plain = super()._step_mdp

        def step_mdp(tensordict: TensorDictBase) -> TensorDictBase:
            root = plain(tensordict)
            hand_on(tensordict.get("next"), root)
            return root

        return step_mdp

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Keeps the arguments, from which a copy of a world that cannot be saved is built."""
        world = super().__new__(cls, *args, **options)
        world.__dict__["_given"] = args, options
        return world

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles: exact ones, or new worlds with the same options that begin new episodes.

        The latter are those that cannot be saved; see :attr:`saves_episodes`.
        """
        if self.saves_episodes:
            return super().__reduce_ex__(protocol)
        return _anew, (type(self), *self._given, self.state_dict())

    def __setattr__(self, name: str, value: Any) -> None:
        if type(value) is Tensor:  # no parameter or buffer, for which a module would look, in ten times the time
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}  # functions, which are built anew

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(raise_if_closed=False)

    def share(self, first: int, all_worlds: int, seed: int) -> None:
        """Makes these the worlds from number ``first`` on of ``all_worlds`` divided among several processes.

        Their random numbers differ from those of the other processes' worlds, and of worlds of other seeds.

        Args:
            first: number of the first of these worlds.
            all_worlds: number of all worlds.
            seed: seed of all worlds.
        """
        self.all_worlds = all_worlds
        self._set_seed(seed_of_share(first, seed))

    def set_stage(self, stage: int) -> None:
        """See :meth:`WorldHooks.set_stage`."""
        if not 0 <= stage < self.num_stages:
            known = f"it has {self.num_stages}, the first is 0" if self.num_stages else "it has none"
            raise ValueError(f"{type(self).__name__} has no stage {stage}: {known}")
        self._enter_stage(stage)

    def _enter_stage(self, stage: int) -> None:
        """Implements :meth:`set_stage` in a world with stages."""
        raise NotImplementedError

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.generator.manual_seed(seed)
        if self._pool is not None:
            self._pool.clear()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns everything needed to continue exactly here, as a nested dict of tensors and numbers."""
        state = self._state_to_save() if self._begun else {_NEW: True}
        if not looks_are_free(self.device):  # recorded steps write into the worlds' tensors
            state = mapped(torch.clone, state)
        return {"generator": self.generator.get_state(), **state}

    def load_state_dict(self, state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Restores :meth:`state_dict`. The next full ``reset()``, such as a new collector's, continues the worlds, also
        after ``set_seed``; ``reset(seed=...)`` begins new episodes. Worlds of a CPU continue on a GPU, and a GPU's on a
        CPU, with other random numbers.

        An empty state, which TorchRL's collectors save for an environment without transforms, changes nothing.
        """
        if not state_dict:
            return
        drawn = state_dict["generator"].cpu()
        if len(drawn) == len(self.generator.get_state()):
            self.generator.set_state(drawn)
        else:  # of another kind of device, whose random numbers cannot go on here
            self.generator.manual_seed(int(np.random.SeedSequence(drawn.tolist()).generate_state(1)[0]))
        begun = _NEW not in state_dict
        if begun:
            self._load_state(state_dict)
        self._begun = self._continue_after_load = begun

    @abstractmethod
    def _state_to_save(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load_state(self, state: dict[str, Any]) -> None: ...


def seed_of_share(first: int, seed: int) -> int:
    """Returns the seed of the worlds from number ``first`` on of all; that of the first is the seed of all."""
    return int(np.random.SeedSequence((seed, first)).generate_state(1)[0]) if first else seed


class ForeignWorld(World):
    """Copies of an environment of another library, which cannot be saved: a loaded state begins new episodes.

    A subclass keeps in ``_shown`` what its worlds show.
    """

    saves_episodes = False
    _first_number = 0
    """Number of the first of these worlds among all that several processes divide."""
    _envs: list[Any]
    _shown: TensorDict

    def share(self, first: int, all_worlds: int, seed: int) -> None:
        """See :meth:`World.share`; each environment has the same seed as in a single world of all environments."""
        self.all_worlds, self._first_number = all_worlds, first
        self._set_seed(seed)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes the environments."""
        from .foreign import close_all  # with worker processes, which worlds of torch do not need

        super().close(raise_if_closed=raise_if_closed)
        close_all(self._envs)

    def _current(self) -> TensorDict:
        return self._shown.copy()

    def _state_to_save(self) -> dict[str, Any]:
        return {}

    def _load_state(self, state: dict[str, Any]) -> None:
        self._restart(None)


def flag_spec(*shape: int, device: torch.device | None) -> Categorical:
    """Returns the spec of independent booleans, any part of which can be selected."""
    return Categorical(2, shape=shape, dtype=torch.bool, device=device)


class _UnderAnyMask:
    """Mixed into a spec of choices: makes it equal to the same choices under another mask.

    TorchRL's ``ActionMask`` sets the mask of an action spec, and ``TransformedEnv`` leaves random actions to a world
    only if its action spec is unchanged.
    """

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        one, two = copy.copy(self), copy.copy(other)
        one.mask = two.mask = None  # type: ignore[attr-defined]
        return bool(super(_UnderAnyMask, one).__eq__(two))

    __hash__ = None  # type: ignore[assignment]


class _MaskedChoice(_UnderAnyMask, Categorical):
    pass


class _MaskedChoices(_UnderAnyMask, MultiCategorical):
    pass


_UNDER_ANY_MASK: dict[type, type] = {Categorical: _MaskedChoice, MultiCategorical: _MaskedChoices}


def _anew(kind: type[World], given: tuple[Any, ...], options: dict[str, Any], state: dict[str, Any]) -> World:
    """Builds a world that cannot be saved once more, in the given state."""
    world = kind(*given, **options)
    world.load_state_dict(state)
    return world


def check_known(name: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Checks the words of an option.

    Raises:
        ValueError: one of them is not among the known ones, which the message lists.
    """
    for word in given:
        if word not in known:
            raise ValueError(f"{name}: {word!r} is unknown, allowed: {', '.join(known)}")


def check_within(name: str, value: float, low: float, high: float, unit: str = "") -> None:
    """Checks an option's number.

    Raises:
        ValueError: the number is NaN, or lies outside ``[low, high]``.
    """
    if not low <= value <= high:
        raise ValueError(f"{name}: {value:g} is outside [{low:g}, {high:g}]{f' {unit}' if unit else ''}")


def hand_on(source: TensorDictBase, target: TensorDictBase, forget: bool = False) -> None:
    """Copies a policy's recurrent state into another tensordict.

    Args:
        forget: whether to write zeros where the episode of a world or an agent is ``done`` in the source.
    """
    if (memory := source.get(MEMORY, None)) is not None:
        target.set(MEMORY, _kept(memory, source.get("done")) if forget else memory)
    agents = source.get(GROUP, None)
    if agents is not None and (memory := agents.get(MEMORY, None)) is not None:
        if forget:
            memory = _kept(memory, source.get("done").unsqueeze(1))
            own = agents.get("done", None)
            memory = memory if own is None else _kept(memory, own)
        target.set((GROUP, MEMORY), memory)


def _kept(memory: Tensor, done: Tensor) -> Tensor:
    return memory * (~done).to(memory.dtype)


# -- actions -----------------------------------------------------------------------------------------------------------

Reader = Callable[[Any], Any]


def reader(spec: TensorSpec, name: str, clamped: bool = True, strict: bool = False) -> Reader:
    """Returns a function that leaves valid actions unchanged and makes others valid.

    It clips numbers to the bounds of a ``Bounded`` spec and choices to the first or last, and replaces NaN by 0 (or the
    bound nearest to 0). It does not wait for a GPU.

    Args:
        spec: spec of the action; for a Composite the function maps a tensordict to a dict.
        name: name of the action, for messages.
        clamped: whether numbers are clipped; NaN always becomes 0.
        strict: whether choices out of range raise an error instead, which waits for a GPU.

    Raises:
        ValueError: raised by the function for an action of another shape, or with ``strict`` for a choice out of range.
    """
    if isinstance(spec, Composite):
        parts = {key: reader(part, f"{name}.{key}", clamped, strict) for key, part in spec.items()}
        return lambda action: {key: part(action.get(key)) for key, part in parts.items()}
    shape, dtype = spec.shape, spec.dtype
    low: Any = None
    high: Any = None
    numbers, many = dtype.is_floating_point, isinstance(spec, MultiCategorical)
    if numbers and clamped and isinstance(spec, Bounded):
        low, high = spec.space.low, spec.space.high
    elif not numbers:
        high = spec.nvec.to(dtype) - 1 if many else int(spec.space.n) - 1
        low = high.new_zeros(()) if many else 0

    def read(action: Tensor) -> Tensor:
        nonlocal low, high
        if action.shape != shape:
            raise ValueError(f"{name}: an action has shape {list(action.shape)}, but {list(shape)} is needed")
        if numbers:
            known = action.nan_to_num(0.0, float("inf"), float("-inf"))
            return known if low is None else known.clamp(low, high)
        if many and high.device != action.device:  # once, since a spec keeps counts on the CPU
            low, high = low.to(action.device), high.to(action.device)
        valid = (action.nan_to_num(0.0) if action.is_floating_point() else action).clamp(low, high)
        if valid.dtype != dtype:
            valid = valid.to(dtype)
        if strict and not bool((valid == action).all()):
            wrong = action[valid != action][0].item()
            last = high.reshape(-1, shape[-1])[0].tolist() if many else [high]
            choices = f"{'of each part ' if many else ''}0 to {', '.join(map(str, last))}"
            raise ValueError(f"{name}: {wrong} is none of the choices, which are {choices}")
        return valid

    return read
