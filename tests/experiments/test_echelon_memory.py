"""The comparison of policies under partial observation: the network with attention."""

from __future__ import annotations

import torch

from envs.echelon.observation import CONTACT, SELF, SOUNDS, size
from experiments.echelon.contacts import Net


def test_attention_takes_nothing_from_contacts_that_are_unknown() -> None:
    torch.manual_seed(0)
    net, x = Net(size(5), 7), torch.randn(2, size(5))
    contacts = x[:, SELF + SOUNDS :][:, : 9 * CONTACT].view(2, 9, CONTACT)
    contacts[..., 13] = 1.0
    contacts[:, 4, 13] = 0.0
    before = net(x)
    contacts[:, 4, :13] = 5.0
    torch.testing.assert_close(net(x), before)
    contacts[:, 5, :13] = 5.0
    assert not torch.allclose(net(x), before)
