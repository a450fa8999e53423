"""The comparison of policies under partial observation: its significance test, and the network with attention."""

from __future__ import annotations

import pytest
import torch

from envs.echelon.observation import CONTACT, SELF, SOUNDS, size
from experiments.echelon.contacts import Net
from experiments.echelon.memory import chance


def test_chance_is_the_share_of_permutations_that_differ_as_much() -> None:
    assert chance([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == pytest.approx(2 / 20)  # this order and its reverse


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
