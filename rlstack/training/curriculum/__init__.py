"""Curricula: worlds that get harder as an agent gets better, or as time passes."""
