"""Retrace (Munos et al. 2016): targets over several steps, corrected for the policy that acted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor, nn

from rlstack.networks.distributions import legal

from .base import Loss, required
from .dqn import DQNLoss


def retrace(
    gamma: float, reward: Tensor, value: Tensor, taken: Tensor, trace: Tensor, done: Tensor, terminated: Tensor
) -> Tensor:
    """Returns the target ``[..., 1]`` of the first of n steps; all tensors are ``[..., n, 1]``.

    It is ``Q_0 + sum_k gamma^k c_1 ... c_k (r_k + gamma V_k+1 - Q_k)`` (Munos et al. 2016, eq. 3 and 4), computed from
    the last step backwards: ``G_k = r_k + gamma (V_k+1 + c_k+1 (G_k+1 - Q_k+1))``.

    Args:
        gamma: discount.
        reward: reward of each step.
        value: ``V = E_pi Q(s', .)`` of the state after each step.
        taken: ``Q(s', a')`` of the action taken there.
        trace: ``c = lambda min(1, pi(a' | s') / mu(a' | s'))`` of that action; the last step's is not used.
        done, terminated: ends of each step; steps after ``done`` do not count.
    """
    target = reward
    for step in reversed(range(reward.shape[-2])):
        then = value[..., step, :]
        if step < reward.shape[-2] - 1:
            later = then + trace[..., step, :] * (target - taken[..., step, :])
            then = torch.where(done[..., step, :], then, later)
        here = reward[..., step, :]
        target = torch.where(terminated[..., step, :], here, here + gamma * then)
    return target


def greedy_returns(transitions: TensorDictBase, follows: Tensor, gamma: float) -> TensorDictBase:
    """Returns n-step transitions that end before the first action that the greedy policy would not take.

    With ``lambda = 1`` and a greedy policy, every trace is 1 or 0, and Retrace is the return up to that action. So any
    loss can learn from it, including those of return distributions, for which Retrace would otherwise give some
    distributions negative weights (Gruslys et al. 2018).

    Args:
        transitions: ``[N]``, with n steps under ``next``, see :class:`RetraceLoss`; probabilities are not needed.
        follows: whether the action taken after each step is the greedy one, ``[N, n, 1]``; the last step's is not used.
        gamma: discount.

    Returns ``[N]`` with ``next`` replaced as by :func:`rlstack.data.flatten.n_step_returns`, and ``gamma [N, 1]``.
    """
    steps = transitions.get("next")
    reward = steps.get("reward")
    on = (follows & ~steps.get("done"))[:, :-1].cumprod(1)
    used = torch.cat((torch.ones_like(on[:, :1]), on), 1)
    powers = gamma ** torch.arange(reward.shape[1], device=reward.device, dtype=reward.dtype).unsqueeze(-1)
    last = used.sum(1) - 1
    rows = torch.arange(len(reward), device=reward.device)
    # The size is given: that of a dict observation may have the steps in it.
    end = steps.exclude("action", "log_prob").apply(lambda entry: entry[rows, last[:, 0]], batch_size=rows.shape)
    result = transitions.copy().set("next", end.set("reward", (used * powers * reward).sum(1)))
    return result.set("gamma", gamma * powers[last[:, 0]])


class RetraceLoss(DQNLoss):
    """Huber loss of ``Q(s, a)`` to the Retrace target of n steps, taken by any policy.

    Under ``next`` the data hold n steps ``[..., n]``: ``observation``, ``reward``, ``done``, ``terminated`` (and
    ``action_mask``) after each, the ``action`` taken there and its ``log_prob`` under the policy that took it
    (:func:`rlstack.data.flatten.n_step_windows` makes them). The policy that is learned takes the best action, or with
    probability ``epsilon`` a (legal) random one; values are those of the target network.

    Args:
        network, gamma: see :class:`DQNLoss`.
        double: the policy's best action is that of the network, not of its target.
        trace_lambda: decay of the traces: 0 uses one step, 1 the whole return as long as the learned policy would take
            the same actions.
        epsilon: probability of a random action of the learned policy.

    ``forward`` returns ``loss_critic``, and the means ``value`` and ``target``.
    """

    @dataclass
    class _AcceptedKeys(Loss._AcceptedKeys):
        done: NestedKey = "done"
        sample_log_prob: NestedKey = "log_prob"

    default_keys = _AcceptedKeys
    _following = ("reward", "terminated", "done", "action", "sample_log_prob")

    def __init__(
        self,
        network: nn.Module,
        gamma: float = 0.99,
        double: bool = True,
        trace_lambda: float = 1.0,
        epsilon: float = 0.0,
    ) -> None:
        super().__init__(network, gamma, double)
        self.trace_lambda, self.epsilon = trace_lambda, epsilon

    def probabilities(self, values: Tensor, tensordict: TensorDictBase) -> Tensor:
        """Returns the learned policy's probabilities ``[..., n]``, given the values ``[..., n]`` of all actions."""
        best = torch.zeros_like(values).scatter(-1, self.greedy(values, tensordict), 1.0)
        if not self.epsilon:
            return best
        mask = tensordict.get(self.tensor_keys.action_mask, None)
        allowed = torch.ones_like(values) if mask is None else legal(mask).to(values.dtype)
        return (1 - self.epsilon) * best + self.epsilon * allowed / allowed.sum(-1, keepdim=True)

    @torch.no_grad()
    def target_value(self, tensordict: TensorDictBase) -> Tensor:
        """Returns the target of ``Q(s, a)``, ``[..., 1]``."""
        keys, steps = self.tensor_keys, required(tensordict, "next").copy()
        reward, terminated = required(steps, keys.reward), required(steps, keys.terminated)
        steps.batch_size = terminated.shape[:-1]
        values = self.values(steps, target=True)
        policy = self.probabilities(self.values(steps) if self.double_targets else values, steps)
        chosen = self.chosen(steps, values.shape[-1])
        acted = required(steps, keys.sample_log_prob).reshape(reward.shape).exp()
        # An action that was taken had a probability above zero.
        ratio = policy.gather(-1, chosen) / acted.clamp_min(torch.finfo(acted.dtype).tiny)
        trace = self.trace_lambda * ratio.clamp_max(1.0)
        value, taken = (policy * values).sum(-1, keepdim=True), values.gather(-1, chosen)
        return retrace(self.gamma, reward, value, taken, trace, required(steps, keys.done), terminated)
