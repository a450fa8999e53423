"""Workers and their learner in one process; TorchRL's own collectors of them are in ``test_remote_collectors``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

import rlstack
from rlstack import envs
from rlstack.agents import Agent, make_agent
from rlstack.training import workers
from rlstack.training.workers import ATTEMPTS, CollectorFailed, RemoteCollector, WorkerCollector, WorkerPolicy
from tests.recorded_worlds import Crowd
from tests.refusals import refused

WORLDS, STEPS, TOTAL = 2, 8, 4
CPU = torch.device("cpu")
LEVELS = {"timesteps": None, "num_robots": [2, 2, 2], "num_cores": [0] * 3, "num_obstacles": [0, 1, 2]}
LEVELS["min_start_goal_dis"] = [30.0] * 3
MEMORY = {"recurrent": {"kind": "gru", "size": 4, "layers": 1, "sequence_length": 4}}


class Here:
    """Two workers in this process, with the part of TorchRL's collectors that the learner uses."""

    def __init__(
        self, policy: WorkerPolicy, seed: int, steps: int, sync: Any, errors: str, make: Any, trouble: Any
    ) -> None:
        self.seed, self.steps, self.open, self._trouble = seed, steps, True, trouble
        make_worker = partial(WorkerCollector, frames_per_batch=WORLDS * STEPS, errors=errors)
        self._trouble()
        makers = [partial(make, seed + index) for index in (0, 1)]
        self.workers = [make_worker(maker, deepcopy(policy), worker_idx=index) for index, maker in enumerate(makers)]
        self._batches = [iter(worker) for worker in self.workers]

    def update_policy_weights_(self, weights: TensorDict) -> None:
        for worker in self.workers:
            TensorDict.from_module(worker.policy).data.update_(weights)

    def __iter__(self) -> Iterator[TensorDictBase]:
        while True:
            self._trouble()
            if not self.open:  # ended while it hung: it must not go on with the random numbers of this process
                raise EOFError
            yield torch.cat([next(batches).clone() for batches in self._batches])

    def reset(self) -> None:
        for worker in self.workers:
            worker.reset()

    def state_dict(self) -> dict[str, Any]:
        return {f"worker{index}": worker.state_dict() for index, worker in enumerate(self.workers)}

    def shutdown(self) -> None:
        self.open = False

    procs = ()


def cartpole(seed: int) -> Any:
    return envs.make("gymnasium", id="CartPole-v1", num_envs=WORLDS, workers=0, seed=seed)


def crowd(seed: int) -> Any:
    torch.manual_seed(seed)
    return Crowd(WORLDS, seed=seed)


def levels(seed: int) -> Any:
    return envs.make("marinenav", num_worlds=WORLDS, num_robots=2, max_steps=6, seed=seed, curriculum=LEVELS)


def learner(make: Callable[[int], Any] = cartpole, **options: Any) -> Agent:
    torch.manual_seed(3)
    return make_agent("ppo", make(0), hidden=[8], **options)


def collector(
    agent: Agent,
    make: Callable[[int], Any] = cartpole,
    trouble: Callable[[], None] = lambda: None,
    kind: type[Here] = Here,
    level: Callable[[], int | None] = lambda: None,
    **options: Any,
) -> tuple[RemoteCollector, list[Here]]:
    started: list[Here] = []

    def start(*given: Any) -> Callable[[], Here]:
        def begin() -> Here:
            started.append(kind(*given, make, trouble))
            return started[-1]

        return begin

    options = {"timeout": 60.0, **options}
    return RemoteCollector(start, agent, CPU, 2, level, 5, **options), started


def worker(make: Callable[[int], Any], agent: Agent, **options: Any) -> WorkerCollector:
    policy = WorkerPolicy(deepcopy(agent.policy(explore=True)), CPU)
    return WorkerCollector(partial(make, 5), policy, frames_per_batch=WORLDS * STEPS, worker_idx=1, **options)


# -- a worker ------------------------------------------------------------------------------------------------------


def test_a_worker_gathers_what_a_collector_would() -> None:
    agent = learner(crowd, **MEMORY)
    batches = iter(worker(crowd, agent))
    ours = [next(batches).clone() for _ in range(2)]
    plain = iter(rlstack.make_collector(crowd(5), agent.policy(explore=True), STEPS))
    for batch in ours:
        assert (batch.exclude("collector") == next(plain)).all()
        assert (batch["collector", "traj_ids"] == 1).all()


def test_every_batch_lies_where_the_first_one_did() -> None:
    batches = iter(worker(cartpole, learner()))
    first = next(batches)
    before = first.clone()
    assert next(batches) is first and (first["observation"] != before["observation"]).any()


def test_a_worker_goes_on_bit_for_bit_from_its_state() -> None:
    agent = learner(crowd, **MEMORY)
    one, other = worker(crowd, agent), worker(crowd, agent)
    batches, again = iter(one), iter(other)
    next(batches)
    state = deepcopy(one.state_dict())
    expected = [next(batches).clone() for _ in range(2)]
    other.load_state_dict(state)
    for batch in expected:
        found = next(again)
        for key in ("action", "log_prob", "memory", "reward", "observation"):
            at = ("next", "agents", key) if key == "reward" else ("agents", key)
            assert (found[at] == batch[at]).all(), key
    assert expected[0]["next", "done"].any() and expected[0]["agents", "memory"].any()


def test_restored_worlds_are_in_the_stage_of_the_weights_not_in_that_of_the_batch_before() -> None:
    one, other = (worker(levels, learner(levels)) for _ in range(2))
    one.policy.stage.fill_(1)
    next(iter(one))
    state = deepcopy(one.state_dict())
    other.policy.stage.fill_(2)
    other.load_state_dict(state)
    assert other.env.state_dict()["stage"] == 2


def test_worlds_enter_the_stage_that_comes_with_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []
    monkeypatch.setattr("rlstack.envs.world.World.set_stage", lambda self, stage: entered.append(stage))
    stages = iter([None, None, 1, 1, 2])
    batches = iter(collector(learner(), level=lambda: next(stages))[0])
    for _ in range(5):
        next(batches)
    assert entered == [1, 1, 2, 2], "each of two workers, once"


def test_a_world_that_ends_the_program_leaves_word_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = worker(cartpole, learner(), errors=str(tmp_path))
    monkeypatch.setattr(type(one.env), "step_and_maybe_reset", lambda *_: sys.exit(0))
    monkeypatch.setattr(type(one.env), "collect", None)
    refused(SystemExit, "1", next, iter(one))
    left = (tmp_path / "1").read_text()
    assert left.startswith(f"{type(one.env).__name__} called sys.exit(0) in test_workers.py:") and "Traceback" in left


# -- the learner's side --------------------------------------------------------------------------------------------


def test_batches_follow_the_learner_and_stand_in_the_order_of_workers() -> None:
    agent = learner(crowd)
    remote, (inner,) = collector(agent, crowd)
    batches = iter(remote)
    first = next(batches)
    assert first.batch_size == (TOTAL, STEPS) and "collector" not in first.keys()  # noqa: SIM118
    with torch.no_grad():
        agent.networks["actor"].log_std.fill_(-20.0)
    agent.set_frames(5000)
    second = next(batches)
    assert second["agents", "log_prob"].min() > 10 > first["agents", "log_prob"].max()
    for index, one in enumerate(inner.workers):
        assert one.policy.policy.frames == 5000
        assert (second[WORLDS * index : WORLDS * (index + 1)] == one._sent.exclude("collector")).all()


class Hasty(Here):
    """Workers that do not wait: the first is two batches ahead of the second."""

    def __iter__(self) -> Iterator[TensorDictBase]:
        for index in (0, 0, 1, 0, 1, 1):
            yield next(self._batches[index]).clone()


def test_rows_go_on_where_workers_do_not_wait_for_each_other() -> None:
    batches = iter(collector(learner(), kind=Hasty, waits=False)[0])
    joined = torch.cat([next(batches) for _ in range(3)], 1)
    assert joined.batch_size == (TOTAL, 3 * STEPS)
    goes_on = ~joined["next", "done"][:, :-1, 0]
    assert torch.equal(joined["next", "observation"][:, :-1][goes_on], joined["observation"][:, 1:][goes_on])


class Hare(Here):
    """Workers that do not wait: the first gathers seven batches before the second has one."""

    def __iter__(self) -> Iterator[TensorDictBase]:
        self.gathered = [next(self._batches[index]).clone() for index in (*[0] * 7, 1, 1)]
        yield from self.gathered


def test_few_batches_of_a_faster_worker_wait_and_rows_begin_anew_where_some_are_dropped() -> None:
    agent = learner(normalize_rewards=True)
    remote, (inner,) = collector(agent, kind=Hare, waits=False)
    assert agent.reward_scaler is not None
    agent.reward_scaler.returns = torch.ones(TOTAL, dtype=torch.float64)
    batches = iter(remote)
    first, second = next(batches), next(batches)
    assert not agent.reward_scaler.returns.any()
    for batch, kept in ((first, 3), (second, 4)):  # of seven, the last four
        assert torch.equal(batch["observation"][:WORLDS], inner.gathered[kept]["observation"])


def test_workers_that_do_not_wait_have_no_state_and_begin_new_episodes() -> None:
    agent = learner(normalize_rewards=True)
    remote, _ = collector(agent, waits=False)
    assert remote.worlds() == [{}]
    assert agent.reward_scaler is not None
    agent.reward_scaler.returns = torch.ones(TOTAL, dtype=torch.float64)
    collector(agent, waits=False, saved=[{}])
    assert not agent.reward_scaler.returns.any()


def test_the_state_of_all_workers_can_be_saved(tmp_path: Path) -> None:
    remote, (inner,) = collector(learner(levels), levels)
    next(iter(remote))
    torch.save(remote.worlds(), tmp_path / "worlds.pt")
    states = torch.load(tmp_path / "worlds.pt", weights_only=True)
    assert [state["world"]["total_steps"] for state in states] == [STEPS * WORLDS] * 2
    for state, one in zip(states, inner.workers):
        assert torch.equal(state["world"]["generator"], one.env.generator.get_state())


def test_worlds_begin_anew_when_told_to() -> None:
    remote, _ = collector(learner())
    batches = iter(remote)
    next(batches)
    assert next(batches)["observation"][:, 0].abs().max() > 0.05
    remote.reset()
    assert next(batches)["observation"][:, 0].abs().max() <= 0.05  # where CartPole's episodes begin


def test_workers_that_do_not_wait_begin_anew_as_others() -> None:
    remote, started = collector(learner(), waits=False, kind=Hasty)
    next(iter(remote))
    remote.reset()
    assert [one.open for one in started] == [False, True] and remote.worker_failures == 0
    assert next(iter(remote))["observation"][:, 0].abs().max() <= 0.05  # where CartPole's episodes begin


# -- workers that are lost -----------------------------------------------------------------------------------------


def test_workers_that_die_are_replaced_and_their_worlds_begin_anew() -> None:
    agent = learner(normalize_rewards=True)
    dead = iter([False, False, True, *[False] * 9])

    def trouble() -> None:
        if next(dead):
            raise RuntimeError("a long story\nthe process has died")

    remote, started = collector(agent, trouble=trouble)
    batches = iter(remote)
    next(batches)
    assert agent.reward_scaler is not None
    agent.reward_scaler.returns = torch.ones(TOTAL, dtype=torch.float64)
    batch = next(batches)
    assert batch.batch_size == (TOTAL, STEPS) and remote.worker_failures == 1
    assert [one.open for one in started] == [False, True]
    assert not agent.reward_scaler.returns.any(), "the learner's episodes have ended, too"
    assert started[0].seed != started[1].seed, "not the same episodes again"
    assert [one.steps for one in started] == [0, STEPS * WORLDS], "schedules by steps go on"
    remote.shutdown()
    assert not started[1].open


def test_workers_that_hang_are_replaced() -> None:
    waits = iter([0.0, 6.0, 0.0, 0.0])
    remote, started = collector(learner(), trouble=lambda: time.sleep(next(waits)), timeout=3.0)
    assert next(iter(remote)).batch_size == (TOTAL, STEPS)
    assert remote.worker_failures == 1 and len(started) == 2


def test_a_process_that_has_died_is_not_waited_for() -> None:
    waits = iter([0.0, 50.0, 0.0, 0.0])
    remote, started = collector(learner(), trouble=lambda: time.sleep(next(waits)))
    vars(started[0])["procs"] = [SimpleNamespace(is_alive=lambda: False)]
    assert next(iter(remote)).batch_size == (TOTAL, STEPS)
    assert remote.worker_failures == 1


def test_workers_that_die_again_and_again_end_the_run() -> None:
    calls = iter(range(99))

    def trouble() -> None:
        if next(calls) % 2:
            raise EOFError

    remote, started = collector(learner(), trouble=trouble)
    refused(CollectorFailed, f"replaced {ATTEMPTS} times in vain: EOFError", next, iter(remote))
    assert len(started) == ATTEMPTS + 1 and not any(one.open for one in started)


def test_workers_that_do_not_end_are_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    remote, started = collector(learner())
    monkeypatch.setattr(workers, "PATIENCE", 0.2)
    monkeypatch.setattr(started[0], "shutdown", lambda: time.sleep(100))
    begun = time.monotonic()
    remote.shutdown()
    assert time.monotonic() - begun < 60


def test_workers_that_do_not_begin_end_the_run() -> None:
    def trouble() -> None:
        raise RuntimeError("no room")

    refused(CollectorFailed, "workers do not begin: no room", collector, learner(), trouble=trouble)


def test_a_mistake_in_a_worker_ends_the_run_with_its_traceback() -> None:
    def broken(seed: int) -> Any:
        raise KeyError("wheel")

    with pytest.raises(CollectorFailed, match="KeyError: 'wheel'") as caught:
        collector(learner(), broken)
    assert "in broken" in caught.value.traceback
