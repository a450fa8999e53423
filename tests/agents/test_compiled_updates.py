"""Compiled updates and policies equal eager ones; what cannot be compiled says why and runs eagerly."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlstack.agents.optimizer import CannotCompile, Compiler
from rlstack.envs.foundation.compilation import Compiled, telling, under_way
from tests.agents.small_agents import CASES, plain, small
from tests.exhaustive import exhaustive

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")

_ROWS, _STEPS = 4, 10
_CHANGING = {"kind": "linear", "start": 1e-2, "end": 1e-4}


def _pair(name: str, discrete: bool, backend: str, **overrides: Any) -> tuple[Any, Any, Any]:
    env = plain(discrete)
    eager, quick = (small(env, name=name, **overrides) for _ in range(2))
    quick.compile(Compiler(backend))
    return env, eager, quick


def _both_learn(env: Any, agents: tuple[Any, Any], rounds: int = 3) -> list[dict[str, Any]]:
    metrics: list[dict[str, Any]] = [{}, {}]
    for k in range(1, rounds + 1):
        torch.manual_seed(k)
        experience = env.experience(agents[0], _ROWS, _STEPS)
        for index, agent in enumerate(agents):
            torch.manual_seed(100 + k)
            metrics[index] = agent.learn(experience.clone(), k * _ROWS * _STEPS)
    return metrics


def _compare(name: str, discrete: bool, backend: str, without_effect: str = "", **overrides: Any) -> list[str]:
    """Trains compiled and eagerly on the same data, and returns what was printed.

    Parameters whose name ends with ``without_effect`` are not compared: their gradients are rounding alone.
    """
    told: list[str] = []
    with telling(told.append):
        env, eager, quick = _pair(name, discrete, backend, **overrides)
        before = [parameter.detach().clone() for parameter in eager.parameters()]
        metrics = _both_learn(env, (eager, quick))
        seen = env.draw(6)
        actions = []
        for agent in (eager, quick):
            torch.manual_seed(7)
            actions.append(agent.policy(explore=True)(seen.clone())["action"])
    assert quick.updates == eager.updates > 0
    assert not any(map(torch.equal, before, eager.parameters())), "every parameter is trained"
    for name, network in eager.networks.items():
        ours = dict(quick.networks[name].named_parameters())
        for key, theirs in network.named_parameters():
            if not (without_effect and key.endswith(without_effect)):
                torch.testing.assert_close(ours[key], theirs, rtol=1e-3, atol=2e-6)
        torch.testing.assert_close(dict(quick.networks[name].named_buffers()), dict(network.named_buffers()))
    for key, value in metrics[0].items():
        torch.testing.assert_close(torch.as_tensor(metrics[1][key]), torch.as_tensor(value), rtol=2e-3, atol=1e-5)
    torch.testing.assert_close(actions[1], actions[0], rtol=1e-3, atol=1e-5)
    return told


@exhaustive(("name", "discrete"), [("dqn", True), ("ppo", False)])
def test_an_update_is_one_graph(name: str, discrete: bool) -> None:
    schedule = {"lr": _CHANGING, **({"clip": {**_CHANGING, "start": 0.3, "end": 0.1}} if name == "ppo" else {})}
    told = _compare(name, discrete, "eager", **schedule)
    assert not [line for line in told if "not compiled" in line]
    assert [line for line in told if line.startswith(f"compiled the update of {name}")]
    assert [line for line in told if line.startswith(f"compiled the policy of {name}")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("td3", {"critic_norm": "batch"}),
        ("sac", {"critic_norm": "batch_targets", "critic": "categorical", "weight_norm": True}),
    ],
)
def test_statistics_of_critics_that_normalise_over_the_batch_run_on(name: str, options: dict[str, Any]) -> None:
    # The second normalisation of ``batch_targets`` subtracts what the bias of the first adds to all rows alike.
    without_effect = "trunk.0.bias" if name == "sac" else ""
    told = _compare(name, False, "eager", without_effect, **options)
    assert told and not [line for line in told if "not compiled" in line]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "discrete"), CASES)
def test_every_update_and_policy_is_one_graph(name: str, discrete: bool) -> None:
    told = _compare(name, discrete, "aot_eager")
    assert told and not [line for line in told if "not compiled" in line]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "discrete"), CASES)
def test_compiled_code_trains_the_same_parameters(name: str, discrete: bool) -> None:
    told = _compare(name, discrete, "inductor")
    assert told and not [line for line in told if "not compiled" in line]


@pytest.mark.slow
def test_a_loaded_state_is_gone_on_from() -> None:
    env, eager, quick = _pair("dqn", True, "eager")
    _both_learn(env, (eager, quick), rounds=1)
    quick.load_state_dict(eager.state_dict())
    _both_learn(env, (eager, quick))
    for ours, theirs in zip(quick.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "overrides", "why"),
    [
        ("dqn", {"precision": "float16"}, "float16"),
        ("dqn", {"accumulate": 2}, "accumulate"),
        ("ppo", {"value_first": 100}, "value_first"),
        ("ppo", {"recurrent": {"kind": "gru", "size": 8, "layers": 1, "sequence_length": 4}}, "recurrent"),
    ],
)
def test_what_cannot_be_compiled_says_why(name: str, overrides: dict[str, Any], why: str) -> None:
    env = plain(discrete=True)
    agent = small(env, name=name, **overrides)
    with pytest.raises(CannotCompile, match=why):
        agent.compile(Compiler("eager"))
    assert agent.compiler is None
    if name == "dqn":  # and learns as before
        assert agent.learn(env.experience(agent, _ROWS, _STEPS), _ROWS * _STEPS)


def test_a_function_that_cannot_be_traced_goes_on_as_it_is() -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        return x if bool((x > 0).all()) else -x

    told: list[str] = []
    quick = Compiled(positive, "a look at data", backend="eager")
    with telling(told.append):
        assert quick(torch.tensor([-1.0])) == 1 and quick(torch.tensor([2.0])) == 2
    assert quick.failed
    assert told[0].startswith("compiling a look at data, which takes about a minute") and len(told) == 2
    assert told[1].startswith("a look at data is not compiled, the run continues without: ") and "\n" not in told[1]
    with pytest.warns(UserWarning, match="is not compiled"):
        Compiled(positive, "a look at data", backend="eager")(torch.tensor([-1.0]))


def test_errors_of_a_function_stay_its_own() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Compiled(wrong, "a mistake", backend="eager")(torch.zeros(2))


def test_what_is_being_compiled_is_known_while_it_is() -> None:
    seen: list[str] = []

    def backend(graph: Any, examples: Any) -> Any:
        seen.append(under_way())
        return graph.forward

    double = Compiled(lambda x: 2 * x, "doubling", backend=backend)  # type: ignore[arg-type]
    assert double(torch.ones(1)) == 2 and double(torch.ones(1)) == 2
    assert len(seen) == 1 and seen[0].startswith("doubling, ") and under_way() == ""
