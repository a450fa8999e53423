"""An encoder of its own for every key of an observation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded

from rlstack import envs
from rlstack.agents import make_agent
from rlstack.config import ConfigError
from rlstack.config.options import EncoderConfig
from rlstack.networks.encoders import build_encoder
from tests.agents.small_agents import Decisions, small

SPEC = Composite(
    {
        "objects": Unbounded((5, 4)),
        "there": Binary(5, dtype=torch.bool),
        "state": Composite({"speed": Unbounded(3), "heading": Unbounded(())}),
        "image": Bounded(0, 255, shape=(3, 40, 40), dtype=torch.uint8),
    }
)
SKIP = {"kind": "skip"}
SET = {"kind": "set", "hidden": [8], "mask": "there"}


def encoder(**configs: dict[str, Any]) -> Any:
    named = {name.replace("__", "."): EncoderConfig(**config) for name, config in configs.items()}
    return build_encoder(SPEC, None, 10, [3], named)


def seen(*lead: int) -> TensorDict:
    observation = SPEC.expand(*lead).rand()
    return observation.set("there", torch.rand(*lead, 5) < 0.6)


def test_parts_are_joined_in_the_order_of_their_keys() -> None:
    made = encoder(state__speed={"kind": "mlp", "hidden": [7, 6]}, image={"kind": "skip"}, objects={"kind": "skip"})
    observation = seen(2, 3)
    found = made(observation)
    assert found.shape == (2, 3, made.out_features) and made.out_features == 1 + 6 + 5
    assert torch.equal(found[..., 0], observation["state", "heading"])
    assert torch.equal(found[..., 7:], observation["there"].float())


def test_a_flattened_image_is_scaled() -> None:
    made = encoder(
        image={"kind": "flat"}, **dict.fromkeys(("objects", "there", "state__speed", "state__heading"), SKIP)
    )
    observation = seen(2)
    assert torch.equal(made(observation), observation["image"].flatten(1) / 255)


@pytest.mark.parametrize(("pool", "size"), [("flatten", 40), ("mean", 8), ("max", 8), ("sum", 8)])
def test_what_is_not_there_does_not_count(pool: str, size: int) -> None:
    skipped = dict.fromkeys(("image", "state__speed", "state__heading"), SKIP)
    made = encoder(objects={**SET, "pool": pool}, **skipped)
    assert made.out_features == size, "the mask is not encoded itself"
    observation = seen(6)
    observation["there"][0], observation["there"][1:, 0] = False, True  # nobody; somebody
    other = observation.clone()
    other["objects"][~observation["there"]] = 99.0
    assert torch.equal(made(observation), made(other)) and (made(observation)[0] == 0).all()
    encoded = made.parts[0].layers(observation["objects"])
    for row in range(1, 6):
        chosen = encoded[row][observation["there"][row]]
        wanted = {"mean": chosen.mean(0), "max": chosen.amax(0), "sum": chosen.sum(0)}.get(pool)
        if wanted is not None:
            torch.testing.assert_close(made(observation)[row], wanted)
    if pool != "flatten":
        order = torch.randperm(5)
        mixed = observation.copy().set("objects", observation["objects"][:, order])
        torch.testing.assert_close(made(mixed.set("there", observation["there"][:, order])), made(observation))


def test_attention_is_torchs_own() -> None:
    """Of the things that are there, by ``nn.MultiheadAttention`` with the same weights; nobody gives zeros."""
    skipped = dict.fromkeys(("image", "state__speed", "state__heading"), SKIP)
    made = encoder(objects={"kind": "attention", "hidden": [8], "mask": "there", "heads": 2}, **skipped)
    part, observation = made.parts[0], seen(6)
    observation["there"][0], observation["there"][1:, 0] = False, True
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = part.project.weight.data, part.project.bias.data
    theirs.out_proj.load_state_dict(part.join.state_dict())
    found, encoded = made(observation), part.layers(observation["objects"])
    assert found.shape == (6, 8) and (found[0] == 0).all()
    for row in range(1, 6):
        x = encoded[row][observation["there"][row]]
        wanted = part.norm(x + theirs(x[None], x[None], x[None])[0][0]).mean(0)
        torch.testing.assert_close(found[row], wanted)
    other = observation.clone()
    other["objects"][~observation["there"]] = 99.0
    torch.testing.assert_close(made(other), found)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"objekts": SET}, r"agent.encoders.objekts: did you mean 'objects'\? the observation has no 'objekts'"),
        ({"objects": {**SET, "mask": "her"}}, "agent.encoders.objects.mask: .*there"),
        ({"image": {"kind": "set", "hidden": [8]}}, r"kind 'set' takes things \[K, F\], it has \[3, 40, 40\]"),
        ({"objects": {**SET, "mask": "state__speed"}}, "the observation has no"),
        ({"state__speed": {"kind": "image", "features": 8}}, "three dimensions"),
        (dict.fromkeys(("image", "objects", "there", "state__speed", "state__heading"), SKIP), "is skipped"),
    ],
)
def test_encoders_that_do_not_fit_are_refused(configs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encoder(**configs)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "cnn"}, "expected one of 'flat', 'mlp', 'set', 'attention', 'image', 'skip'"),
        ({"kind": "mlp"}, "agent.encoders.state.speed: kind 'mlp' needs hidden"),
        ({"kind": "mlp", "hidden": [8], "pool": "max"}, "kind 'mlp' has no pool, it takes hidden"),
        ({"kind": "attention", "hidden": [6]}, "4 heads cannot share the last width of hidden, 6, equally"),
        ({"kind": "mlp", "width": 8}, "agent.encoders.state.speed.width: unknown key"),
    ],
)
def test_impossible_options_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(Decisions(SPEC, Categorical(4, shape=())), name="ppo", encoders={"state.speed": config})


@pytest.mark.parametrize("name", ["ppo", "dqn", "iqn", "sac"])
@pytest.mark.parametrize("kind", ["set", "attention"])
def test_agents_learn_through_them(name: str, kind: str) -> None:
    env = Decisions(SPEC, Categorical(4, shape=()))
    own = {"objects": {**SET, "kind": kind, "pool": "mean"}, "image": {"kind": "image", "features": 4}}
    agent = small(env, name=name, encoders=own)
    before = [parameter.detach().clone() for parameter in agent.parameters()]
    agent.learn(env.experience(agent, 3, 10), 30)
    assert all(not torch.equal(old, new) for old, new in zip(before, agent.parameters()))


def test_a_single_tensor_is_called_observation() -> None:
    env = Decisions(Unbounded(6), Categorical(4, shape=()))
    agent = small(env, name="ppo", encoders={"observation": {"kind": "mlp", "hidden": [5]}})
    assert agent.actor.encoder.out_features == 5 and agent.policy(explore=True)(env.draw(3))["action"].shape == (3,)


def test_a_worlds_own_scaling_comes_first() -> None:
    env = envs.make("marinenav", num_worlds=2)
    objects = {"kind": "set", "hidden": [8], "mask": "mask", "pool": "max"}
    own = {"self": {"kind": "mlp", "hidden": [9]}, "objects": objects}
    agent = make_agent("ppo", env, encoders=own)
    assert agent.actor.encoder.out_features == 17
    rollout = env.rollout(3, agent.policy(explore=True), break_when_any_done=False)
    assert rollout["agents", "action"].shape[:2] == (2, 3)


@pytest.mark.parametrize("world", ["arena", "rocket"])
def test_a_worlds_own_scaling_of_a_vector_comes_first(world: str) -> None:
    env = envs.make(world, num_worlds=2)
    agent = make_agent("ppo", env, encoders={"observation": {"kind": "mlp", "hidden": [5]}})
    assert agent.actor.encoder.out_features == 5
    assert env.rollout(2, agent.policy(explore=True), break_when_any_done=False).shape == (2, 2)
