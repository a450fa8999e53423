"""The base class of wrappers of worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from ..recording import EpisodeRecorder
from ..world import GROUP, Mirror, Sides, World


class Wrapper(World):
    """A world that presents another one, ``inner``, in another form.

    It forwards attributes that it lacks to the inner world, so that recorders and evaluations find what they need.
    """

    inner: World

    def __init__(self, inner: World) -> None:
        super().__init__(inner.num_worlds, inner.device, inner.float_dtype, None)
        self.inner = inner
        self.saves_episodes, self.pictures_per_second = inner.saves_episodes, inner.pictures_per_second
        self.num_stages, self.stage_names = inner.num_stages, inner.stage_names
        self.evaluation_steps = inner.evaluation_steps
        self.input_features, self.nearest_obstacle = inner.input_features, inner.nearest_obstacle
        self.generator = inner.generator
        self.observation_spec = inner.observation_spec.clone()
        self.action_spec = inner.full_action_spec.clone()
        self.reward_spec = inner.full_reward_spec.clone()
        self.done_spec = inner.full_done_spec.clone()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or name == "inner":
                raise
            return getattr(self.inner, name)

    # -- hooks of the inner world ----------------------------------------------------------------------------------

    @property
    def innermost(self) -> Any:
        """See :class:`~rlstack.envs.world.WorldHooks`, also for the following methods."""
        return self.inner.innermost

    @property
    def run_type_checks(self) -> bool:
        return self.inner.run_type_checks

    @run_type_checks.setter
    def run_type_checks(self, value: bool) -> None:
        if hasattr(self, "inner"):  # the base class sets it before it exists
            self.inner.run_type_checks = value

    @property
    def phase(self) -> Any:
        return self.inner.phase

    def make_ready(self, steps: int) -> None:
        self.inner.make_ready(steps)

    @property
    def total_steps(self) -> int:
        return self.inner.total_steps

    def count_on_from(self, steps: int) -> None:
        self.inner.count_on_from(steps)

    @property
    def worker_failures(self) -> int:
        return self.inner.worker_failures

    def set_noise_source(self, source: Any) -> None:
        self.inner.set_noise_source(source)

    def players(self) -> Mapping[str, Callable[[Any], Tensor]]:
        return self.inner.players()

    def mirror(self) -> Mirror | str:
        return self.inner.mirror()

    def sides(self) -> Sides | None:
        return self.inner.sides()

    def tell(self, half_worlds: Tensor, exact: Tensor) -> None:
        self.inner.tell(half_worlds, exact)

    def recorder(self, worlds: Sequence[int], titles: Sequence[str] | None = None) -> EpisodeRecorder[Any, Any] | None:
        return self.inner.recorder(worlds, titles)

    def render(self) -> Any:
        return self.inner.render()

    def reset_to(self, configs: Sequence[Any]) -> TensorDictBase:
        """Starts given episodes, as the inner world does."""
        start = self.inner.reset_to(configs)
        self._show_anew(None)
        self._begun = True
        return self._current().update(start.select(*self.done_keys))

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Draws random actions as the inner world does, which may respect masks."""
        return self.inner.rand_action(tensordict)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes the inner world too."""
        super().close(raise_if_closed=raise_if_closed)
        self.inner.close(raise_if_closed=raise_if_closed)

    def _show_anew(self, worlds: Tensor | None) -> None:
        """Updates the entries of restarted worlds, given by an index tensor (None: all)."""

    def _restart(self, worlds: Tensor | None) -> None:
        self.inner._begun = True
        self.inner._restart(worlds)
        self._show_anew(worlds)

    def _restart_seeded(self, seed: int | Sequence[int]) -> None:
        self.inner._begun = True
        self.inner._restart_seeded(seed)
        self._show_anew(None)

    def _enter_stage(self, stage: int) -> None:
        self.inner.set_stage(stage)

    def share(self, first: int, all_worlds: int, seed: int) -> None:
        """See :meth:`World.share`."""
        self.all_worlds = all_worlds
        self.inner.share(first, all_worlds, seed)

    def _set_seed(self, seed: int | None) -> None:
        if hasattr(self, "inner"):  # the base class seeds before it exists
            self.inner._set_seed(seed)

    def _state_to_save(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def _load_state(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self.inner._continue_after_load = False  # this world decides about restarts

    def _loaded(self, entries: dict[str, Any]) -> TensorDict:
        """Returns saved root entries as copies."""
        lead = [self.num_worlds]
        loaded = TensorDict(entries, lead, self.device).clone()
        if GROUP in loaded.keys():  # noqa: SIM118
            loaded.get(GROUP).batch_size = self.observation_spec[GROUP].shape
        return loaded


def replaced(entries: TensorDict, worlds: Tensor, fresh: TensorDict) -> TensorDict:
    """Returns the entries with those of some worlds replaced; not in place, since batches refer to the tensors."""
    return entries.apply(lambda old, new: old.index_copy(0, worlds, new[worlds]), fresh)


def mapped(spec: TensorSpec, function: Callable[[TensorSpec], TensorSpec]) -> TensorSpec:
    """Applies a function to every leaf of a spec, keeping the nesting."""
    if not isinstance(spec, Composite):
        return function(spec)
    leaves = {key: mapped(entry, function) for key, entry in spec.items()}
    return Composite(leaves, shape=spec.shape, device=spec.device)
