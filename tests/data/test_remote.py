"""Workers and what is sent to them, in one process; TorchRL's collectors of them are in ``tests/training``."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import envs
import rlstack
from rlstack.agents import Agent, make_agent
from rlstack.data.remote import ATTEMPTS, CollectorFailed, RemoteCollector
from rlstack.data.workers import Share, Worker, act_as, acting_state, from_file, joined, to_arrays, to_file

WORLDS, STEPS = 4, 8


class Here:
    """Two workers that obey in this process, for as long as nothing is to happen to them."""

    def __init__(self, makers: list[Any], trouble: Callable[[], None], **options: Any) -> None:
        self._trouble, self.open = trouble, True
        options = {**options, "frames_per_batch": options["frames_per_batch"] // len(makers)}
        self.workers = [Worker(make, **options) for make in makers]

    def map_fn(self, name: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        self._trouble()
        if not self.open:  # ended while it hung: it must not go on with the random numbers of this process
            raise EOFError
        return [getattr(worker, name)(*given) for worker, given in zip(self.workers, arguments)]

    def shutdown(self) -> None:
        self.open = False


def agent_for(env: Any, seed: int = 3, **options: Any) -> Agent:
    torch.manual_seed(seed)
    return make_agent("ppo", env, hidden=[8], **options)


def cartpole(first: int | None, seed: int) -> Any:
    count = WORLDS if first is None else WORLDS // 2
    world = envs.make("gymnasium", id="CartPole-v1", num_envs=count, workers=0, seed=seed)
    if first is not None:
        world.share(first, WORLDS, seed)
    return world


def share(first: int, seed: int) -> Share:
    env = cartpole(first, seed)
    return Share(env, agent_for(env, seed=99), first, WORLDS)


def collector(
    agent: Agent, trouble: Callable[[], None] = lambda: None, make: Any = share, timeout: float = 60.0, **options: Any
) -> tuple[RemoteCollector, list[Here]]:
    started: list[Here] = []

    def start(makers: list[Any], collector_class: type, weight_sync_schemes: Any, **more: Any) -> Here:
        assert collector_class is Worker and weight_sync_schemes == {}
        started.append(Here(makers, trouble, **more))
        return started[-1]

    makers = [partial(make, 0), partial(make, WORLDS // 2)]
    return RemoteCollector(start, makers, WORLDS * STEPS, agent, lambda: None, 5, timeout, **options), started


def test_workers_explore_by_random_numbers_of_their_own() -> None:
    agent = agent_for(cartpole(None, 5))
    batches = [next(iter(collector(agent)[0])) for _ in range(2) if torch.manual_seed(7)]
    assert batches[0].batch_size == (WORLDS, STEPS)
    assert torch.equal(batches[0]["action"], batches[1]["action"])
    one, other = batches[0]["action"].split(WORLDS // 2)
    assert not torch.equal(one, other)


def test_worlds_begin_anew_when_told_to_and_go_on_from_a_state() -> None:
    agent = agent_for(cartpole(None, 5))
    remote, _ = collector(agent)
    batches = iter(remote)
    next(batches)
    assert next(batches)["observation"][:, 0].abs().max() > 0.05
    remote.reset()
    assert next(batches)["observation"][:, 0].abs().max() <= 0.05  # where CartPole's episodes begin
    again, _ = collector(agent, saved=remote.worlds())
    assert [state["total_steps"] for state in again.worlds()] == [3 * STEPS * WORLDS // 2] * 2


def test_a_copy_acts_as_the_learner() -> None:
    env = envs.make("gymnasium", id="Pendulum-v1", num_envs=WORLDS, workers=0, seed=1)
    recurrent = {"kind": "gru", "size": 4, "layers": 1, "sequence_length": 4}
    options = {"normalize_observations": True, "normalize_rewards": True, "recurrent": recurrent}
    agent, copy = agent_for(env, 1, **options), agent_for(env, 2, **options)
    for frames, batch in enumerate(rlstack.make_collector(env, agent.policy(explore=True), STEPS), 1):
        agent.learn(rlstack.flatten_agents(batch, None), frames * WORLDS * STEPS)
        if frames == 2:
            break
    vars(agent)["restored"] = torch.rand(WORLDS, 8)
    act_as(copy, acting_state(agent))
    shown = env.reset()
    acted = []
    for one in (agent, copy):
        torch.manual_seed(4)
        acted.append(one.policy(explore=True)(shown.clone()))
    for key in ("action", "raw_action", "log_prob", "memory", ("next", "memory")):
        assert torch.equal(acted[0][key], acted[1][key]), key
    assert (copy.frames, copy.updates) == (agent.frames, agent.updates) != (0, 0)


def test_batches_keep_their_layout_on_the_way() -> None:
    inner = TensorDict({"reward": torch.rand(2, 3, 5, 1), "active": torch.ones(2, 3, 5, dtype=torch.bool)}, [2, 3, 5])
    batch = TensorDict({"agents": inner, "done": torch.zeros(2, 3, 1, dtype=torch.bool)}, [2, 3])
    whole = joined([to_arrays(batch), to_arrays(batch)], torch.device("cpu"))
    assert whole.batch_size == (4, 3) and whole["agents"].batch_size == (4, 3, 5)
    assert (whole == torch.cat((batch, batch))).all()


def test_states_of_worlds_come_back() -> None:
    state = {"generator": torch.arange(3), "steps": 4, "nested": {"x": torch.rand(2)}}
    again = from_file(to_file(state))
    assert torch.equal(again["nested"]["x"], state["nested"]["x"]) and again["steps"] == 4  # type: ignore[index]


# -- workers that are lost -----------------------------------------------------------------------------------------


def test_workers_that_die_are_replaced_and_their_worlds_begin_anew() -> None:
    agent = agent_for(cartpole(None, 5), normalize_rewards=True)
    dead = iter([False, False, True, *[False] * 9])

    def trouble() -> None:
        if next(dead):
            raise RuntimeError("a long story\nthe process has died")

    remote, started = collector(agent, trouble)
    batches = iter(remote)
    next(batches)
    assert agent.reward_scaler is not None
    agent.reward_scaler.returns = torch.ones(WORLDS, dtype=torch.float64)
    batch = next(batches)
    assert batch.batch_size == (WORLDS, STEPS) and remote.worker_failures == 1
    assert [one.open for one in started] == [False, True]
    assert not agent.reward_scaler.returns.any(), "the learner's episodes have ended, too"
    seeds = [one.workers[0]._share.env.generator.initial_seed() for one in started]
    assert seeds[0] != seeds[1], "not the same episodes again"
    remote.shutdown()
    assert not started[1].open


def test_schedules_by_steps_go_on_in_new_workers() -> None:
    def make(seed: int) -> Share:
        env = envs.make("marinenav", num_worlds=2, seed=seed)
        return Share(env, make_agent("ppo", env, hidden=[8]), 0, 2)

    worker = Worker(make, 8)
    assert worker.obey("begin", 1, 500) == {"done": None}
    _, _, steps = worker.obey("collect", acting_state(worker._share.agent), torch.get_rng_state().numpy(), None)["done"]
    assert steps == 500 + 4 * 2


def test_workers_that_hang_are_replaced() -> None:
    waits = iter([0.0, 5.0, 0.0, 0.0])
    remote, started = collector(agent_for(cartpole(None, 5)), lambda: time.sleep(next(waits)), timeout=2.0)
    begun = time.monotonic()
    assert next(iter(remote)).batch_size == (WORLDS, STEPS)
    assert remote.worker_failures == 1 and len(started) == 2 and time.monotonic() - begun < 4.5


def test_workers_that_die_again_and_again_end_the_run() -> None:
    calls = iter(range(99))

    def trouble() -> None:
        if next(calls):
            raise EOFError

    remote, started = collector(agent_for(cartpole(None, 5)), trouble)
    with pytest.raises(CollectorFailed, match=f"replaced {ATTEMPTS} times in vain: EOFError"):
        next(iter(remote))
    assert len(started) == ATTEMPTS + 1 and not any(one.open for one in started)


def test_workers_that_do_not_begin_end_the_run() -> None:
    def trouble() -> None:
        raise RuntimeError("no room")

    with pytest.raises(CollectorFailed, match="workers do not begin: no room"):
        collector(agent_for(cartpole(None, 5)), trouble)


def test_a_mistake_in_a_worker_ends_the_run_with_its_traceback() -> None:
    def broken(first: int, seed: int) -> Share:
        raise KeyError("wheel")

    with pytest.raises(CollectorFailed, match="KeyError: 'wheel'") as caught:
        collector(agent_for(cartpole(None, 5)), make=broken)
    assert "in broken" in caught.value.traceback


def test_a_world_that_ends_the_program_is_a_mistake_of_its_own() -> None:
    class Ends(Worker):
        def __init__(self) -> None:
            self._share: Any = Share(SimpleNamespace(), None, 0, 1)  # type: ignore[arg-type]

        def collect(self, *_: Any) -> Any:
            sys.exit(0)

    reason, trace = Ends().obey("collect")["failed"]
    assert re.fullmatch(r"SimpleNamespace called sys\.exit\(0\) in test_remote\.py:\d+", reason)
    assert "in collect" in trace
