"""TorchRL's collector with explicit defaults, and with a lean loop where nothing has to move between devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import Collector
from torchrl.envs import EnvBase
from torchrl.envs.utils import RandomPolicy, set_exploration_type

from rlstack.envs.foundation.tensors import unchecked
from rlstack.envs.world import World

from .graphs import Recorded, own

LEAN: dict[str, Any] = {
    # Trajectory ids cost a third of a step; episodes end inside the env, which reports their statistics.
    "track_traj_ids": False,
    "auto_register_policy_transforms": False,
    # Steps are stacked once at the end of a batch, into new tensors: no buffer, and no copy of what is yielded.
    "use_buffers": False,
    "return_same_td": True,
    "trust_policy": True,
}

_NEED: dict[str, dict[str, Any]] = {
    "replay_buffer": {"return_same_td": False},
    "split_trajs": {"track_traj_ids": True},
    "trajs_per_batch": {"track_traj_ids": True},
}
"""Options of TorchRL's collector that it refuses beside those in ``LEAN``, and what they need."""


class LeanCollector(Collector):
    """A ``Collector`` whose inner loop only acts, steps and stacks.

    TorchRL's own loop also handles device changes, hooks, trajectory ids and replay buffers, which costs more than a
    step of a few small worlds. The batches are the same. On a GPU the steps of a :class:`~rlstack.envs.world.World` are
    recorded, all of a batch as one CUDA graph, if it is :attr:`~rlstack.envs.world.World.recordable`.

    Attributes:
        records: whether to record steps. None records them if the policy is random, or if its method ``phase`` returns
            everything besides tensors that its actions depend on, as the policies of agents do.
        lends: whether a recorded batch is lent: the next one is written into the same tensors.
        collected: number of frames so far.
    """

    _carrier: TensorDictBase
    together: Callable[[Any], TensorDictBase | None] | None = None
    """Where the worlds of several agents step as one batch, collects this agent's; returns None if it is to be made
    alone."""
    records: bool | None = None
    lends = False
    collected = 0

    def iterator(self) -> Iterator[TensorDictBase]:
        """Yields batches until ``total_frames``."""
        while self.collected < self.total_frames:
            batch = self.rollout()
            self.collected += batch.numel()
            yield batch

    @torch.no_grad()
    def rollout(self) -> TensorDictBase:
        """Returns a batch ``[*env.batch_size, steps]``."""
        policy: Any = self.policy
        if self.together is not None and (batch := self.together(self)) is not None:
            return batch
        with set_exploration_type(self.exploration_type):
            env = self.env
            if not isinstance(env, World):
                return self._steps()
            on_cpu = env.device is not None and env.device.type == "cpu"
            if env.collect is not None and on_cpu and hasattr(policy, "entries"):
                return env.collect(policy.entries, self.frames_per_batch)
            env.make_ready(self.frames_per_batch)
            known = hasattr(policy, "phase") or isinstance(policy, RandomPolicy)
            if not env.recordable or not (known if self.records is None else self.records):
                return self._steps()
            batch = self._recorded(self.exploration_type, getattr(policy, "phase", None), env.phase)
            return batch if self.lends or not self._recorded.replays else own(batch)

    @property
    def carrier(self) -> TensorDictBase:
        """The root entries of the next step, ``[W]``."""
        return self._carrier

    @carrier.setter
    def carrier(self, root: TensorDictBase) -> None:
        self._carrier = root

    def _steps(self, *_phases: Any) -> TensorDictBase:
        """Makes the steps of a batch; where a policy or a world has several phases, each has its own recording."""
        carrier, env, policy, steps = self._carrier.copy(), self.env, self.policy, []
        for _ in range(self.frames_per_batch):
            done, carrier = env.step_and_maybe_reset(policy(carrier))
            steps.append(done)
        self._carrier = carrier
        return stack_steps(steps, len(env.batch_size))

    @cached_property
    def _recorded(self) -> Recorded:
        return Recorded(self._steps, "collecting a batch", (self,), self.env.device)

    def state_dict(self) -> Any:
        """Returns TorchRL's state: those of the policy and of transforms, and the number of frames."""
        return {**super().state_dict(), "frames": self.collected}

    def load_state_dict(self, state_dict: Any, **options: Any) -> None:
        """Restores a state, which has no ``policy_state_dict`` if the policy has none, such as a random one."""
        options = options if "policy_state_dict" in state_dict else {**options, "strict": False}
        super().load_state_dict(state_dict, **options)
        self.collected = state_dict["frames"]


def stack_steps(steps: list[TensorDictBase], dim: int) -> TensorDict:
    """Stacks tensordicts of the same keys along a new dimension, as ``torch.stack`` does, but faster."""
    columns = [dict(step.items()) for step in steps]
    stacked: dict[str, Any] = {}
    for key, first in columns[0].items():
        values = [column[key] for column in columns]
        stacked[key] = stack_steps(values, dim) if isinstance(first, TensorDictBase) else torch.stack(values, dim)
    size = steps[0].batch_size
    return unchecked(stacked, batch_size=torch.Size((*size[:dim], len(steps), *size[dim:])), device=steps[0].device)


def make_collector(
    env: EnvBase,
    policy: TensorDictModuleBase,
    steps_per_batch: int = 16,
    total_frames: int = -1,
    policy_device: torch.device | str | None = None,
    **options: Any,
) -> Collector:
    """Returns a collector over a batched env; iterate over it for batches ``[W, steps_per_batch]``.

    Args:
        env: a built env of batch size ``[W]`` (any TorchRL ``EnvBase``).
        policy: takes a tensordict and returns it with actions.
        steps_per_batch: env steps per world and batch.
        total_frames: number of world steps (W per env step) after which it stops; -1 for no limit.
        policy_device: device of the policy and the batches; None for the env's device.
        options: passed to :class:`torchrl.collectors.Collector`, whose own loop is then used.

    Raises:
        TypeError: the policy is one of torch's own layers or their ``Sequential``, which take tensors, or ``options``
            have ``frames_per_batch``.

    Example:
        >>> env = envs.make("marinenav", num_worlds=64)
        >>> agent = rlstack.make_agent("acqn", env)
        >>> frames = 0
        >>> for batch in rlstack.make_collector(env, agent.policy(explore=True), total_frames=64 * 160):
        ...     sequences = rlstack.flatten_agents(batch)
        ...     frames += int(sequences["active"].sum())
        ...     metrics = agent.learn(sequences, frames)
    """
    if steps_per_batch < 1:
        raise ValueError(f"steps_per_batch: {steps_per_batch} is not a positive number of steps")
    if "frames_per_batch" in options:
        raise TypeError("frames_per_batch: give steps_per_batch, the steps of each world in a batch")
    if type(policy).__module__.startswith("torch.nn.modules."):  # a layer, or a sequence of layers
        fault = f"{type(policy).__name__} takes tensors"
        raise TypeError(f"policy: {fault}; wrap it in a tensordict.nn.TensorDictModule, which names its keys")
    if policy_device is not None:
        policy_device = torch.device(policy_device)
        if policy_device.type == "cuda":  # with its number: elsewhere TorchRL copies the policy
            policy_device = torch.empty(0, device=policy_device).device
    if policy_device not in (None, env.device):
        options |= {"env_device": env.device, "policy_device": policy_device, "storing_device": policy_device}
    for name, needed in _NEED.items():
        if options.get(name) not in (None, False):
            options = needed | options
    kind = Collector if options else LeanCollector
    return kind(
        env,
        policy,
        frames_per_batch=env.batch_size.numel() * steps_per_batch,
        total_frames=total_frames,
        **{**LEAN, **options},
    )
