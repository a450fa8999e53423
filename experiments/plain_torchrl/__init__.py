"""Our parts in scripts of plain TorchRL."""
