"""A TorchRL ``LossModule`` for each algorithm; our agents use these, and they work in any TorchRL script."""

from rlstack.config.rooms import lazily

__getattr__ = lazily(__name__, __path__)
