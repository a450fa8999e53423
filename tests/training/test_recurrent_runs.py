"""Runs of recurrent agents: resumed, loaded, begun from others, and trained by imitation."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase

import rlstack
from rlstack.agents import make_agent
from rlstack.config import ConfigError, build, load_group, to_plain
from rlstack.config.allowed import sign_copy
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.config import TrainConfig
from rlstack.training.imitation import imitate
from rlstack.training.preflight import check_buildable, few_worlds, self_check
from tests.agents.recall import Recall
from tests.exhaustive import exhaustive
from tests.small_run import begun, reopened
from tests.training.test_loop import assert_same, state_of

MEMORY = {"kind": "lstm", "size": 8, "sequence_length": 4}
AGENTS: dict[str, dict[str, Any]] = {
    "ppo": {"steps_per_batch": 7, "minibatch_size": 16, "epochs": 2, "normalize_observations": True},
    "a2c": {"steps_per_batch": 7},
    "dqn": {"batch_size": 16, "learning_starts": 50, "n_step": 2, "steps_per_batch": 3, "buffer_size": 200},
    "iqn": {"batch_size": 16, "learning_starts": 50, "steps_per_batch": 3, "buffer_size": 200},
}
WORLD = {"name": "tests.agents.recall:Recall", "num_worlds": 4, "delay": 2}


def plain_config(name: str, **overrides: Any) -> dict[str, Any]:
    memory = {**MEMORY, **({"burn_in": 2} if name in ("dqn", "iqn") else {})}
    agent = load_group("agent", name, {**AGENTS[name], "hidden": [16], "recurrent": memory})
    return {
        "agent": agent,
        "env": WORLD,
        "collector": {"steps_per_batch": agent["steps_per_batch"], "count": "decisions"},
        "logger": to_plain(load_group("logger", "csv")),
        "eval": {"every": 150, "episodes": 4, "seed": 7},
        "checkpoint": {"every": 150, "keep": 9, "replay": True},
        **{"total_frames": 450, "log_every": 100, "seed": 0, "device": "cpu", "threads": 1, "run_dir": None},
        **{"resume": None, "debug": False, "imitation": load_imitation(), "init": None},
        **overrides,
    }


def load_imitation() -> dict[str, Any]:
    return {
        **{"expert": None, "expert_options": {}, "episodes": None, "frames": 300, "epochs": 1, "batch_size": 64},
        **{"lr": 1e-3, "only": False, "replay": False},
    }


@exhaustive("name", list(AGENTS))
def test_a_resumed_run_equals_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    plain = plain_config(name)
    begun(tmp_path / "straight", plain).execute()
    sign_copy(tmp_path / "straight", Path(shutil.copytree(tmp_path / "straight", tmp_path / "resumed")))
    checkpoints = sorted((tmp_path / "resumed" / "checkpoints").glob("checkpoint_*.pt"))
    assert len(checkpoints) >= 3
    for path in checkpoints[1:]:
        path.unlink()
    torch.manual_seed(12345)
    training = reopened(tmp_path / "resumed", plain)
    training.restore()
    memory = training.agent.state_dict()["memory"]
    assert memory.shape[0] == 4 and (memory != 0).any(), "it goes on within episodes"
    training.execute()
    last = RunDirectory(tmp_path / "straight").checkpoints.latest()
    assert last is not None
    found = state_of(tmp_path / "resumed" / "checkpoints" / last.name)
    assert_same(found, state_of(last))


@pytest.mark.slow
def test_a_loaded_agent_begins_with_an_empty_memory(tmp_path: Path) -> None:
    begun(tmp_path / "run", plain_config("ppo")).execute()
    run = rlstack.load(tmp_path / "run")
    first = next(iter(make_collector(run.make_env(4), run.agent.policy(explore=True), 4)))
    assert (first["memory"][:, 0] == 0).all() and (first["memory"][:, 1] != 0).any(-1).all()
    shorter = rlstack.load(tmp_path / "run", agent={"recurrent": {"sequence_length": 2}}).agent
    assert shorter.config.recurrent.sequence_length == 2 and shorter.config.recurrent.kind == "lstm"
    for other in ({"kind": "gru"}, {"size": 16}):
        with pytest.raises(ConfigError, match=r"agent\.recurrent: cannot change"):
            rlstack.load(tmp_path / "run", agent={"recurrent": other})


@pytest.mark.slow
def test_a_run_begins_from_the_networks_of_another(tmp_path: Path) -> None:
    begun(tmp_path / "run", plain_config("ppo")).execute()
    longer = {**MEMORY, "sequence_length": 7}
    plain = plain_config("ppo", init=str(tmp_path / "run"))
    training = begun(tmp_path / "next", {**plain, "agent": {**plain["agent"], "recurrent": longer}})
    training.begin()
    known = rlstack.load(tmp_path / "run").agent
    assert_same(training.agent.state_dict()["networks"], known.state_dict()["networks"])
    training = begun(tmp_path / "other", {**plain, "agent": {**plain["agent"], "recurrent": {**MEMORY, "size": 9}}})
    with pytest.raises(ConfigError, match=r"holds other networks; also set 'agent\.recurrent="):
        training.begin()


@exhaustive("name", list(AGENTS))
def test_the_self_check_tries_it(name: str, tmp_path: Path) -> None:
    config = build(TrainConfig, plain_config(name))
    with few_worlds(config) as env:
        lines = self_check(config, RunDirectory.create(tmp_path / "run", "test", 1), env, check_buildable(config, env))
    assert len(lines) == 4


# -- imitation ---------------------------------------------------------------------------------------------------------


class Knowing(TensorDictModuleBase):
    """An expert that at the last step names what was shown first, read from the world; before that it says 0."""

    in_keys, out_keys = ["observation"], ["action"]

    def __init__(self, env: Recall) -> None:
        super().__init__()
        self.env = env

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        last = tensordict["observation"][:, 1] > 0
        return tensordict.set("action", torch.where(last, self.env.cue, 0))


def right(agent: Any, env: Recall, steps: int = 60) -> float:
    """Returns the share of episodes with the right answer."""
    found = env.rollout(steps, agent.policy(explore=False), break_when_any_done=False)
    return float(found["next", "reward"][found["next", "done"]].mean())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("ppo", "lstm"), ("a2c", "gru"), ("dqn", "gru"), ("iqn", "lstm")])
def test_it_can_imitate_what_needs_a_memory(name: str, kind: str) -> None:
    torch.manual_seed(0)
    env = Recall(16, delay=2)
    own = {} if name in ("ppo", "a2c") else {"batch_size": 64}
    agent = make_agent(name, env, 10_000, recurrent={**MEMORY, "kind": kind, "size": 16}, **own)
    metrics = imitate(agent, env, Knowing(env), frames=1600, epochs=25, batch_size=64, lr=0.02)
    assert metrics["imitation/accuracy"] > 0.99 and metrics["imitation/frames"] >= 1600
    assert right(agent, Recall(16, delay=2, seed=5)) == 1.0


def test_an_experts_experience_is_kept_with_the_learners_own_memory() -> None:
    env = Recall(4, delay=2)
    agent: Any = make_agent("dqn", env, 10_000, batch_size=64, recurrent={**MEMORY, "size": 8})
    imitate(agent, env, Knowing(env), frames=300, epochs=1, replay=True, lr=1e-9)
    replay = agent.replay
    data = replay.storage.get(torch.arange(len(replay.storage)))
    assert len(replay) > 200 and (data["memory"][4:] != 0).any(1).float().mean() > 0.3
    flat = agent.unrolled(agent.prepared(data))
    assert len(flat) == len(replay) and agent.n_step.following is None


def test_recorded_sequences_can_be_imitated_but_not_files(tmp_path: Path) -> None:
    env = Recall(16, delay=2)
    batches = [flatten_agents(batch, None) for batch in make_collector(env, Knowing(env), 25, total_frames=16 * 50)]
    data: Any = torch.cat(batches, 1)
    agent = make_agent("ppo", env, 1000, recurrent=MEMORY)
    assert imitate(agent, data, epochs=1)["imitation/frames"] == 800
    data["active"][9:] = False
    with pytest.raises(ConfigError, match="9 sequences with decisions are too few, give at least 10"):
        imitate(agent, data[:, :4], epochs=1)
    for source in (data.exclude("next").reshape(-1), TensorDict({"observation": torch.zeros(99, 2)}, [99])):
        with pytest.raises(ConfigError, match="decisions in their order"):
            imitate(agent, source)
