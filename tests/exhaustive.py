"""Parameter sweeps of which ``make test`` runs only a part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.conftest import REPO, SHARED


def exhaustive(names: str | tuple[str, ...], values: Iterable[Any], quick: int = 1, **options: Any) -> Any:
    """Returns ``pytest.mark.parametrize`` with all but the first ``quick`` sets of values marked slow."""
    single = isinstance(names, str) and "," not in names
    sets = [
        value if hasattr(value, "marks") else pytest.param(value) if single else pytest.param(*value)
        for value in values
    ]
    slow = [pytest.param(*each.values, marks=(*each.marks, pytest.mark.slow), id=each.id) for each in sets[quick:]]
    return pytest.mark.parametrize(names, [*sets[:quick], *slow], **options)


def recordings(small: str, full: str, least: int = 1) -> Any:
    """Parametrises ``path``: files of ``tests/fixtures``, then those of the full set, of which there are ``least``."""
    here, every = sorted((REPO / "tests/fixtures").glob(small)), sorted(SHARED.glob(full))
    assert here, small
    every += [SHARED / full] * (least - len(every))  # a test of what is missing fails
    sets = [pytest.param(path, id=path.stem) for path in here]
    sets += [pytest.param(path, id=f"full-{path.stem}", marks=pytest.mark.shared) for path in every]
    return pytest.mark.parametrize("path", sets)
