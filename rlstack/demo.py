"""Shows or lists the trained agents that come with rlstack: ``rlstack demo``, ``rlstack demo arena``."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module, words_as
from rlstack.config import Interval, build
from rlstack.config.errors import writing
from rlstack.watch import has_display, watch


@dataclass
class DemoConfig:
    """See ``conf/demo.yaml`` for what each key does."""

    name: str
    json: bool
    show: Literal["auto", "window", "terminal", "film"]
    episodes: Annotated[int, Interval(low=1)]
    seed: Annotated[int, Interval(low=0)]


@as_module
def demo(*words: str, quiet: bool = False, **keys: Any) -> list[Any]:
    """Shows a trained agent as the command ``rlstack demo`` does: ``rlstack.demo("arena", show="film")``.

    Args:
        words: arguments as on the command line.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/demo.yaml``.

    Returns one line for each episode, or one for the film; for ``"list"`` the card of each agent.
    """
    return command.call(run, words, keys, quiet)


def run(cfg: DictConfig) -> list[Any]:
    """Shows episodes in a window or in the terminal, or copies the film of one; then prints three further commands."""
    from rlstack.runs.run_directory import FILM, card, zoo_folder

    config = build(DemoConfig, cfg)
    if config.name == "list":
        return _list(config.json)
    known = card(config.name)
    print(f"{known['agent']} in {known['world']}, trained for {known['frames']:,} frames; Ctrl-C ends it", flush=True)
    if config.show == "film" or (config.show == "auto" and not (has_display() or sys.stdout.isatty())):
        film = Path(f"demo_{config.name}.mp4")
        with writing(film.absolute()):
            shutil.copyfile(zoo_folder() / config.name / FILM, film)  # drawing takes a minute
        why = "" if config.show == "film" else "there is no display and no terminal to play it in; "
        lines = [f"{why}copied the film of an episode to {film.absolute()}"]
        print(lines[0])
    else:
        lines = watch(checkpoint=f"zoo:{config.name}", show=config.show, episodes=config.episodes, seed=config.seed)
    print("\nnext, you can run")
    print(f"  rlstack evaluate checkpoint=zoo:{config.name}")
    print(f"  rlstack train agent={known['agent']} env={known['world']}")
    print("  rlstack demo list")
    return lines


def _list(as_json: bool) -> list[dict[str, Any]]:
    from rlstack.evaluation.figures import print_rows
    from rlstack.runs.run_directory import card, zoo_names

    cards = [card(name) for name in zoo_names()]
    if as_json:
        print(json.dumps(cards, indent=1))
        return cards
    rows = []
    for known in cards:
        row = {key: known[key] for key in ("name", "agent", "world")} | {"frames": f"{known['frames']:,}"}
        success, returned = known["score"].get("eval/success"), known["score"]["eval/return"]
        row |= {"success": "" if success is None else f"{success:.3f}", "return": round(returned, 2)}
        rows.append({**row, "episodes": known["episodes"]})
    print_rows(rows, sys.stdout)
    print("watch one with rlstack watch checkpoint=zoo:<name>; rlstack demo list --json shows the cards")
    return cards


command = HydraCommand("demo", words_as("name"))
main = command.line(run)

if __name__ == "__main__":
    main()
