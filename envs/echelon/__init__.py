"""Echelon: teams of mechs on batched tensors."""
