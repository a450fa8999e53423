"""Policies as TorchRL modules: in its rollouts and collectors, copied, and switched by its exploration types."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl import objectives
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import Bounded, Categorical
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import QValueActor
from torchrl.weight_update.weight_sync_schemes import WeightStrategy

from rlstack import envs
from rlstack.agents import Agent, build_agent, completed, make_agent
from rlstack.agents.dqn import DQN
from rlstack.config import ConfigError
from rlstack.config.groups import load_group
from rlstack.losses.dqn import DQNLoss
from rlstack.training.workers import check_followed
from tests.agents.small_agents import YAMLS, takes
from tests.exhaustive import exhaustive

MEMORY = {"recurrent": {"kind": "gru", "size": 4, "layers": 1, "sequence_length": 4}}
CARTPOLE = ("gymnasium", {"id": "CartPole-v1", "num_envs": 2, "workers": 0})
PENDULUM = ("gymnasium", {"id": "Pendulum-v1", "num_envs": 2, "workers": 0})
NET = "tests.agents.own_network:Net"
MARINENAV = ("marinenav", {"num_worlds": 2, "num_robots": 3})


def turns(name: str) -> bool:
    """Returns whether an agent of ``conf/agent`` takes Pendulum's continuous action."""
    continuous = takes(load_group("agent", name)["algorithm"], Bounded(-1.0, 1.0, shape=(2,)))
    return continuous and not name.startswith("discrete")


CASES: dict[str, tuple[str, tuple[str, dict[str, Any]] | None, dict[str, Any]]] = {
    **{name: (name, None, {}) for name in YAMLS if name != "legacy"},
    **{f"recurrent {name}": (name, CARTPOLE, MEMORY) for name in ("ppo", "a2c", "dqn", "iqn")},
    "normalising ppo": ("ppo", PENDULUM, {"normalize_observations": True, "normalize_rewards": True}),
    "an own algorithm": ("tests.agents.munchausen:MunchausenDQN", CARTPOLE, {}),
    "acqn of own networks": ("acqn", PENDULUM, {"network": NET}),
    "torchrl_sac with an own actor": ("torchrl_sac", PENDULUM, {"network": {"actor_network": NET}}),
    "ppo in a group": ("ppo", MARINENAV, {}),
    "recurrent ppo in a group": ("ppo", MARINENAV, MEMORY),
    "acqn in a group": ("acqn", MARINENAV, {}),
}


KINDS = [
    *("ppo", "dqn", "acqn", "rainbow", "torchrl_sac"),
    *("normalising ppo", "an own algorithm", "recurrent ppo in a group"),
]
"""Those that act in ways of their own; the others are slow."""
ALONE = [name for name, options in YAMLS.items() if options.get("algorithm") == name]
AROUND = ("torchrl_sac", "torchrl_ppo", "discrete_cql")
EVERY_KIND = [*KINDS]
"""And all that differ in more than options: every algorithm of ours, and one around TorchRL's losses of each kind."""
EVERY_KIND += [case for case in CASES if case not in KINDS and (case not in YAMLS or case in (*ALONE, *AROUND))]
ORDER = [*EVERY_KIND, *(case for case in CASES if case not in EVERY_KIND)]


def made(case: str) -> tuple[Any, Agent]:
    name, place, overrides = CASES[case]
    world, options = place or (PENDULUM if turns(name) else CARTPOLE)
    env = envs.make(world, seed=1, **options)
    torch.manual_seed(5)
    if ":" in name:
        return env, build_agent(completed({"name": name, "algorithm": name}), env, 1_000_000)
    return env, make_agent(name, env, **overrides)


def acted(policy: Any, shown: TensorDict, mode: ExplorationType | None = None, seed: int = 3) -> TensorDict:
    torch.manual_seed(seed)
    with set_exploration_type(mode):
        return policy(shown.clone()).select(*policy.out_keys)


@exhaustive("case", ORDER, quick=len(KINDS))
def test_a_policy_acts_in_rollouts_and_collectors(case: str) -> None:
    env, agent = made(case)
    policy = agent.policy()
    assert sum(parameter.numel() for parameter in policy.parameters())
    rollout = env.rollout(3, policy, break_when_any_done=False)
    options: dict[str, Any] = {"frames_per_batch": 8, "total_frames": 16, "auto_register_policy_transforms": False}
    batches = list(Collector(env, policy, **options))
    assert len(batches) == 2 and batches[0].batch_size == (2, 4)
    for key in (*policy.in_keys, *policy.out_keys):
        assert key in rollout.keys(True) and key in batches[0].keys(True), key


@exhaustive("case", [case for case in ORDER if case != "sac_published"], quick=len(KINDS))  # which always samples
def test_torchrl_says_whether_it_explores(case: str) -> None:
    env, agent = made(case)
    shown, policy = env.reset(), agent.policy()
    key = policy.out_keys[0]
    greedy = acted(agent.policy(explore=False), shown)[key]
    for mode in (None, ExplorationType.DETERMINISTIC, ExplorationType.MEAN, ExplorationType.MODE):
        assert torch.equal(acted(policy, shown, mode, seed=9)[key], greedy), mode
    assert (acted(policy, shown, ExplorationType.RANDOM) == acted(agent.policy(explore=True), shown)).all()


def exchanged(copy: Any, policy: Any) -> None:
    """Gives a copy first new tensors, then new values in these, as TorchRL's collectors give them to workers."""
    shared = TensorDict.from_module(policy).data.clone()
    WeightStrategy().apply_weights(copy, shared.apply(torch.zeros_like), inplace=False)
    WeightStrategy().apply_weights(copy, shared, inplace=True)


@exhaustive("case", ORDER, quick=len(KINDS))
def test_copies_have_their_own_networks_and_follow_the_weights_they_are_given(case: str) -> None:
    env, agent = made(case)
    policy, shown = agent.policy(), env.reset()
    check_followed(agent, shown)
    copies = {"copied": deepcopy(policy), "pickled": pickle.loads(pickle.dumps(policy)), "worker's": deepcopy(policy)}
    with torch.no_grad():
        for value in policy.parameters():
            value.add_(0.1 * torch.randn_like(value))
    agent.set_frames(400_000)
    for how, copy in copies.items():
        if how == "worker's":
            exchanged(copy, policy)
        else:
            copy.load_state_dict(policy.state_dict())
    modes = (ExplorationType.DETERMINISTIC, ExplorationType.RANDOM)
    expected = [acted(policy, shown, mode) for mode in modes]
    with torch.no_grad():
        for value in policy.parameters():
            value.zero_()
    for how, copy in copies.items():
        for mode, wanted in zip(modes, expected):
            assert (acted(copy, shown, mode) == wanted).all(), (how, mode)


class Hidden(DQN):
    """A user's algorithm whose network is not among its networks."""

    def build(self) -> None:
        self.network = nn.Linear(4, 2)
        self.loss = DQNLoss(self.network)
        self.optimizer = self.add_optimizer("lr", self.network, max_grad_norm=None)


class InLoss(Hidden):
    """A user's algorithm of which only TorchRL's loss is known, which holds the network's parameters."""

    def build(self) -> None:
        super().build()
        actor = QValueActor(self.network, spec=Categorical(2))
        self.loss = self.add_network("loss", objectives.DQNLoss(actor, action_space="categorical"))


@pytest.mark.parametrize("algorithm", [Hidden, InLoss])
def test_workers_that_could_not_follow_the_learner_are_refused(algorithm: type[DQN]) -> None:
    name, (world, options) = f"{__name__}:{algorithm.__name__}", CARTPOLE
    env = envs.make(world, **options)
    agent = build_agent(completed({"name": "mine", "algorithm": name}), env, 1000)
    told = (
        r"never follow the learner: agent=mine acts with a parameter \[2, 4\] that they are not sent; give add_network"
    )
    with pytest.raises(ConfigError, match=told):
        check_followed(agent, env.reset())


def test_a_copy_draws_nothing_from_the_random_numbers_of_its_surroundings() -> None:
    _, agent = made("ppo")
    before = torch.get_rng_state()
    deepcopy(agent.policy())
    assert torch.equal(torch.get_rng_state(), before)


def pendulum() -> Any:
    name, options = PENDULUM
    return envs.make(name, seed=1, **options)


@pytest.mark.slow
def test_torchrls_own_workers_take_a_policy_and_its_schedules() -> None:
    epsilon = {"kind": "linear", "start": 1.0, "end": 0.0}
    agent = make_agent("ddpg", pendulum(), noise=0.0, epsilon=epsilon)
    collector = MultiSyncCollector(
        [pendulum], agent.policy(), frames_per_batch=200, total_frames=-1, auto_register_policy_transforms=False
    )
    try:
        batches = iter(collector)
        wild = next(batches)
        agent.set_frames(agent.total_frames)
        with torch.no_grad():
            for value in agent.networks["actor"].parameters():
                value.zero_()
        collector.update_policy_weights_(agent.policy())
        tame = next(batches)
    finally:
        collector.shutdown()
    assert wild["action"].abs().max() > 1 and not tame["action"].any()
