"""The user's networks in an agent: those that ``agent.network`` names, by their role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlstack.config import ConfigError
from rlstack.config.errors import unknown_key
from rlstack.networks.own import OwnNetwork

from .interface import Interface


class OwnNetworks:
    """Makes and keeps the user's networks that an agent asks for.

    Args:
        config: the agent's configuration, with ``network``, ``network_options`` and ``inputs``.
        interface: the env as the agent sees it.
        device: device of the networks.

    Attributes:
        by_role: the networks made for each role that a user's network may have; the acting role comes first.
        features: the world's input scaling if the agent uses it, see :class:`Interface`.
    """

    def __init__(self, config: Any, interface: Interface, device: torch.device) -> None:
        self._given = getattr(config, "network", None)
        self._config, self._interface, self._device = config, interface, device
        self.features = interface.features if getattr(config, "inputs", None) == "features" else None
        self.by_role: dict[str, list[OwnNetwork]] = {}

    def make(self, role: str, kind: type[OwnNetwork], shape: Sequence[int], **options: Any) -> OwnNetwork | None:
        """Makes a new network for a role; returns None if none is named for it.

        Args:
            kind: class that says how its outputs are used.
            shape: shape of an output.
            options: further options of ``kind``.

        Raises:
            ConfigError: see :class:`OwnNetwork`.
        """
        made, given, interface = self.by_role.setdefault(role, []), self._given, self._interface
        name = given.get(role) if isinstance(given, Mapping) else given
        if name is None:
            return None
        where = f"agent.network.{role}" if isinstance(given, Mapping) else "agent.network"
        options |= {"features": self.features, "dtype": interface.dtype, "device": self._device}
        made.append(
            kind(where, name, interface.observation, tuple(shape), options=self._config.network_options, **options)
        )
        return made[-1]

    def check(self) -> None:
        """Raises a one-line :class:`ConfigError` if a network is named that the agent has not asked for."""
        if self._given is not None and not self.by_role:
            raise ConfigError(f"agent.network: agent={self._config.name} makes its own networks")
        for role in self._given if isinstance(self._given, Mapping) else ():
            if role not in self.by_role:
                raise ConfigError(unknown_key(f"agent.network.{role}", self.by_role))

    @property
    def roles(self) -> list[str]:
        """The roles that have networks of the user's."""
        return [role for role, networks in self.by_role.items() if networks]

    def load(self, weights: Mapping[str, Any]) -> None:
        """Loads weights that were trained elsewhere.

        Args:
            weights: state dict of the acting network, or several state dicts by role.

        Raises:
            ConfigError: a role without a network of the user's.
            RuntimeError: the weights are those of another network.
        """
        alone = not all(isinstance(part, Mapping) for part in weights.values())
        for role, state in ({next(iter(self.by_role)): weights} if alone else weights).items():
            if role not in self.roles:
                raise ConfigError(f"init: weights of {role}, agent.network names one of yours for {self.roles}")
            for own in self.by_role[role]:
                own.network.load_state_dict(state)
