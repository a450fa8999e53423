"""Echelon, a batched game of two teams of mechs that fight for a zone."""
