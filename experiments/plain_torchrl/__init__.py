"""Parts of rlstack in scripts of plain TorchRL."""
