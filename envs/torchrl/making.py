"""TorchRL environments by their dotted path."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import torch
from torchrl.envs import EnvBase

from ..named import found, made_by

_FORMS = "package.module:Class, or package.module:function with the annotation '-> EnvBase'"


def maker(id: str | None, kwargs: Mapping[str, Any], device: torch.device) -> Callable[[], EnvBase]:
    """What makes one environment. One that takes ``device`` gets the world's, unless ``kwargs`` names another.

    Raises:
        ValueError: neither a class of ``EnvBase`` nor a function annotated to return one.
    """
    module, _, attribute = (id or "").partition(":")
    if not module or not attribute:
        hint = f", {id!r} may be one of env=gymnasium" if id else ""
        raise ValueError(f"id: give {_FORMS}{hint}")
    try:
        factory = found(str(id))
    except ValueError as error:
        raise ValueError(f"id: {error}") from error
    made = made_by(factory)
    if not issubclass(made, EnvBase):
        hint = "; it is one of env=gymnasium" if issubclass(made, gymnasium.Env) else ""
        raise ValueError(f"id: {id} makes no torchrl.envs.EnvBase by its own account{hint}; allowed: {_FORMS}")
    # TorchRL's metaclass hides the signature of a class.
    accepted = inspect.signature(factory.__init__ if inspect.isclass(factory) else factory).parameters
    arguments = {"device": device, **kwargs} if "device" in accepted else dict(kwargs)

    def make() -> EnvBase:
        try:
            env = factory(**arguments)
        except (ImportError, TypeError, ValueError) as error:
            line = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"{id} cannot be made with kwargs {dict(kwargs)}: {line}") from error
        if not isinstance(env, EnvBase):
            raise ValueError(f"id: {id} has made a {type(env).__name__}, not a torchrl.envs.EnvBase")
        return env

    return make
