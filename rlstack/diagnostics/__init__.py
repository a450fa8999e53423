"""Finds out why an agent does not learn, and why a training is slow: measurements, then findings in words."""
