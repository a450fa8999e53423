"""Shows the terms of a reward along one episode and over a run.

A world reports them as statistics ``("episode", "reward_<term>") [W, 1]``, each the weighted sum of a term over the
episode so far.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase

from rlstack.config import ConfigError
from rlstack.envs.world import hooks_of
from rlstack.evaluation.evaluator import MOST_STEPS, evaluation_world
from rlstack.evaluation.figures import saved_figure
from rlstack.runs.seeding import own_randomness
from rlstack.training.loggers import FRAMES, read_metrics

PREFIX = "reward_"
_LOGGED = f"train/{PREFIX}"
Series = NDArray[np.float64]


class RewardBreakdown(NamedTuple):
    """The terms of the reward along one episode.

    Attributes:
        terms: reward of each term in every step, ``[T]`` by name.
        success: success of the episode; None if the world does not define it.
    """

    terms: dict[str, Series]
    success: bool | None

    @property
    def returned(self) -> float:
        """Returns the sum over all terms and steps."""
        return float(sum(values.sum() for values in self.terms.values()))


def play_episode(
    policy: TensorDictModuleBase,
    world: str,
    options: Mapping[str, Any],
    seed: int = 0,
    kept: Collection[str] = (),
) -> RewardBreakdown:
    """Plays one episode in a world built as for evaluations.

    Args:
        options: options of the world.
        seed: seed of the episode, and of a policy that explores.
        kept: names of options that the world's options for evaluations do not replace.

    Raises:
        ConfigError: the world does not report the terms of its reward.
    """
    totals, success = [], None
    env: Any = evaluation_world(world, options, 1, "cpu", seed, kept)
    with closing(env), torch.no_grad(), own_randomness(seed):
        env.set_seed(seed)
        root = env.reset()
        names = [name for name in root.get("episode", TensorDict()).keys() if name.startswith(PREFIX)]  # noqa: SIM118
        if not names:
            raise ConfigError(f"{world}: does not tell the terms of its reward (episode/{PREFIX}<term>)")
        for _ in range(hooks_of(env).evaluation_steps or MOST_STEPS):
            following = env.step(policy(root)).get("next")
            episode = following.get("episode")
            totals.append(torch.stack([episode.get(name).flatten()[0] for name in names]).double())
            if bool(following.get("done").any()):
                success = bool(episode.get("success").any()) if "success" in episode.keys() else None  # noqa: SIM118
                break
            root = following
    sums = torch.stack(totals).cpu().numpy()
    steps = np.diff(sums, axis=0, prepend=np.zeros((1, len(names))))
    return RewardBreakdown({name.removeprefix(PREFIX): steps[:, row] for row, name in enumerate(names)}, success)


def read_curves(metrics: Path) -> tuple[Series, dict[str, Series]]:
    """Reads frames ``[N]`` and, by term, means per episode ``[N]`` from a run's ``metrics.csv``.

    Raises:
        ConfigError: the file does not exist, or the run has logged no terms.
    """
    try:
        rows = [row for row in read_metrics(metrics) if row.get("train/episodes")]
    except OSError as error:
        raise ConfigError(f"{metrics}: cannot be read ({error.strerror})") from None
    names = dict.fromkeys(name for row in rows for name in row if name.startswith(_LOGGED))
    if not names:
        raise ConfigError(f"{metrics}: no terms of a reward were logged ({_LOGGED}<term>)")
    terms = {name.removeprefix(_LOGGED): np.array([row.get(name, np.nan) for row in rows]) for name in names}
    return np.array([row[FRAMES] for row in rows]), terms


def draw_episode(episode: RewardBreakdown, path: Path, title: str = "") -> None:
    """Draws the running sum of each term on the left and its reward in every step on the right, largest first."""
    ranked = _ranked(episode.terms)
    steps = np.arange(len(next(iter(episode.terms.values()))))
    title = title or f"return {episode.returned:.2f}"
    with saved_figure(path, title, 2, 2, (6.5, 0.4 * len(ranked) + 3)) as (left, right):
        for row, (name, values) in enumerate(ranked):
            colour = f"C{row % 10}"
            left.plot(steps, values.cumsum(), color=colour, ls=("-", "--", ":")[row // 10 % 3], label=name)
            height = 0.45 * values / np.abs(values).max()
            right.fill_between(steps, -row, -row + height, color=colour, lw=0, step="mid")
            right.axhline(-row, color="0.8", lw=0.5, zorder=0)
        left.set(xlabel="step", ylabel="sum of rewards", title="each term summed up so far")
        labels = [f"{name}  ±{np.abs(values).max():.3g}" for name, values in ranked]
        right.set_yticks([-row for row in range(len(ranked))], labels)
        right.set(xlabel="step", title="reward of every step, each term to its own scale")


def draw_curves(frames: Series, terms: Mapping[str, Series], path: Path) -> None:
    """Draws a panel for every term that is ever non-zero."""
    ranked = _ranked(terms)
    with saved_figure(path, "Terms of the reward over the training", len(ranked), 4, (3.2, 2.2)) as panels:
        for axes, (name, values) in zip(panels, ranked):
            axes.plot(frames / 1e6, values, marker="." if np.isfinite(values).sum() <= 15 else "")
            axes.axhline(0, color="0.7", lw=0.6, zorder=0)
            axes.set_title(name, fontsize=9)
            axes.set(xlabel="million frames", ylabel="per episode")


def _ranked(terms: Mapping[str, Series]) -> list[tuple[str, Series]]:
    """Returns the terms that are ever non-zero, by total size."""
    paid = {name: float(np.nansum(np.abs(values))) for name, values in terms.items()}
    return [(name, terms[name]) for name in sorted(terms, key=lambda name: -paid[name]) if paid[name] > 0]
