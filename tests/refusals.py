"""What a refusal is: an error of one line that names what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

import pytest

P = ParamSpec("P")


def refused(error: type[Exception], named: str, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> str:
    """Returns the error of a call, which has one line in which the pattern ``named`` is found."""
    with pytest.raises(error, match=named) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)
