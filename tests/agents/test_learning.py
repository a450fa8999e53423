"""Every agent learns to look two steps ahead."""

from __future__ import annotations

from typing import Any

import torch

from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from tests.agents.small_agents import CASES, ON_POLICY, Detour, options_of, small
from tests.exhaustive import exhaustive

_COMMON: dict[str, Any] = {
    **{"hidden": [32, 32], "gamma": 1.0, "lr": 3e-3, "lr_actor": 1e-3, "lr_critic": 3e-3, "epsilon": 0.3},
    **{"batch_size": 64, "buffer_size": 10_000, "learning_starts": 500, "frames_per_update": 12},
    **{"minibatch_size": 64, "epochs": 8, "target_tau": 0.1, "target_every": None},
}
_SOFT = {"lr_actor": 3e-3, "lr_alpha": 3e-3, "alpha": 0.05, "frames_per_update": 8, "epsilon": 0.0}
_OWN: dict[str, dict[str, Any]] = {
    "a2c": {"normalize_advantage": True, "initial_std": 0.5},
    "rainbow": {"num_atoms": 31, "value_min": -4.0, "value_max": 3.0},
    "ddpg": {"noise": 0.4, "epsilon": 0.2},
    "td3": {"noise": 0.4, "epsilon": 0.2, "target_noise": 0.05},
    "sac": _SOFT,
    "tqc": _SOFT,
    "acqn": {"epsilon": 0.2, "noise_high": 0.5},
}
FRAMES = {"ppo": 10_240, "pqn": 10_240, "a2c": 20_480}


XQC = {"critic_norm": "batch_targets", "critic": "categorical", "weight_norm": True, "num_atoms": 11}
VARIANTS: list[tuple[str, bool, dict[str, Any]]] = [
    ("acqn", False, {"gamma": 0.0, "squash": "arctan"}),
    ("acqn", False, {"n_step": 2, "lr_actor": 5e-4}),
    ("acqn", False, {"critic": "gated", "layer_norm": False, "shared_levels": False, "squash": "arctan"}),
    *(
        (name, False, {"critic_norm": "batch", "weight_norm": weight_norm})
        for name in ("td3", "sac")
        for weight_norm in (False, True)
    ),
    ("sac", False, {**XQC, "critic_hidden": [64, 64]}),
]


@exhaustive(("name", "discrete", "own"), [*((*case, {}) for case in CASES), *VARIANTS])
def test_it_finds_the_actions_of_the_highest_return(name: str, discrete: bool, own: dict[str, Any]) -> None:
    env, total = Detour(32, discrete=discrete), FRAMES.get(name, 5120)
    options = {**options_of(name, **_COMMON), **_OWN.get(name, {}), **own}
    if own.get("critic_norm") == "batch":
        del options["target_tau"]
    agent = small(env, total, name, **options)
    frames, steps = 0, 16 if name in ("ppo", "pqn") else 4
    for batch in make_collector(env, agent.policy(explore=True), steps, total_frames=total):
        flat = flatten_agents(batch, None)
        frames += int(flat["active"].sum())
        agent.learn(flat, frames)
    assert frames == total and (agent.updates > 0 or name in ON_POLICY)
    greedy = env.rollout(2, agent.policy(explore=False))["action"][0].flatten()
    if discrete:
        greedy = torch.tensor([-1.0, 0.5, 1.0])[greedy]
    if options["gamma"] == 0:
        assert greedy[0] > 0.65, "who does not look ahead takes the reward at once"
    else:
        assert greedy[0] < (-0.5 if name in ("sac", "tqc") or own else -0.65), "an entropy bonus keeps from the edge"
    assert abs(float(greedy[1]) - 0.5) < 0.35
