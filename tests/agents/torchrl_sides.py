"""What the comparisons with TorchRL's losses share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential
from tensordict.nn import TensorDictModule as Module
from torch import Tensor, nn
from torch.distributions import Distribution

from tests.agents.small_agents import plain, small

N, GAMMA = 32, 0.875
"""Numbers that single precision holds exactly: TorchRL keeps coefficients so."""
DOUBLE = torch.float64


def agent_and_batch(name: str, discrete: bool, dtype: torch.dtype = DOUBLE, **options: Any) -> tuple[Any, TensorDict]:
    """Returns an agent whose targets differ from its networks, and a flat batch of its own decisions."""
    off_policy: dict[str, Any] = {} if name in ("ppo", "a2c") else {"n_step": 1}
    if off_policy and options.get("critic_norm") != "batch":
        off_policy["target_tau"] = 0.5
    agent = small(plain(discrete, dtype), name=name, gamma=GAMMA, **off_policy, **options)
    for target in agent.targets.values():
        for parameter in target.network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    batch = plain(discrete, dtype).experience(agent, 1, N)[0]
    batch["next", "done"][:2] = True
    batch["next", "terminated"][:2] = torch.tensor([[True], [False]])
    return agent, batch


def gradients(value: Tensor, parameters: Iterable[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(parameters), retain_graph=True))


def same(ours: Tensor, theirs: Tensor, parameters: Iterable[Tensor], atol: float = 1e-12) -> None:
    """Asserts equal values, and equal gradients with respect to the shared parameters."""
    parameters = list(parameters)
    torch.testing.assert_close(ours, theirs.reshape(ours.shape), rtol=0, atol=atol)
    torch.testing.assert_close(gradients(ours, parameters), gradients(theirs, parameters), rtol=0, atol=atol)


def module(function: nn.Module, in_keys: list[str], out_keys: list[str]) -> Module:
    return Module(function, in_keys=in_keys, out_keys=out_keys)


def probabilistic(network: nn.Module, keys: list[str], distribution: Callable[..., Distribution]) -> Any:
    return ProbabilisticTensorDictSequential(
        module(network, ["observation"], keys),
        ProbabilisticTensorDictModule(
            in_keys=keys,
            out_keys=["action"],
            distribution_class=distribution,
            return_log_prob=True,
            default_interaction_type=InteractionType.RANDOM,
        ),
    )
