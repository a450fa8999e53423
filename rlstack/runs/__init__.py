"""The folders of runs: reads back their checkpoints, configurations, worlds and agents."""
