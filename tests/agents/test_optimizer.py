"""Steps of our optimiser equal those of torch, and compiled updates the eager ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rlstack.agents.optimizer import Adam, CannotCompile, Compiler, Optimizer
from rlstack.envs.foundation.compilation import Compiled, telling, under_way
from tests.agents.small_agents import CASES, plain, small
from tests.exhaustive import exhaustive
from tests.refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


def small_network(outputs: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))


def data(count: int = 8) -> list[TensorDict]:
    torch.manual_seed(1)
    return [TensorDict({"x": torch.randn(count, 3)}, [count]) for _ in range(6)]


def squares(network: nn.Module) -> Any:
    def loss(batch: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        return network(batch["x"]).square().mean(), {}

    return loss


@pytest.mark.parametrize("max_grad_norm", [None, 0.02])
@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_steps_are_those_of_torch(kind: Any, on_gpu: bool, max_grad_norm: float | None) -> None:
    ours, theirs = small_network(), small_network()
    optimizer = Optimizer([list(ours.parameters())], 0.01, max_grad_norm, kind, eps=1e-5)
    if on_gpu:  # where a recording reads the learning rate
        optimizer._live_lr = torch.tensor(0.01)
    of_torch: Any = torch.optim.Adam if kind == "adam" else torch.optim.RMSprop
    reference = of_torch(theirs.parameters(), lr=0.01, eps=1e-5)
    for step, batch in enumerate(data()):
        optimizer.lr = reference.param_groups[0]["lr"] = 0.01 / (step + 1)
        _, norm, _ = optimizer.minimize(squares(ours), batch)
        reference.zero_grad()
        squares(theirs)(batch)[0].backward()
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm or torch.inf)
        torch.testing.assert_close(norm, expected)
        assert expected > (max_grad_norm or 0.0)  # or nothing was clipped
        reference.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_a_parameter_without_a_gradient_stays() -> None:
    network, unused = small_network(), nn.Parameter(torch.ones(2))
    optimizer = Optimizer([[*network.parameters(), unused]], lr=0.01, max_grad_norm=1.0)
    before = network[0].weight.detach().clone()
    for batch in data():
        optimizer.minimize(squares(network), batch)
    assert torch.equal(unused, torch.ones(2)) and not torch.equal(network[0].weight, before)


def test_unequal_parts_count_by_their_size() -> None:
    """256 entries in 7 parts (six of 37, one of 34) give the gradients, loss and metrics of the whole."""
    (batch, *_), found = data(256), []
    for accumulate in (1, 7):
        network = small_network()
        optimizer = Optimizer([list(network.parameters())], lr=0.0, max_grad_norm=1e9, accumulate=accumulate)

        def loss(part: TensorDictBase, network: nn.Module = network) -> tuple[Tensor, dict[str, Tensor]]:
            each = network(part["x"]).square().mean(-1)
            return each.mean(), {"mean": each.detach().mean(), "each": each.detach()}

        value, norm, info = optimizer.minimize(loss, batch)
        found.append([value, norm, info["mean"], info["each"], *(p.grad for p in network.parameters())])
    torch.testing.assert_close(found[1], found[0])


def test_counting_steps_together_changes_nothing() -> None:
    found = []
    for quick in (False, True):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(2, 3))]
        adam = Adam(parameters, lr=0.1, eps=1e-8)
        for k in range(6):
            for index, parameter in enumerate(parameters):
                parameter.grad = None if (k, index) == (4, 0) else torch.full_like(parameter, k - 2.0)
            adam.quick_step(0.1) if quick else adam.step()
            if k == 2:  # what is saved has a count for each parameter, and other optimisers can go on from it
                adam.load_state_dict(copy.deepcopy(adam.state_dict()))
        found.append([*parameters, *(adam.state[parameter]["step"] for parameter in parameters)])
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert [count.item() for count in found[1][2:]] == [5, 6]
    steps = [state["step"] for state in adam.state_dict()["state"].values()]
    assert steps[0] is not steps[1]


# -- compiled updates and policies equal eager ones; what cannot be compiled says why and runs eagerly -----------------


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


def _compare(name: str, discrete: bool, backend: str, untold: tuple[str, ...] = (), **overrides: Any) -> list[str]:
    """Trains compiled and eagerly on the same data, and returns what was printed.

    Parameters and buffers whose names end as ``untold`` says are not compared.
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
            if not key.endswith(untold):
                torch.testing.assert_close(ours[key], theirs, rtol=1e-3, atol=2e-6)
        kept = dict(quick.networks[name].named_buffers())
        for key, theirs in network.named_buffers():
            if not key.endswith(untold):
                torch.testing.assert_close(kept[key], theirs)
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


_XQC = {"critic_norm": "batch_targets", "critic": "categorical", "weight_norm": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "discrete", "backend", "options"),
    [
        *((*case, backend, {}) for backend in ("aot_eager", "inductor") for case in CASES),
        ("td3", False, "eager", {"critic_norm": "batch"}),
        ("sac", False, "eager", _XQC),
    ],
)
def test_every_update_and_policy_is_one_graph(name: str, discrete: bool, backend: str, options: dict[str, Any]) -> None:
    # The second normalisation of ``batch_targets`` subtracts what the bias of the first adds to all rows alike, so that
    # the gradient of this bias is rounding alone; the mean that it subtracts goes where the bias goes.
    untold = ("trunk.0.bias", "trunk.2.running_mean") if options is _XQC else ()
    told = _compare(name, discrete, backend, untold, **options)
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
    refused(CannotCompile, why, agent.compile, Compiler("eager"))
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

    refused(KeyError, "mine", Compiled(wrong, "a mistake", backend="eager"), torch.zeros(2))


def test_what_is_being_compiled_is_known_while_it_is() -> None:
    seen: list[str] = []

    def backend(graph: Any, examples: Any) -> Any:
        seen.append(under_way())
        return graph.forward

    double = Compiled(lambda x: 2 * x, "doubling", backend=backend)  # type: ignore[arg-type]
    assert double(torch.ones(1)) == 2 and double(torch.ones(1)) == 2
    assert len(seen) == 1 and seen[0].startswith("doubling, ") and under_way() == ""
