"""The Arena game's own PPO stack: its agents as policies and as native agents, and its files."""

from .agents import STYLES, arena_agent, arena_policy, published_names, save_arena, structure, style_of
from .files import (
    COLUMNS,
    ArenaFiles,
    curriculum_from_published,
    curriculum_to_published,
    find_statistics,
    load_files,
    training_state,
    write_files,
)

__all__ = [
    "COLUMNS",
    "STYLES",
    "ArenaFiles",
    "arena_agent",
    "arena_policy",
    "curriculum_from_published",
    "curriculum_to_published",
    "find_statistics",
    "load_files",
    "published_names",
    "save_arena",
    "structure",
    "style_of",
    "training_state",
    "write_files",
]
