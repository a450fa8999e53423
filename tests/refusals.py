"""What a refusal is: an error of one line that names what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

import pytest

P = ParamSpec("P")


def refused(
    error: type[BaseException], named: str, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> str:
    """Returns the error of a call, which has one line in which the pattern ``named`` is found."""
    with pytest.raises(error, match=named) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refused_line(capsys: pytest.CaptureFixture[str], main: Callable[[list[str]], object], *words: str) -> str:
    """Returns the one line on stderr with which a command line ends, whose status is 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and line.startswith("error: "), line
    return line
