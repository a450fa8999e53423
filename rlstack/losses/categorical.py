"""Return distributions over fixed atoms (C51)."""

from __future__ import annotations

import torch
from torch import Tensor


def project_distribution(probabilities: Tensor, target_atoms: Tensor, atoms: Tensor) -> Tensor:
    """Moves probability mass at arbitrary returns onto the fixed atoms (Bellemare et al. 2017, algorithm 1).

    Args:
        probabilities: ``[N, K]``.
        target_atoms: the returns they belong to ``[N, K]``, which are clamped to the range of the atoms.
        atoms: the fixed returns ``[K]``, evenly spaced.

    Returns ``[N, K]``: each return's mass is shared by its two neighbouring atoms in proportion to their nearness.
    """
    spacing = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    position = (target_atoms.clamp(atoms[0], atoms[-1]) - atoms[0]) / spacing  # [N, K] in 0..K-1
    index = torch.arange(len(atoms), dtype=position.dtype, device=position.device)
    nearness = (1 - (position.unsqueeze(-1) - index).abs()).clamp_min(0)  # [N, K from, K to]
    # Not a matrix product, which autocast would round.
    return (probabilities.unsqueeze(-1) * nearness).sum(-2)
