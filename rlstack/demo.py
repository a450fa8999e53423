"""Shows a trained agent: ``rlstack demo``, ``rlstack demo arena``."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module, words_as
from rlstack.config import Interval, build
from rlstack.config.errors import writing
from rlstack.watch import watch


@dataclass
class DemoConfig:
    """See ``conf/demo.yaml`` for what each key does."""

    name: str
    show: Literal["auto", "window", "terminal", "film"]
    episodes: Annotated[int, Interval(low=1)]
    seed: Annotated[int, Interval(low=0)]


@as_module
def demo(*words: str, quiet: bool = False, **keys: Any) -> list[str]:
    """Shows a trained agent as the command ``rlstack demo`` does: ``rlstack.demo("arena", show="film")``.

    Args:
        words: arguments as on the command line.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/demo.yaml``.

    Returns one line for each episode, or one for the film.
    """
    return command.call(run, words, keys, quiet)


def run(cfg: DictConfig) -> list[str]:
    """Shows episodes in a window or in the terminal, or copies the film of one; then prints three further commands."""
    from rlstack.runs.zoo import FILM, card, zoo_folder

    config = build(DemoConfig, cfg)
    known = card(config.name)
    print(f"{known['agent']} in {known['world']}, trained for {known['frames']:,} frames; Ctrl-C ends it", flush=True)
    if config.show == "film" or (config.show == "auto" and not _screen_is_there()):
        film = Path(f"demo_{config.name}.mp4")
        with writing(film.absolute()):
            shutil.copyfile(zoo_folder() / config.name / FILM, film)  # drawing takes a minute
        why = "" if config.show == "film" else "there is no display and no terminal to play it in; "
        told = [f"{why}copied the film of an episode to {film.absolute()}"]
        print(told[0])
    else:
        told = watch(checkpoint=f"zoo:{config.name}", show=config.show, episodes=config.episodes, seed=config.seed)
    print("\nnext, you can run")
    for line in (
        f"rlstack evaluate checkpoint=zoo:{config.name}",
        f"rlstack train agent={known['agent']} env={known['world']}",
        "rlstack zoo",
    ):
        print(f"  {line}")
    return told


def _screen_is_there() -> bool:
    display = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(display) or sys.stdout.isatty()


command = HydraCommand("demo", words_as("name"))
main = command.line(run)

if __name__ == "__main__":
    main()
