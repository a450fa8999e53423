"""Schedules, and learning rates that follow the KL divergence of the updates."""

from __future__ import annotations

import math
import pickle
from itertools import islice
from typing import Any, get_args, get_type_hints

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode

from rlstack import envs
from rlstack.agents.optimizer import Compiler, Optimizer
from rlstack.config import ConfigError, Interval
from rlstack.config.schedules import ScheduleConfig, in_words, make_schedule
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from tests.agents.recall import Recall
from tests.agents.small_agents import ALGORITHMS, CONTINUOUS, Detour, equal, plain, small
from tests.agents.test_agents_going_on import both_go_on
from tests.exhaustive import exhaustive
from tests.refusals import refused

DOWN = {"kind": "linear", "start": 1.0, "end": 0.0}
SHORT = {**DOWN, "end": 0.1}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        *((number, {0: number, 500: number, 10**9: number}) for number in (3, 0.5, -1.0, 0)),
        (DOWN, {0: 1.0, 250: 0.75, 500: 0.5, 1000: 0.0, 2000: 0.0}),
        # a duration is a fraction of the run, or frames
        *(({**SHORT, "duration": d}, {0: 1.0, 100: 0.775, 400: 0.1, 401: 0.1}) for d in (0.4, 400, 400.0)),
        ({**DOWN, "duration": 1}, {500: 0.5}),  # the whole run, even as an integer
        # 1 + cos(pi f / 1000) / 2 + 1 / 2
        (
            {"kind": "cosine", "start": 2.0, "end": 1.0},
            {0: 2.0, 333: 1.5 + 0.5 * math.cos(math.pi * 0.333), 500: 1.5, 1000: 1.0},
        ),
        ({**DOWN, "kind": "exponential", "end": 1e-4}, {0: 1.0, 250: 1e-1, 500: 1e-2, 750: 1e-3, 1000: 1e-4}),
        # the decay begins after the warm-up
        ({**DOWN, "duration": 600, "warmup": 0.2}, {0: 0, 50: 0.25, 100: 0.5, 200: 1.0, 400: 0.5, 600: 0.0, 900: 0.0}),
        ({"kind": "constant", "start": 4.0, "warmup": 10}, {0: 0.0, 5: 2.0, 10: 4.0, 99: 4.0}),
    ],
)
def test_values_by_hand(config: Any, expected: dict[int, float]) -> None:
    schedule = make_schedule(config, 1000)
    values = {frames: schedule(frames) for frames in expected}
    assert values == pytest.approx(expected)
    on_device = {frames: float(schedule(torch.tensor(frames))) for frames in expected}
    assert on_device == pytest.approx(values, rel=1e-12), "a GPU that counts frames computes the same"


class Reciprocals(TorchDispatchMode):
    """Divides as a GPU does: by a number through its reciprocal."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.div.Tensor and not isinstance(args[1], torch.Tensor):
            return args[0] * (1 / args[1])
        return func(*args, **(kwargs or {}))


def test_a_gpu_computes_the_same_to_the_last_bit() -> None:
    schedule = make_schedule({"kind": "linear", "start": 1.0, "end": 0.1, "warmup": 49}, 147)
    with Reciprocals():
        assert torch.tensor(49.0, dtype=torch.float64) / 49 < 1
        on_device = [float(schedule(torch.tensor(f))) for f in range(200)]
    assert on_device == [schedule(f) for f in range(200)]


def test_accepts_hydra_nodes_and_built_configs_and_can_be_pickled() -> None:
    node = OmegaConf.create({"kind": "linear", "start": 1, "end": 0})
    assert make_schedule(node, 10)(5) == make_schedule(ScheduleConfig("linear", 1.0, 0.0), 10)(5) == 0.5
    assert pickle.loads(pickle.dumps(make_schedule(node, 10)))(5) == 0.5


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "step", "start": 1}, "agent.lr.kind: expected one of"),
        ({"start": 1.0}, "agent.lr.kind: missing"),
        ({"kind": "linear", "start": 1.0}, "agent.lr: kind 'linear' needs an end"),
        ({"kind": "constant", "start": 1.0, "end": 2.0}, "agent.lr: kind 'constant' takes only"),
        ({"kind": "exponential", "start": 1.0, "end": 0.0}, "agent.lr: kind 'exponential' needs start"),
        ({**DOWN, "duration": 0}, r"agent.lr.duration: 0 is outside \(0, inf\)"),
        ({**DOWN, "warmup": -1}, r"agent.lr.warmup: -1 is outside \[0, inf\)"),
        ({**DOWN, "warmup": 500, "duration": 0.5}, "agent.lr.warmup: 500 frames leave"),
        ({**DOWN, "start": math.nan}, "agent.lr.start: nan is outside"),
        (math.inf, "agent.lr.start: inf is outside"),
        (True, "agent.lr: expected a number or a schedule, got True"),
        ("1e-3", "agent.lr: expected a number or a schedule, got '1e-3'"),
    ],
)  # fmt: skip
def test_nonsense_is_named(config: Any, message: str) -> None:
    refused(ConfigError, message, make_schedule, config, 1000, where="agent.lr")


@pytest.mark.parametrize("config", [1.5, {"kind": "linear", "start": 0.5, "end": -0.1}])
def test_values_outside_the_bounds_are_refused(config: Any) -> None:
    message, bounds = r"agent.epsilon: (1.5|-0.1) is outside \[0, 1\]", Interval(low=0, high=1)
    refused(ConfigError, message, make_schedule, config, 100, "agent.epsilon", bounds)
    refused(ConfigError, "total_frames must be above 0", make_schedule, 1.0, 0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_scheduled_option_of_an_agent_is_told(name: str) -> None:
    agent = small(plain(discrete=name not in CONTINUOUS), name=name)
    options = {key for key, hint in get_type_hints(type(agent).Config).items() if ScheduleConfig in get_args(hint)}
    if "rainbow" not in name:  # which alone draws by priority unless it is told to
        options.discard("importance_exponent")
    assert options and set(agent.schedule_metrics()) == {f"schedule/{option}" for option in options}


# -- a learning rate that follows the KL divergence of the policy's updates, by the rule of rsl_rl ---------------------


ADAPTIVE: dict[str, Any] = {"kind": "adaptive", "kl": 0.01}


def rates(kls: list[float], compiler: Compiler | None = None, **options: Any) -> list[float]:
    """Returns the learning rates with which steps are made whose losses report these divergences."""
    config = ScheduleConfig(**{**ADAPTIVE, **options})
    parameter = torch.zeros(3, requires_grad=True)
    optimizer = Optimizer([[parameter]], config.rates[-1], adaptive=config)
    if compiler is not None:
        optimizer.compile(compiler, "a test")
    optimizer.begin_update()
    found = []
    for kl in kls:
        batch = TensorDict({"kl": torch.full((4,), kl)}, [4])
        before = parameter.detach().clone()
        optimizer.minimize(lambda batch: (parameter.sum(), {"kl": batch["kl"].mean()}), batch)
        found.append(float(optimizer.lr))
        # Adam moves a parameter by its learning rate while the gradient stays the same.
        torch.testing.assert_close(before - parameter.detach(), torch.full((3,), found[-1]), rtol=1e-4, atol=1e-9)
    return found


def test_the_rule_by_hand() -> None:
    kls = [0.021, 0.004, 0.0, 0.012, 0.006, 0.0049, 0.5, 0.0201]
    wanted = [1e-3 / 1.5, 1e-3, 1e-3, 1e-3, 1e-3, 1.5e-3, 1e-3, 1e-3 / 1.5]
    assert rates(kls) == pytest.approx(wanted, rel=1e-6)
    assert rates([1e-8, 1e-8]) == pytest.approx([1e-3, 1.5e-3]), "at the first step the policy has not moved"
    assert rates([0.021, float("nan")]) == pytest.approx([1e-3 / 1.5] * 2)
    assert in_words(ADAPTIVE) == "0.001 at first (adaptive, KL 0.01)"


@pytest.mark.slow
def test_compiled_steps_follow_the_rule_too() -> None:
    wanted = [1e-3 / 1.5, 1e-3, 1.5e-3]
    assert rates([0.021, 0.004, 0.0049], Compiler(backend="eager")) == pytest.approx(wanted, rel=1e-6)


def test_it_stays_within_its_bounds() -> None:
    assert rates([1.0] * 14)[-1] == pytest.approx(1e-5)
    assert rates([1e-4] * 8)[-1] == pytest.approx(1e-2)
    own = {"start": 0.02, "low": 0.01, "high": 0.05, "factor": 2.0}
    assert rates([1.0, 1.0, 1e-4, 1e-4, 1e-4], **own) == pytest.approx([0.01, 0.01, 0.02, 0.04, 0.05])


@exhaustive("recurrent", [None, {"kind": "gru", "size": 8, "sequence_length": 4}])
def test_resuming_goes_on_with_the_same_rate(recurrent: dict[str, Any] | None) -> None:
    env = Recall(8, delay=2)
    options = {"lr": {**ADAPTIVE, "low": 1e-9}, "epochs": 3, "recurrent": recurrent}
    agent = small(env, name="ppo", **options)
    collector = make_collector(env, agent.policy(explore=True), 8)
    parts = [flatten_agents(batch, None) for batch in islice(iter(collector), 6)]
    frames = [part.numel() * number for number, part in enumerate(parts, 1)]
    for part, count in zip(parts[:3], frames):
        agent.learn(part, count)
    resumed = small(env, name="ppo", **options)
    assert equal(*both_go_on(agent, resumed, parts[3:], frames[3:]))
    assert agent.schedule_metrics() == resumed.schedule_metrics() and float(agent.optimizer.lr) != 1e-3


def test_a_state_with_a_fixed_rate_goes_on_from_it() -> None:
    agent, adaptive = (small(Detour(), name="ppo", lr=lr) for lr in (2e-3, ADAPTIVE))
    adaptive.load_state_dict(agent.state_dict())
    assert float(adaptive.optimizer.lr) == pytest.approx(2e-3)


@pytest.mark.slow
def test_a_rate_that_is_far_too_small_recovers() -> None:
    """CartPole within 40,000 steps: hopeless with a constant 1e-6, solved where the rate adapts from there."""
    found = {}
    for name, lr in (("constant", 1e-6), ("adaptive", {**ADAPTIVE, "start": 1e-6, "low": 1e-6})):
        torch.manual_seed(0)
        env = envs.make("cartpole", num_worlds=8, seed=0)
        options = {"hidden": [64, 64], "minibatch_size": 64, "epochs": 10, "lr": lr}
        agent = small(env, name="ppo", total_frames=40_000, **options)
        for batch in make_collector(env, agent.policy(explore=True), 128, total_frames=40_000):
            agent.learn(flatten_agents(batch, None), agent.frames + batch.numel())
        played = envs.make("cartpole", num_worlds=32, seed=9)
        rollout = played.rollout(500, agent.policy(explore=False), break_when_any_done=False)
        falls = float(rollout["next", "terminated"].float().sum()) / 32  # of each world in 500 steps
        found[name] = 500 / max(falls, 1)
    assert found["constant"] < 150 < 300 < found["adaptive"], found
