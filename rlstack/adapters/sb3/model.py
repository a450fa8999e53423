"""Model files of Stable-Baselines3 (PPO, A2C, DQN, SAC, RecurrentPPO; MlpPolicy, MultiInputPolicy) and their networks.

Nothing in a file is executed: its weights are tensors, its settings are read from what they print, and the statistics
of observations are read from their pickle with stand-ins for all that it may name."""

from __future__ import annotations

import io
import math
import operator
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rlstack.config import ConfigError, Interval, build
from rlstack.envs.foundation.files import check_expansion, check_regular
from rlstack.files.pickles import NUMPY, Names, Standin, read_pickle
from rlstack.files.safe_load import first_line, load_json, load_tensors

# -- networks ----------------------------------------------------------------------------------------------------------


Layers: TypeAlias = list[tuple[Tensor, Tensor]]
"""Weight ``[out, in]`` and bias ``[out]`` of linear layers in order."""
Memory: TypeAlias = tuple[Tensor, ...]
"""Hidden and cell state of the actor's LSTM ``[layers, N, H]``, then those of the critic's, if it has one."""

ACTIVATIONS: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (
        *(nn.Tanh, nn.ReLU, nn.SiLU, nn.GELU, nn.ELU, nn.LeakyReLU, nn.SELU, nn.CELU, nn.Mish, nn.Sigmoid),
        *(nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.ReLU6, nn.Tanhshrink, nn.LogSigmoid, nn.Identity),
    )
}
LOG_STD_RANGE = (-20.0, 2.0)
"""SAC's bounds on the logarithm of its standard deviation."""


class Weights:
    """A ``state_dict`` that remembers what has been taken out of it.

    Attributes:
        left: names not taken yet.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.state, self.left = state, set(state)

    def take(self, name: str) -> Tensor:
        """Returns one tensor in float32; raises a :class:`ConfigError` if there is none of that name."""
        if name not in self.state:
            raise ConfigError(f"the weights lack {name}")
        self.left.discard(name)
        return self.state[name].float()

    def linear(self, name: str) -> Layers:
        """Returns one layer, as a list."""
        return [(self.take(f"{name}.weight"), self.take(f"{name}.bias"))]

    def linears(self, prefix: str) -> Layers:
        """Returns the layers of a sequence with an activation after each: ``prefix.0``, ``prefix.2`` and so on."""
        layers: Layers = []
        while f"{prefix}.{2 * len(layers)}.weight" in self.state:
            layers += self.linear(f"{prefix}.{2 * len(layers)}")
        return layers

    def drop(self, prefix: str) -> None:
        """Marks weights that nobody needs to act as taken."""
        self.left = {name for name in self.left if not name.startswith(prefix)}


def perceptron(layers: Layers, activation: str, bare_output: bool = True) -> nn.Sequential:
    """Returns linear layers with an activation between them, and after the last one too unless ``bare_output``.

    Raises:
        ConfigError: the layers do not follow one another.
    """
    modules: list[nn.Module] = []
    size = layers[0][0].shape[-1] if layers else 0
    for weight, bias in layers:
        if weight.shape != (len(bias), size) or bias.ndim != 1:
            raise ConfigError(f"the layers do not follow one another: {[tuple(entry[0].shape) for entry in layers]}")
        linear = nn.Linear(size, len(bias))
        linear.load_state_dict({"weight": weight, "bias": bias})
        modules += [linear, ACTIVATIONS[activation]()]
        size = len(bias)
    return nn.Sequential(*(modules[:-1] if bare_output else modules))


class SB3Network(nn.Module):
    """The network of one algorithm. It maps features ``[N, F]`` to its outputs by name.

    A structured observation is joined to features, and normalised if the model was trained so.

    Args:
        weights: those of the model's policy.
        algorithm: a name of :data:`~rlstack.adapters.sb3.model.ALGORITHMS`.
        activation: a name of :data:`ACTIVATIONS`.
        discrete: whether actions are choices.

    Attributes:
        parts: perceptrons, first the one that acts: ``actor`` and ``critic`` (PPO, A2C; behind the LSTMs for
            RecurrentPPO), ``q`` (DQN), or ``actor``, ``log_std`` (with the same hidden layers) and ``critic0``,
            ``critic1``, ... (SAC; input: features, then the action in [-1, 1]).
        memories: the LSTMs of RecurrentPPO, ``actor`` and perhaps ``critic``.
        log_std: logarithm of the standard deviation ``[n]`` of continuous actions, where it is no network's output.
        in_features, out_features: F, and the number of actions or of an action's components.
    """

    def __init__(self, weights: Weights, algorithm: str, activation: str, discrete: bool) -> None:
        super().__init__()
        self.squashed = algorithm == "SAC"
        parts: dict[str, Layers] = {}
        if algorithm == "DQN":
            parts["q"] = weights.linears("q_net.q_net")
            weights.drop("q_net_target.")
        elif self.squashed:
            latent = weights.linears("actor.latent_pi")
            parts["actor"] = [*latent, *weights.linear("actor.mu")]
            parts["log_std"] = [*latent, *weights.linear("actor.log_std")]
            while layers := weights.linears(f"critic.qf{len(parts) - 2}"):
                parts[f"critic{len(parts) - 2}"] = layers
            weights.drop("critic_target.")
        else:
            parts["actor"] = weights.linears("mlp_extractor.policy_net") + weights.linear("action_net")
            parts["critic"] = weights.linears("mlp_extractor.value_net") + weights.linear("value_net")
        self.parts = nn.ModuleDict({name: perceptron(layers, activation) for name, layers in parts.items()})
        self.log_std = nn.Parameter(weights.take("log_std")) if "critic" in parts and not discrete else None
        self.memories, self.linear_critic = nn.ModuleDict(), None
        if algorithm == "RecurrentPPO":
            self.memories["actor"] = _lstm(weights, "lstm_actor")
            if "lstm_critic.weight_ih_l0" in weights.state:
                self.memories["critic"] = _lstm(weights, "lstm_critic")
            if "critic.weight" in weights.state:
                self.linear_critic = perceptron(weights.linear("critic"), activation)
        acting = next(iter(parts.values()))
        if not acting:
            raise ConfigError(f"the weights lack the {next(iter(parts))} network")
        self.in_features, self.out_features = acting[0][0].shape[1], len(acting[-1][1])
        if self.memories:
            self.in_features = int(self.memories["actor"].input_size)  # type: ignore[arg-type]

    def layers(self) -> dict[str, Layers]:
        """Returns copies of the linear layers in order, by part; each but a part's last precedes an activation."""
        known: dict[str, Layers] = {}
        for name, module in self.parts.items():
            linears = [part for part in module.modules() if isinstance(part, nn.Linear)]
            known[name] = [(part.weight.data.clone(), part.bias.data.clone()) for part in linears]
        return known

    def initial_memory(self, count: int) -> Memory:
        """Returns zeros for ``count`` entries."""
        lstms: Any = self.memories.values()
        shapes = [(lstm.num_layers, count, lstm.hidden_size) for lstm in lstms for _ in range(2)]
        return tuple(next(self.parameters()).new_zeros(shape) for shape in shapes)

    def forward(
        self, features: Tensor, memory: Memory = (), starts: Tensor | None = None
    ) -> tuple[dict[str, Tensor], Memory]:
        """Returns all outputs by name, and the memory after the step.

        These are ``q [N, n]``; or ``logits [N, n]``, or ``mean`` and ``log_std [N, n]`` (of SAC before squashing); and
        of an actor-critic ``value [N, 1]``.

        Args:
            features: ``[N, F]``.
            memory: after the step before, for a recurrent network.
            starts: ``[N]`` bool, whose memory begins anew.
        """
        inputs = {"actor": features, "critic": features if self.linear_critic is None else self.linear_critic(features)}
        if self.memories and starts is not None:
            kept = (~starts).to(features.dtype)[None, :, None]
            following: list[Tensor] = []
            for index, (name, lstm) in enumerate(self.memories.items()):
                states = tuple(part * kept for part in memory[2 * index : 2 * index + 2])
                output, after = lstm(features[None], states)
                inputs[name] = output[0]
                following += after
            if "critic" not in self.memories and self.linear_critic is None:
                inputs["critic"] = inputs["actor"]
            memory = tuple(following)
        if "q" in self.parts:
            return {"q": self.parts["q"](features)}, memory
        actor = self.parts["actor"](inputs["actor"])
        if self.squashed:
            return {"mean": actor, "log_std": self.parts["log_std"](features).clamp(*LOG_STD_RANGE)}, memory
        value = self.parts["critic"](inputs["critic"])
        if self.log_std is None:
            return {"logits": actor, "value": value}, memory
        return {"mean": actor, "log_std": self.log_std.expand_as(actor), "value": value}, memory

    def choose(self, outputs: Mapping[str, Tensor], deterministic: bool = True) -> Tensor:
        """Returns the index ``[N]`` of an action, or an action ``[N, n]`` (of SAC in [-1, 1]); a DQN never samples."""
        if "mean" in outputs:
            noise = 0.0 if deterministic else outputs["log_std"].exp() * torch.randn_like(outputs["mean"])
            action = outputs["mean"] + noise
            return action.tanh() if self.squashed else action
        if "q" in outputs or deterministic:
            return outputs["q" if "q" in outputs else "logits"].argmax(-1)
        return torch.distributions.Categorical(logits=outputs["logits"]).sample()


def _lstm(weights: Weights, name: str) -> nn.LSTM:
    names = [key.removeprefix(f"{name}.") for key in weights.state if key.startswith(f"{name}.")]
    if strange := [key for key in names if not re.fullmatch(r"(weight|bias)_(ih|hh)_l\d+", key)]:
        raise ConfigError(f"only a plain LSTM with biases is supported, {name} has also {strange[0]}")
    state = {key: weights.take(f"{name}.{key}") for key in names}
    try:
        hidden, size = state["weight_hh_l0"].shape[1], state["weight_ih_l0"].shape[1]
        lstm = nn.LSTM(size, hidden, len({key.rpartition("_l")[2] for key in names}))
        lstm.load_state_dict(state)
    except (KeyError, RuntimeError) as error:
        raise ConfigError(f"the weights of {name} do not make an LSTM ({str(error).splitlines()[0]})") from None
    return lstm


# -- observation statistics --------------------------------------------------------------------------------------------


_ONLY = "numpy data, spaces, random generators and Stable-Baselines3's VecNormalize and RunningMeanStd"


class _Normaliser(Standin):
    """A ``VecNormalize``."""


def _names() -> Names:
    spaces = {"box": "Box", "discrete": "Discrete", "dict": "Dict", "tuple": "Tuple"}
    spaces |= {"multi_discrete": "MultiDiscrete", "multi_binary": "MultiBinary"}
    generators = [("_pcg64", "PCG64"), ("_pcg64", "PCG64DXSM"), ("_mt19937", "MT19937"), ("_philox", "Philox")]
    generators += [("bit_generator", name) for name in ("SeedSequence", "__pyx_unpickle_SeedSequence")]
    generators += [("_pickle", f"__{kind}_ctor") for kind in ("randomstate", "generator", "bit_generator")]
    plain = [(f"numpy.random.{module}", name) for module, name in generators]
    for library in ("gym", "gymnasium"):
        plain += [(f"{library}.spaces.{module}", name) for module, name in spaces.items()]
        plain += [(f"{library}.utils.seeding", "RandomNumberGenerator")]
    return {
        **NUMPY,
        **dict.fromkeys(plain, Standin),
        ("collections", "OrderedDict"): OrderedDict,
        ("stable_baselines3.common.vec_env.vec_normalize", "VecNormalize"): _Normaliser,
        ("stable_baselines3.common.running_mean_std", "RunningMeanStd"): Standin,
    }


_NAMES = _names()
Finite = Annotated[float, Interval()]


@dataclass(frozen=True)
class VecNormalize:
    """Statistics of observations and returns, as Stable-Baselines3's ``VecNormalize`` has them.

    Attributes:
        obs_mean, obs_var: of each of the F features (population variance); a structured observation's entries are
            joined in the order of ``obs_keys``, which is the network's.
        obs_count: observations seen, with the prior of 1e-4.
        obs_keys: keys of a structured observation, None for a flat one.
        obs_mask: which of the F features are normalised at all, None for all of them.
        norm_obs: False leaves observations as they are.
        ret_mean, ret_var, ret_count: of the discounted return, which scales rewards during training.
    """

    clip_obs: Finite
    clip_reward: float
    gamma: float
    epsilon: Finite
    norm_obs: bool
    norm_reward: bool
    obs_mean: tuple[Finite, ...]
    obs_var: tuple[Finite, ...]
    obs_count: float
    ret_mean: tuple[float, ...]
    ret_var: tuple[float, ...]
    ret_count: float
    obs_keys: tuple[str, ...] | None = None
    obs_mask: tuple[bool, ...] | None = None

    def __post_init__(self) -> None:
        if len({len(values) for values in (self.obs_mean, self.obs_var, self.obs_mask) if values is not None}) != 1:
            raise ConfigError("obs_mean: differs in length from obs_var or obs_mask")

    def normalise(self, observation: Tensor) -> Tensor:
        """``clip((x - mean) / sqrt(var + epsilon), -clip_obs, clip_obs)``, in float32 like the moments.

        Args:
            observation: ``[..., F]``, a structured one joined in the order of ``obs_keys``.
        """
        observation = observation.float()
        if not self.norm_obs:
            return observation
        mean, var = observation.new_tensor(self.obs_mean), observation.new_tensor(self.obs_var)
        scaled = (observation - mean) / (var + self.epsilon).sqrt()
        scaled = scaled.clamp(-self.clip_obs, self.clip_obs)
        if self.obs_mask is None:
            return scaled
        return torch.where(torch.tensor(self.obs_mask, device=observation.device), scaled, observation)


def load_vecnormalize(path: str | Path) -> VecNormalize:
    """Reads ``VecNormalize.save``'s pickle.

    Only numpy arrays and numbers, spaces, random generators and the two classes of statistics may occur in the pickle;
    each is read into an inert stand-in, so nothing is imported and nothing runs.

    Raises:
        ConfigError: no such file, not such a file, or a pickle that names anything else; it says what.
    """
    try:
        content = check_regular(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        statistics = read_pickle(io.BytesIO(content), _NAMES, _ONLY)
        if not isinstance(statistics, _Normaliser):
            raise ConfigError("not the statistics of a VecNormalize")
        return _statistics(statistics.fields)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except Exception as error:  # whatever a broken or hostile file makes of the stand-ins
        raise ConfigError(
            f"{path}: not the statistics of a VecNormalize ({type(error).__name__}: {first_line(error)})"
        ) from None


def _statistics(state: Mapping[str, Any]) -> VecNormalize:
    moments = state["obs_rms"] if state["norm_obs"] else Standin()
    entries: dict[str, Any] = {key: float(state[key]) for key in ("clip_obs", "clip_reward", "gamma", "epsilon")}
    entries |= {key: bool(state[key]) for key in ("norm_obs", "norm_reward")}
    if isinstance(moments, Mapping):
        entries |= _joined(moments, state["observation_space"].fields["spaces"])
    else:
        entries |= _moments("obs", moments)
    return build(VecNormalize, entries | _moments("ret", state["ret_rms"]))


def _moments(prefix: str, statistics: Standin) -> dict[str, Any]:
    mean, var, count = (_floats(statistics.fields.get(key, ())) for key in ("mean", "var", "count"))
    return {f"{prefix}_mean": mean, f"{prefix}_var": var, f"{prefix}_count": sum(count)}


def _joined(moments: Mapping[str, Standin], spaces: Mapping[str, Standin]) -> dict[str, Any]:
    """Returns moments of a structured observation in the order of its space, which is the network's."""
    mean: list[float] = []
    var: list[float] = []
    mask: list[bool] = []
    for key, space in spaces.items():
        size = int(np.prod(space.fields["_shape"], dtype=int))
        known = _moments("obs", moments[key]) if key in moments else None
        mean += known["obs_mean"] if known else [0.0] * size
        var += known["obs_var"] if known else [1.0] * size
        mask += [known is not None] * size
    count = sum(_floats(next(iter(moments.values())).fields["count"])) if moments else 0.0
    joined = {"obs_mean": mean, "obs_var": var, "obs_count": count}
    return {**joined, "obs_keys": tuple(spaces), "obs_mask": None if all(mask) else tuple(mask)}


def _floats(value: Any) -> tuple[float, ...]:
    return tuple(np.asarray(value, dtype=np.float64).reshape(-1).tolist())


# -- files -------------------------------------------------------------------------------------------------------------


ALGORITHMS = ("PPO", "A2C", "DQN", "SAC", "RecurrentPPO")
_RELU = ("DQN", "SAC")
"""Algorithms whose activation is ReLU unless they say otherwise; that of the others is Tanh."""
_VARIABLES = "pytorch_variables.pth"
_ONLY_VECTORS = "only vectors of floats, or a Dict of them, are supported"


@dataclass(frozen=True)
class SB3Model:
    """A model as it was saved.

    Attributes:
        algorithm: one of :data:`ALGORITHMS`.
        network: in evaluation mode, without gradients, float32; takes joined and normalised features ``[N, F]``.
        normaliser: observation statistics it was trained with, None if it saw raw observations.
        activation: name of a class in ``torch.nn``.
        observation_keys: of a structured observation, in the order in which they are joined; None for a flat one.
        observation_shapes: by key where they are known, under ``""`` for a flat observation.
        action: ``discrete`` (an index) or ``box`` (a vector).
        low, high: bounds of a box ``[n]`` as trained, None where they cannot be read.
        num_timesteps: env steps it was trained for.
        hyperparameters: its settings that are plain numbers or words.
        state: the policy's ``state_dict``, on the CPU.
        variables: the file of what is learned beside the policy, such as SAC's temperature; empty if there is none.
        where: the file, for messages.
    """

    algorithm: str
    network: SB3Network
    normaliser: VecNormalize | None
    activation: str
    observation_keys: tuple[str, ...] | None
    observation_shapes: dict[str, tuple[int, ...]]
    action: Literal["discrete", "box"]
    low: Tensor | None
    high: Tensor | None
    num_timesteps: int
    hyperparameters: dict[str, Any]
    state: dict[str, Tensor]
    variables: bytes
    where: str

    @property
    def hidden(self) -> dict[str, tuple[int, ...]]:
        """Sizes of the hidden layers by part (``actor``, ``critic``, ``q``, ...)."""
        parts = self.network.layers()
        return {part: tuple(len(bias) for _, bias in layers[:-1]) for part, layers in parts.items() if layers}

    def temperature(self) -> float:
        """Returns SAC's weight of the entropy as trained, or as set; 0 if the file does not say it.

        Raises:
            ConfigError: not a file of tensors, or not a finite number.
        """
        if not self.variables:
            return 0.0
        try:
            content = load_tensors(io.BytesIO(self.variables))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{_VARIABLES}: {error}") from None
        try:
            learned = content.get("log_ent_coef")
            alpha = float(content.get("ent_coef_tensor", 0.0)) if learned is None else math.exp(float(learned))
        except (AttributeError, TypeError, ValueError, RuntimeError, OverflowError):
            alpha = math.nan
        if not math.isfinite(alpha):
            raise ConfigError(f"{_VARIABLES}: the weight of the entropy is not a finite number")
        return max(alpha, 0.0)

    @property
    def recurrent(self) -> bool:
        """It has a memory: its network takes and returns a state."""
        return len(self.network.memories) > 0

    def features(self, observation: Tensor | Mapping[str, Tensor] | TensorDictBase) -> Tensor:
        """The network's input: float32 ``[N, F]``, joined in the order of the keys, and normalised.

        Args:
            observation: ``[N, *shape]``, or a mapping of such by key.
        """
        known: Any = observation
        parts = [known] if self.observation_keys is None else [known[key] for key in self.observation_keys]
        joined = torch.cat([part.reshape(len(part), -1).float() for part in parts], -1)
        return joined if self.normaliser is None else self.normaliser.normalise(joined)


def load_sb3(path: str | Path, vecnormalize: VecNormalize | str | Path | None = None) -> SB3Model:
    """Reads a model's zip file.

    Args:
        path: the ``.zip``.
        vecnormalize: statistics that its observations were normalised with: a file (see
            :func:`~rlstack.adapters.sb3.model.load_vecnormalize`) or as loaded.

    Raises:
        ConfigError: no such file, not such a file, a model of another kind, or statistics of something else; one line.
    """
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as file:
            check_expansion(file, path)
            names = set(file.namelist())
            if lacks := sorted({"data", "policy.pth"} - names):
                raise ConfigError(f"{path}: not a model of Stable-Baselines3, it lacks {' and '.join(lacks)}")
            data, state = load_json(file.read("data")), load_tensors(io.BytesIO(file.read("policy.pth")))
            variables = file.read(_VARIABLES) if _VARIABLES in names else b""  # the other objects are left alone
    except ConfigError:
        raise
    except zipfile.BadZipFile:
        raise ConfigError(f"{path}: not a zip file, as models of Stable-Baselines3 are") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
    except Exception as error:  # zipfile and zlib raise all sorts for damaged bytes
        raise ConfigError(f"{path}: a part of the file is broken ({first_line(error)})") from None
    tensors = isinstance(state, Mapping) and all(isinstance(value, Tensor) for value in state.values())
    if not tensors or not isinstance(data, dict):
        raise ConfigError(f"{path}: not a model of Stable-Baselines3, its policy.pth or data is something else")
    try:
        algorithm = algorithm_of(data, state)
        # Refuses what would change the networks' input or output without showing in the weights
        kwargs = _printed(data.get("policy_kwargs"))
        extractor = str(kwargs.get("features_extractor_class", ""))
        weights = [name for name in state if "features_extractor." in name]
        if weights or not re.search(r"^$|\.(FlattenExtractor|CombinedExtractor)'>$", extractor):
            other = extractor or weights[0]
            raise ConfigError(f"only MlpPolicy and MultiInputPolicy of vectors are supported, this has {other}")
        if data.get("use_sde") or kwargs.get("use_sde"):
            raise ConfigError("use_sde: state-dependent exploration (gSDE) is not supported")
        activation, printed = "ReLU" if algorithm in _RELU else "Tanh", kwargs.get("activation_fn")
        if printed is not None:
            match = re.fullmatch(r"<class 'torch\.nn\.modules\.(?:activation|linear)\.(\w+)'>", str(printed))
            if match is None or match[1] not in ACTIVATIONS:
                allowed = ", ".join(sorted(ACTIVATIONS))
                raise ConfigError(f"activation_fn: {printed} is not supported, allowed: {allowed}")
            activation = match[1]
        keys, shapes = _observation(data)
        action, *bounds = _action(data)
        if (algorithm, action) in (("SAC", "discrete"), ("DQN", "box")):
            raise ConfigError(f"{algorithm} with {action} actions is not possible")
        left = Weights(state)
        network = SB3Network(left, algorithm, activation, action == "discrete")
        if left.left:
            raise ConfigError(f"the network has layers of an unknown kind: {', '.join(sorted(left.left)[:3])}")
        size = sum(math.prod(shape) for shape in shapes.values())
        if len(shapes) == (1 if keys is None else len(keys)) and size != network.in_features:
            raise ConfigError(f"the observation has {size} features, the network takes {network.in_features}")
        normaliser = load_vecnormalize(vecnormalize) if isinstance(vecnormalize, str | Path) else vecnormalize
        if normaliser is not None and normaliser.norm_obs:
            known, size = normaliser.obs_keys, len(normaliser.obs_mean)
            if known is not None and keys is not None and tuple(keys) != known:
                raise ConfigError(f"the statistics are those of the keys {list(known)}, not {list(keys)}")
            if size != network.in_features:
                takes = f"the network takes {network.in_features}"
                raise ConfigError(f"the statistics are those of {size} features, {takes}")
        steps = data.get("num_timesteps", 0)
        low, high = (value if value is not None and len(value) == network.out_features else None for value in bounds)
        return SB3Model(
            algorithm=algorithm,
            network=network.requires_grad_(False).eval(),
            normaliser=normaliser,
            activation=activation,
            observation_keys=keys,
            observation_shapes=shapes,
            action=action,
            low=low,
            high=high,
            num_timesteps=steps if isinstance(steps, int) else 0,
            hyperparameters=_hyperparameters(data),
            state=dict(state),
            variables=variables,
            where=str(path),
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except Exception as error:  # whatever settings are that Stable-Baselines3 has not written
        raise ConfigError(
            f"{path}: its settings cannot be read ({type(error).__name__}: {first_line(error)})"
        ) from error


# -- what the settings print -------------------------------------------------------------------------------------


def algorithm_of(data: Mapping[str, Any], state: Mapping[str, Tensor]) -> str:
    """Infers the algorithm, which the file does not name, from the names of weights and settings."""
    if any(name.startswith("mlp_extractor.shared_net") for name in state):
        raise ConfigError(
            "layers shared by actor and critic (mlp_extractor.shared_net, written by Stable-Baselines3 below 1.8) "
            "are not supported"
        )
    module = str(_printed(data.get("policy_class")).get("__module__", ""))
    if "action_net.weight" in state and "maskable" not in module and "cg_max_steps" not in data:
        if any(name.startswith("lstm_actor.") for name in state):
            return "RecurrentPPO"
        return "PPO" if "clip_range" in data else "A2C"
    if any(name.startswith("q_net.q_net.") for name in state):
        return "DQN"
    if "actor.log_std.weight" in state or ("actor.log_std" in state and "actor.mu.0.weight" in state):
        return "SAC"
    policy = f"; its policy is one of {module}" if module else ""
    raise ConfigError(f"the algorithm is none of {', '.join(ALGORITHMS)}{policy}")


def _hyperparameters(data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are plain numbers or words, and the value of schedules that are constant."""
    settings: dict[str, Any] = {}
    for key, value in data.items():
        if key.startswith("_") or key in ("num_timesteps", "start_time"):
            continue
        if isinstance(value, dict):
            constant = re.fullmatch(r"ConstantSchedule\(val=([-+.\deE]+)\)", str(value.get("value_schedule", "")))
            value = float(constant[1]) if constant else None
        if isinstance(value, bool | int | float | str):
            settings[key] = value
    return settings


def _observation(data: Mapping[str, Any]) -> tuple[tuple[str, ...] | None, dict[str, tuple[int, ...]]]:
    """Keys in the order in which the network takes them, None for a flat observation, and the shapes that are known."""
    space = _printed(data.get("observation_space"))
    kind = _kind(space)
    if kind == "Dict" and isinstance(space.get("spaces"), str):
        entries = re.findall(r"""['"]([^'"]+)['"](?::|,) (\w+)\(((?:[^()]|\([^()]*\))*)\)""", space["spaces"])
        strange = [f"{key}: {entry}" for key, entry, content in entries if entry != "Box" or "uint8" in content]
        if strange or not entries:
            raise ConfigError(f"observation_space: {_ONLY_VECTORS}, not {', '.join(strange) or space}")
        printed = {key: re.search(r"\(([\d, ]*)\)", content) for key, _, content in entries}
        shapes = {key: tuple(map(int, re.findall(r"\d+", match[1]))) for key, match in printed.items() if match}
        return tuple(printed), shapes
    if kind != "Box" or space.get("dtype") == "uint8":  # images, or what Stable-Baselines3 turns into one-hot vectors
        raise ConfigError(f"observation_space: {_ONLY_VECTORS}, not {kind} {space.get('dtype', '')}")
    shape = space.get("_shape")
    return None, {"": tuple(map(operator.index, shape))} if isinstance(shape, list) else {}


def _action(data: Mapping[str, Any]) -> tuple[Literal["discrete", "box"], Tensor | None, Tensor | None]:
    """The kind of actions, and the bounds of a box where they can be read."""
    space = _printed(data.get("action_space"))
    kind = _kind(space)
    if kind == "Discrete":
        return "discrete", None, None
    if kind == "Box":
        return "box", _numbers(space.get("low")), _numbers(space.get("high"))
    raise ConfigError(f"action_space: only Discrete and Box are supported, not {kind}")


def _printed(entry: Any) -> dict[str, Any]:
    return entry if isinstance(entry, dict) else {}


def _kind(space: Mapping[str, Any]) -> str:
    match = re.fullmatch(r"<class '(?:gym|gymnasium)\.spaces\.\w+\.(\w+)'>", str(space.get(":type:", "")))
    return match[1] if match else str(space.get(":type:", "something unknown"))


def _numbers(printed: Any) -> Tensor | None:
    """An array as numpy prints it; long ones are abridged and cannot be read."""
    words = str(printed).replace("[", " ").replace("]", " ").split()
    try:
        return torch.tensor([float(word) for word in words], dtype=torch.float32) if words else None
    except ValueError:
        return None
