"""mjlab: robots simulated by MuJoCo Warp, through TorchRL's wrapper."""
