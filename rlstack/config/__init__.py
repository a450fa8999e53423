"""Typed configuration: every component's options are a dataclass, built here from Hydra's mappings.

The yaml files hold the values, the dataclasses the types and bounds, and every mistake is reported in one line
that names the key::

    agent.lrr: unknown key, did you mean 'lr'? allowed: batch_size, gamma, lr
    agent.lr: expected float, got 'abc' (str)
    agent.gamma: 1.5 is outside [0, 1)
"""

from rlstack.config.errors import ConfigError
from rlstack.config.groups import conf_dir, load_group
from rlstack.config.options import store_options
from rlstack.config.typed import Interval, build, convert, to_plain

__all__ = ["ConfigError", "Interval", "build", "conf_dir", "convert", "load_group", "to_plain"]

store_options()
