"""Models of Stable-Baselines3: recorded actions, policies of TorchRL envs, observation statistics, other files."""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import OneHot
from torchrl.envs import InitTracker, TransformedEnv

from rlstack import envs
from rlstack.adapters.sb3.model import SB3Model, SB3Network, VecNormalize, load_sb3, load_vecnormalize
from rlstack.adapters.sb3.native import sb3_agent, sb3_policy
from rlstack.config import ConfigError, build
from rlstack.data.collector import make_collector
from tests.adapters.small_worlds import MULTI, Noise, box
from tests.exhaustive import exhaustive, recordings
from tests.refusals import refused

TOLERANCE = 1e-6
"""Of float32: eight times its spacing at 1. Larger numbers are rounded in proportion, and in a CPU's own order."""
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/sb3"


def recorded(path: Path) -> dict[str, Tensor]:
    with np.load(path.with_name(path.stem + "_io.npz")) as file:
        return {key: torch.from_numpy(value) for key, value in file.items()}


def answered(network: SB3Network, features: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    outputs, _ = network(features)
    return outputs, network.choose(outputs)


def close(ours: Tensor, theirs: Tensor, steps: int = 1) -> None:
    """Compares up to rounding, which a recurrent state carries through many steps."""
    torch.testing.assert_close(ours, theirs, rtol=steps * TOLERANCE, atol=steps * TOLERANCE)


@recordings("sb3/[adp]*.zip", "sb3/*.zip")
def test_recorded_answers(path: Path) -> None:
    """Compares every recorded action, from normalised and from raw observations."""
    model, answers = load_sb3(path, path.with_name(path.stem + "_vecnormalize.pkl")), recorded(path)
    keys, network = model.observation_keys, model.network
    raw = answers["raw"] if keys is None else {key: answers[f"raw_{key}"] for key in keys}
    norm = answers["norm"] if keys is None else torch.cat([answers[f"norm_{key}"] for key in keys], -1)
    for features in (norm, model.features(raw)):
        outputs, action = answered(network, features)
        if "logits" in outputs:
            close(outputs["logits"], answers["action_net_out"])
            close(outputs["logits"].log_softmax(-1), answers["logits_normalised"])
        for name in {"value", "q", "mean", "log_std"} & set(outputs) & set(answers):
            close(outputs[name], answers[name])
        if "std" in answers:
            close(outputs["log_std"].exp(), answers["std"])
        for index in range(sum(name.startswith("critic") for name in network.parts) if network.squashed else 0):
            close(network.parts[f"critic{index}"](torch.cat((features, action), -1)), answers[f"q{index + 1}"])
        close(action, answers["det_action"])
    assert model.algorithm == path.stem[:3].upper()
    assert not any(value.requires_grad for value in network.parameters()) and not network.training


def test_soft_actor_critic() -> None:
    path = FIXTURES / "sac_small.zip"
    model, answers = load_sb3(path), recorded(path)
    network = model.network
    assert model.algorithm == "SAC" and model.activation == "ReLU"
    outputs, action = answered(network, model.features(answers["raw"]))
    close(outputs["mean"], answers["mean"])
    close(outputs["log_std"], answers["log_std"])
    close(action, answers["squashed"])
    assert model.low is not None and model.high is not None
    close(model.low, torch.tensor([-2.0, 0.0]))
    close(model.low + (action + 1) / 2 * (model.high - model.low), answers["det_action"])


def test_recurrent_sequence() -> None:
    path = FIXTURES / "recurrent_ppo_small.zip"
    model, answers = load_sb3(path), recorded(path)
    network = model.network
    assert model.algorithm == "RecurrentPPO" and model.recurrent
    assert len(answers["det_action"].unique()) > 1 and answers["starts"][1:].any()
    memory = network.initial_memory(3)
    for t, features in enumerate(answers["raw"]):
        outputs, memory = network(features, memory, answers["starts"][t])
        # Weights of the action layer are a hundred times as large as those of others.
        close(outputs["logits"].log_softmax(-1) / 100, answers["logits_normalised"][t] / 100, steps=t + 1)
        close(outputs["value"], answers["value"][t], steps=t + 1)
        assert torch.equal(network.choose(outputs), answers["det_action"][t])


def test_what_the_file_says() -> None:
    model = load_sb3(FIXTURES / "ppo_mlp_box_action.zip")
    assert (model.activation, model.action, model.num_timesteps) == ("Tanh", "box", 64)
    assert model.hidden == {"actor": (64, 64), "critic": (64, 64)} and model.observation_shapes == {"": (32,)}
    numbers = {"gamma": 0.99, "learning_rate": 0.0003, "n_steps": 32, "clip_range": 0.2, "gae_lambda": 0.95}
    assert model.hyperparameters.items() >= numbers.items()
    model = load_sb3(FIXTURES / "a2c_multi_default.zip")
    assert model.observation_keys == tuple(MULTI) and model.low is None and model.action == "discrete"
    assert model.observation_shapes == {key: (size,) for key, size in MULTI.items()}


# -- files that are no such models ---------------------------------------------------------------------------------


def rewritten(
    tmp_path: Path,
    name: str,
    weights: dict[str, Tensor | None] | None = None,
    drop: str = "",
    replaced: dict[str, bytes] | None = None,
    compression: int = zipfile.ZIP_STORED,
    **data: Any,
) -> Path:
    """Returns a copy of a fixture with other weights (None: without them), members or settings."""
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(FIXTURES / f"{name}.zip") as source, zipfile.ZipFile(path, "w", compression) as target:
        for member in source.namelist():
            content = source.read(member)
            if member == "data":
                content = json.dumps({**json.loads(content), **data}).encode()
            if member == "policy.pth" and weights:
                state = torch.load(io.BytesIO(content), weights_only=True) | weights
                buffer = io.BytesIO()
                torch.save({key: value for key, value in state.items() if value is not None}, buffer)
                content = buffer.getvalue()
            if member != drop:
                target.writestr(member, (replaced or {}).get(member, content))
    return path


PPO = "ppo_mlp_box_action"
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no weights": ({"drop": "policy.pth"}, "it lacks policy.pth"),
    "old": ({"weights": {"mlp_extractor.shared_net.0.weight": torch.zeros(2, 2)}}, "shared_net.*not supported"),
    "unknown": ({"weights": {"action_net.weight": None}}, "none of PPO, A2C, DQN, SAC, RecurrentPPO"),
    "images": ({"weights": {"features_extractor.cnn.0.weight": torch.zeros(2)}}, "only MlpPolicy and MultiInputPolicy"),
    "more": ({"weights": {"extra.weight": torch.zeros(2)}}, "unknown kind: extra.weight"),
    "less": ({"weights": {"value_net.bias": None}}, "lack value_net.bias"),
    "misfit": ({"weights": {"action_net.weight": torch.zeros(2, 9)}}, "do not follow one another"),
    "activation": (
        {"policy_kwargs": {"activation_fn": "<class 'mine.Sine'>"}},
        "activation_fn: .*Sine.*allowed: .*Tanh",
    ),
    "gSDE": ({"use_sde": True}, "gSDE"),
    "action": (
        {"action_space": {":type:": "<class 'gymnasium.spaces.multi_discrete.MultiDiscrete'>"}},
        "MultiDiscrete",
    ),
    "observation": ({"observation_space": {":type:": "<class 'gymnasium.spaces.discrete.Discrete'>"}}, "only vectors"),
    "features": (
        {"observation_space": {":type:": "<class 'gymnasium.spaces.box.Box'>", "_shape": [9]}},
        "9 features, the network takes 32",
    ),
    "deep": ({"replaced": {"data": b"[" * 100_000}}, "a part of the file is broken .nested too deeply"),
    "number": (
        {"gamma": {"value_schedule": "ConstantSchedule(val=1e+e)"}},
        "its settings cannot be read .ValueError: could not convert",
    ),
}


@pytest.mark.parametrize("change, message", FAULTS.values(), ids=FAULTS.keys())
def test_unsuitable_files_are_told_in_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert "model.zip" in refused(ConfigError, message, load_sb3, rewritten(tmp_path, PPO, **change))


def test_no_file_no_zip_and_statistics_of_another_model(tmp_path: Path) -> None:
    refused(ConfigError, "cannot be read", load_sb3, tmp_path / "nothing.zip")
    (tmp_path / "text.zip").write_text("hello")
    refused(ConfigError, "not a zip file", load_sb3, tmp_path / "text.zip")
    other = FIXTURES / "ppo_mlp_box_action_vecnormalize.pkl"
    refused(ConfigError, "of 32 features, the network takes 5", load_sb3, FIXTURES / "sac_small.zip", other)


@pytest.mark.parametrize("variables", [b"nothing", {"log_ent_coef": torch.zeros(2)}, {"ent_coef_tensor": [1]}])
def test_a_temperature_that_is_none(variables: Any, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(variables, buffer)
    content = variables if isinstance(variables, bytes) else buffer.getvalue()
    path = rewritten(tmp_path, "sac_small", replaced={"pytorch_variables.pth": content})
    assert load_sb3(path).algorithm == "SAC"  # which acts without it
    with pytest.raises(ConfigError, match=r"model.zip: pytorch_variables.pth: (not a file of|the weight of)"):
        sb3_agent(path, Noise(5, box((-2, 1), (0, 3))))


# -- Models of Stable-Baselines3 as policies of TorchRL envs ---------------------------------------------------------


def model(name: str, statistics: bool = True, bounds: bool = True) -> SB3Model:
    """Loads a fixture; without ``bounds``, as a model whose file does not state them."""
    path = FIXTURES / f"{name}_vecnormalize.pkl"
    loaded = load_sb3(FIXTURES / f"{name}.zip", path if statistics and path.exists() else None)
    return loaded if bounds else dataclasses.replace(loaded, low=None, high=None)


@pytest.mark.parametrize("agents", [None, 2])
@pytest.mark.parametrize("name", ["a2c_multi_default", "dqn_multi_default"])
def test_structured_observations_are_joined_in_the_models_order(name: str, agents: int | None) -> None:
    """The env lists its keys in another order, and has one that the model does not know."""
    order = {key: MULTI[key] for key in reversed(MULTI)} | {"a_surplus": 2}
    env = Noise(order, 6, num_worlds=64, agents=agents)
    chosen = model(name)
    td = env.reset()
    seen = td["observation"] if agents is None else td["agents", "observation"]
    joined = torch.cat([seen[key] for key in sorted(MULTI)], -1)
    assert chosen.normaliser is not None
    outputs = chosen.network(chosen.normaliser.normalise(joined))[0]
    expected = outputs["logits" if name.startswith("a2c") else "q"].argmax(-1)
    action = sb3_policy(chosen, env)(td).get("action" if agents is None else ("agents", "action"))
    assert torch.equal(action, expected) and len(action.unique()) > 1
    assert env.full_action_spec["action" if agents is None else ("agents", "action")].is_in(action)


def test_actions_as_the_env_wants_them() -> None:
    one_hot = Noise(MULTI, OneHot(6), num_worlds=16)
    td = one_hot.reset()
    action = sb3_policy(model("a2c_multi_default"), one_hot)(td.clone())["action"]
    assert action.shape == (16, 6) and one_hot.action_spec.is_in(action)
    plain = Noise(MULTI, 6, num_worlds=16)
    assert torch.equal(action.long().argmax(-1), sb3_policy(model("a2c_multi_default"), plain)(td)["action"])


def test_gaussian_means_are_clipped_to_the_envs_bounds() -> None:
    env = Noise(32, box((-0.02, 0.01), (-1, 1)), num_worlds=64)
    chosen, td = model("ppo_mlp_box_action", statistics=False, bounds=False), env.reset()
    mean = chosen.network(td["observation"])[0]["mean"]
    action = sb3_policy(chosen, env)(td)["action"]
    assert torch.equal(action[:, 1], mean[:, 1])
    assert torch.equal(action[:, 0], mean[:, 0].clamp(-0.02, 0.01)) and (action[:, 0] != mean[:, 0]).any()
    chosen = dataclasses.replace(model("sac_small"), low=torch.full((2,), -torch.inf))  # which says nothing
    env = Noise(5, box((-9, 1), (-9, 3)))
    assert env.action_spec.is_in(sb3_policy(chosen, env)(env.reset())["action"])


def test_squashed_means_fill_the_envs_bounds() -> None:
    env = Noise(5, box((-2, 1), (0, 3)), num_worlds=64)
    td = env.reset()
    with_their_bounds = sb3_policy(model("sac_small"), env)(td.clone())["action"]
    other = Noise(5, box((-1, 1), (10, 40)), num_worlds=64)
    ours = sb3_policy(model("sac_small", bounds=False), other)(td)["action"]
    torch.testing.assert_close((with_their_bounds[:, 0] + 2) / 3, (ours[:, 0] + 1) / 2)
    torch.testing.assert_close(with_their_bounds[:, 1] / 3, (ours[:, 1] - 10) / 30)


@pytest.mark.parametrize("name", ["a2c_multi_default", "dqn_multi_default", "ppo_mlp_box_action", "sac_small"])
def test_sampling(name: str) -> None:
    observation: Any = MULTI if "multi" in name else 5 if name == "sac_small" else 32
    env = Noise(observation, 6 if "multi" in name else box((-5, 5), (-5, 5)), num_worlds=4000)
    td = env.reset()
    td = td.apply(lambda value: value[:1].expand_as(value).clone())  # the same decision, 4000 times
    chosen = model(name, bounds=False)
    torch.manual_seed(0)
    action = sb3_policy(chosen, env, deterministic=False)(td)["action"]
    outputs = chosen.network(chosen.features(td["observation"][:1]))[0]
    if name.startswith("dqn"):
        assert len(action.unique()) == 1
    elif name.startswith("a2c"):
        frequency = torch.bincount(action, minlength=6) / 4000
        torch.testing.assert_close(frequency, outputs["logits"].softmax(-1)[0], atol=0.03, rtol=0)
    else:
        value = torch.atanh(action / 5) if name == "sac_small" else action
        torch.testing.assert_close(value.mean(0), outputs["mean"][0], atol=0.07, rtol=0)
        torch.testing.assert_close(value.std(0), outputs["log_std"][0].exp(), atol=0.05, rtol=0)


@pytest.mark.parametrize(
    "name, env, message",
    [
        ("sac_small", lambda: Noise(6, box((-1, 1), (-1, 1))), r"SAC model takes a vector of 5 features.*\(6,\)"),
        ("sac_small", lambda: Noise(5, 4), "SAC model has 2 continuous actions, the env takes 4 discrete actions"),
        ("sac_small", lambda: Noise(5, box((-1, 1))), "2 continuous actions, .* of 1 number"),
        ("sac_small", lambda: Noise(5, box((-2, 2), (0, 3))), r"bounds high are \[1, 3\], the env's are \[2, 3\]"),
        ("sac_small", lambda: Noise(5, box((-3, 1), (0, 3))), r"bounds low are \[-2, 0\], the env's are \[-3, 0\]"),
        ("sac_small", lambda: Noise({"a": 5}, box((-1, 1), (-1, 1))), r"a vector of 5 features, .*'a': \(5,\)"),
        ("dqn_multi_default", lambda: Noise(32, 6), "DQN model takes .*enemy_count.*a vector of shape"),
        ("dqn_multi_default", lambda: Noise(MULTI | {"enemy_count": 2}, 6), "DQN model takes .*enemy_count"),
        ("dqn_multi_default", lambda: Noise(MULTI, 5), "DQN model has 6 discrete actions, the env takes 5"),
        ("dqn_multi_default", lambda: envs.make("marinenav", num_worlds=2), "the env shows .*objects"),
    ],
)
def test_envs_that_do_not_fit(name: str, env: Any, message: str) -> None:
    refused(ConfigError, message, sb3_policy, model(name), env())


# -- memory --------------------------------------------------------------------------------------------------------


def replayed(chosen: SB3Model, observation: Tensor, starts: Tensor) -> Tensor:
    """Returns the actions ``[N, T]`` of the bare network for a sequence ``[N, T, F]``."""
    network = chosen.network
    memory, actions = network.initial_memory(len(observation)), []
    for t in range(observation.shape[1]):
        outputs, memory = network(observation[:, t], memory, starts[:, t])
        actions.append(network.choose(outputs))
    return torch.stack(actions, 1)


def check_memory(chosen: SB3Model, rollout: TensorDictBase, group: str | None = None) -> None:
    """Compares a rollout's actions with those of the bare network, and with one that is never reset."""
    place: Any = rollout if group is None else rollout[group]
    observation, action, done = place["observation"], place["action"], rollout["next", "done"][..., 0]
    starts = torch.cat((torch.ones_like(done[:, :1]), done[:, :-1]), 1)  # [W, T], after the ends of those before
    assert starts[:, 1:].any()
    if group is not None:
        observation, action = (value.transpose(1, 2).flatten(0, 1) for value in (observation, action))
        starts = starts.repeat_interleave(len(action) // len(starts), 0)
    assert torch.equal(action, replayed(chosen, observation, starts))
    assert not torch.equal(action, replayed(chosen, observation, torch.zeros_like(starts)))  # the resets matter


@exhaustive("agents", [None, 2])
@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: TransformedEnv(env, InitTracker())])
def test_memory_begins_anew_with_every_episode(wrap: Any, agents: int | None) -> None:
    chosen, env = model("recurrent_ppo_small"), wrap(Noise(5, 4, num_worlds=6, agents=agents))
    policy = sb3_policy(chosen, env)
    for _ in range(2):  # the second rollout resets the env in the middle of episodes
        check_memory(chosen, env.rollout(25, policy, break_when_any_done=False), None if agents is None else "agents")


def test_memory_in_a_collector_goes_on_between_batches() -> None:
    chosen, env = model("recurrent_ppo_small"), Noise(5, 4, num_worlds=6)
    batches = [batch.clone() for batch in make_collector(env, sb3_policy(chosen, env), 10, total_frames=6 * 30)]
    assert len(batches) == 3
    check_memory(chosen, torch.cat(batches, 1))


def test_forgetting() -> None:
    env = Noise(5, 4, num_worlds=64)
    policy, td = sb3_policy(model("recurrent_ppo_small"), env), env.reset()
    first = policy(td.clone())["action"]
    later = policy(td.clone())["action"]
    policy.reset()
    assert torch.equal(policy(td.clone())["action"], first) and not torch.equal(later, first)


# -- Observation statistics of Stable-Baselines3, and pickles that attempt something else ----------------------------


@recordings("sb3/*_vecnormalize.pkl", "sb3/*_vecnormalize.pkl")
def test_recorded_statistics(path: Path) -> None:
    """Reads the expected statistics, and normalises as recorded."""
    statistics = load_vecnormalize(path)
    expected = json.loads(path.with_name(path.stem + "_expected.json").read_text())
    assert build(VecNormalize, expected) == statistics
    with np.load(path.with_name(path.name.replace("_vecnormalize.pkl", "_io.npz"))) as file:
        keys = statistics.obs_keys
        names = [("raw", "norm")] if keys is None else [(f"raw_{key}", f"norm_{key}") for key in keys]
        raw, norm = (torch.from_numpy(np.concatenate([file[name] for name in part], -1)) for part in zip(*names))
    ours = statistics.normalise(raw)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, norm, rtol=0, atol=1e-6)


def statistics(**changes: Any) -> VecNormalize:
    entries: dict[str, Any] = {"clip_obs": 2.0, "clip_reward": 10.0, "gamma": 0.9, "epsilon": 0.0, "norm_obs": True}
    entries |= {"norm_reward": True, "obs_mean": [1.0, 0.0], "obs_var": [4.0, 0.25], "obs_count": 3.0}
    entries |= {"ret_mean": [0.0], "ret_var": [1.0], "ret_count": 3.0}
    return build(VecNormalize, entries | changes)


def test_normalising() -> None:
    seen = torch.tensor([[2.0, 0.5], [9.0, -9.0]], dtype=torch.float64)
    assert statistics().normalise(seen).tolist() == [[0.5, 1.0], [2.0, -2.0]]
    assert statistics(obs_mask=[True, False]).normalise(seen).tolist() == [[0.5, 0.5], [2.0, -9.0]]
    assert torch.equal(statistics(norm_obs=False).normalise(seen), seen.float())
    assert statistics(obs_var=[0.0, 0.0], epsilon=0.25).normalise(seen)[0].tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"surplus": 1}, "surplus: unknown key"),
        ({"obs_var": [1.0]}, "differs in length"),
        ({"obs_mean": [1.0, float("nan")]}, r"obs_mean\[1\]: nan is outside"),
        ({"obs_mean": ["a", "b"]}, r"obs_mean\[0\]: expected a number"),
    ],
)
def test_entries_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, statistics, **change)
    with pytest.raises(ConfigError, match="obs_mean: missing"):
        build(VecNormalize, {key: value for key, value in asdict(statistics()).items() if key != "obs_mean"})


# -- hostile and broken pickles ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["builtins\neval", "numpy\nload", "numpy.core.multiarray\n_reconstruct.__class__", "rlstack.config\nos"]
)
def test_allowed_modules_are_no_way_around(tmp_path: Path, name: str) -> None:
    path = tmp_path / "statistics.pkl"
    path.write_bytes(b"c" + name.encode() + b"\n.")
    refused(ConfigError, "refused", load_vecnormalize, path)


def test_a_pickle_cannot_change_what_stands_in(tmp_path: Path) -> None:
    """Writing to one of our classes (BUILD on the class itself) fails, and the next file is read as before."""
    path = tmp_path / "statistics.pkl"
    for name in (b"numpy\nndarray", b"numpy.core.multiarray\nscalar", b"_codecs\nencode", b"collections\nOrderedDict"):
        path.write_bytes(b"\x80\x02c" + name + b"\n}X\x05\x00\x00\x00codes}s\x86b.")
        refused(ConfigError, "not the statistics", load_vecnormalize, path)
    test_recorded_statistics(FIXTURES / "a2c_multi_default_vecnormalize.pkl")
