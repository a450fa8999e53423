"""Finding out why a training is slow: each part measured by itself, then a verdict in words."""
