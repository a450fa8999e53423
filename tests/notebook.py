"""A notebook as a script, a cell after each ``# %%``; ``tests/test_from_python.py`` runs it."""

# %%
from typing import Any

import gymnasium
import numpy as np

import rlstack

SMALL = {"total_frames": 512, "eval": {"episodes": 2, "every": 256}, "logger": "csv", "threads": 1, "device": "cpu"}


# %% a world of one's own, written here
class Corridor(gymnasium.Env[np.ndarray, int]):
    """Every step to the right pays 1; the corridor ends after ten steps."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place, self.steps = self.place + 2 * int(action) - 1, self.steps + 1
        return np.full(1, self.place, np.float32), float(action), self.steps == 10, False, {}


corridor = {"env": "gymnasium", "env.id": Corridor, "env.num_envs": 4, "env.workers": 0}

# %% judged without an agent: a plain function
always_right = rlstack.evaluate(lambda observation: np.ones(len(observation), int), episodes=3, **corridor)
assert always_right.episodes["return"].tolist() == [10.0, 10.0, 10.0]

# %% trained, with a look at every batch
curve: list[tuple[int, float]] = []
run = rlstack.train(
    "agent.steps_per_batch=32",
    agent="ppo",
    on_batch=lambda frames, metrics, agent: curve.append((frames, metrics["train/return"])),
    **corridor,
    **SMALL,
)
assert [frames for frames, _ in curve] == [128, 256, 384, 512]
assert len(run.evaluation.levels) == 2 and run.score == run.evaluation.summary()["eval/return"]

# %% longer, as the same run
longer = rlstack.train(resume=run.path, total_frames=768, allow=[Corridor], quiet=True)
assert longer.path == run.path and longer.metrics[-1]["frames"] == 768

# %% the rest
judged = rlstack.evaluate(longer, episodes=4, allow=[Corridor], video=False)
program = rlstack.export(checkpoint=longer.path, allow=[Corridor], format="torchscript")
page = rlstack.report(str(longer.path))
assert len(judged.levels) == 4 and program.is_file() and page.is_file()
print(judged)
