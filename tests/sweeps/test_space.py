"""The options that vary in a population, as given on the command line."""

from __future__ import annotations

from random import Random

import pytest

from rlstack.config import ConfigError
from rlstack.sweeps.space import ChoiceDimension, RangeDimension, split


def test_ranges_are_told_from_the_rest_of_the_command_line() -> None:
    line = ["agent=ppo", "++agent.lr=tag(log,interval(1e-4,1e-2))", "++agent.epochs=int(interval(1,9))", "env.id=A-v0"]
    space, fixed = split([*line, "agent.batch_size=64,256", "agent.gamma=choice(0.9,0.99)"])
    assert fixed == ["agent=ppo", "env.id=A-v0"]
    assert space == {
        "agent.lr": RangeDimension(1e-4, 1e-2, log=True, whole=False),
        "agent.epochs": RangeDimension(1, 9, log=False, whole=True),
        "agent.batch_size": ChoiceDimension((64, 256)),
        "agent.gamma": ChoiceDimension((0.9, 0.99)),
    }


def test_a_value_on_the_command_line_beats_a_range_of_the_yaml() -> None:
    space, fixed = split(["agent.lr=interval(0,1)", "agent.gamma=interval(0.9,1)", "++agent.lr=0.5"])
    assert list(space) == ["agent.gamma"] and fixed == ["++agent.lr=0.5"]


@pytest.mark.parametrize(
    ("line", "needles"),
    [
        (["agent=ppo"], ["nothing varies", "interval"]),
        (["seed=0,1"], ["seed", "agent."]),
        (["agent=ppo,sac"], ["agent:", "cannot vary"]),
        (["agent.lr=interval(1,0)"], ["agent.lr", "not a range"]),
        (["agent.lr=tag(log,interval(0,1))"], ["agent.lr", "above zero"]),
    ],
)
def test_what_cannot_vary_is_told(line: list[str], needles: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        split(line)
    for needle in needles:
        assert needle in str(error.value)


def test_a_logarithmic_range_draws_as_many_from_each_decade() -> None:
    values = [RangeDimension(1e-4, 1e-2, log=True, whole=False).draw(Random(seed)) for seed in range(400)]
    assert all(1e-4 <= value <= 1e-2 for value in values)
    assert 150 < sum(value < 1e-3 for value in values) < 250


def test_perturbed_values_stay_inside_and_whole_numbers_whole() -> None:
    rng = Random(0)
    assert RangeDimension(0.0, 1.0, False, False).perturb(0.5, [1.2], rng) == pytest.approx(0.6)
    assert RangeDimension(0.0, 1.0, False, False).perturb(0.9, [1.2], rng) == 1.0
    assert RangeDimension(1, 9, False, True).perturb(2, [1.2], rng) == 3
    assert RangeDimension(1, 9, False, True).perturb(2, [0.8], rng) == 1
    assert RangeDimension(1, 9, False, True).perturb(1, [0.8], rng) == 1
    assert isinstance(RangeDimension(1, 9, False, True).perturb(5, [0.7], rng), int)


def test_a_perturbed_choice_is_a_neighbour() -> None:
    choices = ChoiceDimension((64, 128, 256))
    assert choices.perturb(128, [1.2], Random(0)) == 256
    assert choices.perturb(128, [0.8], Random(0)) == 64
    assert choices.perturb(256, [1.2], Random(0)) == 256
