"""Gymnasium spaces as specs, and conversion of values to and from arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torchrl.data import Bounded, Categorical, Composite, MultiCategorical, Unbounded

from rlstack.envs.spaces import Actions, Observations, mask_path, split_mask
from tests.refusals import refused


def encoded(space: spaces.Space[Any], value: Any) -> list[list[float]]:
    codec = Observations(space)
    arrays = codec.arrays(2)
    codec.write(arrays, 1, value)
    assert all((array[0] == 0).all() for array in arrays), "the other row is left alone"
    return [array[1].tolist() for array in arrays]


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (spaces.Box(-1, 1, (2,)), np.array([0.5, -1]), [0.5, -1.0]),
        (spaces.Box(-1, 1, ()), np.float32(0.5), [0.5]),
        (spaces.Box(0, 9, (2, 1), np.int64), np.array([[3], [4]]), [[3.0], [4.0]]),
        (spaces.Discrete(4), 2, [0, 0, 1, 0]),
        (spaces.Discrete(3, start=-1), np.int64(-1), [1, 0, 0]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0]),
        (spaces.MultiDiscrete([[2], [2]], start=[[5], [0]]), np.array([[6], [0]]), [0, 1, 1, 0]),
        (spaces.MultiBinary((2, 2)), np.array([[1, 0], [0, 1]]), [1, 0, 0, 1]),
    ],
)
def test_what_an_observation_becomes(space: spaces.Space[Any], value: Any, expected: list[float]) -> None:
    assert encoded(space, value) == [expected]


def test_a_row_is_written_anew_every_time() -> None:
    codec = Observations(spaces.Discrete(3))
    arrays = codec.arrays(1)
    for value in (0, 2):
        codec.write(arrays, 0, value)
    assert arrays[0].tolist() == [[0, 0, 1]]


def test_a_row_may_have_two_indices() -> None:
    codec = Observations(spaces.Discrete(3))
    arrays = codec.arrays(2, 2)
    codec.write(arrays, (1, 0), 2)
    assert arrays[0].argmax(-1).tolist() == [[0, 0], [2, 0]]


def test_structures_nest_and_keep_their_names() -> None:
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Box(0, 1, (3,)), spaces.MultiBinary(1)])})
    spec = Observations(space).spec([4])
    assert set(spec.keys(True, True)) == {"a", ("b", "0"), ("b", "1")}
    assert spec["b"].shape == (4,) and spec["b", "0"].shape == (4, 3)
    assert encoded(space, {"a": 1, "b": (np.ones(3), np.array([1]))}) == [[0, 1], [1, 1, 1], [1]]


@pytest.mark.parametrize(
    ("space", "kind", "dtype"),
    [
        (spaces.Box(-2, 3, (2,)), Bounded, torch.float32),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), Bounded, torch.uint8),
        (spaces.Box(0, 255, (8,), np.uint8), Bounded, torch.float32),
        (spaces.Box(0, 2, (5, 5), np.uint8), Bounded, torch.float32),  # not pixels, which are divided by 255
        (spaces.Box(np.array([-1, -np.inf]), np.array([1, 1]), dtype=np.float64), Unbounded, torch.float32),
        (spaces.Box(-np.finfo(np.float64).max, np.finfo(np.float64).max, (2,), np.float64), Unbounded, torch.float32),
    ],
)
def test_observation_specs(space: spaces.Space[Any], kind: type, dtype: torch.dtype) -> None:
    spec = Observations(space).spec([5])
    assert isinstance(spec, kind) and spec.dtype == dtype and spec.shape == (5, *space.shape)
    assert not isinstance(spec, Composite) and spec.is_in(spec.rand())


def test_bounds_are_the_spaces_own() -> None:
    space = spaces.Box(np.array([-1.0, -2.0]), np.array([3.0, 4.0]), dtype=np.float64)
    spec = Observations(space, np.float64).spec([1])
    assert spec.space.low.tolist() == [[-1, -2]] and spec.space.high.tolist() == [[3, 4]]
    assert spec.dtype == torch.float64


@pytest.mark.parametrize(
    ("space", "given", "expected"),
    [
        (spaces.Discrete(3), 2, 2),
        (spaces.Discrete(3, start=4), 2, 6),
        (spaces.MultiDiscrete([3, 2], start=[1, 0]), [2, 1], [3, 1]),
        (spaces.MultiDiscrete([[3], [2]]), [2, 1], [[2], [1]]),
        (spaces.MultiBinary(2), [0, 1], [0, 1]),
        (spaces.Box(-1, 1, (2,)), [0.5, 7.0], [0.5, 1.0]),
        (spaces.Box(-1, 1, (2, 1), np.float64), [0.5, -0.5], [[0.5], [-0.5]]),
        (spaces.Box(-0.1, 0.3, (2,), np.float64), [-1.0, 1.0], [-0.1, 0.3]),  # neither is a number of 32 bits
    ],
)
def test_what_an_action_becomes(space: spaces.Space[Any], given: Any, expected: Any) -> None:
    codec = Actions(space)
    array = codec.array(1)
    codec.store(array, np.asarray([given]))
    for action in (codec.decode(array[0]), codec.decode_all(array)[0]):
        assert space.contains(action)
        np.testing.assert_allclose(action, expected, rtol=1e-7)


def test_action_specs() -> None:
    spec = Actions(spaces.Discrete(3, start=4)).spec([5])
    assert isinstance(spec, Categorical) and spec.shape == (5,) and spec.space.n == 3
    spec = Actions(spaces.MultiDiscrete([3, 2])).spec([5])
    assert isinstance(spec, MultiCategorical) and spec.shape == (5, 2) and spec.rand().max() <= 2
    assert Actions(spaces.MultiBinary(3)).spec([5]).shape == (5, 3)
    spec = Actions(spaces.Box(-2, 3, (2, 2))).spec([5])
    assert isinstance(spec, Bounded) and spec.shape == (5, 4) and (spec.space.low == -2).all()


@pytest.mark.parametrize(
    ("codec", "space", "message"),
    [
        (Observations, spaces.Text(3), r"observation space Text.* is not supported, allowed: Box, Discrete"),
        (Observations, spaces.Dict({"word": spaces.Text(3)}), "of observation entry 'word' is not supported"),
        (Observations, spaces.Dict({}), "is empty"),
        (Observations, spaces.Dict(device=spaces.Discrete(2)), "the key 'device' means something else .*; rename it"),
        (Actions, spaces.Tuple([spaces.Discrete(2)]), "action space Tuple.* is not supported, allowed: Discrete"),
        (Actions, spaces.Box(0, 5, (2,), np.int64), "is not supported"),
        (
            Actions,
            spaces.Box(-np.inf, np.inf, (2,)),
            r"bounds must be finite; gymnasium.wrappers.TransformAction\(env,",
        ),
        (
            mask_path,
            spaces.Dict(a=spaces.Dict(action_mask=spaces.MultiBinary(2)), action_mask=spaces.MultiBinary(2)),
            "it has the action masks a.action_mask, action_mask, one for all choices is allowed",
        ),
    ],
)
def test_other_spaces_are_refused(codec: Any, space: spaces.Space[Any], message: str) -> None:
    refused(ValueError, message, codec, space)


def test_masks() -> None:
    codec = Actions(spaces.MultiDiscrete([2, 3]))
    assert codec.mask_size == 5 and codec.mask_spec([4]).shape == (4, 5)
    array = np.zeros((2, 5), bool)
    codec.write_mask(array, 0, (np.array([0, 1]), np.array([1, 0, 1])))
    codec.write_mask(array, 1, None)
    assert array.tolist() == [[False, True, True, False, True], [True] * 5]
    refused(ValueError, r"mask has 3 entries, action space .* needs 5", codec.write_mask, array, 0, np.ones(3))


def test_a_mask_is_no_observation() -> None:
    mask, box = spaces.MultiBinary(3), spaces.Box(0, 1, (2,))
    rest, take = split_mask(spaces.Dict({"observation": box, "action_mask": mask}))
    assert rest == box and take({"observation": "it", "action_mask": "mask"}) == "it"
    rest, _ = split_mask(spaces.Dict({"a": box, "b": box, "action_mask": mask}))
    assert rest == spaces.Dict({"a": box, "b": box})
    assert split_mask(box)[0] is box and mask_path(box) is None
    rest, _ = split_mask(spaces.Tuple([box, spaces.Dict({"observation": box, "action_masks": mask})]))
    assert rest == spaces.Tuple([box, spaces.Dict({"observation": box})])
