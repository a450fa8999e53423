"""Agents from elsewhere as native agents that train further."""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical

import rlstack
from rlstack.adapters.exporting import compare, random_inputs
from rlstack.adapters.sb3.model import load_sb3, load_vecnormalize
from rlstack.adapters.sb3.native import sb3_agent, sb3_policy
from rlstack.agents import Interface
from rlstack.config import ConfigError
from rlstack.config.overrides import override
from rlstack.runs.checkpoint import write_checkpoint
from rlstack.runs.loading import initialise, load
from tests.adapters.small_worlds import MULTI, Noise, box
from tests.adapters.test_sb3_models import model as fixture
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import begun, composed

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
ACTOR = str(FIXTURES / "marinenav/AC_IQN_params.npz")
SHUFFLED = {key: MULTI[key] for key in reversed(MULTI)} | {"a_surplus": 2}
"""The env's own order, and a key that the models do not know."""
AGENT = {"name": "ppo", "algorithm": "ppo"}
OFF_POLICY = {"learning_starts": 0}
Worlds = Callable[[int], Noise]


def arena(num_worlds: int = 3) -> Noise:
    return Noise(SHUFFLED, 6, num_worlds)


def asymmetric(num_worlds: int = 3) -> Noise:
    """Returns bounds that cut off some of the model's actions, and whose centre is not zero."""
    return Noise(32, box((-0.02, 0.05), (-0.3, 1)), num_worlds)


def noise(num_worlds: int = 3) -> Noise:
    return Noise(5, 4, num_worlds)


def reacher(num_worlds: int = 3) -> Noise:
    return Noise(5, box((-2, 1), (0, 3)), num_worlds)


MODELS: list[tuple[str, Worlds]] = [
    ("a2c_multi_default", arena),
    ("dqn_multi_default", arena),
    ("ppo_mlp_box_action", asymmetric),
    ("sac_small", reacher),
]


def native(name: str, env: Any, statistics: bool = True, **overrides: Any) -> Any:
    return sb3_agent(fixture(name, statistics, bounds=name != "ppo_mlp_box_action"), env, **overrides)


@exhaustive("statistics", [True, False])
@exhaustive(("name", "world"), MODELS)
def test_greedy_actions_are_the_models(name: str, world: Worlds, statistics: bool) -> None:
    env = world(256)
    model = fixture(name, statistics)
    agent = native(name, env, statistics)
    seen = env.reset()
    expected = model.network.choose(model.network(model.features(seen["observation"]))[0])
    action = agent.policy(explore=False)(seen)["action"]
    if model.action == "box":
        low, high = env.action_spec.space.low, env.action_spec.space.high
        if name == "sac_small":  # in [-1, 1]
            expected = low + (expected + 1) / 2 * (high - low)
        assert name == "sac_small" or (expected != expected.clamp(low, high)).any()
        torch.testing.assert_close(action, expected.clamp(low, high), atol=1e-6, rtol=0)
    else:
        assert torch.equal(action, expected) and len(action.unique()) > 1


@pytest.mark.parametrize(("name", "world"), MODELS)
def test_goes_on_training(name: str, world: Worlds) -> None:
    env = world(16)
    agent = native(name, env, **(OFF_POLICY if name[0] in "ds" else {}))
    rollout = env.rollout(6, agent.policy(explore=True), break_when_any_done=False)
    before = [parameter.detach().clone() for parameter in agent.parameters()]
    metrics = agent.learn(rlstack.flatten_agents(rollout, group=None), 96)
    assert all(np.isfinite(float(value)) for value in metrics.values()) and metrics
    assert not any(map(torch.equal, before[:2], agent.parameters()[:2]))


@pytest.mark.parametrize("name", ["a2c_multi_default", "ppo_mlp_box_action"])
def test_values_and_spread_of_an_actor_critic(name: str) -> None:
    env = arena() if name[0] == "a" else asymmetric()
    agent, model = native(name, env), fixture(name)
    observation = env.reset()["observation"]
    outputs, _ = model.network(model.features(observation))
    torch.testing.assert_close(agent.critic(agent.normalized(observation)), outputs["value"], atol=1e-6, rtol=0)
    if name[0] == "p":  # in the env's units
        half = torch.tensor([0.035, 0.65])
        torch.testing.assert_close(agent.actor.log_std.exp() * half, outputs["log_std"][0].exp())


def test_critics_targets_and_temperature_of_sac() -> None:
    agent, model = native("sac_small", reacher()), fixture("sac_small")
    observation, action = torch.randn(20, 5), torch.rand(20, 2) * 2 - 1
    for index, critic in enumerate(agent.critics):
        expected = model.network.parts[f"critic{index}"](torch.cat((observation, action), -1))
        torch.testing.assert_close(critic(observation, action), expected)
    with zipfile.ZipFile(FIXTURES / "sb3/sac_small.zip") as file, file.open("policy.pth") as weights:
        state = torch.load(weights, weights_only=True)
    for index, name in enumerate(("critic_1", "critic_2")):
        output = agent.targets[name].network.output
        assert torch.equal(output.bias, state[f"critic_target.qf{index}.4.bias"])
        assert not torch.equal(output.bias, agent.networks[name].output.bias)
    assert float(agent.temperature()) == pytest.approx(np.exp(-0.0096), abs=1e-4)  # as the file says


def test_statistics_go_on_from_theirs() -> None:
    agent = native("a2c_multi_default", arena())
    statistics = load_vecnormalize(FIXTURES / "sb3/a2c_multi_default_vecnormalize.pkl")
    moments = agent.normalizer.moments_by_leaf()
    assert moments["mission_progress"].mean.tolist() == list(statistics.obs_mean[18:21])
    assert float(moments["player_state"].count) == statistics.obs_count
    assert float(agent.reward_scaler.moments.var) == statistics.ret_var[0]


@pytest.mark.parametrize("agents", [None, 2])
def test_a_recurrent_model_acts_the_same_with_a_memory_of_ours(agents: int | None) -> None:
    env = Noise(5, 4, num_worlds=6, agents=agents)
    model = load_sb3(FIXTURES / "sb3/recurrent_ppo_small.zip")
    theirs, agent = sb3_policy(model, env), sb3_agent(model, env, recurrent={"sequence_length": 8})
    assert agent.config.recurrent.sequence_length == 8 and agent.config.name == "ppo"
    ours, td = agent.policy(explore=False), env.reset()
    for _ in range(30):
        wanted = theirs(td)[agent.interface.key("action")].clone()
        td = env.step(ours(td))
        assert torch.equal(td[agent.interface.key("action")], wanted)
        td = env.maybe_reset(env.step_mdp(td))


def test_settings_are_taken_over_and_can_be_changed() -> None:
    c = native("ppo_mlp_box_action", asymmetric(), gae_lambda=0.9).config
    assert (c.minibatch_size, c.steps_per_batch, c.epochs, c.lr, c.gae_lambda) == (32, 32, 10, 3e-4, 0.9)


@pytest.mark.parametrize(
    ("name", "world", "overrides", "message"),
    [
        ("recurrent_ppo_small", noise, {"recurrent": {"size": 9}}, "{'size': 9} contradicts the model, which has"),
        ("recurrent_ppo_small", noise, {"recurrent": "gru"}, "agent.recurrent: gru contradicts the model"),
        ("sac_small", reacher, {"hidden": [3]}, r"agent.hidden: \[3\] contradicts the model, which has \[16, 12\]"),
        ("sac_small", reacher, {"hiden": [3]}, "agent.hiden: unknown key, did you mean 'hidden'"),
        ("sac_small", asymmetric, {}, "takes a vector of 5 features"),
    ],
)
def test_what_cannot_be_converted(name: str, world: Any, overrides: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, native, name, world(), **overrides)


@pytest.mark.shared
@exhaustive("kind", ["ppo", "a2c", "dqn", "sac"])
def test_the_full_set(kind: str, shared_dir: Path) -> None:
    """Observations are structured or flat, as each agent was trained; actions are as recorded with it."""
    for path in sorted((shared_dir / "sb3").glob(f"{kind}_*.zip")):
        statistics = path.with_name(f"{path.stem}_vecnormalize.pkl")
        model, io = load_sb3(path, statistics), np.load(path.with_name(f"{path.stem}_io.npz"))
        keys, actions = model.observation_keys, model.network.out_features
        observation: Any = model.network.in_features if keys is None else MULTI
        if model.low is None or model.high is None:
            env = Noise(observation, actions, 64)
        else:
            env = Noise(observation, box(*zip(model.low.tolist(), model.high.tolist())), 64)
        agent = sb3_agent(path, env, vecnormalize=statistics)
        raw = torch.as_tensor(io["raw"]) if keys is None else {key: torch.as_tensor(io[f"raw_{key}"]) for key in keys}
        count = len(io["det_action"])
        td = TensorDict({"observation": raw}, [count])
        if keys is not None:
            td["observation"].batch_size = [count]
        action = agent.policy(explore=False)(td)["action"]
        recorded = torch.as_tensor(io["det_action"]).reshape(action.shape)
        torch.testing.assert_close(action, recorded.to(action.dtype), atol=1e-5, rtol=0)


# -- MarineNav and the command -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["AC-IQN", "DQN"])
def test_marinenavs_agents(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    out, file = tmp_path / "new folder/converted.pt", FIXTURES / f"marinenav/{kind.replace('-', '_')}_params.npz"
    small = ("agent.buffer_size=200", "agent.batch_size=16", "agent.learning_starts=10")
    rlstack.convert("marinenav", str(file), f"out={out}", *small)
    printed, complaints = capsys.readouterr()
    assert complaints == "" and not recwarn.list
    assert "differ by 0.0e+00 at most on 256 random observations" in printed
    assert override("init", out) in shlex.split(printed)
    assert ("published without critic, which start fresh" in printed) == (kind == "AC-IQN")
    loaded = rlstack.load(out)
    env = loaded.make_env(num_worlds=2)
    seen = env.reset()
    policy = rlstack.load_policy(f"marinenav:{file}", env, agent_type=kind)
    key = ("agents", "action")
    assert torch.equal(loaded.agent.policy(explore=False)(seen.clone())[key], policy(seen.clone())[key])
    rollout = env.rollout(8, loaded.agent.policy(explore=True), break_when_any_done=False)
    metrics = loaded.agent.learn(rlstack.flatten_agents(rollout), 80)
    assert metrics and all(np.isfinite(float(value)) for value in metrics.values())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "kind and path: missing"),
        (["sb4", "x.zip", "out=x"], "kind: no option 'sb4', did you mean 'sb3'"),
        (["onnx", "x.onnx", "out=x"], "onnx: a program whose layers are not known .*imitation.expert=onnx:x.onnx"),
        (["sb3", "x.zip"], "out: missing"),
        (["sb3", "x.zip", "out=x"], "env: missing"),
        (["sb3", "x.zip", "out=x", "agent_type=IQN"], "agent_type: agents of kind sb3 have none"),
        (["marinenav", "none.npz", "out=x"], "none.npz: No such file"),
        (["marinenav", ACTOR, "agent_type=AC-IQN", "out=."], "out: . is a folder"),
        (["marinenav", ACTOR, "agent_type=AC-IQN", f"out={ACTOR}/x.pt"], "out: .*x.pt cannot be written"),
    ],
)
def test_mistakes_are_one_line(overrides: list[str], message: str) -> None:
    refused(ConfigError, message, rlstack.convert, *overrides)


def test_a_model_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, recwarn: Any) -> None:
    opened: list[str] = []
    whole = zipfile.ZipFile

    def counting(file: Any, *arguments: Any, **options: Any) -> Any:
        opened.extend([str(file)] if str(file).endswith("sac_small.zip") else [])
        return whole(file, *arguments, **options)

    monkeypatch.setattr(zipfile, "ZipFile", counting)
    monkeypatch.setattr("rlstack.runs.worlds.build_world", lambda *_, **__: reacher(1))
    rlstack.convert("sb3", str(FIXTURES / "sb3/sac_small.zip"), f"out={tmp_path / 'x.pt'}", "+env.name=any")
    assert len(opened) == 1
    printed, complaints = capsys.readouterr()
    assert "on 256 random observations" in printed and complaints == "" and not recwarn.list


# -- what becomes of a checkpoint --------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    rlstack.convert("marinenav", ACTOR, "agent_type=AC-IQN", f"out={tmp_path / 'ours.pt'}")
    return tmp_path / "ours.pt"


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [False, True])
def test_training_begins_with_them(checkpoint: Path, resumed: bool, tmp_path: Path) -> None:
    """The same holds for a run that is resumed before its first checkpoint."""
    words = ("agent=acqn_published", "env.num_worlds=2", "logger=csv", "device=cpu", "threads=1")
    training = begun(tmp_path / "run", composed(f"init={checkpoint}", *words))
    bias = training.agent.networks["loss"].state_dict()["actor_network_params.output.bias"]
    expected = rlstack.load(checkpoint).agent.networks["loss"].state_dict()["actor_network_params.output.bias"]
    assert not torch.equal(bias, expected)
    training.restore() if resumed else training.begin()
    assert torch.equal(bias, expected) and training.agent.frames == 0


@pytest.mark.parametrize(
    ("state", "lacks"),
    [
        ({"frames": 1}, "agent"),
        ({"frames": 1, "agent": {"networks": {}, "targets": {}}, "config": [1]}, "config.agent"),
        ({"frames": 1, "agent": {"networks": {}, "targets": {}}, "config": {"agent": AGENT}}, "config.env"),
        ({"frames": "1", "agent": {"networks": 1}}, "frames"),
    ],
)
def test_checkpoints_of_something_else(state: dict[str, Any], lacks: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "x.pt", state, 1)
    with pytest.raises(ConfigError, match=f"checkpoint: .*not a checkpoint of a trained agent, it lacks {lacks}$"):
        load(tmp_path / "x.pt")
    with pytest.raises(ConfigError, match=f"init: .*not a checkpoint of a trained agent, it lacks {lacks}$"):
        initialise(native("sac_small", reacher()), tmp_path / "x.pt")
    refused(ConfigError, "init: nowhere does not exist", initialise, native("sac_small", reacher()), "nowhere")


@pytest.mark.slow
def test_acting_can_be_changed_when_it_is_loaded(checkpoint: Path) -> None:
    loaded = load(checkpoint, agent={"candidates": 4, "cvar": 0.25})
    assert (loaded.agent.config.candidates, loaded.config["agent"]["cvar"]) == (4, 0.25)  # type: ignore[attr-defined]
    for changes, message in (
        ({"cvr": 0.5}, "agent.cvr: unknown key, did you mean 'cvar'"),
        (
            {"hidden": [8, 8]},
            r"agent.hidden: cannot change, the networks of .*ours.pt are of 'agent.hidden=\[128,128\]'",
        ),
        ({"cvar": 2.0}, "agent.cvar"),
    ):
        refused(ConfigError, message, load, checkpoint, agent=changes)


# -- the comparison ----------------------------------------------------------------------------------------------


def spec_only(discrete: bool) -> Interface:
    action = Categorical(3, shape=()) if discrete else Bounded(-1.0, 1.0, shape=(1,))
    return Interface(None, Bounded(-1.0, 1.0, shape=(1,)), action, None, torch.float32)


def test_the_comparison_tells_errors_from_rounding() -> None:
    observation = torch.linspace(-1, 1, 101).unsqueeze(1)  # the one in the middle is at the jump
    observation[50] = 1e-9

    def jump(seen: Any, mask: Any) -> torch.Tensor:
        return (seen[:, 0] * 1e9 > 1).long()

    answer = jump(observation, None)
    assert compare(jump, answer, observation, None, spec_only(True)).wrong == 0
    answer[50] = 1 - answer[50]
    agreement = compare(jump, answer, observation, None, spec_only(True))
    assert (agreement.rounded, agreement.wrong) == (1, 0)
    answer[10] = 1 - answer[10]
    assert compare(jump, answer, observation, None, spec_only(True)).wrong == 1


def test_the_comparison_of_continuous_actions() -> None:
    def act(seen: Any, mask: Any) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        return seen

    observation, _ = random_inputs(spec_only(False), 50)
    agreement = compare(act, observation + 5e-6, observation, None, spec_only(False))
    assert agreement.wrong == 0 and agreement.largest == pytest.approx(5e-6, rel=0.1)
    agreement = compare(act, observation + 5e-5, observation, None, spec_only(False))
    assert agreement.wrong == 50 and agreement.largest == pytest.approx(5e-5, rel=0.1)
