"""A network for Echelon with attention among the other mechs, for ``agent.network``."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.data import Composite, Unbounded

from rlstack.config.options import EncoderConfig
from rlstack.envs.echelon.observation import CONTACT, GRID, NAVIGATION, SELF, SOUNDS
from rlstack.networks.encoders import KeyedEncoder, mlp

_KNOWN = 13
"""The feature of a contact that is 1 if anything is known of it."""


class Net(nn.Module):
    """Encodes each contact of an observation ``[N, inputs]`` by attention among all of them, and joins the rest to it.

    Args:
        inputs: size of the observation, 346 for teams of five.
        outputs: number of outputs; the last layer begins small if there are several, as that of a policy should.
        width: width of a contact's encoding.
        hidden: widths of the layers after the encodings.
    """

    def __init__(self, inputs: int, outputs: int, width: int = 32, hidden: Sequence[int] = (192, 192)) -> None:
        super().__init__()
        self._others = (inputs - SELF - SOUNDS - GRID * GRID - NAVIGATION) // CONTACT
        rest = inputs - CONTACT * self._others
        sizes = {"contacts": (self._others, CONTACT + 1), "known": (self._others,), "rest": (rest,)}
        seen = Composite({name: Unbounded(size) for name, size in sizes.items()})
        attention = EncoderConfig("attention", [width], "known", "flatten")
        self.encoder = KeyedEncoder(seen, None, 1, {"contacts": attention})
        self.layers, self.output = mlp((self.encoder.out_features, *hidden)), nn.Linear(hidden[-1], outputs)
        for layer in (*self.layers, self.output):
            if isinstance(layer, nn.Linear):
                small = layer is self.output and outputs > 1
                nn.init.orthogonal_(layer.weight, 0.01 if small else 1.0 if layer is self.output else sqrt(2))
                nn.init.zeros_(layer.bias)
        mates = self._others // 2
        self.register_buffer("enemy", torch.tensor([0.0] * mates + [1.0] * (self._others - mates)).unsqueeze(-1))

    def forward(self, x: Tensor) -> Tensor:
        before, contacts, after = x.split([SELF + SOUNDS, CONTACT * self._others, GRID * GRID + NAVIGATION], -1)
        contacts = contacts.unflatten(-1, (self._others, CONTACT))
        kinds = self.enemy.to(x.dtype).expand(*contacts.shape[:-1], 1)
        known, rest = contacts[..., _KNOWN], torch.cat((before, after), -1)
        parts = {"contacts": torch.cat((contacts, kinds), -1), "known": known, "rest": rest}
        return self.output(self.layers(self.encoder(TensorDict(parts, x.shape[:-1]))))
