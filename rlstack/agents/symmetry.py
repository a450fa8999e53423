"""Learning from mirror images, in worlds that have a mirror: ``agent.symmetry=augment``.

Agents with a replay buffer mirror a random half of what they draw from it. Agents that learn from fresh data learn
from each minibatch and from its mirror image; the probability with which the acting policy would have taken a mirrored
action is assumed to be that of the action itself, as in Mittal et al. 2024 (arXiv 2403.04359).
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rlstack.config import ConfigError

from .interface import MASK, Interface


class Mirroring:
    """The mirror of a world, for data in the agent's form.

    Args:
        interface: interface of the world.

    Raises:
        ConfigError: a world without a mirror, or with hybrid actions.
    """

    def __init__(self, interface: Interface) -> None:
        if isinstance(interface.mirror, str):
            raise ConfigError(f"agent.symmetry=augment needs a world that has a mirror: {interface.mirror}")
        if interface.hybrid is not None:
            raise ConfigError(f"agent.symmetry=augment: of {interface.describe_action()} it knows no mirror image")
        self.interface, self.mirror = interface, interface.mirror

    def image(self, entries: TensorDictBase) -> dict[str, Any]:
        """Returns the mirror images of raw observations ``[...]``, and of actions and action masks if present."""
        found = {"observation": self.mirror.observation(entries.get("observation"))}
        action, mask = entries.get("action", None), entries.get(MASK, None)
        if action is not None:
            to_env, from_env = self.interface.to_env, self.interface.from_env
            found["action"] = from_env(self.mirror.action(to_env(action)))
        if mask is not None:
            found[MASK] = mask if self.mirror.mask is None else self.mirror.mask(mask)
        return found

    def at_random(self, batch: TensorDictBase) -> TensorDictBase:
        """Returns transitions ``[N]``, each mirrored with probability 1/2."""
        flips = torch.rand(len(batch), device=batch.get(("next", "reward")).device) < 0.5
        return self._drawn(batch, flips).set("next", self._drawn(batch.get("next"), flips))

    def _drawn(self, entries: TensorDictBase, flips: Tensor) -> TensorDictBase:
        result = entries.copy()
        for name, image in self.image(entries).items():
            result.set(name, _where(flips, image, entries.get(name)))
        return result


def _where(flips: Tensor, image: Any, plain: Any) -> Any:
    if isinstance(plain, Tensor):
        return torch.where(flips.view(-1, *[1] * (plain.dim() - 1)), image, plain)
    entries = {key: _where(flips, image.get(key), value) for key, value in plain.items()}
    return TensorDict(entries, plain.batch_size, plain.device)


def with_images(batch: TensorDictBase) -> TensorDictBase:
    """Appends to a minibatch ``[N]`` a copy updated with its entry ``image``, which gives ``[2 N]``."""
    plain = batch.exclude("image")
    image = batch.get("image").select(*plain.keys(), strict=False)
    return torch.cat((plain, plain.copy().update(image)))
