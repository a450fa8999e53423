"""Measures parts of ours beside TorchRL's: losses, replay buffers, and what private names of libraries save.

    python -m experiments.benchmarks.parts losses
    python -m experiments.benchmarks.parts replay private_names

It prints the CPU time in microseconds of one thread: medians over rounds in which the ways alternate, and the ratio of
the first two with its least and greatest.

``losses``: a forward and backward pass on 64 transitions, networks of two hidden layers of 64. ``replay``: writing
transitions of CartPole's size into a buffer of 100,000 and drawing a batch; ``plain`` is copying alone, in a dict of
tensors. ``private_names``: parts of a step or an update of DQN on CartPole (a network of 4 inputs, two layers of 128
units and two outputs: 17,282 numbers in six tensors), with private and with public names of torch, TorchRL and
tensordict.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule as Module
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.optim.adam import adam
from torchrl import logger as torchrl_logger
from torchrl import objectives
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.modules import MLP, ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
from torchrl.modules.tensordict_module.actors import DistributionalQValueActor

import rlstack
from experiments.results import spread
from rlstack import envs, losses
from rlstack.agents.optimizer import Adam
from rlstack.data.collector import LEAN
from rlstack.data.replay import make_replay
from rlstack.envs.foundation.tensors import unchecked
from rlstack.networks.encoders import mlp
from rlstack.training.environment import machine

from .timing import in_turns

_ROUNDS = 15
Ways = dict[str, Callable[[], object]]
"""Functions with equal results: TorchRL's, ours, and others."""
Measured = Iterator[tuple[str, Ways, int]]
"""A part, its ways, and the calls of a round."""

# -- losses ----------------------------------------------------------------------------------------------------------

OBSERVED, CHOICES, NUMBERS, BATCH, ATOMS = 4, 2, 2, 64, 51
_SEEN, _BOTH = ["observation"], ["observation", "action"]


class Net(nn.Module):
    """Two hidden layers of 64 over joined inputs, and a function of the outputs."""

    def __init__(self, inputs: int, outputs: int, head: Callable[[Tensor], Any] = lambda x: x) -> None:
        super().__init__()
        self.net = MLP(in_features=inputs, out_features=outputs, num_cells=[64, 64], activation_class=nn.ReLU)
        self.head = head

    def forward(self, *parts: Tensor) -> Any:
        return self.head(self.net(torch.cat(parts, -1)))


def _critic() -> Net:
    return Net(OBSERVED + NUMBERS, 1)


def _halves(x: Tensor, exponential: bool = False) -> tuple[Tensor, Tensor]:
    """Returns mean and log standard deviation, or the standard deviation itself."""
    mean, log_std = x.chunk(2, -1)
    return mean, log_std.exp() if exponential else log_std


def _atoms(x: Tensor) -> Tensor:
    return x.unflatten(-1, (CHOICES, ATOMS))


def theirs() -> dict[str, nn.Module]:
    """Returns TorchRL's losses on networks of the same sizes."""

    def critic() -> Any:
        return ValueOperator(_critic(), in_keys=_BOTH)

    def value(outputs: int = 1, **keys: Any) -> Any:
        return ValueOperator(Net(OBSERVED, outputs), in_keys=_SEEN, **keys)

    def chooser() -> Any:
        logits = Module(Net(OBSERVED, CHOICES), in_keys=_SEEN, out_keys=["logits"])
        return ProbabilisticActor(logits, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True)

    kind: dict[str, Any] = {"action_space": "categorical"}
    log_atoms = Net(OBSERVED, CHOICES * ATOMS, lambda x: _atoms(x).transpose(-2, -1).log_softmax(-2))
    chosen = DistributionalQValueActor(log_atoms, support=torch.linspace(-10, 10, ATOMS), in_keys=_SEEN, **kind)
    acting = Module(Net(OBSERVED, NUMBERS), in_keys=_SEEN, out_keys=["action"])
    normal = Module(Net(OBSERVED, 2 * NUMBERS, partial(_halves, exponential=True)), _SEEN, ["loc", "scale"])
    squashed = ProbabilisticActor(normal, ["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True)
    greedy = QValueActor(Net(OBSERVED, CHOICES), in_keys=_SEEN, **kind)
    both = [value(CHOICES, out_keys=["action_value"]) for _ in range(2)]
    made: dict[str, Any] = {
        "DQN": objectives.DQNLoss(greedy, delay_value=True, double_dqn=True, **kind),
        "C51": objectives.DistributionalDQNLoss(chosen, gamma=0.99, delay_value=True),
        "DDPG": objectives.DDPGLoss(acting, critic(), loss_function="l2", delay_actor=True, delay_value=True),
        "TD3": objectives.TD3Loss(acting, [critic(), critic()], bounds=(-1.0, 1.0), loss_function="l2"),
        "SAC": objectives.SACLoss(squashed, [critic(), critic()], loss_function="l2", target_entropy=-2.0),
        "SAC, discrete": objectives.DiscreteSACLoss(chooser(), both, num_actions=CHOICES, loss_function="l2", **kind),
    }
    for loss in made.values():
        loss.make_value_estimator(gamma=0.99)
    made["A2C"] = objectives.A2CLoss(chooser(), value(), entropy_coeff=0.01)
    made["PPO"] = objectives.ClipPPOLoss(chooser(), value(), critic_coeff=0.5, entropy_coeff=0.01)
    return made


def ours() -> dict[str, nn.Module]:
    """Returns our losses."""
    critics, values = [_critic(), _critic()], [Net(OBSERVED, CHOICES) for _ in range(2)]
    chooser = Net(OBSERVED, CHOICES, lambda x: Categorical(logits=x))
    return {
        "DQN": losses.DQNLoss(Net(OBSERVED, CHOICES)),
        "C51": losses.C51Loss(Net(OBSERVED, CHOICES * ATOMS, _atoms), torch.linspace(-10, 10, ATOMS)),
        "DDPG": losses.DDPGLoss(Net(OBSERVED, NUMBERS), critics[0]),
        "TD3": losses.TD3Loss(Net(OBSERVED, NUMBERS), critics),
        "SAC": losses.SACLoss(Net(OBSERVED, 2 * NUMBERS, _halves), critics, action_size=NUMBERS),
        "SAC, discrete": losses.DiscreteSACLoss(Net(OBSERVED, CHOICES), values, action_size=CHOICES),
        "A2C": losses.A2CLoss(chooser, Net(OBSERVED, 1), entropy_coefficient=0.01),
        "PPO": losses.PPOLoss(chooser, Net(OBSERVED, 1), entropy_coefficient=0.01),
    }


def batch(choices: bool) -> TensorDict:
    """Returns transitions as both kinds of losses read them."""
    action = torch.randint(CHOICES, (BATCH,)) if choices else torch.rand(BATCH, NUMBERS) * 1.8 - 0.9
    entries = {"action_log_prob": torch.randn(BATCH) - 1, "advantage": torch.randn(BATCH, 1)}
    return transitions(BATCH).update({"action": action, **entries, "value_target": torch.randn(BATCH, 1)})


def passes(loss: nn.Module, data: TensorDict) -> Callable[[], None]:
    """Returns a forward and backward pass of a loss."""
    parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]

    def run() -> None:
        for parameter in parameters:
            parameter.grad = None
        sum(value for key, value in loss(data).items() if key.startswith("loss")).backward()

    return run


def of_losses() -> Measured:
    """Yields each loss of TorchRL and of ours."""
    pairs = {"TorchRL": theirs(), "ours": ours()}
    for name in pairs["ours"]:
        data = batch(name in ("DQN", "C51", "SAC, discrete", "A2C", "PPO"))
        yield name, {way: passes(made[name], data.clone()) for way, made in pairs.items()}, 40


# -- replay buffers --------------------------------------------------------------------------------------------------

CAPACITY, FILLED = 100_000, 50_000


def transitions(count: int) -> TensorDict:
    """Returns transitions as agents store them."""
    ends = torch.rand(count, 1) < 0.05
    following = {"observation": torch.randn(count, OBSERVED), "reward": torch.randn(count, 1)}
    following |= {"terminated": ends, "done": ends}
    entries = {"observation": torch.randn(count, OBSERVED), "action": torch.zeros(count, dtype=torch.int64)}
    return TensorDict({**entries, "next": following}, [count])


class PlainReplay:
    """The copies that every uniform buffer needs."""

    def __init__(self, batch_size: int) -> None:
        self.leaves, self.batch_size = dict(transitions(CAPACITY).items(True, True)), batch_size

    def extend(self, data: TensorDict) -> None:
        """Writes a batch, always to the beginning."""
        for key, value in data.items(True, True):
            self.leaves[key][: len(data)] = value

    def sample(self) -> dict[Any, Tensor]:
        """Draws a batch."""
        index = torch.randint(FILLED, (self.batch_size,))
        return {key: leaf.index_select(0, index) for key, leaf in self.leaves.items()}


def of_replay() -> Measured:
    """Yields writing and drawing for batches of several sizes."""
    for rows, batch_size in ((4, 64), (8, 256), (4096, 256)):
        buffers: dict[str, Any] = {
            "TorchRL": TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=batch_size),
            "ours": make_replay(CAPACITY, batch_size),
            "ours, by priority": make_replay(CAPACITY, batch_size, sampler="prioritized"),
            "plain": PlainReplay(batch_size),
        }
        for buffer in buffers.values():
            buffer.extend(transitions(FILLED))
        # Each has its own data, since TorchRL's leaves positions in them.
        writes: Ways = {name: partial(buffer.extend, transitions(rows)) for name, buffer in buffers.items()}
        yield f"{rows} / {batch_size}, extend", writes, 100
        yield f"{rows} / {batch_size}, sample", {name: buffer.sample for name, buffer in buffers.items()}, 100


# -- private names ---------------------------------------------------------------------------------------------------


def of_private_names() -> Measured:
    """Yields an optimiser's step, a tensordict of entries that fit, and two steps of eight CartPoles."""

    def parameters() -> list[nn.Parameter]:
        network = nn.Sequential(mlp([4, 128, 128]), nn.Linear(128, 2))
        network(torch.randn(64, 4)).square().mean().backward()
        return list(network.parameters())

    def optimizer(**options: bool) -> torch.optim.Adam:
        return torch.optim.Adam(parameters(), lr=1e-4, **options)

    functional = optimizer(fused=True)
    functional.step()
    group = functional.param_groups[0]["params"]
    states = [functional.state[parameter] for parameter in group]
    columns = [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step")]
    numbers = {"beta1": 0.9, "beta2": 0.999, "lr": 1e-4, "weight_decay": 0.0, "eps": 1e-8}

    def by_function() -> None:
        with torch.no_grad():
            gradients = [parameter.grad for parameter in group]
            adam(group, gradients, *columns[:2], [], columns[2], fused=True, amsgrad=False, maximize=False, **numbers)

    steps: Ways = {
        "torch.optim.Adam(fused=True)": optimizer(fused=True).step,
        "ours": partial(Adam(parameters(), lr=1e-4, eps=1e-8).quick_step, 1e-4),
        "torch.optim.Adam(foreach=True)": optimizer(foreach=True).step,
        "torch.optim.adam.adam": by_function,
    }
    yield "Adam's step", steps, 100
    entries = {name: torch.zeros(8, 1) for name in "abcdef"}
    made: Ways = {"TensorDict": lambda: TensorDict(entries, [8]), "ours": lambda: unchecked(entries, (8,))}
    yield "a tensordict of six tensors", made, 100
    ways: Ways = {}
    for name, options in (("Collector", LEAN), ("ours", {})):
        env = envs.make("cartpole", num_worlds=8)
        policy = rlstack.make_agent("dqn", env).policy(explore=True)
        ways[name] = iter(rlstack.make_collector(env, policy, 2, **options)).__next__
    yield "two steps of 8 CartPoles", ways, 100


PARTS = {"losses": of_losses, "replay": of_replay, "private_names": of_private_names}


def main(names: list[str]) -> None:
    """Measures and prints."""
    if unknown := [name for name in names if name not in PARTS]:
        raise SystemExit(f"{unknown[0]}: unknown, known are {', '.join(PARTS)}")
    warnings.simplefilter("ignore")
    torchrl_logger.setLevel("WARNING")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"CPU microseconds, 1 thread, {machine()}, torch {torch.__version__}")
    for name in names or PARTS:
        for what, ways, calls in PARTS[name]():
            in_turns(ways, 1, calls)  # warms up
            times = in_turns(ways, _ROUNDS, calls)
            us = ", ".join(f"{way} {1e6 * statistics.median(seconds):.1f}" for way, seconds in times.items())
            first, second, *_ = times.values()
            ratio = spread([one / other for one, other in zip(first, second)], ".2f")
            print(f"{what}: {us}; {ratio} times", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
