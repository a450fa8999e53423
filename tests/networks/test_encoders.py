"""Encoders and the actor: what reaches the features, what must not, and what fits which spec."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Binary, Bounded, Categorical, Composite, TensorSpec, Unbounded

from rlstack.networks.actors import DeterministicActor
from rlstack.networks.encoders import FlatEncoder, ImageEncoder, KeyedEncoder, ObjectSetEncoder, build_encoder, mlp
from tests.refusals import refused


def observations(*batch: int, objects: int = 5) -> TensorDict:
    torch.manual_seed(1)
    values = {
        "self": torch.randn(*batch, 7),
        "objects": torch.randn(*batch, objects, 4),
        "mask": torch.rand(*batch, objects) < 0.5,
    }
    return TensorDict(values, batch_size=batch)


def test_mlp_layout() -> None:
    assert [type(layer) for layer in mlp((3, 4, 5))] == [nn.Linear, nn.ReLU] * 2
    normed = mlp((3, 4, 5), layer_norm=True)
    assert [type(layer) for layer in normed] == [nn.Linear, nn.LayerNorm, nn.ReLU] * 2
    assert normed(torch.randn(2, 6, 3)).shape == (2, 6, 5)


def test_empty_slots_have_no_influence() -> None:
    encoder, obs = ObjectSetEncoder(7, 4, 5, 6, (8, 3)), observations(64)
    other = obs.clone()
    other["objects"] = torch.where(obs["mask"][..., None], obs["objects"], torch.randn(64, 5, 4) * 100)
    assert torch.equal(encoder(obs), encoder(other))
    other["objects"] = torch.where(obs["mask"][..., None], other["objects"] + 1, other["objects"])
    some = obs["mask"].any(-1)
    assert (encoder(obs) != encoder(other)).any(-1)[some].float().mean() > 0.5


def test_features_are_oneself_then_the_slots_in_order() -> None:
    encoder, obs = ObjectSetEncoder(7, 4, 5, 6, (8, 3)), observations(9)
    features = encoder(obs)
    assert features.shape == (9, encoder.out_features) == (9, 6 + 5 * 3)
    torch.testing.assert_close(features[:, :6], encoder.self_encoder(obs["self"]))
    for slot in range(5):
        alone = encoder.object_encoder(obs["objects"][:, slot]) * obs["mask"][:, slot, None]
        torch.testing.assert_close(features[:, 6 + 3 * slot : 9 + 3 * slot], alone)


def test_no_object_at_all_gives_zeros_and_finite_gradients() -> None:
    encoder, obs = ObjectSetEncoder(7, 4, 5, 6, (3,)), observations(8)
    obs["mask"] = torch.zeros(8, 5, dtype=torch.bool)
    features = encoder(obs)
    assert (features[:, 6:] == 0).all()
    features.sum().backward()
    assert all((parameter.grad == 0).all() for parameter in encoder.object_encoder.parameters())


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


@pytest.mark.parametrize("shape", [(3, 40, 44), (40, 44, 3)])
def test_images_of_either_layout_are_scaled_and_convolved(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    encoder = build_encoder(Bounded(0, 255, shape=shape, dtype=torch.uint8), None, 10, [3])
    assert isinstance(encoder, ImageEncoder)
    images = torch.randint(0, 256, (2, 5, *shape), dtype=torch.uint8)
    features = encoder(images)
    assert features.shape == (2, 5, encoder.out_features) == (2, 5, 10)
    torch.testing.assert_close(features, encoder(images.float() / 255))
    first = images.float() / 255 if shape[0] == 3 else images.permute(0, 1, 4, 2, 3).float() / 255
    layers = encoder.convolutions
    by_hand = encoder.head(layers(first[1, 3][None]))[0]
    torch.testing.assert_close(features[1, 3], by_hand)


@pytest.mark.parametrize("shape", [(3, 40, 44), (40, 44, 3), (40, 44), (7, 7, 3), (5, 6), (3, 1, 1)])
def test_an_image_is_encoded_alike_alone_and_in_a_dict(shape: tuple[int, ...]) -> None:
    """Also a grey one, and one that is too small for the published convolutions."""
    image = Bounded(0, 255, shape=shape, dtype=torch.uint8)
    alone = build_encoder(image, None, 10, [3])
    spec = Composite({"sensors": Composite({"camera": image}), "speed": Unbounded(2)})
    encoder = build_encoder(spec, None, 10, [3])
    assert encoder.out_features == 10 + 2
    encoder.parts[0].load_state_dict(alone.state_dict())  # type: ignore[union-attr, index]
    pixels, speed = torch.randint(0, 256, (2, 5, *shape), dtype=torch.uint8), torch.randn(2, 5, 2)
    seen = TensorDict({"sensors": {"camera": pixels}, "speed": speed}, batch_size=(2, 5))
    assert torch.equal(encoder(seen), torch.cat((alone(pixels), speed), -1))
    torch.testing.assert_close(alone(pixels), alone(pixels.float() / 255))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Unbounded((3, 8)), r"observations of shape \(3, 8\) have no encoder; .* agent.encoders=\{observation: "),
        (Unbounded((4, 3, 8, 8)), r"observations of shape \(4, 3, 8, 8\) have no encoder"),
    ],
)
def test_build_encoder_says_what_does_not_fit(spec: TensorSpec, message: str) -> None:
    refused(ValueError, message, build_encoder, spec, None, 10, [3])
