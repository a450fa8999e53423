"""Echelon: teams that win, and what a memory is worth where little is seen."""
