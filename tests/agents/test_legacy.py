"""Agents from elsewhere in place of ours."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from torchrl.data import Bounded, Categorical, Unbounded
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

import rlstack
from rlstack import envs
from rlstack.adapters.sb3.model import load_sb3
from rlstack.adapters.sb3.native import sb3_policy
from rlstack.agents import Interface
from rlstack.agents.legacy import EpsilonPolicy, SpecsOnly
from rlstack.config import ConfigError, conf_dir, to_plain
from rlstack.config.allowed import granting
from rlstack.data.collector import make_collector
from rlstack.evaluate import run
from rlstack.evaluation.evaluator import evaluate
from tests.adapters.small_worlds import MULTI, Noise
from tests.agents.small_agents import Decisions
from tests.refusals import refused

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
MODEL: dict[str, Any] = {
    "kind": "sb3",
    "path": str(FIXTURES / "sb3/dqn_multi_default.zip"),
    "vecnormalize": str(FIXTURES / "sb3/dqn_multi_default_vecnormalize.pkl"),
}
EXPLORE = ["policy=explore", "env=marinenav"]
ACTOR = str(FIXTURES / "marinenav/AC_IQN_params.npz")


@pytest.mark.parametrize("agents", [None, 2])
def test_it_acts_as_its_policy(agents: int | None) -> None:
    env = Noise(MULTI, 6, num_worlds=32, agents=agents)
    agent = rlstack.make_agent("legacy", env, **MODEL)
    td, key = env.reset(), "action" if agents is None else ("agents", "action")
    expected = sb3_policy(load_sb3(MODEL["path"], MODEL["vecnormalize"]), env)(td.clone())[key]
    for explore in (False, True):
        assert torch.equal(agent.policy(explore)(td.clone())[key], expected)
    assert len(expected.unique()) > 1 and agent.parameters() == []


def test_in_a_collector_and_through_a_checkpoint() -> None:
    env = Noise(MULTI, 6)
    agent = rlstack.make_agent("legacy", env, **MODEL)
    (batch,) = make_collector(env, agent.policy(explore=True), 4, total_frames=12)
    assert batch["action"].shape == (3, 4)
    state = agent.state_dict()
    agent.set_frames(100)
    agent.load_state_dict(state)
    assert agent.frames == 0


def first(observation: Any) -> Any:
    return torch.zeros(len(observation), dtype=torch.int64)


def exploring(epsilon: Any, masked: bool = False) -> tuple[Any, Any]:
    """Returns an agent that always takes the first of five choices, and 4,000 observations."""
    env = Decisions(Unbounded(3), Categorical(5, shape=()), masked)
    config = {"kind": "callable", "path": "tests.agents.test_legacy:first", "arrays": "torch", "epsilon": epsilon}
    torch.manual_seed(0)
    return rlstack.make_agent("legacy", env, 1000, **config), env.draw(4000)  # type: ignore[arg-type]


def test_epsilon_lets_it_explore_and_evaluation_stays_greedy() -> None:
    agent, seen = exploring(0.4)
    shares = agent.policy(explore=True)(seen.clone())["action"].bincount(minlength=5) / 4000
    # 0.6 of them as it is, the others by one fifth each; four standard deviations of 4000 draws are 0.03.
    torch.testing.assert_close(shares, torch.tensor([0.68, 0.08, 0.08, 0.08, 0.08]), atol=0.03, rtol=0)
    assert not agent.policy(explore=False)(seen.clone())["action"].any()
    assert not agent.policy()(seen.clone())["action"].any()
    with set_exploration_type(ExplorationType.RANDOM):
        assert agent.policy()(seen.clone())["action"].any()


def test_epsilon_may_be_a_schedule() -> None:
    agent, seen = exploring({"kind": "linear", "start": 0.0, "end": 1.0})
    policy = agent.policy(explore=True)
    assert not policy(seen.clone())["action"].any()
    agent.set_frames(1000)
    assert 0.75 < (policy(seen.clone())["action"] > 0).float().mean() < 0.85  # four fifths of random choices


def test_random_actions_are_legal_and_within_bounds() -> None:
    agent, seen = exploring(1.0, masked=True)
    assert agent.policy(explore=True)(seen)["action"].unique().tolist() == [1, 2, 3, 4]
    env = Decisions(Unbounded(3), Bounded(-3.0, 5.0, shape=(2,)))
    path = {"kind": "callable", "path": "tests.agents.test_legacy:still", "arrays": "torch", "epsilon": 0.5}
    agent = rlstack.make_agent("legacy", env, **path)  # type: ignore[arg-type]
    action = agent.policy(explore=True)(env.draw(2000))["action"]
    chosen = (action != 0).all(-1)
    assert 0.4 < chosen.float().mean() < 0.6 and action.min() < -2.9 and action.max() > 4.9


def still(observation: Any) -> Any:
    return torch.zeros(len(observation), 2)


def test_a_recurrent_model_begins_anew_with_every_use() -> None:
    env = Noise(5, 4)
    agent = rlstack.make_agent("legacy", env, kind="sb3", path=str(FIXTURES / "sb3/recurrent_ppo_small.zip"))

    def episode() -> Any:
        env.set_seed(3)
        return env.rollout(3, agent.policy(explore=False))["action"]

    assert torch.equal(episode(), episode())


@pytest.mark.parametrize("agents", [None, 2])
def test_an_interface_stands_in_for_its_env(agents: int | None) -> None:
    for env in (Noise(MULTI, 6, agents=agents), envs.make("marinenav", num_worlds=2)):
        interface = Interface.of(env)
        assert Interface.of(SpecsOnly(interface, torch.device("cpu"))) == interface  # type: ignore[arg-type]
    masked = Interface.of(Decisions(Bounded(-1.0, 1.0, shape=(3,)), Categorical(4, shape=()), True))  # type: ignore[arg-type]
    assert Interface.of(SpecsOnly(masked, torch.device("cpu"))).masked  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "agent=legacy needs agent.kind and agent.path"),
        ({**MODEL, "kind": "sb4"}, "agent.kind: no option 'sb4', did you mean 'sb3'"),
        ({**MODEL, "path": "none.zip"}, "agent: none.zip: cannot be read"),
        ({**MODEL, "which": "best"}, "agent: sb3.which: unknown key"),
        ({**MODEL, "arrays": "jax"}, "agent.arrays: expected one of"),
        ({**MODEL, "hidden": [3]}, "agent.hidden: unknown key"),
    ],
)
def test_mistakes_are_one_line(options: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, rlstack.make_agent, "legacy", Noise(MULTI, 6), **options)


def test_it_learns_nothing() -> None:
    env = Noise(MULTI, 6)
    agent = rlstack.make_agent("legacy", env, **MODEL)
    sequences = rlstack.flatten_agents(env.rollout(2, agent.policy(True)), group=None)
    expected = r"cannot be trained here; convert it: rlstack convert sb3 .*; or imitate it: .*imitation.expert=sb3"
    for learn in (agent.update_once, lambda data: agent.learn(data, 6)):
        refused(ConfigError, expected, learn, sequences)


# -- rlstack evaluate ----------------------------------------------------------------------------------


def command(*overrides: str) -> None:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("evaluate", [*overrides, "plots=false", "video=false"])
    with granting(to_plain(cfg)):
        run(cfg)


@pytest.mark.slow
def test_evaluated_like_one_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = SimpleNamespace()

    def observed(policy: Any, world: str, options: Any, **rest: Any) -> Any:
        seen.policy, seen.world = policy, world
        rest["episodes"] = 1
        return evaluate(policy, "tests.agents.test_legacy:short", {}, **rest)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlstack.evaluation.evaluator.evaluate", observed)
    command("agent=legacy", "agent.kind=marinenav", f"agent.path={ACTOR}", "env=marinenav")
    assert seen.world == "marinenav"
    assert capsys.readouterr().out.startswith(f"marinenav:{ACTOR} in marinenav, seed 1000\n")
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("marinenav_AC_IQN_params_")
    assert (folder / "evaluations/seed1000_marinenav/evaluation.json").is_file()
    command("agent=legacy", "agent.kind=marinenav", f"agent.path={ACTOR}", "agent.agent_type=DDPG", "env=marinenav")
    Path("AC_IQN_params.npz").write_bytes(Path(ACTOR).read_bytes())
    command("agent=legacy", "agent.kind=marinenav", "agent.path=AC_IQN_params.npz", "env=marinenav")
    assert len([*(tmp_path / "runs").iterdir()]) == 3  # other options, and another file of that name
    assert not isinstance(seen.policy, EpsilonPolicy)
    command("agent=legacy", "agent.kind=marinenav", f"agent.path={ACTOR}", "agent.epsilon=0.5", *EXPLORE)
    assert isinstance(seen.policy, EpsilonPolicy)


def short(num_worlds: int = 1) -> EnvBase:
    """Makes MarineNav with episodes of two steps."""
    return envs.make("marinenav", num_worlds=num_worlds, max_steps=2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["agent=legacy", "agent.kind=sb3", "agent.path=x.zip"], "env: missing, which world to act in"),
        (["agent=legacy", "env=marinenav"], "agent=legacy needs agent.kind and agent.path"),
        (["agent=ppo", "env=marinenav"], "agent=ppo: would have to be trained first"),
        (["agent=legacy", "env=marinenav", "policy=explore"], "policy: explore is .* explores by agent.epsilon=0.1"),
        (["agent=legacy", "env=marinenav", "which=best"], "which: .* agent.which"),
        (["agent=legacy", "checkpoint=x"], "agent: a checkpoint contains its agent"),
    ],
)
def test_evaluation_mistakes_are_one_line(overrides: list[str], message: str) -> None:
    refused(ConfigError, message, command, *overrides)
