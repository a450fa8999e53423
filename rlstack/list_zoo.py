"""Lists the trained agents that come with rlstack: ``rlstack zoo``."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module
from rlstack.config import build


@dataclass
class ZooConfig:
    """See ``conf/zoo.yaml`` for what each key does."""

    json: bool


@as_module
def list_zoo(*words: str, quiet: bool = False, **keys: Any) -> list[dict[str, Any]]:
    """Lists trained agents as the command ``rlstack zoo`` does.

    Args:
        words: arguments as on the command line.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/zoo.yaml``.

    Returns the card of each agent.
    """
    return command.call(run, words, keys, quiet)


def run(cfg: DictConfig) -> list[dict[str, Any]]:
    """Prints a table, or JSON."""
    from rlstack.evaluation.table import print_rows
    from rlstack.runs.zoo import card, zoo_names

    cards = [card(name) for name in zoo_names()]
    if build(ZooConfig, cfg).json:
        print(json.dumps(cards, indent=1))
        return cards
    print_rows([_row(known) for known in cards], sys.stdout)
    print("watch one with rlstack watch checkpoint=zoo:<name>; rlstack zoo --json shows the cards")
    return cards


def _row(known: dict[str, Any]) -> dict[str, Any]:
    score = known["score"]
    shown = {"name": known["name"], "agent": known["agent"], "world": known["world"]}
    value = "" if score.get("eval/success") is None else f"{score['eval/success']:.3f}"
    shown["frames"] = f"{known['frames']:,}"
    return {**shown, "success": value, "return": round(score["eval/return"], 2), "episodes": known["episodes"]}


command = HydraCommand("zoo")
main = command.line(run)

if __name__ == "__main__":
    main()
