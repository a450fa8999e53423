"""MuJoCo Playground: robots simulated by MJX, through TorchRL's wrapper."""
