import math
import pickle
from typing import Any, get_args, get_type_hints

import pytest
import torch
from omegaconf import OmegaConf

from rlstack.config import ConfigError, Interval
from rlstack.config.schedules import ScheduleConfig, make_schedule
from tests.agents.small_agents import ALGORITHMS, CONTINUOUS, plain, small
from tests.refusals import refused

LINEAR = {"kind": "linear", "start": 1, "end": 0}


def curve(config: Any, frames: list[int], total: int = 1000) -> list[float]:
    schedule = make_schedule(config, total)
    values = [schedule(f) for f in frames]
    on_device = [float(schedule(torch.tensor(f))) for f in frames]
    assert on_device == pytest.approx(values, rel=1e-12), "a GPU that counts frames computes the same"
    return values


@pytest.mark.parametrize("number", [3, 0.5, -1.0, 0])
def test_a_number_is_constant(number: float) -> None:
    assert curve(number, [0, 500, 10**9]) == [number] * 3


def test_linear_over_the_whole_run() -> None:
    values = curve({"kind": "linear", "start": 1.0, "end": 0.0}, [0, 250, 500, 1000, 2000])
    assert values == pytest.approx([1.0, 0.75, 0.5, 0.0, 0.0])


@pytest.mark.parametrize("duration", [0.4, 400, 400.0])
def test_duration_is_a_fraction_or_frames(duration: float) -> None:
    config = {"kind": "linear", "start": 1.0, "end": 0.1, "duration": duration}
    assert curve(config, [0, 100, 400, 401]) == pytest.approx([1.0, 0.775, 0.1, 0.1])


def test_a_duration_of_one_is_the_whole_run_even_as_an_integer() -> None:
    assert curve({"kind": "linear", "start": 1.0, "end": 0.0, "duration": 1}, [500]) == [0.5]


def test_cosine() -> None:
    values = curve({"kind": "cosine", "start": 2.0, "end": 1.0}, [0, 333, 500, 1000])
    # independently: 1 + cos(pi f / 1000) / 2 + 1 / 2
    assert values == pytest.approx([2.0, 1.5 + 0.5 * math.cos(math.pi * 0.333), 1.5, 1.0])


def test_exponential_multiplies_by_the_same_factor_in_the_same_time() -> None:
    values = curve({"kind": "exponential", "start": 1.0, "end": 1e-4}, [0, 250, 500, 750, 1000])
    assert values == pytest.approx([1.0, 1e-1, 1e-2, 1e-3, 1e-4])


def test_warmup_climbs_from_zero_and_the_decay_begins_after_it() -> None:
    config = {"kind": "linear", "start": 1.0, "end": 0.0, "duration": 600, "warmup": 0.2}
    assert curve(config, [0, 50, 100, 200, 400, 600, 900]) == pytest.approx([0, 0.25, 0.5, 1.0, 0.5, 0.0, 0.0])
    assert curve({"kind": "constant", "start": 4.0, "warmup": 10}, [0, 5, 10, 99]) == [0.0, 2.0, 4.0, 4.0]


def test_accepts_hydra_nodes_and_built_configs_and_can_be_pickled() -> None:
    node = OmegaConf.create({"kind": "linear", "start": 1, "end": 0})
    built = ScheduleConfig("linear", 1.0, 0.0)
    assert make_schedule(node, 10)(5) == make_schedule(built, 10)(5) == 0.5
    assert pickle.loads(pickle.dumps(make_schedule(node, 10)))(5) == 0.5


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "step", "start": 1}, "agent.lr.kind: expected one of"),
        ({"start": 1.0}, "agent.lr.kind: missing"),
        ({"kind": "linear", "start": 1.0}, "agent.lr: kind 'linear' needs an end"),
        ({"kind": "constant", "start": 1.0, "end": 2.0}, "agent.lr: kind 'constant' takes only"),
        ({"kind": "exponential", "start": 1.0, "end": 0.0}, "agent.lr: kind 'exponential' needs start"),
        ({**LINEAR, "duration": 0}, r"agent.lr.duration: 0 is outside \(0, inf\)"),
        ({**LINEAR, "warmup": -1}, r"agent.lr.warmup: -1 is outside \[0, inf\)"),
        ({**LINEAR, "warmup": 500, "duration": 0.5}, "agent.lr.warmup: 500 frames leave"),
        ({**LINEAR, "start": math.nan}, "agent.lr.start: nan is outside"),
        (math.inf, "agent.lr.start: inf is outside"),
        (True, "agent.lr: expected a number or a schedule, got True"),
        ("1e-3", "agent.lr: expected a number or a schedule, got '1e-3'"),
    ],
)  # fmt: skip
def test_nonsense_is_named(config: Any, message: str) -> None:
    refused(ConfigError, message, make_schedule, config, 1000, where="agent.lr")


def test_a_run_without_frames() -> None:
    refused(ConfigError, "total_frames must be above 0", make_schedule, 1.0, 0)


@pytest.mark.parametrize("config", [1.5, {"kind": "linear", "start": 0.5, "end": -0.1}])
def test_values_outside_the_bounds_are_refused(config: Any) -> None:
    with pytest.raises(ConfigError, match=r"agent.epsilon: (1.5|-0.1) is outside \[0, 1\]"):
        make_schedule(config, 100, "agent.epsilon", Interval(low=0, high=1))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_scheduled_option_of_an_agent_is_told(name: str) -> None:
    agent = small(plain(discrete=name not in CONTINUOUS), name=name)
    options = {key for key, hint in get_type_hints(type(agent).Config).items() if ScheduleConfig in get_args(hint)}
    if "rainbow" not in name:  # which alone draws by priority unless it is told to
        options.discard("importance_exponent")
    assert options and set(agent.schedule_metrics()) == {f"schedule/{option}" for option in options}
