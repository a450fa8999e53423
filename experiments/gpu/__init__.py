"""Checks and measures rlstack on a GPU in one command: ``python -m experiments.gpu``."""
