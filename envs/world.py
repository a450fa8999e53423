"""The contract of a world: the hooks that it may implement, and the base of all batched worlds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Composite, TensorSpec, Unbounded
from torchrl.envs import EnvBase, TransformedEnv
from typing_extensions import Self

from .actions import Reader, reader
from .freed_memory import keep_freed_memory
from .keys import ACTION_MASK as ACTION_MASK
from .keys import GROUP as GROUP
from .keys import MEMORY as MEMORY
from .pool import StartPool
from .recording import EpisodeRecorder, EpisodeRecording
from .waiting import looks_are_free

MOST_STEPS = 1_000_000_000
"""The most steps of an episode; counters of steps are whole numbers in floating-point statistics."""

Act = Callable[[Any, Tensor | None], dict[str, Tensor]]
"""A policy on plain tensors: of an observation and an action mask (None without one) ``action`` and further entries,
in memory of their own."""


# -- two sides that play against each other ------------------------------------------------------------------------


class Told(NamedTuple):
    """A scripted player's choice, which the world's own actions are too coarse to express.

    Attributes:
        actions: the nearest ones, ``[n, A, ...]``.
        exact: what :meth:`WorldHooks.tell` takes instead, ``[2 n, ...]``: rows 2 k and 2 k + 1 are the sides of the
            k-th of the n worlds.
    """

    actions: Tensor
    exact: Tensor


Scripted = Callable[[Any, Tensor], Tensor | Told]
"""A player that comes with a world: of the world and the indices ``[n]`` of some of its worlds the actions
``[n, A, ...]`` of all their agents."""


@dataclass(frozen=True)
class Sides:
    """A world whose agents ``[W, A]`` are two sides of A / 2 each: the first half of the agents, and the second.

    A side of fewer agents has absent ones (``("agents", "active")`` is False). Both sides see the world as if they
    were the first, so that any policy can drive either.

    Attributes:
        names: of the sides.
        score: of what a step led to (``"next"``), the points ``[W, 2]`` of each side; the side with more wins.
        scripted: players that come with the world, by name.
        anchors: ratings of players by name, which fix Elo's scale in this world.
        mirrored: pairs of statistics under ``episode`` that change places when seen from the other side.
        one_sided: how the names of statistics begin that are known of the first side alone.
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

    A mirrored action in a mirrored state leads to the mirror image of what the action leads to, with the same reward,
    where random numbers are as likely to fall one way as the other. Each function takes entries of any batch
    dimensions ``[...]`` in the form of the world's specs, returns new ones and is its own inverse; agents are sent to
    other processes with them, so they must be picklable.

    Attributes:
        observation: of an observation, what is seen of the mirrored state.
        action: of an action, the mirrored one.
        mask: of ``action_mask [..., n]``, which mirrored actions are allowed; None where masks stay as they are.
    """

    observation: Callable[[Any], Any]
    action: Callable[[Any], Any]
    mask: Callable[[Tensor], Tensor] | None = None


# -- the contract --------------------------------------------------------------------------------------------------


class WorldHooks:
    """The hooks of a world beyond TorchRL's ``EnvBase``, each with its default.

    :class:`World` inherits them; any other ``EnvBase`` may, too. Ask an env through :func:`hooks_of`, and
    a world by its name through :func:`envs.world_hooks`: other envs then answer with the defaults below.
    """

    # -- asked of the class, before there is a world -------------------------------------------------------------

    evaluation_options: ClassVar[dict[str, Any]] = {}
    """Constructor options that make the world judge as the published evaluation does. Evaluation and matches."""
    evaluation_steps: int | None = None
    """After how many steps the published evaluation judges an episode as it stands; None lets every episode end."""
    two_sided_options: ClassVar[dict[str, Any]] = {}
    """Constructor options that make both sides of a two-sided world agents, for those that could be bots, too. Play."""
    drawing_options: ClassVar[dict[str, dict[str, Any]]] = {}
    """Constructor options, mappings all, without which the world draws nothing. ``rlstack watch``."""
    tie_breaker: ClassVar[str] = "return"
    """The statistic that decides between two evaluations with the same success: more is better. For ``best.pt``."""
    observing: ClassVar[tuple[str, ...]] = ()
    """Functions (``package.module:function`` or ``...:Class.method``) that make what is seen of the worlds' state.
    ``rlstack diagnose`` tells their time from the rest of a step."""

    @staticmethod
    def evaluation_set(per_level: int, seed: int) -> tuple[Sequence[Any], Sequence[str]] | None:
        """The fixed episodes of evaluations; None where these are random ones.

        Returns:
            The argument of :meth:`reset_to`, and the name of each episode's level; ``per_level`` of each.
        """
        return None

    @staticmethod
    def episode_options(configs: Sequence[Any]) -> dict[str, Any]:
        """Constructor options that a world needs to start these episodes with :meth:`reset_to`. Evaluation."""
        return {}

    @staticmethod
    def load_episodes(path: str | Path) -> list[Any] | None:
        """Reads episodes for :meth:`reset_to` from a file; None for a world that cannot. ``rlstack evaluate``.

        Raises:
            ValueError: one line: the file holds something else.
        """
        return None

    replay_ending: ClassVar[str | None] = None
    """The ending of replays' names, such as ``.npz``; None for a world that has none. Leagues, ``rlstack watch``."""

    @staticmethod
    def load_replay(path: str | Path) -> EpisodeRecording:
        """Reads what :meth:`EpisodeRecording.save_replay` of this world has written.

        Raises:
            ValueError: one line: the file is missing, damaged, or no replay of this world.
        """
        raise NotImplementedError("this world has no replays")

    # -- asked of an env: what it is -----------------------------------------------------------------------------

    input_features: Callable[[], Any] | None = None
    """Makes a module without parameters that turns an observation ``[..., F]`` (or a dict of such) into the numbers a
    network should get; None: the observation itself. Agents with ``inputs: features``."""
    nearest_obstacle: Callable[[Any], Tensor] | None = None
    """The distance ``[...]`` in m of the nearest obstacle in an observation. Agents whose risk level follows it."""
    carries_memory: bool = False
    """A policy finds at the next step what it left under :data:`MEMORY`, zeros where an episode has ended.
    Recurrent policies, which keep it themselves where this is False."""
    saves_episodes: bool = False
    """A loaded state goes on within its episodes; False where simulators cannot be saved. Resumed training."""
    num_stages: int = 0
    """The number of stages of difficulty that :meth:`set_stage` knows, 0 for none. Curricula."""
    stage_names: tuple[str, ...] = ()
    """The names of these, where a curriculum may use them."""
    pictures_per_second: float = 20.0
    """The steps a second at which to watch a world that shows itself by :meth:`render` alone."""

    @property
    def innermost(self) -> Any:
        """The env itself, without the worlds around it that show it differently."""
        return self

    @property
    def total_steps(self) -> int:
        """The steps that all worlds have taken together, where a schedule needs the number. Collector workers."""
        return 0

    def count_on_from(self, steps: int) -> None:
        """Makes :attr:`total_steps` continue from a number, for schedules. Collector workers that replace others."""

    @property
    def worker_failures(self) -> int:
        """The number of processes that stepped simulators and have been replaced. The log of a training."""
        return 0

    # -- asked of an env: what it does ---------------------------------------------------------------------------

    def set_stage(self, stage: int) -> None:
        """Makes all worlds as hard as a stage of a curriculum asks, from now on; draws no random numbers.

        Args:
            stage: 0, the easiest, to ``num_stages - 1``.

        Raises:
            ValueError: the world has no such stage.
        """
        raise ValueError(f"{type(self).__name__} has no stage {stage}: it has none")

    def reset_to(self, configs: Sequence[Any]) -> TensorDictBase:
        """Starts given episodes, one in each of the first worlds; returns what ``reset`` does. Evaluation."""
        raise NotImplementedError(f"{type(self).__name__} cannot start given episodes")

    def set_noise_source(self, source: Any) -> None:
        """Takes the noise of what agents perceive from elsewhere, None for the world's own. Evaluation."""
        raise NotImplementedError(f"{type(self).__name__} has no noise that could come from elsewhere")

    def players(self) -> Mapping[str, Callable[[Any], Tensor]]:
        """Players that come with a world without sides, by name: functions of an observation ``[...]`` that return
        actions ``[...]``. ``rlstack evaluate`` and ``rlstack watch`` with ``policy=<name>``.
        """
        return {}

    def mirror(self) -> Mirror | str:
        """The mirror symmetry of its rules, or in words why there is none.

        Agents with ``symmetry: augment``, when they learn.
        """
        return "it declares no mirror"

    def sides(self) -> Sides | None:
        """The two sides that its agents are; None for a world without opponents. Play."""
        return None

    def tell(self, half_worlds: Tensor, exact: Tensor) -> None:
        """Takes the scripted players' choices for the next step that actions cannot express, see :class:`Told`. Play.

        Args:
            half_worlds: ``[n]``, 2 w + s for side s of world w.
            exact: ``[n, ...]``.
        """
        raise NotImplementedError(f"{type(self).__name__} takes actions alone")

    collect: Callable[[Act, int], TensorDict] | None = None
    """Takes T steps with a policy from where the worlds stand, for a batch ``[W, T]``; None unless the world makes many
    steps faster than one after another. The collector, on the CPU."""

    def recorder(self, worlds: Sequence[int], titles: Sequence[str] | None = None) -> EpisodeRecorder[Any, Any] | None:
        """Collects recordings of these worlds, which draw themselves; None for a world that has no recordings.

        Evaluation, leagues, ``rlstack watch``. Arguments as of :class:`~envs.recording.EpisodeRecorder`.
        """
        return None

    def render(self) -> Any:
        """A picture of the first world, uint8 ``[height, width, 3]``.

        Films of ``rlstack watch`` and of evaluations, for a world without recordings.
        """
        raise NotImplementedError(f"{type(self).__name__} draws no pictures")


def hooks_of(env: Any) -> WorldHooks:
    """The hooks of an env: those of the world that it is, or that TorchRL's transforms are around.

    Envs of other makes have the defaults. So have worlds behind ``ParallelEnv`` and ``SerialEnv``, which run in other
    processes, or not yet.
    """
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env if isinstance(env, WorldHooks) else WorldHooks()


# -- batched worlds ------------------------------------------------------------------------------------------------


class World(WorldHooks, EnvBase):
    """A batch of ``num_worlds`` independent worlds, ``batch_size [W]``.

    A subclass declares its specs (:meth:`declare_specs`), lists its options as constructor arguments, and implements
    :meth:`_advance` (one step for all worlds), :meth:`_restart` (a fresh start for some)
    and :meth:`_current` (their observations).
    Episode statistics, time limits and deactivation belong into the world: a transform around it would cost more than
    the simulation. On the CPU the process keeps the memory it frees, see :func:`keep_freed_memory`.

    A policy finds at the next step what it leaves under ``("next", "memory")`` or ``("next", "agents", "memory")``,
    ``[W, M]`` or ``[W, A, M]``: under ``"memory"`` or ``("agents", "memory")``, zeros once an episode has ended.

    A world is a context manager that closes it. ``reset(seed=...)`` takes one seed, or one for each world: see
    :meth:`_reset`. Every world plays actions of its spec: what :meth:`_chosen` makes of those that are not.

    Args:
        num_worlds: W.
        device: of state and outputs.
        dtype: of all floating-point tensors.
        seed: of the world's own generator, the only source of its randomness.
    """

    batch_locked = True
    carries_memory = saves_episodes = True
    clamps_actions: bool = True
    """Continuous actions beyond the spec's bounds become the bound; False where the rules know larger ones."""
    choices: Sequence[int] | None = None
    """The number of choices of each part of an action, where :meth:`rand_action` should draw allowed ones."""
    _pool: StartPool[Any] | None = None
    """Beginnings made in advance, which another seed makes worthless."""
    _begun = False
    _reader: tuple[bool, Reader] | None = None

    def __init__(self, num_worlds: int, device: torch.device | str, dtype: torch.dtype, seed: int | None) -> None:
        if num_worlds < 1:
            raise ValueError(f"num_worlds: {num_worlds} is not a positive number of worlds")
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
        """Sets the specs of a batch of worlds: what is given, a reward, and the flags of its end.

        Args:
            shown: ``observation [W, ...]`` and further entries; of several agents ``[W, A, ...]``, which get an entry
                ``active`` unless there is one.
            action: ``[W, ...]`` or ``[W, A, ...]``.
            statistics: names of what is known about an episode, ``("episode", name) [W, 1]``.
            agents: A, where there is the group ``agents``.
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
            return {name: flag_spec(*shape, 1, device=self.device) for name in ("done", "terminated", "truncated")}

        known = {name: number(self.num_worlds, 1) for name in statistics}
        if agents is not None and "active" not in shown:
            shown = {**shown, "active": flag_spec(*lead, device=self.device)}
        self.observation_spec = entries(shown, episode=Composite(known, shape=lead[:1], device=self.device))
        self.action_spec = action if agents is None else entries({"action": action})
        self.reward_spec = entries({"reward": number(*lead, 1)})
        self.done_spec = entries(flags(*lead), **({} if agents is None else flags(self.num_worlds)))

    @abstractmethod
    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        """Steps all worlds; returns everything that goes under ``"next"``."""

    @abstractmethod
    def _restart(self, worlds: Tensor | None) -> None:
        """Gives the worlds of an index tensor (None: all) a fresh start."""

    @abstractmethod
    def _current(self) -> TensorDict:
        """Observations and other root entries of all worlds in their present state, without the end flags."""

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Random actions; allowed ones where :attr:`choices` are declared and ``tensordict`` has an ``action_mask``."""
        where = (GROUP,) if GROUP in self.full_action_spec.keys() else ()  # noqa: SIM118
        mask = None if tensordict is None or self.choices is None else tensordict.get((*where, ACTION_MASK), None)
        if mask is None or tensordict is None or self.choices is None:
            return super().rand_action(tensordict)
        parts = mask.reshape(-1, mask.shape[-1]).split(list(self.choices), -1)
        # Where a mask allows nothing of a part, anything.
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
        """The actions of a step, for :meth:`_advance`: those of ``tensordict``, made valid by :mod:`envs.actions`.

        A dict of actions comes as a dict. With TorchRL's ``run_type_checks`` choices out of range raise an error.

        Raises:
            ValueError: an action of another shape than the spec's.
        """
        strict = self.run_type_checks
        if self._reader is None or self._reader[0] != strict:
            group = GROUP in self.full_action_spec.keys()  # noqa: SIM118
            key: Any = (GROUP, "action") if group else "action"
            read = reader(self.full_action_spec[key], f"{type(self).__name__}: action", self.clamps_actions, strict)
            self.__dict__["_reader"] = strict, lambda given: read(given.get(key))
        return self._reader[1](tensordict)  # type: ignore[index]

    def _reset(
        self, tensordict: TensorDictBase | None = None, *, seed: int | Sequence[int] | None = None, **_: Any
    ) -> TensorDict:
        """Resets as ``reset`` does.

        Args:
            tensordict: with a mask ``_reset [W, 1]``, only its worlds restart.
            seed: of the world's generator, as ``set_seed`` takes it; or a seed for each world: a world begins the same
                episode with the same seed, whatever the others' seeds and however many they are.

        Raises:
            ValueError: seeds that are not one for each world, or seeds and a mask.
        """
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self._begun = True
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
        return self._current()

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """One step; finished worlds restart. Same result as TorchRL's own version, without its bookkeeping."""
        self._check_begun()
        left = tensordict.get("next", None)
        following = self._advance(tensordict)
        if left is not None:
            hand_on(left, following)
        tensordict.set("next", following)
        finished = following.get("done")
        any_ended = self._begin_anew(finished[:, 0])
        root = self._current()
        for key in self.done_keys:
            value = following.get(key)
            root.set(key, value & ~finished.view(-1, *[1] * (value.dim() - 1)) if any_ended else value)
        if left is not None:
            hand_on(following, root, forget=True)
        return tensordict, root

    def _restart_seeded(self, seed: int | Sequence[int]) -> None:
        """Gives all worlds a fresh start from a seed, or each from its own."""
        if np.ndim(seed) == 0:
            self._set_seed(int(seed))  # type: ignore[arg-type]
            self._restart(None)
            return
        seeds = self._one_for_each(seed)  # type: ignore[arg-type]
        self._restart(None)
        for world, own in enumerate(seeds):
            self._set_seed(own)
            with nullcontext() if self._pool is None else self._pool.one_by_one():
                self._restart(torch.tensor([world], device=self.device))
        self._go_on_from(seeds)

    def _go_on_from(self, seeds: Sequence[int]) -> None:
        """Makes the random numbers that follow depend on the seeds of all worlds."""
        self._set_seed(int(np.random.SeedSequence(seeds).generate_state(1)[0]))

    def _one_for_each(self, seed: Sequence[int]) -> list[int]:
        seeds = [int(own) for own in seed]
        if len(seeds) != self.num_worlds or min(seeds) < 0:
            raise ValueError(f"seed: {len(seeds)} seeds for {self.num_worlds} worlds; give a number >= 0 for each")
        return seeds

    def _begin_anew(self, ended: Tensor) -> bool:
        """Gives worlds ``[W]`` bool a fresh start; False if there are none. It does not look where that would wait."""
        if not looks_are_free(self.device) and self._restart_where(ended):
            return True
        worlds = ended.nonzero()[:, 0]
        if len(worlds):
            self._restart(worlds)
        return len(worlds) > 0

    def _restart_where(self, ended: Tensor) -> bool:
        """Restarts worlds ``[W]`` bool as :meth:`_restart` does, without a look at which; False if it knows no way."""
        return False

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Restarts finished worlds; see :meth:`torchrl.envs.EnvBase.maybe_reset`."""
        kept = TensorDict({}, self.batch_size, self.device)  # a restart clears the flags
        hand_on(tensordict, kept, forget=True)
        tensordict = super().maybe_reset(tensordict)
        hand_on(kept, tensordict)
        return tensordict

    @property
    def _step_mdp(self) -> Callable[[TensorDictBase], TensorDictBase]:
        """TorchRL's way from a step to the next root, which passes on only the entries that specs name."""
        plain = super()._step_mdp

        def step_mdp(tensordict: TensorDictBase) -> TensorDictBase:
            root = plain(tensordict)
            hand_on(tensordict.get("next"), root)
            return root

        return step_mdp

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(raise_if_closed=False)

    def share(self, first: int, all_worlds: int, seed: int) -> None:
        """Makes these the worlds from number ``first`` on of ``all_worlds`` that several processes step together.

        Their random numbers are others than those of the worlds of other processes.

        Args:
            seed: of all worlds.
        """
        self.all_worlds = all_worlds
        self._set_seed(seed + first)

    def set_stage(self, stage: int) -> None:
        """See :meth:`WorldHooks.set_stage`."""
        if not 0 <= stage < self.num_stages:
            known = f"it has {self.num_stages}, the first is 0" if self.num_stages else "it has none"
            raise ValueError(f"{type(self).__name__} has no stage {stage}: {known}")
        self._enter_stage(stage)

    def _enter_stage(self, stage: int) -> None:
        """Does the work of :meth:`set_stage`, in a world that has stages."""
        raise NotImplementedError

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.generator.manual_seed(seed)
        if self._pool is not None:
            self._pool.clear()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Everything needed to continue exactly here: nested dict of tensors and numbers."""
        return {"generator": self.generator.get_state(), **self._state_to_save()}

    def load_state_dict(self, state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Restores :meth:`state_dict`. The next full ``reset()``, such as a new collector's, continues the worlds."""
        self.generator.set_state(state_dict["generator"].cpu())
        self._load_state(state_dict)
        self._begun = self._continue_after_load = True

    @abstractmethod
    def _state_to_save(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load_state(self, state: dict[str, Any]) -> None: ...


def flag_spec(*shape: int, device: torch.device | None) -> Binary:
    """The spec of true or false."""
    return Binary(n=shape[-1], shape=shape, dtype=torch.bool, device=device)


def check_within(name: str, value: float, low: float, high: float, unit: str = "") -> None:
    """Refuses an option's number.

    Raises:
        ValueError: it is not finite, or outside of ``[low, high]``.
    """
    if not low <= value <= high:
        raise ValueError(f"{name}: {value:g} is outside [{low:g}, {high:g}]{f' {unit}' if unit else ''}")


def hand_on(source: TensorDictBase, target: TensorDictBase, forget: bool = False) -> None:
    """Copies a policy's recurrent state into another tensordict.

    Args:
        forget: zeros where the episode of a world, or an agent's own, is ``done`` in the source.
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
