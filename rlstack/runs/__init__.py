"""The folders of runs: reads back their checkpoints, configurations, worlds and agents; and versions of packages."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from rlstack import __version__

PACKAGES = ("torch", "triton", "torchrl", "tensordict", "gymnasium", "numpy", "hydra-core")
SIMULATORS = ("mujoco", "box2d", "ale-py", "rocketsim", "pettingzoo", "pymunk")
"""Packages that compute what happens in an environment: another version of one may be another task."""


def versions() -> dict[str, str]:
    """Returns the versions of rlstack and Python, and of the packages above as far as they are installed.

    A nightly build counts as the package, though it is installed as ``<name>-nightly``.
    """
    known = {"rlstack": __version__, "python": platform.python_version()}
    for name in (*PACKAGES, *SIMULATORS):
        for distribution in (f"{name}-nightly", name):
            with suppress(PackageNotFoundError):
                known[name] = version(distribution)
    return known
