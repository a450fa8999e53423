"""The folders of runs: their checkpoints, configurations, worlds and agents, read back."""
