"""Metrics that show whether an agent can learn, computed on the learner's device for log lines, of any algorithm.

They are computed from the latest batch where a log line is due and nowhere else, so that the steady loop pays nothing;
they draw no random numbers that the run would have drawn, and change no network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rlstack.agents import Agent
from rlstack.data.replay import Rows
from rlstack.training.hooks import Hook

if TYPE_CHECKING:
    from rlstack.training.loop import Training

MOST_DECISIONS, MOST_STEPS = 256, 64
"""The size of the part of a batch that a log line looks at."""
MOST_LINES = 25
"""The log lines of a run, about, for which this is done: 3 to 4 ms each, 2 % of a run of four seconds."""
DORMANT = 0.025
"""A unit is dormant below this share of its layer's mean activity (Sokar et al. 2023, arXiv 2302.12902)."""
SATURATED = 0.97
"""A unit of tanh is saturated if its mean absolute output is above this: its gradient is then below 0.06."""
AT_BOUND = 0.98
"""An action in [-1, 1] counts as one at a bound from this absolute value on."""
_RECTIFIED = frozenset({"relu", "relu_", "leaky_relu", "silu", "gelu", "elu", "elu_", "mish", "softplus"})


class LearningSigns(Hook):
    """Adds the metrics of :func:`signs` to log lines, and a warning to the display if something is plainly wrong."""

    def __init__(self) -> None:
        self._latest: TensorDictBase | None = None
        self._learned: Mapping[str, Any] = {}
        self._policy: Any = None
        self._finding = ""

    @classmethod
    def of(cls, training: Training) -> LearningSigns | None:
        """Returns the hook of a run; None for a run on recorded data, whose batches are not those of the policy."""
        return cls() if training.config.data is None else None

    def on_start(self, training: Training) -> None:
        training.progress.rows["warning"] = lambda: self._finding

    def on_collected(self, training: Training, batch: TensorDictBase, sequences: TensorDictBase) -> None:
        self._latest, self._learned = sequences, {}

    def on_batch(self, training: Training, batch: TensorDictBase, metrics: Mapping[str, Any]) -> None:
        self._learned = metrics

    def on_log(self, training: Training) -> Mapping[str, float]:
        agent, latest, config = training.agent, self._latest, training.config
        every = config.log_every * math.ceil(config.total_frames / (MOST_LINES * config.log_every))
        if latest is None or not training.due(every):
            return {}
        if self._policy is None:
            self._policy = agent.policy(explore=False)
        new = {name: value for name, value in signs(agent, latest, self._policy).items() if name not in self._learned}
        numbers = torch.stack([value.double() for value in new.values()]).tolist()  # one wait for a GPU
        row = {name: number for name, number in zip(new, numbers) if math.isfinite(number)}
        learned = {name: float(value) for name, value in self._learned.items()}
        self._finding = one_line({**learned, **row}) or ""
        return row

    def on_iteration(self, training: Training) -> None:
        self._latest = None  # which would otherwise stay in memory while the next batch is collected


def one_line(metrics: Mapping[str, float]) -> str | None:
    """Returns a line about what is plainly wrong in the metrics of a log line; None if nothing is.

    The bounds are wide, so that a run that learns never shows one: ``rlstack explain`` weighs the evidence.
    """
    rules = (
        ("network/dormant_units", 0.9, "{:.0%} of the networks' units are dormant"),
        ("network/saturated_units", 0.9, "{:.0%} of the networks' units are saturated"),
        ("policy/kl", 1.0, "the policy changes by a KL divergence of {:.2g} in one batch"),
        ("policy/clipped", 0.9, "{:.0%} of probability ratios are clipped"),
        ("policy/at_bounds", 0.99, "{:.0%} of actions are at their bounds"),
        ("data/largest_input", 1000.0, "inputs of the networks reach {:.3g}"),
    )
    for name, bound, text in rules:
        if (value := metrics.get(name, 0.0)) > bound:
            return f"{text.format(value)}; rlstack explain <run> says more"
    return None


def signs(agent: Agent, sequences: TensorDictBase, policy: Any) -> dict[str, Tensor]:
    """Returns the metrics of a batch ``[B, T]`` from ``flatten_agents``, 0-d each; what an agent lacks is left out.

    ``value/explained_variance`` is ``1 - Var(G - v) / Var(G)`` and ``value/bias`` is ``E[v - G] / Std(G)``, for the
    values v that the agent predicts and the returns G that followed within the batch, which end with its last value
    (agents that collect single steps take them from the latest transitions in their replay buffer).
    ``network/dormant_units`` and ``network/saturated_units`` are shares of hidden units, see :data:`DORMANT` and
    :data:`SATURATED`. ``policy/kl`` estimates the divergence that learning from the batch has made, as
    ``E[r - 1 - log r]`` (Schulman 2020). ``policy/at_bounds`` is the share of continuous actions at their bounds,
    ``data/rewarded`` the share of steps with a reward other than zero, ``data/largest_input`` the largest absolute
    number that the networks see.

    Args:
        policy: the agent's greedy policy.
    """
    steps = sequences.shape[1]
    rows = max(MOST_DECISIONS // max(min(steps, MOST_STEPS), 1), 1)
    part = sequences[:rows, -MOST_STEPS:]
    if not part.numel():
        return {}
    active, metrics = part.get("active"), dict[str, Tensor]()
    with undisturbed(agent), Activity(agent) as activity:
        values, ratios = predictions(agent, part)
        if ratios is None:
            act(agent, policy, part)
        latest = None if steps > 1 else latest_transitions(agent, len(sequences))
    followed, predicted = (part, values if steps > 1 else None) if latest is None else latest
    if predicted is not None and getattr(agent, "curiosity", None) is None:
        # The returns within the sequences end with a value.
        returns, counted = discounted(*outcomes(agent, followed), agent.config.gamma, predicted[:, -1])
        metrics |= value_errors(predicted, returns, counted & followed.get("active"))
    metrics |= activity.shares()
    if ratios is not None:
        metrics["policy/kl"] = _mean(ratios.exp() - 1 - ratios, active)
    if agent.interface.continuous:
        action = agent.interface.from_env(part.get("action"))
        metrics["policy/at_bounds"] = _mean((action.abs() >= AT_BOUND).float().mean(-1), active)
    reward = part.get(("next", "reward"))[..., 0]
    metrics["data/rewarded"] = _mean((reward != 0).to(reward.dtype), active)
    inputs = agent.normalized(part.get("observation"))
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        metrics["data/largest_input"] = inputs.abs().max()
    return metrics


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """Returns the mean of those values ``[B, T]`` that are counted, without waiting; NaN if none is."""
    return torch.where(counted, values, 0.0).sum() / counted.sum()


@contextmanager
def undisturbed(agent: Agent) -> Iterator[None]:
    """A context in which the agent's networks can be called without a trace in the run.

    No gradients are kept, layers that behave otherwise in training do not, and the random generators are restored.
    """
    modules = [module for network in agent.networks.values() for module in network.modules() if module.training]
    gpus = [agent.device] if agent.device.type == "cuda" else []
    for module in modules:
        module.training = False
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=gpus):
            yield
    finally:
        for module in modules:
            module.training = True


def act(agent: Agent, policy: Any, sequences: TensorDictBase) -> Any:
    """Returns a policy's actions, in the env's form, for a batch ``[B, T]``; None for a policy of another kind."""
    observation, mask = sequences.get("observation"), sequences.get("action_mask", None)
    if not isinstance(observation, Tensor):
        observation = observation.exclude(*agent.interface.hidden)
        observation.batch_size = sequences.batch_size
    if hasattr(policy, "entries"):
        return policy.entries(observation, mask)["action"]
    if hasattr(policy, "step") and "memory" in sequences.keys():  # noqa: SIM118
        memory = sequences.get("memory")[..., : policy.size]  # the greedy policy has no memories of critics
        return policy.step(observation, memory, mask)[0]["action"]
    return None


# -- values ----------------------------------------------------------------------------------------------------------


def outcomes(agent: Agent, sequences: TensorDictBase, double: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Returns rewards ``[B, T]`` as an agent learns from them, and where episodes are done and terminated."""
    following = sequences.get("next")
    reward, done, terminated = (following.get(name)[..., 0] for name in ("reward", "done", "terminated"))
    reward = reward.double() if double else reward
    return reward if agent.reward_scaler is None else agent.reward_scaler(reward), done, terminated


def latest_transitions(agent: Agent, worlds: int) -> tuple[TensorDictBase, Tensor | None] | None:
    """Returns the latest steps in a replay buffer as sequences ``[B, T]``, and the values predicted for them.

    None for an agent without one, or one whose entries are not the single steps of one agent in each world.
    """
    replay: Any = getattr(agent, "replay", None)
    storage = getattr(replay, "storage", None)
    alone = agent.interface.group is None and getattr(getattr(agent, "n_step", None), "n", 0) == 1
    if not (alone and isinstance(storage, Rows) and replay.steps == 1 and storage.leaves):
        return None
    count = min(len(storage) // worlds, MOST_STEPS, max(MOST_DECISIONS // worlds, 2))
    if count < 2:
        return None
    places = torch.arange(replay.writer.cursor - count * worlds, replay.writer.cursor, device=storage.device)
    rows = storage.rows(places % len(storage))
    entries = rows.view(count, worlds).transpose(0, 1)
    entries = TensorDict(dict(entries.items()), [worlds, count])
    entries.set("active", torch.ones(worlds, count, dtype=torch.bool, device=entries.get(("next", "reward")).device))
    if not agent.interface.as_is:
        entries.set("action", agent.interface.to_env(entries.get("action")))
    return entries, agent.predicted_returns(entries)


def predictions(agent: Agent, sequences: TensorDictBase) -> tuple[Tensor | None, Tensor | None]:
    """Returns the values that an agent predicts for a batch ``[B, T]``, and its log ratios, as far as it has them."""
    try:
        return agent.predicted_returns(sequences), agent.log_ratios(sequences)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
        return None, None  # an algorithm of a user's own that keeps its networks in another way


def value_errors(values: Tensor, returns: Tensor, counted: Tensor) -> dict[str, Tensor]:
    """Returns how well values ``[B, T]`` predict those returns that are counted, see :func:`signs`."""
    error, mean = values - returns, _mean(returns, counted)
    off, spread = _mean(error, counted), _mean((returns - mean).square(), counted)
    left = _mean((error - off).square(), counted)
    return {"value/explained_variance": 1 - left / spread, "value/bias": off / spread.sqrt()}


def discounted(
    reward: Tensor, done: Tensor, terminated: Tensor, gamma: float, last: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the discounted returns ``[B, T]`` of sequences, and which of them are known.

    A return is known if its episode ended by itself, or if what is left out, beyond the end of the sequence or of an
    episode that was cut (``done`` but not ``terminated``), counts for less than a hundredth.

    Args:
        reward, done, terminated: ``[B, T]``.
        last: values ``[B]`` of the last states, which stand for their returns; those are then not known, the others
            are.
    """
    # One recursion for both: the returns, and the share of what follows that they leave out.
    added = torch.stack((reward, gamma * (done & ~terminated).to(reward.dtype)))
    nothing = torch.zeros_like(reward[:, 0])
    unseen = torch.stack((nothing, torch.ones_like(nothing)))
    state = unseen if last is None else torch.stack((last.to(nothing), nothing))
    found = [] if last is None else [unseen]  # the last step's return is not known
    for step in reversed(range(reward.shape[1] - len(found))):
        state = torch.add(added[..., step], state.masked_fill(done[:, step], 0), alpha=gamma)
        found.append(state)
    returns, unknown = torch.stack(found[::-1], -1)
    return returns, unknown < 0.01


# -- hidden units ----------------------------------------------------------------------------------------------------


class Activity(TorchFunctionMode):
    """Records how active the hidden units of networks are that are called inside this context.

    It sees the activation functions themselves, so that it needs no knowledge of a network, a user's own included.

    Attributes:
        layers: for each call of an activation function on ``[N, units]`` or an image, the mean absolute output
            ``[units]``, and whether the function saturates.
        last: the outputs ``[N, units]`` of the last such call.
    """

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        action = agent.interface.action
        self._squashed = tuple(action.shape[-1:]) if agent.interface.continuous else ()
        self.layers: list[tuple[Tensor, bool]] = []
        self.last: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _RECTIFIED or name in ("tanh", "tanh_"):
            self._record(out, name.startswith("tanh"))
        return out

    def _record(self, out: Any, saturates: bool) -> None:
        if not isinstance(out, Tensor) or out.dim() < 2 or (saturates and tuple(out.shape[-1:]) == self._squashed):
            return  # the squashing of actions is no hidden layer
        image = out.dim() == 4 and out.shape[-1] > 1 and out.shape[-2] > 1 and out.shape[1] >= 8
        self.last = None if image else out.flatten(0, -2)
        self.layers.append((out.abs().mean((0, 2, 3)) if image else out.abs().flatten(0, -2).mean(0), saturates))

    def shares(self) -> dict[str, Tensor]:
        """Returns the shares of dormant and of saturated units in all layers together, as far as there are any."""
        dormant = torch.cat([dormant_units(mean) for mean, _ in self.layers]) if self.layers else None
        saturated = [mean > SATURATED for mean, saturates in self.layers if saturates]
        shares = {} if dormant is None else {"network/dormant_units": dormant.float().mean()}
        return shares | ({"network/saturated_units": torch.cat(saturated).float().mean()} if saturated else {})


def dormant_units(mean: Tensor) -> Tensor:
    """Returns which units ``[units]`` of a layer are dormant, given their mean absolute outputs."""
    return mean <= DORMANT * mean.mean() + torch.finfo(mean.dtype).tiny


def effective_rank(features: Tensor, left: float = 0.01) -> int:
    """Returns how many singular values of features ``[N, units]`` make up all but a share of their sum.

    This is the effective rank of Kumar et al. 2021 (arXiv 2010.14498), who leave 0.01.
    """
    values = torch.linalg.svdvals(features.double())
    shares = values.cumsum(0) / values.sum().clamp(min=1e-300)
    return int((shares < 1 - left).sum()) + 1
