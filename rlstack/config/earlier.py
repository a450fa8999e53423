"""Converts the agents' options that earlier versions have stored to those of this version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import ConfigError

_PPO = {"short_minibatch": (False, True), "report_over": ("last", "all"), "unbiased_statistics": (False, True)}
_OF_PUBLISHED: dict[str, dict[str, tuple[Any, Any]]] = {
    **{"ppo": _PPO, "a2c": {"unbiased_statistics": (False, True)}},
    **{name: {"correction": ("exact", "tanh")} for name in ("sac", "tqc")},
    "rainbow": {"memory": ("prioritized", "interleaved")},
}
"""Former options by algorithm: the value that it now always uses, and the value of its published variant."""
WITHOUT_ROLLOUTS = ("n_step", "target_every", "replay", "random_frames", "epsilon")
"""Options of agents of TorchRL's losses that have no effect with ``data: rollout``; earlier versions took them."""
_VARIANTS = {name: f"{name}_published" for name in ("ppo", "sac", "rainbow")}


def renewed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the stored configuration of a run with its agent's options converted to those of this version.

    Raises:
        ConfigError: the options are a mixture of those of an algorithm and of its published variant.
    """
    agent = config.get("agent")
    algorithm = agent.get("algorithm") if isinstance(agent, Mapping) else None
    if isinstance(agent, Mapping) and algorithm == "torchrl" and agent.get("data") == "rollout":
        return {**config, "agent": {key: value for key, value in agent.items() if key not in WITHOUT_ROLLOUTS}}
    former = _OF_PUBLISHED.get(algorithm, {}) if isinstance(algorithm, str) else {}
    if not isinstance(agent, Mapping) or not former.keys() & agent.keys():
        return dict(config)
    known = {key: agent[key] for key in former if key in agent}
    kept = {key: value for key, value in agent.items() if key not in known}
    if all(value == former[key][0] for key, value in known.items()):
        return {**config, "agent": kept}
    if algorithm in _VARIANTS and all(value == former[key][1] for key, value in known.items()):
        return {**config, "agent": {**kept, "algorithm": _VARIANTS[algorithm]}}
    told = " ".join(f"{key}={str(value).lower()}" for key, value in known.items())
    usual = " ".join(f"{key}={str(value).lower()}" for key, (value, _) in former.items())
    raise ConfigError(f"agent: {told} is no longer known, {algorithm} has {usual}; rlstack 0.1.0 reads such a run")
