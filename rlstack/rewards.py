"""Shows the terms of a reward: ``rlstack rewards checkpoint=runs/<run>``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from omegaconf import DictConfig

from rlstack.command import HydraCommand, as_module, open_group
from rlstack.config import ConfigError, Interval, build
from rlstack.config.overrides import given_keys

if TYPE_CHECKING:  # importing torch takes seconds, which a mistyped key need not cost
    from rlstack.diagnostics.reward_terms import RewardBreakdown


@dataclass
class RewardsConfig:
    """See ``conf/rewards.yaml`` for what each key does."""

    checkpoint: str | None
    which: Literal["latest", "best"]
    policy: Literal["greedy", "explore"]
    seed: Annotated[int, Interval(low=0, high=2**32 - 1)]
    output: str | None
    env: dict[str, Any] | None = None
    allow: list[str] = field(default_factory=list)


@as_module
def rewards(*words: str, quiet: bool = False, **keys: Any) -> RewardBreakdown:
    """Shows the terms of a reward as the command ``rlstack rewards`` does: ``rlstack.rewards(checkpoint=...)``.

    Args:
        words: arguments as on the command line.
        quiet: prints nothing but warnings.
        keys: keys of ``conf/rewards.yaml``.

    Returns the terms at every step of the episode.
    """
    return command.call(run, words, keys, quiet)


def run(cfg: DictConfig) -> RewardBreakdown:
    """Plays an episode, prints one line for each term of its reward, and draws the plots."""
    config = build(RewardsConfig, cfg)
    if config.checkpoint is None:
        raise ConfigError("checkpoint: missing; name a run's folder or a checkpoint file: checkpoint=runs/<run>")
    from rlstack.diagnostics.reward_terms import draw_curves, draw_episode, play_episode, read_curves
    from rlstack.evaluation.evaluator import check_fit
    from rlstack.runs.loading import load
    from rlstack.runs.run_directory import make_folder, named
    from rlstack.runs.worlds import chosen_world, world_options

    loaded = load(named(config.checkpoint, "checkpoint"), which=config.which)
    env = chosen_world(config.env, loaded.config["env"])
    check_fit(loaded.agent, env)
    policy = loaded.agent.policy(explore=config.policy == "explore")
    episode = play_episode(policy, env["name"], world_options(env), config.seed, given_keys("env"))
    folder = Path(config.output) if config.output else (loaded.run_dir or loaded.path.parent) / "rewards"
    make_folder(folder, "output")
    steps = len(next(iter(episode.terms.values())))
    print(f"an episode of {steps} steps in {env['name']}, seed {config.seed}: return {episode.returned:.3f}")
    for name, values in sorted(episode.terms.items(), key=lambda entry: -abs(entry[1].sum())):
        if values.any():
            print(f"  {name:<18} {values.sum():>9.3f}   paid in {(values != 0).mean():.0%} of the steps")
    written = [folder / "episode.png"]
    draw_episode(episode, written[0], f"{env['name']}, seed {config.seed}: return {episode.returned:.2f}")
    if loaded.run_dir is not None:
        written.append(folder / "curves.png")
        draw_curves(*read_curves(loaded.run_dir / "metrics.csv"), written[-1])
    for path in written:
        print(f"wrote {path}")
    return episode


command = HydraCommand("rewards", open_group("env"))
main = command.line(run)

if __name__ == "__main__":
    main()
