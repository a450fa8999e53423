"""The Arena stack's own command line: ``python -m rlstack.adapters.arena --style 2 --steps 1000000``.

It is translated to ``rlstack.train agent=ppo_published env=arena curriculum=arena``: the run is one of ours, in the
folder that the stack would make, and it also writes the stack's own files there. ``--load-model`` continues one of the
stack's checkpoints: networks, Adam's moments, statistics, the number of frames, and, from the ``_training_state.json``
next to it, the stage of the curriculum with the episodes on which promotion depends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlstack.adapters import Parser, command
from rlstack.config import ConfigError, to_plain
from rlstack.config.errors import prefixed
from rlstack.config.groups import compose_config
from rlstack.training.curriculum import Curriculum
from rlstack.training.hooks import Hook
from rlstack.training.loop import Training
from rlstack.training.run import train

from .agents import (
    CONFIGURATION,
    ArenaFiles,
    arena_agent,
    curriculum_from_published,
    load_files,
    save_arena,
    structure,
    style_of,
)

_CHECKPOINT_EVERY = 50_000


def _parser() -> Parser:
    parser = Parser(prog="python -m rlstack.adapters.arena", description="Trains the Arena game's PPO.")
    parser.add_argument("--algo", default="ppo", help="ppo, the one that the stack trains itself")
    parser.add_argument("--style", type=int, choices=(1, 2), help="of control, default 1, or that of --load-model")
    parser.add_argument("--steps", type=int, default=100_000, help="env steps to train for, default 100000")
    parser.add_argument("--lr", type=float, help="learning rate")
    parser.add_argument("--batch", type=int, help="minibatch size")
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:<k>")
    parser.add_argument("--no-render", action="store_true", help="taken, and without effect: nothing is drawn")
    parser.add_argument("--load-model", type=Path, help="a checkpoint of the stack (.pt) to continue from")
    parser.add_argument("--reset-timesteps", action="store_true", help="with --load-model: count from zero again")
    return parser


@dataclass(eq=False)
class StackFiles(Hook):
    """Continues a checkpoint of the stack, if one is given, and writes the stack's files into the run's folder."""

    loaded: ArenaFiles | None = None
    reset_timesteps: bool = False

    def on_prepare(self, training: Training) -> None:
        if self.loaded is None or training.frames:
            return
        agent, config = training.agent, training.config
        options = {key: config.agent[key] for key in ("lr", "minibatch_size", "normalize_rewards")}
        given = arena_agent(self.loaded, training.env, config.total_frames, device=agent.device, **options)
        agent.load_state_dict(given.state_dict())
        training.frames = 0 if self.reset_timesteps else self.loaded.num_timesteps
        agent.set_frames(training.frames)
        curriculum, record = training.hook(Curriculum), self.loaded.training_state
        if curriculum is None or record.get("curriculum_metrics") is None:
            return
        with prefixed(f"--load-model: {self.loaded.where}"):
            restored, stages = curriculum_from_published(record, begun=training.frames), curriculum.config.stages
            if restored["stage"] >= len(stages):
                raise ConfigError(f"stage {restored['stage']} of {len(stages)}")
        window, known = restored["episodes"], curriculum.state_dict()["episodes"]["columns"]
        # The stack records only what its rules use.
        window["columns"] = {name: window["columns"].get(name, [0.0] * window["count"]) for name in known}
        curriculum.load_state_dict(restored)

    def on_checkpoint(self, training: Training) -> None:
        self._save(training, f"checkpoints/{training.run.path.name}_{training.frames}_steps.pt")

    def on_end(self, training: Training) -> None:
        self._save(training, f"final/{training.run.path.name}_final.pt")

    @staticmethod
    def _save(training: Training, name: str) -> None:
        path, curriculum = training.run.path / name, training.hook(Curriculum)
        path.parent.mkdir(exist_ok=True)
        save_arena(training.agent, path, training.frames, None if curriculum is None else curriculum.state_dict())


@command
def main(arguments: Sequence[str] | None = None) -> None:
    """Trains according to a command line."""
    given = _parser().parse_args(arguments)
    if given.algo != "ppo":
        raise ConfigError(f"--algo: the stack itself trains ppo; rlstack train agent={given.algo} env=arena")
    if given.steps < 1:
        raise ConfigError(f"--steps: {given.steps} is not a positive number of env steps")
    loaded = None if given.load_model is None else load_files(given.load_model)
    style = given.style or (1 if loaded is None else style_of(loaded))
    done = 0 if loaded is None or given.reset_timesteps else loaded.num_timesteps
    name = f"ppo_style{style}_{time.strftime('%Y%m%d_%H%M%S')}"
    options = {} if loaded is None else structure(loaded) | {"normalize_rewards": loaded.statistics is not None}
    options |= {
        key: value for key, value in {"lr": given.lr, "minibatch_size": given.batch}.items() if value is not None
    }
    overrides = [f"agent={CONFIGURATION}", "env=arena", "curriculum=arena", f"device={given.device}"]
    plain = to_plain(compose_config("train", overrides))
    plain["env"] |= {"style": style, "num_worlds": os.cpu_count() or 1}
    plain["agent"] |= options
    plain["checkpoint"]["every"] = _CHECKPOINT_EVERY
    folder = Path("runs") / "ppo" / f"style{style}"
    taken = len(list(folder.glob(f"{name}*")))  # runs that began in the same second
    plain |= {"total_frames": done + given.steps, "run_dir": str(folder / (f"{name}_{taken}" if taken else name))}
    train(plain, [StackFiles(loaded, given.reset_timesteps)])


if __name__ == "__main__":
    main()
