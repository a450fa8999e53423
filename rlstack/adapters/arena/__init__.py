"""The Arena game's own PPO stack: its agents as policies and as native agents, and its files."""
