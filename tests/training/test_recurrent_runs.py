"""Runs of recurrent agents: loaded, begun from others, and trained by imitation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase

import rlstack
from rlstack.agents import make_agent
from rlstack.config import ConfigError, build
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.runs.checkpoint import state_digest
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.config import TrainConfig
from rlstack.training.imitation import imitate
from rlstack.training.preflight import check_buildable, few_worlds, self_check
from tests.agents.recall import Recall
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import begun, composed

MEMORY = {"kind": "lstm", "size": 8, "sequence_length": 4}
WORLD = {"name": "tests.agents.recall:Recall", "num_worlds": 4, "delay": 2}
RUN = [
    *("total_frames=450", "log_every=100", "eval.every=150", "eval.episodes=4", "checkpoint.every=150", "logger=csv"),
    *("device=cpu", "threads=1", "agent.hidden=[16]", "agent.steps_per_batch=7"),
]


def plain_config(name: str, **overrides: Any) -> dict[str, Any]:
    plain = composed(f"agent={name}", *RUN)
    memory = {**MEMORY, **({"burn_in": 2} if name in ("dqn", "iqn") else {})}
    return {**plain, "env": WORLD, "agent": {**plain["agent"], "recurrent": memory}, **overrides}


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
    networks = [state_digest({"agent": agent.state_dict()["networks"]}) for agent in (training.agent, known)]
    assert networks[0] == networks[1]
    training = begun(tmp_path / "other", {**plain, "agent": {**plain["agent"], "recurrent": {**MEMORY, "size": 9}}})
    refused(ConfigError, r"holds other networks; also set 'agent\.recurrent=", training.begin)


@exhaustive("name", ["ppo", "a2c", "dqn", "iqn"])
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
    refused(ConfigError, "9 sequences with decisions are too few, at least 10", imitate, agent, data[:, :4], epochs=1)
    for source in (data.exclude("next").reshape(-1), TensorDict({"observation": torch.zeros(99, 2)}, [99])):
        refused(ConfigError, "decisions in their order", imitate, agent, source)
