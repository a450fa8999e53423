"""Stable-Baselines3's running observation statistics, read from their pickle without executing anything in it."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from rlstack.config import ConfigError, Interval, build
from rlstack.envs.foundation.files import check_regular
from rlstack.files.pickles import NUMPY, Names, Standin, read_pickle
from rlstack.files.safe_load import first_line, load_json

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
    """Reads ``VecNormalize.save``'s pickle, or a JSON file of the fields of :class:`VecNormalize`.

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
        if content.lstrip()[:1] == b"{":
            return build(VecNormalize, load_json(content))
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


def check_keys(statistics: VecNormalize, keys: Sequence[str] | None, size: int) -> None:
    """Checks that statistics are those of a network's input.

    Raises:
        ConfigError: other keys, or another number of features.
    """
    if not statistics.norm_obs:
        return
    if statistics.obs_keys is not None and keys is not None and tuple(keys) != statistics.obs_keys:
        raise ConfigError(f"the statistics are those of the keys {list(statistics.obs_keys)}, not {list(keys)}")
    if len(statistics.obs_mean) != size:
        raise ConfigError(f"the statistics are those of {len(statistics.obs_mean)} features, the network takes {size}")
