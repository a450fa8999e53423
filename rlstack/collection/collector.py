"""TorchRL's collector with every default made explicit."""

from __future__ import annotations

from typing import Any

from tensordict.nn import TensorDictModuleBase
from torchrl.collectors import Collector
from torchrl.envs import EnvBase


def make_collector(
    env: EnvBase,
    policy: TensorDictModuleBase,
    steps_per_batch: int = 16,
    total_frames: int = -1,
    **options: Any,
) -> Collector:
    """A collector over a batched env; iterate over it for batches ``[W, steps_per_batch]``.

    Args:
        env: a built env of batch size ``[W]`` (any TorchRL ``EnvBase``).
        policy: tensordict in, tensordict with actions out, on the env's device.
        steps_per_batch: env steps per world and batch.
        total_frames: stop after this many world steps (W per step); -1 never stops.
        options: passed to :class:`torchrl.collectors.Collector`.

    Example:
        >>> env = envs.make("marinenav", num_worlds=64)
        >>> agent = rlstack.make_agent("acqn", env)
        >>> frames = 0
        >>> for batch in rlstack.make_collector(env, agent.policy(explore=True), total_frames=64 * 160):
        ...     sequences = rlstack.flatten_agents(batch)
        ...     frames += int(sequences["active"].sum())
        ...     metrics = agent.learn(sequences, frames)
    """
    settings: dict[str, Any] = {
        # Trajectory ids cost a third of a step; episodes end inside the env, which reports their statistics.
        "track_traj_ids": False,
        "auto_register_policy_transforms": False,
        # Steps are stacked once at the end of a batch instead of being copied into a buffer one by one.
        "use_buffers": False,
        "trust_policy": True,
    }
    return Collector(
        env,
        policy,
        frames_per_batch=env.batch_size.numel() * steps_per_batch,
        total_frames=total_frames,
        **{**settings, **options},
    )
