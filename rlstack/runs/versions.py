"""Versions of the packages on which results depend."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from rlstack import __version__

PACKAGES = ("torch", "torchrl", "tensordict", "gymnasium", "numpy", "hydra-core")
SIMULATORS = ("mujoco", "box2d", "ale-py", "rocketsim", "pettingzoo", "pymunk")
"""Packages that compute what happens in an environment: another version of one may be another task."""


def versions() -> dict[str, str]:
    """Returns the versions of rlstack and Python, and of the packages above as far as they are installed."""
    found = {"rlstack": __version__, "python": platform.python_version()}
    for name in (*PACKAGES, *SIMULATORS):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
