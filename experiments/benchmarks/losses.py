"""Compares the speed of our losses with TorchRL's: ``python -m experiments.benchmarks.losses``.

Microseconds of CPU time of a forward and backward pass on one batch, one thread: 64 transitions, networks of two hidden
layers of 64. Each pair alternates, so that other load on the machine affects both; the ratio is the median over rounds
with minimum and maximum. ``plain`` is the DQN loss on plain tensors without a loss module, a lower bound.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule as Module
from torch import Tensor, nn
from torch.distributions import Categorical
from torchrl import objectives
from torchrl.modules import MLP, ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
from torchrl.modules.tensordict_module.actors import DistributionalQValueActor

from experiments.results import spread
from rlstack import losses
from rlstack.training.environment import machine

from .timing import in_turns

OBSERVED, CHOICES, NUMBERS, BATCH, ATOMS = 4, 2, 2, 64, 51
_ROUNDS, _CALLS = 15, 40
Pass = Callable[[], object]


def net(inputs: int, outputs: int) -> nn.Module:
    """Two hidden layers of 64."""
    return MLP(in_features=inputs, out_features=outputs, num_cells=[64, 64], activation_class=nn.ReLU)


class Joined(nn.Module):
    """A critic of observation and action."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(OBSERVED + NUMBERS, 1)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.net(torch.cat((observation, action), -1))


class Gaussian(nn.Module):
    """Mean and log standard deviation, or the standard deviation itself."""

    def __init__(self, exponential: bool = False) -> None:
        super().__init__()
        self.net, self.exponential = net(OBSERVED, 2 * NUMBERS), exponential

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.net(observation).chunk(2, -1)
        return mean, log_std.exp() if self.exponential else log_std


class Atoms(nn.Module):
    """Logits of a return distribution for every choice."""

    def __init__(self, first: bool = False) -> None:
        super().__init__()
        self.net, self.first = net(OBSERVED, CHOICES * ATOMS), first

    def forward(self, observation: Tensor) -> Tensor:
        logits = self.net(observation).unflatten(-1, (CHOICES, ATOMS))
        return logits.transpose(-2, -1).log_softmax(-2) if self.first else logits


class Chooser(nn.Module):
    """A distribution over choices."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(OBSERVED, CHOICES)

    def forward(self, observation: Tensor) -> Categorical:
        return Categorical(logits=self.net(observation))


def batch(choices: bool) -> TensorDict:
    """Transitions as both kinds of losses read them."""
    ends = torch.rand(BATCH, 1) < 0.05
    following = {
        "observation": torch.randn(BATCH, OBSERVED),
        "reward": torch.randn(BATCH, 1),
        "terminated": ends,
        "done": ends,
    }
    action = torch.randint(CHOICES, (BATCH,)) if choices else torch.rand(BATCH, NUMBERS) * 1.8 - 0.9
    entries = {"observation": torch.randn(BATCH, OBSERVED), "action": action, "next": following}
    entries |= {"action_log_prob": torch.randn(BATCH) - 1, "advantage": torch.randn(BATCH, 1)}
    return TensorDict({**entries, "value_target": torch.randn(BATCH, 1)}, [BATCH])


def passes(loss: nn.Module, data: TensorDict) -> Pass:
    """A forward and backward pass."""
    parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]

    def run() -> None:
        for parameter in parameters:
            parameter.grad = None
        out = loss(data)
        sum(value for key, value in out.items() if key.startswith("loss")).backward()

    return run


def plain(data: TensorDict) -> Pass:
    """Double DQN over tensors."""
    online, target = net(OBSERVED, CHOICES), net(OBSERVED, CHOICES)
    parameters = list(online.parameters())
    following = data["next"]

    def run() -> None:
        for parameter in parameters:
            parameter.grad = None
        with torch.no_grad():
            best = online(following["observation"]).argmax(-1, keepdim=True)
            values = target(following["observation"]).gather(-1, best)
            wanted = following["reward"] + 0.99 * ~following["terminated"] * values
        value = online(data["observation"]).gather(-1, data["action"].unsqueeze(-1))
        nn.functional.smooth_l1_loss(value, wanted).backward()

    return run


def theirs(name: str) -> nn.Module:
    """TorchRL's loss on networks of the same sizes."""
    seen = ["observation"]

    def critic() -> Any:
        return ValueOperator(Joined(), in_keys=["observation", "action"])

    def chooser() -> Any:
        logits = Module(net(OBSERVED, CHOICES), in_keys=seen, out_keys=["logits"])
        return ProbabilisticActor(logits, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True)

    loss: Any
    match name:
        case "DQN":
            actor = QValueActor(net(OBSERVED, CHOICES), in_keys=seen, action_space="categorical")
            loss = objectives.DQNLoss(actor, delay_value=True, double_dqn=True, action_space="categorical")
        case "C51":
            support = torch.linspace(-10, 10, ATOMS)
            actor = DistributionalQValueActor(Atoms(True), support=support, in_keys=seen, action_space="categorical")
            loss = objectives.DistributionalDQNLoss(actor, gamma=0.99, delay_value=True)
        case "DDPG":
            actor = Module(net(OBSERVED, NUMBERS), in_keys=seen, out_keys=["action"])
            loss = objectives.DDPGLoss(actor, critic(), loss_function="l2", delay_actor=True, delay_value=True)
        case "TD3":
            actor = Module(net(OBSERVED, NUMBERS), in_keys=seen, out_keys=["action"])
            loss = objectives.TD3Loss(actor, [critic(), critic()], bounds=(-1.0, 1.0), loss_function="l2")
        case "SAC":
            parameters = Module(Gaussian(True), in_keys=seen, out_keys=["loc", "scale"])
            actor = ProbabilisticActor(
                parameters, in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True
            )
            loss = objectives.SACLoss(actor, [critic(), critic()], loss_function="l2", target_entropy=-2.0)
        case "SAC, discrete":
            values = [ValueOperator(net(OBSERVED, CHOICES), in_keys=seen, out_keys=["action_value"]) for _ in "12"]
            loss = objectives.DiscreteSACLoss(
                chooser(), values, action_space="categorical", num_actions=CHOICES, loss_function="l2"
            )
        case "A2C":
            loss = objectives.A2CLoss(chooser(), ValueOperator(net(OBSERVED, 1), in_keys=seen), entropy_coeff=0.01)
            return loss
        case _:
            value = ValueOperator(net(OBSERVED, 1), in_keys=seen)
            return objectives.ClipPPOLoss(chooser(), value, critic_coeff=0.5, entropy_coeff=0.01)
    loss.make_value_estimator(gamma=0.99)
    return loss


def ours(name: str) -> nn.Module:
    """Our loss."""
    critics = [Joined(), Joined()]
    made: dict[str, Callable[[], nn.Module]] = {
        "DQN": lambda: losses.DQNLoss(net(OBSERVED, CHOICES)),
        "C51": lambda: losses.C51Loss(Atoms(), torch.linspace(-10, 10, ATOMS)),
        "DDPG": lambda: losses.DDPGLoss(net(OBSERVED, NUMBERS), critics[0]),
        "TD3": lambda: losses.TD3Loss(net(OBSERVED, NUMBERS), critics),
        "SAC": lambda: losses.SACLoss(Gaussian(), critics, action_size=NUMBERS),
        "SAC, discrete": lambda: losses.DiscreteSACLoss(
            net(OBSERVED, CHOICES), [net(OBSERVED, CHOICES) for _ in "12"], action_size=CHOICES
        ),
        "A2C": lambda: losses.A2CLoss(Chooser(), net(OBSERVED, 1), entropy_coefficient=0.01),
        "PPO": lambda: losses.PPOLoss(Chooser(), net(OBSERVED, 1), entropy_coefficient=0.01),
    }
    return made[name]()


def main() -> None:
    """Prints the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(machine())
    print(f"{'':16}{'TorchRL us':>12}{'ours us':>10}   ratio (least to largest)")
    for name in ("DQN", "C51", "DDPG", "TD3", "SAC", "SAC, discrete", "A2C", "PPO"):
        data = batch(name in ("DQN", "C51", "SAC, discrete", "A2C", "PPO"))
        ways = {"theirs": passes(theirs(name), data.clone()), "ours": passes(ours(name), data.clone())}
        ways |= {"plain": plain(data)} if name == "DQN" else {}
        in_turns(ways, 1, _CALLS)  # warms up
        times = in_turns(ways, _ROUNDS, _CALLS)
        us = {way: 1e6 * statistics.median(seconds) for way, seconds in times.items()}
        ratio = spread([a / b for a, b in zip(times["theirs"], times["ours"])], ".2f")
        print(f"{name:16}{us['theirs']:12.0f}{us['ours']:10.0f}   {ratio}")
        if "plain" in us:
            print(f"{'DQN, plain':16}{'':12}{us['plain']:10.0f}")


if __name__ == "__main__":
    main()
