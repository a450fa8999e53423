"""Runs that are spoiled on purpose, and what ``rlstack explain`` finds."""
