"""Candidates of a league: files that are handed in, and copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlstack.agents.foreign import parse
from rlstack.config import ConfigError
from rlstack.runs.checkpoint import CheckpointError, write_checkpoint
from rlstack.runs.loading import checkpoint_file, read_agent

from .league import League
from .matches import Arena
from .members import Member, check_name, free_name, identity, now
from .option import without
from .players import RANDOM, SELF, Source, check_source, name_of, read_source, with_kind

FOLDER = "players"
"""Of the copies, in the league's folder."""


def add(
    league: League, arena: Arena, players: Sequence[tuple[str | None, Source]], note: str | None = None
) -> list[str]:
    """Makes candidates of files; all of them join, or none does.

    Checkpoints of ours are copied, without replay memory and the opponents they learned against, so that the league
    does not need their runs any more; files of other kinds stay where they are.

    Args:
        arena: the league's world, where it is tried whether they can act.
        players: a name and a source each; without a name they are called as their source is, with a number if that is
            taken.
        note: for people.

    Returns their names.

    Raises:
        ConfigError: one line: no such file, one that is in the league already or cannot act in its world, or a name
            that is taken or cannot be a file's.
    """
    copies: list[Path] = []
    with league.changing():
        try:
            return [_join(league, arena, name, source, note, copies) for name, source in players]
        except ConfigError:
            for copy in copies:
                copy.unlink(missing_ok=True)
            raise


def _join(
    league: League, arena: Arena, wanted: str | None, source: Source, note: str | None, copies: list[Path]
) -> str:
    text, options = read_source(source)
    kind, file = _file(arena, text, options)
    identified = identity(file)
    known = member_of(league, identified)
    if known is not None:
        raise ConfigError(f"players: {file} is in this league already, as {known.name!r}")
    name = _name(league, arena, wanted, source)
    plain = source if isinstance(source, str) else dict(source)
    member = Member(name, plain, now(), "candidate", identified, meta={"frames": None, "agent": kind, "note": note})
    if kind == "rlstack":
        member = replace(member, file=f"{FOLDER}/{name}.pt")
        copy = league.folder / FOLDER / f"{name}.pt"
        copies.append(copy)
        member.meta.update(_copy(file, copy))
    arena.add(member.played_from(league.folder), name)
    league.admit(member)
    return name


def _file(arena: Arena, text: str, options: Mapping[str, Any]) -> tuple[str, Path]:
    """The kind of an agent, and the file it is."""
    own = [RANDOM, *arena.sides.scripted]
    if text in own:
        raise ConfigError(
            f"players: {text!r} comes with the world and is no candidate; pool.players=[{text}] lets candidates meet it"
        )
    check_source(text, options, arena.sample)
    kind, path = parse(with_kind(text))
    if kind == "rlstack":
        return kind, checkpoint_file(Path(path), options.get("which", "latest"))
    if not Path(path).is_file():
        raise ConfigError(f"players: {text!r} is no file; a candidate is a run, a checkpoint, or kind:path of a file")
    return kind, Path(path)


def _name(league: League, arena: Arena, wanted: str | None, source: Source) -> str:
    reserved = dict.fromkeys((RANDOM, SELF, *arena.sides.scripted))
    if wanted is None:
        return free_name(check_name(name_of(source)), {**league.members, **reserved})
    if wanted in league.members or wanted in reserved:
        raise ConfigError(f"players: the name {wanted!r} is taken in this league, give {source!r} another")
    return check_name(wanted)


def _copy(file: Path, copy: Path) -> dict[str, Any]:
    """Writes what plays of a checkpoint; returns what is known of it."""
    try:
        state = read_agent(file)
        config = {**state["config"], "env": without(state["config"]["env"])}
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(copy, {"frames": state["frames"], "agent": state["agent"], "config": config}, state["frames"])
    except (CheckpointError, OSError) as error:
        raise ConfigError(f"players: {error}") from None
    return {"frames": state["frames"], "agent": config["agent"]["name"]}


def member_of(league: League, identified: str) -> Member | None:
    """The member that was handed in as the file of this :func:`~rlstack.play.members.identity`."""
    return next((member for member in league.members.values() if member.id == identified), None)
