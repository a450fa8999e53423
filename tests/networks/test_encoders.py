"""Encoders of vectors, slots, images and keys."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torch.nn import functional
from torchrl.data import Binary, Bounded, Categorical, Composite, TensorSpec, Unbounded

from rlstack import envs
from rlstack.agents import make_agent
from rlstack.config import ConfigError
from rlstack.config.options import EncoderConfig
from rlstack.networks.actors import DeterministicActor
from rlstack.networks.encoders import FlatEncoder, ImageEncoder, KeyedEncoder, ObjectSetEncoder, build_encoder, mlp
from tests.agents.small_agents import Decisions, learn, small
from tests.exhaustive import exhaustive
from tests.refusals import refused


def observations(*batch: int, objects: int = 5) -> TensorDict:
    torch.manual_seed(1)
    values = {
        "self": torch.randn(*batch, 7),
        "objects": torch.randn(*batch, objects, 4),
        "mask": torch.rand(*batch, objects) < 0.5,
    }
    return TensorDict(values, batch_size=batch)


def test_layers_use_weights_put_in_place_of_their_own() -> None:
    layers, data = mlp((3, 4)), torch.randn(2, 3)
    plain = layers(data)
    with (TensorDict.from_module(layers).detach() * 2).to_module(layers, preserve_module_state=False):  # as losses do
        assert layers(data).equal(2 * plain) and plain.any()


def test_features_are_oneself_then_the_slots_in_order() -> None:
    encoder, obs = ObjectSetEncoder(7, 4, 5, 6, (8, 3)), observations(9)
    features = encoder(obs)
    assert features.shape == (9, encoder.out_features) == (9, 6 + 5 * 3)
    torch.testing.assert_close(features[:, :6], encoder.self_encoder(obs["self"]))
    for slot in range(5):
        alone = encoder.object_encoder(obs["objects"][:, slot]) * obs["mask"][:, slot, None]
        torch.testing.assert_close(features[:, 6 + 3 * slot : 9 + 3 * slot], alone)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int64])
def test_any_mask_dtype(dtype: torch.dtype) -> None:
    encoder, obs = ObjectSetEncoder(7, 4, 5), observations(8)
    assert torch.equal(encoder(obs), encoder(obs.copy().set("mask", obs["mask"].to(dtype))))


@pytest.mark.parametrize("squash", ["arctan", "tanh"])
def test_batch_dimensions_do_not_matter(squash: str) -> None:
    actor, obs = DeterministicActor(ObjectSetEncoder(7, 4, 5, 6, (3,)), 2, (8, 8), squash), observations(3, 4)
    actions = actor(obs)
    assert actions.shape == (3, 4, 2)
    torch.testing.assert_close(actions, actor(obs.reshape(12)).view(3, 4, 2))
    torch.testing.assert_close(actions[1, 2], actor(obs[1, 2]))


def test_squashing() -> None:
    for squash, function in (("tanh", math.tanh), ("arctan", lambda z: 2 / math.pi * math.atan(z))):
        actor = DeterministicActor(FlatEncoder(1), 1, (1,), squash)
        nn.init.zeros_(actor.output.weight)
        for raw in (-1e3, -0.7, 0.0, 0.2, 40.0):
            nn.init.constant_(actor.output.bias, raw)
            assert actor(torch.ones(1)).item() == pytest.approx(function(raw), rel=1e-6)


def structured(**changes: object) -> Composite:
    leaves = {"self": Unbounded(7), "objects": Bounded(-1, 1, shape=(5, 4)), "mask": Binary(5, dtype=torch.bool)}
    leaves = {key: leaf for key, leaf in {**leaves, **changes}.items() if leaf is not None}
    return Composite(leaves, shape=())


class Doubled(nn.Module):
    """Input features that are not the observation's own."""

    self_size, object_size = 14, 8

    def forward(self, obs: TensorDict) -> TensorDict:
        wide = {key: torch.cat((obs[key],) * 2, -1) for key in ("self", "objects")}
        return TensorDict({**wide, "mask": obs["mask"]}, batch_size=obs.batch_size)


def test_build_encoder_fits_the_spec() -> None:
    flat, vector = build_encoder(Unbounded(7), None, 10, [3]), torch.randn(4, 7)
    assert isinstance(flat, FlatEncoder) and flat.out_features == 7 and torch.equal(flat(vector), vector)
    plain = build_encoder(structured(), None, 10, [8, 3])
    assert plain(observations(4)).shape == (4, plain.out_features) == (4, 10 + 15)
    scaled = build_encoder(structured(), Doubled, 10, [3])
    assert scaled(observations(2, 3)).shape == (2, 3, scaled.out_features) == (2, 3, 10 + 15)


@pytest.mark.parametrize("spec", [Binary(3, dtype=torch.bool), Bounded(0, 9, shape=(3,), dtype=torch.int64)])
@pytest.mark.parametrize("name", ["dqn", "iqn", "ppo"])
def test_vectors_of_whole_numbers_and_flags_are_learned_from(name: str, spec: TensorSpec) -> None:
    env = Decisions(spec, Categorical(4, shape=()))
    agent = small(env, name=name)
    learn(agent, env)
    seen, policy = env.draw(5), agent.policy(explore=False)
    network = agent.actor if name == "ppo" else agent.action_values
    torch.testing.assert_close(network(seen["observation"]), network(seen["observation"].float()))
    assert policy(seen)["action"].shape == (5,)


MATRIX = {"observation": {"kind": "mlp", "hidden": [6]}}


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        (Unbounded((5, 3)), {"encoders": MATRIX, "rnd": {"coefficient": 1.0, "hidden": [8]}}),
        (Composite({"own": Unbounded(3), "grid": Unbounded((5, 3))}), {"critic_inputs": ["grid"]}),
    ],
)
def test_a_matrix_is_flattened_where_no_option_describes_its_encoder(spec: TensorSpec, options: dict[str, Any]) -> None:
    env = Decisions(spec, Categorical(4, shape=()))
    agent = small(env, name="ppo", **options)
    learn(agent, env)
    network: Any = agent.curiosity.predictor if "rnd" in options else agent.critic
    assert network.trunk[0].in_features == 15


def test_any_other_dict_is_flattened_in_the_order_of_its_keys() -> None:
    spec = Composite(
        {
            "pair": Unbounded((2, 3)),
            "a": Composite({"number": Unbounded(()), "flags": Binary(2, dtype=torch.bool)}),
            "choice": Categorical(5, shape=(), dtype=torch.int64),
        }
    )
    encoder = build_encoder(spec, None, 10, [3])
    assert isinstance(encoder, KeyedEncoder) and encoder.out_features == 2 + 1 + 1 + 6
    pair = torch.arange(6.0).view(2, 3)
    leaves = {"pair": pair, "a": {"number": torch.tensor(7.0), "flags": torch.tensor([True, False])}}
    observation = TensorDict({**leaves, "choice": torch.tensor(4)})
    expected = torch.tensor([1.0, 0.0, 7.0, 4.0, *range(6)])
    assert torch.equal(encoder(observation), expected)
    assert torch.equal(encoder(observation.expand(3, 2)), expected.expand(3, 2, -1))


def test_the_channels_of_images_may_come_last() -> None:
    first, last = ImageEncoder((3, 40, 44), 10), ImageEncoder((40, 44, 3), 10)
    last.load_state_dict(first.state_dict())
    images = torch.randint(0, 256, (2, 5, 3, 40, 44), dtype=torch.uint8)
    torch.testing.assert_close(last(images.permute(0, 1, 3, 4, 2)), first(images))


@pytest.mark.parametrize("shape", [(3, 8, 9), (8, 9, 3), (8, 9)])
@pytest.mark.parametrize("residual", [False, True])
def test_images_of_several_agents_are_encoded_as_one_batch(shape: tuple[int, ...], residual: bool) -> None:
    """As the updates of runs with ``seeds`` are made."""
    encoders = [ImageEncoder(shape, 4, residual, layer_norm=residual) for _ in range(2)]
    images = torch.randint(0, 256, (2, 5, *shape), dtype=torch.uint8)
    stacked, _ = torch.func.stack_module_state(encoders)

    def encoded(parameters: dict[str, torch.Tensor], images: torch.Tensor) -> Any:
        return torch.func.functional_call(encoders[0], parameters, images)

    expected = torch.stack([encoder(own) for encoder, own in zip(encoders, images)])
    torch.testing.assert_close(torch.vmap(encoded)(stacked, images), expected)


@pytest.mark.parametrize("shape", [(3, 40, 44), (40, 44, 3), (40, 44), (7, 7, 3), (5, 6), (3, 1, 1)])
def test_an_image_is_encoded_alike_alone_and_in_a_dict(shape: tuple[int, ...]) -> None:
    """Also a grey one, and one that is too small for the published convolutions."""
    image = Bounded(0, 255, shape=shape, dtype=torch.uint8)
    alone = build_encoder(image, None, 10, [3])
    assert isinstance(alone, ImageEncoder) and alone.out_features == 10
    spec = Composite({"sensors": Composite({"camera": image}), "speed": Unbounded(2)})
    encoder = build_encoder(spec, None, 10, [3])
    assert encoder.out_features == 10 + 2
    encoder.parts[0].load_state_dict(alone.state_dict())  # type: ignore[union-attr, index]
    pixels, speed = torch.randint(0, 256, (2, 5, *shape), dtype=torch.uint8), torch.randn(2, 5, 2)
    seen = TensorDict({"sensors": {"camera": pixels}, "speed": speed}, batch_size=(2, 5))
    assert torch.equal(encoder(seen), torch.cat((alone(pixels), speed), -1))
    torch.testing.assert_close(alone(pixels), alone(pixels.float() / 255))


CONVOLVED = {
    "image": ([8 * 8 * 4 * 32 + 32, 4 * 4 * 32 * 64 + 64, 9 * 64 * 64 + 64], [32, 64, 64], 64 * 7 * 7),
    "impala": (
        [9 * a * b + b for a, b in ((4, 16), (16, 32), (32, 32), *[(16, 16)] * 4, *[(32, 32)] * 8)],
        [16] * 5 + [32] * 10,
        32 * 11 * 11,
    ),
}
"""Sizes by kind of encoder of ``[4, 84, 84]``: parameters and channels of each convolution, and what they end with."""


@pytest.mark.parametrize("kind", CONVOLVED)
def test_image_encoders_have_the_published_layers(kind: Any) -> None:
    """Those of Mnih et al. 2015, or of Espeholt et al. 2018; norms add two numbers for each channel and feature."""
    pictures, config = Bounded(0, 255, shape=(4, 84, 84), dtype=torch.uint8), {"kind": kind, "features": 10}
    weights, channels, convolved = CONVOLVED[kind]
    plain = sum(weights) + (convolved + 1) * 10
    for layer_norm, size in ((False, plain), (True, plain + 2 * sum(channels) + 2 * 10)):
        encoders = {"observation": EncoderConfig(**config, layer_norm=layer_norm)}
        assert sum(map(torch.numel, build_encoder(pictures, None, 10, [3], encoders).parameters())) == size


@pytest.mark.parametrize("residual", [False, True])
def test_normalised_convolutions_equal_those_of_torch_pixel_by_pixel(residual: bool) -> None:
    torch.manual_seed(0)
    encoder = ImageEncoder((3, 40, 40), 5, residual, layer_norm=True)
    for parameter in encoder.parameters():
        parameter.data.normal_(0, 0.3)
    convolutions = [module for module in encoder.modules() if isinstance(module, nn.Conv2d)]
    norms = [module for module in encoder.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == len(convolutions) + 1
    parts = iter(zip(convolutions, norms))

    def normed(x: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
        """Every row of ``[N, C]`` by a group norm of one group."""
        return functional.group_norm(x, 1, norm.weight, norm.bias, norm.eps)

    def convolve(image: torch.Tensor) -> torch.Tensor:
        convolution, norm = next(parts)
        image = convolution(image)
        pixels = normed(image.permute(0, 2, 3, 1).reshape(-1, image.shape[1]), norm)
        return pixels.view(len(image), *image.shape[2:], -1).permute(0, 3, 1, 2)

    pixels = torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8)
    x = pixels / 255
    for _ in range(3):
        if residual:
            x = functional.max_pool2d(convolve(x), 3, 2, padding=1)
            for _ in range(2):
                x = x + convolve(convolve(x.relu()).relu())
        else:
            x = convolve(x).relu()
    head: Any = encoder.head[0]
    x = normed(head(x.relu().flatten(1)), norms[-1]).relu()
    torch.testing.assert_close(encoder(pixels), x, rtol=1e-4, atol=1e-5)


def test_build_encoder_says_what_does_not_fit() -> None:
    message = r"observations of shape \(3, 8\) have no encoder; .* agent.encoders=\{observation: "
    refused(ConfigError, message, build_encoder, Unbounded((3, 8)), None, 10, [3])


# -- An encoder of its own for every key of an observation -----------------------------------------------------------


SPEC = Composite(
    {
        "objects": Unbounded((5, 4)),
        "there": Binary(5, dtype=torch.bool),
        "state": Composite({"speed": Unbounded(3), "heading": Unbounded(())}),
        "image": Bounded(0, 255, shape=(3, 40, 40), dtype=torch.uint8),
    }
)
SKIP = {"kind": "skip"}
NO_OTHERS = dict.fromkeys(("image", "state__speed", "state__heading"), SKIP)
SET = {"kind": "set", "hidden": [8], "mask": "there"}


def encoder(**configs: dict[str, Any]) -> Any:
    named = {name.replace("__", "."): EncoderConfig(**config) for name, config in configs.items()}
    return build_encoder(SPEC, None, 10, [3], named)


def seen(*lead: int) -> TensorDict:
    return SPEC.expand(*lead).rand().set("there", torch.rand(*lead, 5) < 0.6)


def test_parts_are_joined_in_the_order_of_their_keys() -> None:
    made = encoder(state__speed={"kind": "mlp", "hidden": [7, 6]}, image={"kind": "skip"}, objects={"kind": "skip"})
    observation = seen(2, 3)
    found = made(observation)
    assert found.shape == (2, 3, made.out_features) and made.out_features == 1 + 6 + 5
    assert torch.equal(found[..., 0], observation["state", "heading"])
    assert torch.equal(found[..., 7:], observation["there"].float())


def test_a_flattened_image_is_scaled() -> None:
    skipped = dict.fromkeys(("objects", "there", "state__speed", "state__heading"), SKIP)
    made = encoder(image={"kind": "flat"}, **skipped)
    observation = seen(2)
    assert torch.equal(made(observation), observation["image"].flatten(1) / 255)


@pytest.mark.parametrize("config", [{"kind": "mlp", "hidden": [8]}, {"kind": "set", "hidden": [8]}, {"kind": "flat"}])
def test_whole_numbers_become_those_of_the_layers(config: dict[str, Any]) -> None:
    spec = Composite(grid=Bounded(0, 255, shape=(4, 5), dtype=torch.uint8), speed=Unbounded(2, dtype=torch.float64))
    made = build_encoder(spec, None, 10, [3], {"grid": EncoderConfig(**config)}).double()
    assert made(spec.rand((3,))).dtype == torch.float64


@pytest.mark.parametrize(("pool", "size"), [("flatten", 40), ("mean", 8), ("max", 8), ("sum", 8)])
def test_what_is_not_there_does_not_count(pool: str, size: int) -> None:
    made = encoder(objects={**SET, "pool": pool}, **NO_OTHERS)
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
    made = encoder(objects={"kind": "attention", "hidden": [8], "mask": "there", "heads": 2}, **NO_OTHERS)
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
    refused(ConfigError, message, encoder, **configs)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "cnn"}, "expected one of 'flat', 'mlp', 'set', 'attention', 'image', 'impala', 'skip'"),
        ({"kind": "mlp"}, "agent.encoders.state.speed: kind 'mlp' needs hidden"),
        ({"kind": "mlp", "hidden": [8], "pool": "max"}, "kind 'mlp' has no pool, it takes hidden"),
        ({"kind": "attention", "hidden": [6]}, "4 heads cannot share the last width of hidden, 6, equally"),
        ({"kind": "mlp", "hidden": [8], "layer_norm": True}, "kind 'mlp' has no layer_norm, it takes hidden"),
        ({"kind": "mlp", "width": 8}, "agent.encoders.state.speed.width: unknown key"),
    ],
)
def test_impossible_options_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(Decisions(SPEC, Categorical(4, shape=())), name="ppo", encoders={"state.speed": config})


IMAGE = {"kind": "image", "features": 4}


@exhaustive(
    ("name", "spec", "encoders"),
    [
        *(
            ("pqn", SPEC["image"], {"observation": {**IMAGE, "kind": kind, "layer_norm": True}})
            for kind in ("image", "impala")
        ),
        *(
            (name, SPEC, {"objects": {**SET, "kind": kind, "pool": "mean"}, "image": IMAGE})
            for name, kind in (("ppo", "set"), ("sac", "attention"), ("dqn", "set"), ("iqn", "attention"))
        ),
    ],
    quick=4,
)
def test_agents_learn_through_them(name: str, spec: TensorSpec, encoders: dict[str, Any]) -> None:
    env = Decisions(spec, Categorical(4, shape=()))
    agent = small(env, name=name, encoders=encoders)
    before = [parameter.detach().clone() for parameter in agent.parameters()]
    agent.learn(env.experience(agent, 3, 10), 30)
    assert all(not torch.equal(old, new) for old, new in zip(before, agent.parameters()))


def test_a_single_tensor_is_called_observation() -> None:
    env = Decisions(Unbounded(6), Categorical(4, shape=()))
    agent = small(env, name="ppo", encoders={"observation": {"kind": "mlp", "hidden": [5]}})
    assert agent.actor.encoder.out_features == 5 and agent.policy(explore=True)(env.draw(3))["action"].shape == (3,)


VECTOR = {"observation": {"kind": "mlp", "hidden": [5]}}
VESSELS = {
    "self": {"kind": "mlp", "hidden": [9]},
    "objects": {"kind": "set", "hidden": [8], "mask": "mask", "pool": "max"},
}


@pytest.mark.parametrize(
    ("world", "encoders", "size"), [("marinenav", VESSELS, 17), ("arena", VECTOR, 5), ("rocket", VECTOR, 5)]
)
def test_a_worlds_own_scaling_comes_first(world: str, encoders: dict[str, Any], size: int) -> None:
    env = envs.make(world, num_worlds=2)
    agent = make_agent("ppo", env, encoders=encoders)
    assert agent.actor.encoder.out_features == size
    assert env.rollout(2, agent.policy(explore=True), break_when_any_done=False).shape == (2, 2)
