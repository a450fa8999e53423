"""Measures what private names of torch, TorchRL and tensordict save: ``-m experiments.benchmarks.private_names``.

It prints the CPU time in microseconds of parts of a step or an update of DQN on CartPole (a network of 4 inputs, two
layers of 128 units and two outputs: 17,282 numbers in six tensors), with private and with public names. They alternate;
numbers are medians over rounds, with one thread.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from functools import partial

import torch
from tensordict import TensorDict
from torch import nn
from torch.optim.adam import adam
from torchrl import logger as torchrl_logger

import rlstack
from rlstack import envs
from rlstack.agents.optimizer import Adam
from rlstack.data.collector import LEAN
from rlstack.envs.foundation.tensors import unchecked
from rlstack.networks.encoders import mlp
from rlstack.training.environment import machine

from .timing import in_turns

Ways = dict[str, Callable[[], object]]
"""Functions with equal results, ours first."""


def network() -> nn.Module:
    """A network as DQN has it, with gradients."""
    made = nn.Sequential(mlp([4, 128, 128]), nn.Linear(128, 2))
    made(torch.randn(64, 4)).square().mean().backward()
    return made


def adam_ways() -> Ways:
    """A step on gradients that are there."""

    def of(**options: bool) -> torch.optim.Adam:
        return torch.optim.Adam(network().parameters(), lr=1e-4, **options)

    ours, functional = Adam(list(network().parameters()), lr=1e-4, eps=1e-8), of(fused=True)
    functional.step()
    group = functional.param_groups[0]["params"]
    states = [functional.state[parameter] for parameter in group]
    columns = [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step")]
    numbers = {"beta1": 0.9, "beta2": 0.999, "lr": 1e-4, "weight_decay": 0.0, "eps": 1e-8}

    def by_function() -> None:
        with torch.no_grad():
            gradients = [parameter.grad for parameter in group]
            adam(group, gradients, *columns[:2], [], columns[2], fused=True, amsgrad=False, maximize=False, **numbers)

    return {
        "ours": partial(ours.quick_step, 1e-4),
        "torch.optim.Adam(fused=True)": of(fused=True).step,
        "torch.optim.Adam(foreach=True)": of(foreach=True).step,
        "torch.optim.adam.adam": by_function,
    }


def tensordict_ways() -> Ways:
    """A tensordict of entries that fit."""
    entries = {name: torch.zeros(8, 1) for name in "abcdef"}
    return {"ours": lambda: unchecked(entries, (8,)), "TensorDict": lambda: TensorDict(entries, [8])}


def collecting_ways() -> Ways:
    """Two steps of eight CartPoles under DQN's policy."""
    ways: Ways = {}
    for name, options in (("ours", {}), ("Collector", LEAN)):
        env = envs.make("cartpole", num_worlds=8)
        policy = rlstack.make_agent("dqn", env).policy(explore=True)
        ways[name] = iter(rlstack.make_collector(env, policy, 2, **options)).__next__
    return ways


WAYS: dict[str, Callable[[], Ways]] = {
    "Adam's step": adam_ways,
    "a tensordict of six tensors": tensordict_ways,
    "two steps of 8 CartPoles": collecting_ways,
}


def main() -> None:
    """Measures and prints."""
    warnings.simplefilter("ignore")
    torchrl_logger.setLevel("WARNING")
    torch.set_num_threads(1)
    print(f"CPU microseconds, 1 thread, {machine()}, torch {torch.__version__}")
    for what, make in WAYS.items():
        ways = make()
        times = in_turns(ways, 16, 100)
        us = {name: 1e6 * statistics.median(seconds[1:]) for name, seconds in times.items()}
        print(f"{what}: " + ", ".join(f"{name} {value:.1f}" for name, value in us.items()), flush=True)


if __name__ == "__main__":
    main()
