"""TorchRL replay buffers, made of parts that TorchRL's own can replace; each part works in any TorchRL script."""

from rlstack.config.rooms import lazily

__getattr__ = lazily(__name__, __path__)
