"""Any TorchRL ``LossModule`` as an agent: ``algorithm: torchrl``.

A yaml names the loss, its networks by the arguments of its constructor, and where its data come from: a replay buffer
(``data: replay``) or fresh rollouts (``data: rollout``); see ``conf/agent/torchrl_sac.yaml`` and ``torchrl_ppo.yaml``
for examples. Acting, replay, schedules, checkpoints and refused steps are as in every agent.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torchrl.data import Bounded, Categorical
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MaskedCategorical, ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
from torchrl.objectives import SoftUpdate
from torchrl.objectives.common import LossModule

from rlstack.config import ConfigError
from rlstack.config.errors import did_you_mean, unknown_key
from rlstack.config.options import RATE, Count, Finite, LearningRate, NoiseScale, Positive, Probability, defaults_of
from rlstack.config.schedules import make_schedule
from rlstack.config.typed import Interval, to_plain
from rlstack.envs.foundation.packages import imported
from rlstack.losses.base import Loss
from rlstack.losses.ppo import normalized
from rlstack.networks.distributions import NEVER, full_precision, legal
from rlstack.networks.values import ActionValue, StateNetwork, renormalized

from .base import Agent, AgentPolicy, exploring, greedy
from .interface import MASK, Interface
from .off_policy import OffPolicy, OffPolicyConfig
from .on_policy import FromRollouts, minibatches
from .optimizer import CannotCompile, Compiler, Info


@dataclass(frozen=True)
class LossNetwork:
    """A network of a TorchRL loss.

    Attributes:
        kind: kind of its output: ``actor``: a distribution of actions; ``deterministic``: an action; ``value``: the
            value of a state; ``action_value``: that of a state and a continuous action; ``action_values``: those of
            all choices.
        hidden: widths of the hidden layers; None for the agent's.
        layer_norm: normalise each hidden layer.
        batch_norm: normalise over the batch before every layer, by batch renormalisation.
        copies: number of copies, each with its own weights: an ensemble.
        out_key: key of its values in the output; None for TorchRL's default.
    """

    kind: Literal["actor", "deterministic", "value", "action_value", "action_values"]
    hidden: list[Count] | None = None
    layer_norm: bool = False
    batch_norm: bool = False
    copies: Annotated[int, Interval(low=1, high=1000)] = 1
    out_key: str | None = None


@dataclass(frozen=True)
class LossOptimizer:
    """An optimiser of some parameters of a TorchRL loss.

    Attributes:
        networks: prefixes of the names of the parameters that it trains.
        lr: its learning rate.
        every: number of updates per step of this optimiser.
    """

    networks: list[str]
    lr: LearningRate
    every: Count = 1


@dataclass(kw_only=True)
class TorchRLConfig(OffPolicyConfig):
    """The options of an agent with a TorchRL ``LossModule``."""

    loss: str  # torchrl.objectives.<Loss>, rlstack.losses.<Loss>, or package.module:Class of yours
    networks: dict[str, LossNetwork]  # by the names of the loss's arguments: {actor_network: {kind: actor}, ...}
    data: Literal["replay", "rollout"] = "replay"  # replay: from a buffer; rollout: fresh, by the present policy

    # the loss
    options: dict[str, Any] = field(default_factory=dict)  # further arguments of the loss
    keys: dict[str, str | list[str]] = field(default_factory=dict)  # of the loss's set_keys, such as
    #   {state_action_value: action_value}
    loss_weights: dict[str, Finite] = field(default_factory=dict)  # of its terms in the minimised sum, else 1:
    #   {loss_actor_bc: 0}
    value_estimator: Literal["td0", "td1", "td_lambda", "gae"] = "td0"  # that the loss makes itself, for data=rollout
    #   (replay: td0); not vtrace, which in TorchRL 0.14.1 uses the probability of a newly drawn action
    estimator_options: dict[str, Any] = field(default_factory=dict)  # of it, such as {lmbda: 0.95}; gamma is above

    # optimisation
    lr: LearningRate = 3.0e-4
    optimizers: dict[str, LossOptimizer] = field(default_factory=dict)  # instead of one for all networks:
    #   {actor: {networks: [actor_network], lr: 1.0e-3, every: 2}, ...}, a forward pass for each
    optimizer_eps: Positive = 1.0e-8
    max_grad_norm: Positive | None = None  # null: gradients are not clipped
    target_updates: Count = 1  # number of updates per move of the targets, for data=replay

    # exploration
    epsilon: Probability = 0.0  # probability of a uniform random action
    noise: NoiseScale = 0.1  # std of the Gaussian noise on the actions of a deterministic actor

    # rollouts
    epochs: Annotated[int, Interval(low=1, high=10_000, why="passes over the same data")] = 1  # passes over the data
    minibatch_size: Count = 256  # about: the data are split into nearly equal parts
    normalize_advantage: bool = False  # over the rollout: zero mean and unit standard deviation

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data == "replay" and self.value_estimator != "td0":
            advice = "needs sequences, data=rollout; with replay give td0"
            raise ValueError(f"value_estimator={self.value_estimator} {advice}")
        if self.optimizers and self.lr != TorchRLConfig.lr:
            raise ValueError("lr is for agents without optimizers, whose rates are optimizers.<name>.lr")
        if self.data == "rollout":
            for name, value in defaults_of(TorchRLConfig).items():
                if name in WITHOUT_ROLLOUTS and to_plain(getattr(self, name)) != value:
                    raise ValueError(f"{name} is for data=replay, leave it out")
        if self.symmetry == "augment" and self.data == "rollout":
            advice = "of own losses, ppo and a2c take it with rollouts"
            raise ValueError(f"symmetry=augment is for data=replay here; {advice}")


WITHOUT_ROLLOUTS = ("n_step", "target_every", "target_updates", "replay", "random_frames", "epsilon")
"""Options that have no effect with ``data: rollout``."""
_OPEN = ("torchrl.objectives.", "rlstack.losses.")
"""The modules whose losses may be named by a dotted path alone; any other is the user's, ``package.module:Class``."""
_ACTING = ("actor", "deterministic", "action_values")
_ESTIMATORS = {"td0": "td0", "td1": "td1", "td_lambda": "tdlambda", "gae": "gae"}
"""Our names of value estimators, and TorchRL's."""
_STEPS = ("next", "steps_to_next_obs")
_RUNNING = ("running_mean", "running_var")
"""The statistics of layers that normalise over a batch."""
_EDGE = 1 - 1e-6
"""The largest absolute value of an action: the density of a squashed one is infinite at -1 and 1 themselves."""
_FAULTS = (KeyError, RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError)
"""What losses raise for arguments and data that do not fit."""


def loss_class(name: str) -> type[LossModule]:
    """Returns the class that ``agent.loss`` names.

    Raises:
        ConfigError: there is no such class, or it is not a ``LossModule``.
    """
    module, _, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    if ":" not in name and not name.startswith(_OPEN):
        raise ConfigError(f"agent.loss: {name!r} is neither {_OPEN[0]}<Loss> nor package.module:Class")
    try:
        home = imported(module)
    except ValueError as error:
        raise ConfigError(f"agent.loss: {name} cannot be imported: {error}") from error
    cls = getattr(home, attribute, None)
    if not (isinstance(cls, type) and issubclass(cls, LossModule)):
        meant = did_you_mean(attribute, [entry for entry in vars(home) if entry.endswith("Loss")])
        raise ConfigError(f"agent.loss: {name!r} is not a torchrl.objectives.LossModule, {meant}see {module}")
    return cls


class _Drawn(TanhNormal):
    """A ``TanhNormal`` whose draws can be recorded: torch's own, without a gradient, reads scales on the host."""

    def sample_and_log_prob(self, sample_shape: Any = ()) -> tuple[Tensor, Tensor]:
        draw = super().sample_and_log_prob if torch.is_grad_enabled() else self.rsample_and_log_prob
        return draw(sample_shape)


class TorchRL(Agent):
    """An agent whose loss and networks a yaml describes; where its data come from is up to the subclass.

    Attributes:
        actor: the network that acts.
        kind: kind of that network.
    """

    Config = TorchRLConfig
    ACTIONS: tuple[str, ...] = ("vector", "choice")
    config: TorchRLConfig
    actor: Any
    cycle: int
    kind: str
    _never_finite: Sequence[str] = ()

    @classmethod
    def of(cls, config: TorchRLConfig) -> type[Agent]:
        """Returns the class for the kind of data that a configuration asks for."""
        return OffPolicyTorchRL if config.data == "replay" else OnPolicyTorchRL

    def compile(self, compiler: Compiler) -> None:
        if not compiler.graphs:
            raise CannotCompile("a loss of TorchRL swaps parameters in and out of its networks")
        super().compile(dataclasses.replace(compiler, compiles=False))

    def take_weights(self, weights: Mapping[str, Any]) -> None:
        raise ConfigError("init: agent.algorithm=torchrl takes checkpoints of runs, not weights alone")

    def acting(self) -> dict[str, nn.Module]:
        networks = super().acting()
        # Not the loss, which may call networks with other parameters than their own, nor what one of ours calls.
        for name in ("loss", *(self.loss.called() if isinstance(self.loss, Loss) else ())):
            networks.pop(name, None)
        return {**networks, "actor": self.actor}

    # -- building ------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Makes the networks, the loss, its targets and optimisers, and tries the loss out."""
        networks = self.config.networks
        acting = [name for kind in _ACTING for name, network in networks.items() if network.kind == kind]
        if not acting:
            raise ConfigError(f"agent.networks: none of them can act, one must be of kind {', '.join(_ACTING)}")
        # On the device before the loss takes them: moved later, their buffers would no longer be those of the loss.
        built = {
            name: [self._network(name, c).to(self.interface.dtype).to(self.device) for _ in range(c.copies)]
            for name, c in networks.items()
        }
        self.kind, self.actor = networks[acting[0]].kind, built[acting[0]][0]
        self.loss = self._make_loss({name: parts[0] if len(parts) == 1 else parts for name, parts in built.items()})
        self.add_network("loss", self.loss)
        self._running = [value for name, value in self.loss.state_dict().items() if name.endswith(_RUNNING)]
        held = [*(name for name, _ in self.loss.named_buffers()), *(name for name, _ in self.loss.named_children())]
        delayed = any(name.startswith("target_") for name in held)
        self._soft_update = SoftUpdate(self.loss, tau=self.config.target_tau) if delayed else None
        self._make_optimizers()
        self.cycle = math.lcm(*self._every.values())
        self._try_out()

    def _network(self, name: str, c: LossNetwork) -> TensorDictModule:
        """Returns a network of the kind in ``c``, on observations (and actions if it evaluates them); or the user's."""
        hidden, choices = c.hidden or self.config.hidden, self.interface.choices
        outputs = choices[0] if choices else self.interface.action.shape[-1]
        options: dict[str, Any] = {"activation": self.config.activation, "layer_norm": c.layer_norm}
        if c.kind in ("action_value", "action_values") and (c.kind == "action_values") is not bool(choices):
            fault = "kind action_value is for continuous actions, action_values for choices"
            raise ConfigError(f"agent.networks.{name}: {fault}")
        if c.kind == "action_value":
            critic = self.own_network(name, 1, actions=outputs) or renormalized(
                ActionValue(self.encoder(name), outputs, hidden, **options), c.batch_norm
            )
            return ValueOperator(critic, ["observation", "action"], [c.out_key or "state_action_value"])
        size = {"value": 1, "actor": outputs if choices else 2 * outputs}.get(c.kind, outputs)
        network = self.own_network(name, size) or renormalized(
            StateNetwork(self.encoder(name), size, hidden, **options), c.batch_norm
        )
        if c.kind == "value":
            return ValueOperator(network, ["observation"], [c.out_key or "state_value"])
        if c.kind == "action_values":
            mask = MASK if self.interface.masked else None
            reads: dict[str, Any] = {"in_keys": ["observation"], "action_mask_key": mask}
            return QValueActor(network, spec=self.action_spec, action_space="categorical", **reads)
        if c.kind == "deterministic":
            return TensorDictModule(nn.Sequential(network, nn.Tanh()), ["observation"], ["action"])
        # Distributions and their log probabilities keep out of low precision.
        network.register_forward_hook(lambda network, inputs, output: full_precision(output))
        numbers, keys, kind = network, ["logits"], torch.distributions.Categorical
        given: Any = keys
        fixed: dict[str, Any] = {}
        if not choices:
            numbers, given, kind = nn.Sequential(network, NormalParamExtractor()), ["loc", "scale"], _Drawn
            keys = given
            # Not the default numbers, which it would copy to a GPU in every step; that cannot be recorded.
            fixed = {"low": -torch.ones((), device=self.device), "high": torch.ones((), device=self.device)}
        elif self.interface.masked:
            given, kind = {"logits": "logits", "mask": MASK}, MaskedCategorical
            fixed = {"neg_inf": NEVER}  # minus infinity times a probability of 0 is NaN, in entropies
        return ProbabilisticActor(
            TensorDictModule(numbers, ["observation"], keys),
            given,
            ["action"],
            distribution_class=kind,
            distribution_kwargs=fixed,
            return_log_prob=True,
            log_prob_key="log_prob",
        )

    @property
    def action_spec(self) -> Any:
        """The spec of the agent's own actions: choices, or numbers in [-1, 1]."""
        if self.interface.choices is not None:
            return Categorical(self.interface.choices[0])
        return Bounded(-1, 1, self.interface.action.shape, dtype=self.interface.dtype)

    def _make_loss(self, networks: dict[str, Any]) -> LossModule:
        c, cls, choices = self.config, loss_class(self.config.loss), self.interface.choices
        known = inspect.signature(cls.__init__).parameters
        offered: dict[str, Any] = {"action_spec": self.action_spec}
        if choices is not None:
            offered |= {"action_space": "categorical", "num_actions": choices[0]}
        # TorchRL's own have it from their value estimator, and refuse this argument, whose default is None.
        if "gamma" in known and known["gamma"].default is not None:
            offered["gamma"] = c.gamma
        for where, names in (("networks", networks), ("options", c.options)):
            for name in names:
                if name not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
                    raise ConfigError(unknown_key(f"agent.{where}.{name}", [key for key in known if key != "self"]))
        options = {**{name: value for name, value in offered.items() if name in known}, **c.options}
        try:
            with warnings.catch_warnings():  # TorchRL wants losses to annotate their networks
                warnings.filterwarnings("ignore", "The name .* wasn't part of the annotations")
                loss = cls(**networks, **options)
            if isinstance(loss, Loss) and "gamma" not in c.options:
                loss.gamma = c.gamma  # of those, too, whose constructor hands it on
            if c.keys:
                loss.set_keys(**{name: tuple(key) if isinstance(key, list) else key for name, key in c.keys.items()})
            loss.make_value_estimator(_ESTIMATORS[c.value_estimator], gamma=c.gamma, **c.estimator_options)
            if c.n_step > 1 and (estimator := getattr(loss, "_value_estimator", None)) is not None:
                estimator.set_keys(steps_to_next_obs=_STEPS)  # some losses keep only what is below "next"
        except NotImplementedError as error:  # a loss that bootstraps by itself, or does not bootstrap
            if c.value_estimator != "td0":
                fault = "a loss of yours for rollouts needs a method make_value_estimator"
                raise ConfigError(f"agent.value_estimator: {c.loss} makes no {c.value_estimator}; {fault}") from error
        except _FAULTS as error:
            raise ConfigError(f"agent.loss: {c.loss} refuses its options: {_brief(error)}") from error
        return loss

    def _make_optimizers(self) -> None:
        """Adds one optimiser of all parameters, or one for each that the configuration names."""
        c, trained = self.config, dict(self.loss.named_parameters())
        options: dict[str, Any] = {"max_grad_norm": c.max_grad_norm, "eps": c.optimizer_eps}
        if not c.optimizers:
            self.add_optimizer("lr", list(trained.values()), **options)
            self._every = {"lr": 1}
            return
        del self.schedules["lr"], self.scheduled["lr"]  # each has a rate of its own
        self._every = {f"lr_{name}": own.every for name, own in c.optimizers.items()}
        heads = sorted({name.partition(".")[0] for name in trained})
        for name, own in c.optimizers.items():
            parameters = [trained.pop(key) for key in list(trained) if key.startswith(tuple(own.networks))]
            if not parameters:
                given = f"agent.optimizers.{name}.networks: none left of {', '.join(own.networks)}"
                raise ConfigError(f"{given}; the loss has {', '.join(heads)}")
            rate = make_schedule(own.lr, self.total_frames, f"agent.optimizers.{name}.lr", RATE)
            self.schedules[f"lr_{name}"], self.scheduled[f"lr_{name}"] = rate, rate(0)
            self.add_optimizer(f"lr_{name}", parameters, **options)
        if trained:
            left = sorted({name.partition(".")[0] for name in trained})
            raise ConfigError(f"agent.optimizers: none trains {', '.join(left)}")

    # -- trying the loss out -------------------------------------------------------------------------------------

    def _try_out(self) -> None:
        """Raises a one-line :class:`ConfigError` if the loss cannot take the data that the run will have."""
        c, interface, device, size = self.config, self.interface, self.device, (4, 2)
        before = {name: value.clone() for name, value in self.loss.named_buffers()}  # batch normalisation's statistics
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
            state = TensorDict(observation=interface.observation.rand(size), batch_size=size).to(device)
            if interface.masked:
                mask = torch.ones(*size, (interface.choices or (0,))[0], dtype=torch.bool, device=device)
                mask[..., 1:2] = False  # the second choice, if there are several
                state.set(MASK, mask)
            after = state.clone().set("reward", torch.zeros(*size, 1, dtype=interface.dtype, device=device))
            for name in ("terminated", "done"):
                after.set(name, torch.zeros(*size, 1, dtype=torch.bool, device=device))
            state.update(self.act(state.get("observation"), state.get(MASK, None), ExplorationType.RANDOM))
            batch = state.set("next", after)
            try:
                batch = (self.with_advantage(batch) if c.data == "rollout" else batch).reshape(-1)
                value, info = self.objective(batch)
            except _FAULTS as error:
                fault = f"{c.loss} does not take such data: {_brief(error)}"
                if c.data == "replay" and any(f'"{name}"' in str(error) for name in ("advantage", "value_target")):
                    fault += "; fresh rollouts bring it: agent.data=rollout"
                if c.data == "rollout" and isinstance(error, NotImplementedError):
                    fault += "; a loss of yours for rollouts needs a method make_value_estimator"
                raise ConfigError(f"agent.loss: {fault}") from error
            if c.data == "replay":
                self._check_what_is_ignored(batch, before)
            self._restore(before)
        if value.dim() or not torch.isfinite(value):
            raise ConfigError(f"agent.loss: {c.loss} gives {value} for a made-up batch, not one finite number")
        # Reports beside the loss, such as the mean value of all choices, illegal ones included.
        self._never_finite = [name for name, entry in info.items() if not torch.isfinite(entry).all()]

    def _check_what_is_ignored(self, batch: TensorDictBase, before: dict[str, Tensor]) -> None:
        """Raises a :class:`ConfigError` if the loss ignores n-step discounts or importance weights that it will get."""
        c, reward = self.config, batch.get(("next", "reward"))

        def ignores(name: str, *values: Tensor) -> bool:
            losses = []
            for value in values:
                self._restore(before)
                torch.manual_seed(0)
                losses.append(self.objective(self.loss_inputs(batch.copy().set(name, value)))[0])
            return torch.equal(*losses)

        one, three = (torch.full_like(reward, c.gamma**steps) for steps in (1, 3))
        if c.n_step > 1 and c.gamma < 1 and ignores("gamma", one, three):
            fault = f"{c.loss} ignores the discount of returns of {c.n_step} steps, give 1"
            raise ConfigError(f"agent.n_step: {fault}")
        even = torch.ones_like(reward[:, 0])
        rising, corrects = (even.cumsum(0) - 1) / len(even), c.importance_exponent != 0
        if c.replay.sampler == "prioritized" and corrects and ignores("priority_weight", even, rising):
            fault = f"{c.loss} ignores the weights that correct for the priorities"
            raise ConfigError(f"agent.replay.sampler: {fault}; give uniform, or agent.importance_exponent=0")

    def _restore(self, buffers: dict[str, Tensor]) -> None:
        """Gives the buffers of the loss these values; it may have made others."""
        for name, buffer in self.loss.named_buffers():
            buffer.copy_(buffers.get(name, buffer))

    # -- acting --------------------------------------------------------------------------------------------------

    def act(self, observation: Any, mask: Tensor | None, how: ExplorationType) -> dict[str, Tensor]:
        """Returns the action for a normalised observation ``[...]``, with its log probability if there is one."""
        state = self._state(observation, mask)
        self.actor.eval()  # batch norm layers use their running statistics; they take one batch dimension
        with set_exploration_type(how):
            acted = self.actor(state.reshape(-1)).select("action", "log_prob", strict=False).reshape(state.shape)
        self.actor.train()
        return {**dict(acted.items()), "action": self._inside(acted.get("action"))}

    def best(self, observation: Any, mask: Tensor | None) -> Tensor:
        """Returns the most probable action (the squashed mean of a Gaussian), computed on plain tensors for exports."""
        if self.kind != "actor":
            return self.act(observation, mask, ExplorationType.DETERMINISTIC)["action"]
        lead = self.interface.lead(observation)
        # In a program that is exported, a dict has no batch size, and its entries are [N, ...].
        flat = not lead and not isinstance(observation, Tensor)
        self.actor.eval()
        out = self.actor[0].module(observation if flat else observation.reshape(-1, *observation.shape[len(lead) :]))
        self.actor.train()
        best = out if self.interface.choices is not None else out[0].tanh()
        best = best if flat else best.reshape(*lead, -1)
        return self._inside(best) if self.interface.choices is None else greedy(best, mask)

    def _inside(self, action: Tensor) -> Tensor:
        if self.kind == "actor" and self.interface.choices is None:
            return action.clamp(-_EDGE, _EDGE)
        return action

    def _state(self, observation: Any, mask: Tensor | None) -> TensorDict:
        state = TensorDict({"observation": observation}, self.interface.lead(observation))
        return state if mask is None else state.set(MASK, legal(mask))

    # -- learning ------------------------------------------------------------------------------------------------

    def objective(self, batch: TensorDictBase) -> tuple[Tensor, Info]:
        """Returns the weighted sum of the losses of a batch, and everything that the loss reports."""
        batch = batch.copy()  # losses write into their input
        if self.interface.masked:
            following = batch.get("next").copy()
            for part in (batch, following):
                part.set(MASK, legal(part.get(MASK)))
            batch.set("next", following)
        out, weights = self.loss(batch), self.config.loss_weights
        names = [name for name in out.keys() if name == "loss" or name.startswith("loss_")]  # noqa: SIM118
        if unknown := [name for name in weights if name not in names]:
            raise ValueError(f"agent.loss_weights: it has no {unknown[0]}, but {', '.join(names)}")
        info = {
            name: value.detach()
            for name, value in out.items()
            if isinstance(value, Tensor) and value.numel() == 1 and name not in self._never_finite
        }
        if (error := batch.get("td_error", None)) is not None:
            info["td_error"] = error.detach().reshape(len(batch), -1).mean(-1)
        parts = [out.get(name) * weights[name] if name in weights else out.get(name) for name in names]
        return torch.stack(parts).sum(), info

    def step(self, batch: TensorDictBase) -> tuple[dict[str, Tensor | float], Info]:
        """Makes one step of every optimiser that is due, on a batch ``[N]``; returns metrics and the loss's report."""
        norms: list[Tensor] = []
        info: Info = {}
        for name, every in self._every.items():
            if self.updates % every == 0:
                optimizer = self.optimizers[name]
                _, norm, info = optimizer.minimize(self.objective, batch)
                norms.append(norm)
                if optimizer.mean is not None and self._running:  # like gradients, the same in all processes
                    for running, mean in zip(self._running, optimizer.mean(self._running)):
                        running.copy_(mean)
        # Beside loss_entropy and loss_alpha, entropy and alpha themselves need a name of their own.
        apart = {name: f"policy/{name}" for name in info if f"loss_{name}" in info}
        metrics = {
            apart.get(name, f"loss/{name.removeprefix('loss_')}"): value
            for name, value in info.items()
            if not value.dim()
        }
        return {**metrics, "grad/all": torch.stack(norms).max() if norms else 0.0}, info

    def move_targets(self) -> None:
        """Moves every target one step towards its network."""
        if self._soft_update is not None:
            self._soft_update.step()

    def with_advantage(self, sequences: TensorDictBase) -> TensorDictBase:
        """Returns sequences ``[B, T]`` with what the loss's value estimator adds: advantages and value targets."""
        loss = self.loss
        if loss.value_estimator is not None and hasattr(loss.tensor_keys, "advantage"):
            parameters = {"params": loss.critic_network_params, "target_params": loss.target_critic_network_params}
            seen = sequences.get("observation")
            if not isinstance(seen, Tensor):
                sequences.set("observation", _Whole(dict(seen.items()), seen.batch_size, seen.device))
            loss.value_estimator(sequences, **parameters)
            sequences.set("observation", seen)
        return sequences

    def loss_inputs(self, batch: TensorDictBase) -> TensorDictBase:
        """Converts transitions of our replay buffer for TorchRL's losses: n-step discounts become numbers of steps."""
        if self.kind == "actor" and self.interface.choices is None:  # other policies may have acted at -1 or 1
            batch = batch.copy().set("action", self._inside(batch.get("action")))
        gamma = batch.get("gamma", None)
        if gamma is None:
            return batch
        steps = torch.ones_like(gamma)
        if 0 < self.config.gamma < 1:  # of 0 and 1 every power is the same
            steps = (gamma.log() / math.log(self.config.gamma)).round()
        following = batch.get("next").copy().set(_STEPS[-1], steps)
        return batch.copy().set("next", following).set(_STEPS[-1], steps)

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """Negative log likelihood, squared difference (deterministic actors) or cross entropy (values of choices)."""
        state = self._state(observation, mask)
        if self.kind == "actor":
            return -self.actor.get_dist(state).log_prob(self._inside(action)).mean()
        if self.kind == "deterministic":
            return mse_loss(self.actor(state).get("action"), action)
        return cross_entropy(self.actor(state).get("action_value"), action)


class _Whole(TensorDict):
    """An observation with keys, in which TorchRL 0.14.1 looks for NaN as in a tensor if all of it is floating-point."""

    def is_floating_point(self) -> bool:
        return False


class OffPolicyTorchRL(TorchRL, OffPolicy):
    """An agent with a ``LossModule`` that learns from a replay buffer."""

    def exploit(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        return self.best(self.normalized(observation), mask)

    def explore(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        action: Tensor = self.act(self.normalized(observation), mask, ExplorationType.RANDOM)["action"]
        if self.kind == "deterministic":
            action = (action + torch.randn_like(action) * self.scheduled_value("noise")).clamp(-1, 1)
        return self.epsilon_greedy(lambda: action, observation, mask)

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        metrics, info = self.step(self.loss_inputs(batch))
        self.reprioritize(batch, info)
        return metrics

    def _targets_due(self, frames: int) -> bool:
        return self.updates % self.config.target_updates == 0 and super()._targets_due(frames)


class OnPolicyTorchRL(TorchRL, FromRollouts):
    """An agent with a ``LossModule`` that learns from the data that its present policy has gathered."""

    def __init__(self, config: TorchRLConfig, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        self.build()
        if self.kind != "actor":
            raise ConfigError(f"agent.networks: data=rollout needs a network of kind actor, not {self.kind}")

    def policy(self, explore: bool | None = None) -> AgentPolicy:
        extras = () if explore is False else ("log_prob", "raw_action")

        def act(observation: Any, mask: Tensor | None = None) -> dict[str, Tensor]:
            seen = self.normalized(observation)
            if not extras:
                return {"action": self.interface.to_env(self.best(seen, mask))}
            explores = exploring(explore)
            how = ExplorationType.RANDOM if explores else ExplorationType.DETERMINISTIC
            # Explores in the precision in which it learns: the ratio of a policy to itself must be one.
            with next(iter(self.optimizers.values())).autocast(explores):
                acted = self.act(seen, mask, how)
            beside = {"log_prob": acted["log_prob"], "raw_action": acted["action"]}
            return {"action": self.interface.to_env(acted["action"]), **beside}

        return AgentPolicy(self, act, extras, explore)

    def compile(self, compiler: Compiler) -> None:
        raise CannotCompile("TorchRL looks for NaN in advantages and entropies on the host")

    @torch.no_grad()
    def rollout(self, sequences: TensorDictBase) -> TensorDictBase:
        """Returns active decisions as a flat batch ``[N]``, with the advantages of the loss's own value estimator."""
        following = sequences.get("next")
        after = following.select("terminated", "done", "action_mask", strict=False)
        after.set("reward", self.scaled_reward(sequences))
        after.set("observation", self.normalized(following.get("observation")))
        entries = sequences.select("log_prob", "action_mask", strict=False).set("next", after)
        entries.set("observation", self.normalized(sequences.get("observation")))
        entries.set("action", sequences.get("raw_action"))
        batch = self._kept(self.with_advantage(entries), sequences)
        advantage = getattr(self.loss.tensor_keys, "advantage", None)
        if self.config.normalize_advantage and advantage is not None:  # over active decisions only
            batch.set(advantage, normalized(batch.get(advantage)))
        return batch

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """Makes epochs of steps on minibatches in random order."""
        metrics: dict[str, Tensor | float] = {}
        for minibatch, _ in minibatches(self.epochs(batch)):
            metrics, _ = self.step(minibatch)
            self.updates += 1
            self.move_targets()
        return metrics


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
