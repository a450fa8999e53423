"""Overrides of ``rlstack.train`` that make a run small enough for a test."""

SMALL_RUN = [
    "env.num_worlds=8",
    "env.max_steps=30",
    "log_every=500",
    "eval.episodes=1",
    "eval.max_steps=30",
    "agent.batch_size=64",
    "agent.learning_starts=300",
    "agent.frames_per_update=100",
    "agent.candidates=2",
    "logger=csv",
    "threads=1",
    "device=cpu",
]
