"""The collector compared with a plain loop over the env, in MarineNav and in a small test world."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import EnvBase
from torchrl.modules import ProbabilisticActor

from rlstack import envs
from rlstack.agents.base import Policy
from rlstack.agents.interface import Interface
from rlstack.data.collector import make_collector
from tests.evaluation.scripted import Countdown
from tests.exhaustive import exhaustive

STEPS, BATCHES = 7, 4


def countdown() -> EnvBase:
    """Three worlds whose episodes take 3, 4 and 5 steps."""
    return Countdown(3, last=3)


def marinenav(num_worlds: int, **options: Any) -> EnvBase:
    return envs.make("marinenav", num_worlds=num_worlds, num_robots=2, max_steps=5, seed=11, **options)


def steering(env: EnvBase) -> Policy:
    """A policy without randomness."""
    return Policy(Interface.of(env), lambda observation: observation["self"][..., :2].sin())


def idle(env: EnvBase) -> Policy:
    return Policy(Interface.of(env), lambda observation: torch.zeros_like(observation[..., :1]))


def collect(env: EnvBase, policy: Policy) -> TensorDict:
    """Returns ``[W, STEPS * BATCHES]`` from the collector, and overwrites each batch before the next."""
    collector = make_collector(env, policy, STEPS, total_frames=env.batch_size.numel() * STEPS * BATCHES)
    batches = []
    for batch in collector:
        assert batch.shape == (*env.batch_size, STEPS)
        batches.append(batch.clone())
        batch.zero_()
    collector.shutdown(close_env=False)
    assert len(batches) == BATCHES
    return torch.cat(batches, dim=-1)


def by_hand(env: EnvBase, policy: Policy) -> TensorDict:
    """Returns the same steps by TorchRL's own step and masked reset, copied immediately."""
    root, steps = env.reset(), []
    for _ in range(STEPS * BATCHES):
        done, root = EnvBase.step_and_maybe_reset(env, policy(root.clone()))
        steps.append(done.clone())
    return torch.stack(steps, dim=-1)


def assert_same(ours: TensorDict, expected: TensorDict) -> None:
    keys = set(ours.keys(True, True)) - {("collector", "traj_ids")}
    assert keys == set(expected.keys(True, True))
    for key in keys:
        assert torch.equal(ours[key], expected[key]), key


@exhaustive(
    ("made", "policy"),
    [(countdown, idle), (partial(marinenav, 4), steering), (partial(marinenav, 1), steering)],
    quick=2,
)
def test_batches_are_those_of_a_plain_loop(made: Callable[[], EnvBase], policy: Any) -> None:
    env, twin = made(), made()
    ours = collect(env, policy(env))
    assert ours["next", "done"].sum() >= env.batch_size.numel() * 4
    assert_same(ours, by_hand(twin, policy(twin)))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"num_worlds": 1, "num_robots": 2}, {"num_worlds": 3, "num_robots": 1}])
def test_a_restart_does_not_reach_back_into_the_batch(options: dict[str, int]) -> None:
    """The values of a step do not change when the simulation restarts in place."""
    crowd = {"num_obstacles": 8, "min_start_goal_dis": 25.0, "max_steps": 200, "seed": 2}
    env = envs.make("marinenav", **{**crowd, **options})
    collector = make_collector(env, steering(env), 1200)
    batch = next(iter(collector))
    collector.shutdown(close_env=False)
    done = batch["next", "done"][..., 0] & ~batch["next", "truncated"][..., 0]
    assert done.any()
    assert not batch["next", "agents", "active"][done].any()


def test_the_policy_is_used_as_it_is_now() -> None:
    env = countdown()
    scale = torch.zeros(())
    collector = make_collector(env, Policy(Interface.of(env), lambda o: torch.zeros(3, 1) + scale), STEPS)
    batches = iter(collector)
    assert (next(batches)["action"] == 0).all()
    scale.fill_(0.5)
    assert (next(batches)["action"] == 0.5).all()
    collector.shutdown(close_env=False)


def test_a_probabilistic_actor_draws_its_actions() -> None:
    """As in TorchRL's own collector, by default; outside a collector, such an actor is deterministic."""
    torch.manual_seed(0)
    network = TensorDictModule(
        lambda seen: (seen[..., :1] * 0, seen[..., :1] * 0 + 1), ["observation"], ["loc", "scale"]
    )
    actor = ProbabilisticActor(network, ["loc", "scale"], distribution_class=torch.distributions.Normal)
    collector = make_collector(countdown(), actor, 50)
    assert next(iter(collector))["action"].std() > 0.5
    collector.shutdown(close_env=False)


def test_batches_go_to_a_replay_buffer() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(30, ndim=2))
    env = countdown()
    collector = make_collector(env, idle(env), STEPS, total_frames=3 * STEPS, replay_buffer=buffer)
    assert list(collector) == [None]
    assert torch.equal(buffer[:]["observation"], by_hand(countdown(), idle(env))["observation"][:, :STEPS])
    collector.shutdown(close_env=False)


def test_whole_trajectories() -> None:
    """Of worlds whose episodes take 3, 4 and 5 steps, those of a batch of seven, and the first three that end."""
    lengths = []
    for options in ({"split_trajs": True}, {"trajs_per_batch": 3, "traj_format": "padded"}):
        env = countdown()
        collector = make_collector(env, idle(env), STEPS, total_frames=3 * STEPS, **options)
        lengths.append(sorted(next(iter(collector))["collector", "mask"].sum(-1).tolist()))
        collector.shutdown(close_env=False)
    assert lengths[0] == [1, 2, 3, 3, 3, 4, 5]
    assert len(lengths[1]) == 3 and set(lengths[1]) <= {3, 4, 5}


def test_a_device_by_its_name() -> None:
    env = countdown()
    collector = make_collector(env, idle(env), STEPS, policy_device="cpu")
    assert next(iter(collector)).device == torch.device("cpu")
    collector.shutdown(close_env=False)


def test_what_a_collector_cannot_take_is_named() -> None:
    env = envs.make("cartpole", num_worlds=2)
    with pytest.raises(TypeError, match="frames_per_batch: give steps_per_batch"):
        make_collector(env, env.rand_action, frames_per_batch=4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="policy: Linear takes tensors; wrap it in a tensordict"):
        make_collector(env, torch.nn.Linear(4, 2))  # type: ignore[arg-type]
    policy = torch.compile(TensorDictModule(lambda seen: (seen[:, 0] > 0).long(), ["observation"], ["action"]))
    make_collector(env, policy, 4).shutdown()


@pytest.mark.parametrize("policy", [None, lambda tensordict: tensordict.set("action", torch.ones(3, 1))])
def test_a_collector_with_a_policy_without_parameters_restores_its_state(policy: Any) -> None:
    one, other = (make_collector(countdown(), policy, STEPS) for _ in range(2))
    next(iter(one))
    other.load_state_dict(one.state_dict())
    assert other.state_dict()["frames"] == one.state_dict()["frames"] == 3 * STEPS
