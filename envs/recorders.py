"""What the recorders of all worlds check."""

from __future__ import annotations

from collections.abc import Sequence


def titles_of(worlds: Sequence[int], titles: Sequence[str] | None, num_worlds: int) -> list[str]:
    """A title for every world to record, ``world <index>`` where none are given.

    Raises:
        ValueError: there is no such world, or there are more or fewer titles than worlds.
    """
    if wrong := [world for world in worlds if not 0 <= world < num_worlds]:
        raise ValueError(f"worlds: {wrong} are not among the {num_worlds} worlds of the env")
    called = [f"world {world}" for world in worlds] if titles is None else list(titles)
    if len(called) != len(worlds):
        raise ValueError(f"{len(called)} titles for {len(worlds)} worlds: give one per world")
    return called
