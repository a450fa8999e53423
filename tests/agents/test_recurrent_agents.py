"""Recurrent agents learn with the recurrent state that they had when they acted, and learn to remember."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import GymEnv, StepCounter, TransformedEnv

from rlstack import envs
from rlstack.agents import make_agent
from rlstack.agents.ppo import PPO
from rlstack.agents.recurrent import RECURRENT, RecurrentOnPolicy, recurrent_class
from rlstack.config import ConfigError
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents, n_step_returns
from rlstack.evaluation.evaluator import evaluate
from rlstack.networks.recurrent import REMEMBERED
from tests.agents import small_agents
from tests.agents.recall import Recall
from tests.agents.small_agents import (
    CONTINUOUS,
    ON_POLICY,
    REMEMBERING,
    Detour,
    batches,
    copies,
    equal,
    options_of,
    some_arrive,
)
from tests.exhaustive import exhaustive

OFF_POLICY = [name for name in REMEMBERING if name not in ON_POLICY]
ACTORS = [name for name in OFF_POLICY if name in CONTINUOUS]
"""Those with a replay buffer, an actor and critics."""
KINDS = ("lstm", "gru")
FIRST = sorted(REMEMBERING, key=("ppo", "dqn", "ddpg").count, reverse=True)
"""One that learns on-policy, one of values and one with an actor and critics; the others after them."""


def small(env: Any, name: str, kind: str = "lstm", length: int = 4, **overrides: Any) -> Any:
    own = {"burn_in": overrides.pop("burn_in", 0)} if name in OFF_POLICY else {}
    memory = {"kind": kind, "size": 8, "layers": overrides.pop("layers", 1), "sequence_length": length, **own}
    return small_agents.small(env, 10_000, name, recurrent=memory, **overrides)


def recall(name: str, *args: Any, **options: Any) -> Recall:
    """Makes the world for an agent, with the kind of action that it takes."""
    return Recall(*args, continuous=name in ACTORS, **options)


WORLDS = {"recall": lambda: Recall(6, delay=2, dtype=torch.float64), "marinenav": some_arrive}


# -- acting ------------------------------------------------------------------------------------------------------------


@exhaustive("name", REMEMBERING)
@exhaustive("kind", KINDS)
def test_the_memory_goes_on_from_batch_to_batch_and_ends_with_episodes(name: str, kind: str) -> None:
    env = recall(name, 3, delay=2)
    agent = small(env, name, kind)
    parts = list(islice(batches(env, agent, 3), 5))
    memory = torch.cat([part["memory"] for part in parts], 1)
    after = torch.cat([part["next", "memory"] for part in parts], 1)
    done = torch.cat([part["next", "done"] for part in parts], 1)
    assert (memory[:, 0] == 0).all() and (memory[:, 1:].abs().amax(-1) > 0).any()
    assert torch.equal(memory[:, 1:], after[:, :-1].masked_fill(done[:, :-1], 0.0))
    assert done[:, 2::3].any() and (~done[:, 2::3]).any(), "batches end within episodes, and at their ends"


@pytest.mark.parametrize("options", [{}, {"track_traj_ids": True}, {"use_buffers": True}])
def test_any_collector_hands_it_on(options: dict[str, Any]) -> None:
    env = Recall(3, delay=2)
    agent = small(env, "ppo")
    collector = make_collector(env, agent.policy(explore=True), 3, total_frames=45, **options)
    data: Any = torch.cat([batch.clone() for batch in collector], 1)
    after = data["next", "memory"].masked_fill(data["next", "done"], 0.0)
    assert torch.equal(data["memory"][:, 1:], after[:, :-1]) and (data["memory"][:, 0] == 0).all()


@exhaustive("name", FIRST, quick=3)
def test_what_is_stored_is_what_the_cores_make_of_the_observations(name: str) -> None:
    env = recall(name, 6, delay=2, dtype=torch.float64)
    agent = small(env, name, normalize_observations=True, layers=2)
    network = agent.memories[agent.ACTING]
    for part in islice(batches(env, agent, 6), 2):
        memory = part["memory"][:, 0, : network.core.memory_size]
        for t in range(part.shape[1]):
            torch.testing.assert_close(part["memory"][:, t, : memory.shape[1]], memory, rtol=0, atol=0)
            _, memory = network.step(agent.normalized(part["observation"][:, t]), memory)
            memory = memory.masked_fill(part["next", "done"][:, t], 0.0)
        agent.learn(part, agent.frames + part.numel())


@exhaustive("world", list(WORLDS))
@exhaustive("kind", KINDS)
@exhaustive("length", [4, 5, 64])
def test_the_first_loss_sees_the_log_probabilities_of_acting(world: str, kind: str, length: int) -> None:
    env = WORLDS[world]()
    agent = small(env, "ppo", kind, length, normalize_observations=world == "recall")
    for part in islice(batches(env, agent, 12), 3):
        batch = agent.rollout(part)
        assert batch.batch_size == torch.Size([len(batch)]) and batch["active"].shape[1] == min(length, 12)
        flat = agent.unrolled(batch)
        distribution, value = agent.policy_and_value(flat)
        log_prob = distribution.log_prob(flat["action"])
        tolerance = 1e-10 if world == "recall" else 2e-5  # of float64 and float32
        torch.testing.assert_close(log_prob, flat["log_prob"], rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(value, flat["value"], rtol=tolerance, atol=tolerance)
        assert len(flat) == int(part["active"].sum()) and (world == "recall" or len(flat) < part.numel())
        agent.learn(part, agent.frames + part.numel())


def test_values_of_what_follows_are_those_of_the_next_step_and_of_true_last_observations() -> None:
    env = Recall(4, delay=2, truncated=True, dtype=torch.float64)
    agent = small(env, "ppo", length=5)
    part = next(islice(batches(env, agent, 12), 1, None))
    value, following = agent._values(part["observation"], part)
    core = agent.memories["critic"]
    critic = agent.part(part["next", "memory"], "critic")
    for t in range(12):
        features, _ = core.step(part["next", "observation"][:, t], critic[:, t])
        wanted = agent.critic.head(features)
        torch.testing.assert_close(following[:, t], wanted, rtol=0, atol=1e-12)
    inside = ~part["next", "done"][:, :-1]
    torch.testing.assert_close(following[:, :-1][inside], value[:, 1:][inside], rtol=0, atol=1e-12)


def test_an_agent_that_is_not_active_remembers_nothing() -> None:
    env = some_arrive()
    agent = small(env, "ppo")
    for part in islice(batches(env, agent, 12), 2):
        assert (part["next", "memory"][~part["active"]] == 0).all()
        assert (part["next", "memory"][part["active"]] != 0).any(-1).all()


def test_greedy_acting_needs_no_critic_and_no_random_numbers() -> None:
    env = Recall(3)
    agent, random = small(env, "ppo"), torch.get_rng_state()
    rollout = env.rollout(8, agent.policy(explore=False), break_when_any_done=False)
    assert rollout["memory"].shape[-1] == 16, "of hidden state and cells, of the actor alone"
    assert torch.equal(random, torch.get_rng_state())


def test_other_envs_have_their_memory_kept_for_them() -> None:
    env = Detour(4, discrete=True)  # two steps an episode, no rlstack.envs.world.World
    agent = small(env, "dqn")
    found = env.rollout(9, agent.policy(explore=True), break_when_any_done=False)
    assert (found["memory"][:, ::2] == 0).all() and (found["memory"][:, 1::2] != 0).any(-1).all()
    assert torch.equal(found["memory"][:, 1::2], found["next", "memory"][:, :-1:2])


def test_an_env_without_batch_dimensions_too() -> None:
    env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), StepCounter(3))
    found = env.rollout(9, small(env, "dqn").policy(explore=True), break_when_any_done=False)
    assert (found["memory"] != 0).any(-1).tolist() == 3 * [False, True, True]


@exhaustive("name", FIRST, quick=3)
def test_evaluations_begin_with_an_empty_memory(name: str) -> None:
    options = {"id": "Pendulum-v1" if name in ACTORS else "CartPole-v1", "observation_keep": [0, 2]}
    agent = small(envs.make("gymnasium", num_envs=2, **options), name)
    policy = agent.policy(explore=False)
    first, again = (evaluate(policy, "gymnasium", options, 3, seed=5, max_steps=30).episodes for _ in range(2))
    assert torch.equal(first["return"], again["return"])


# -- learning ----------------------------------------------------------------------------------------------------------


ALL = [("recall", name, kind) for name in REMEMBERING for kind in KINDS]


@exhaustive(("world", "name", "kind"), [*ALL, ("marinenav", "ppo", "lstm"), ("marinenav", "dqn", "gru")])
def test_all_of_it_learns(name: str, kind: str, world: str) -> None:
    if world == "marinenav" and name in OFF_POLICY:
        env = envs.make("marinenav", num_worlds=3, max_steps=12, continuous_actions=False, seed=1)
    else:
        env = recall(name, 6, delay=2, dtype=torch.float64) if world == "recall" else WORLDS[world]()
    agent = small(env, name, kind, **({"burn_in": 2, "n_step": 3} if name in OFF_POLICY else {}))
    before, metrics = copies(agent.parameters()), {}
    for part in islice(batches(env, agent, 7), 8):
        metrics = agent.learn(part, agent.frames + int(part["active"].sum())) or metrics
    moved = [not torch.equal(old, new) for old, new in zip(before, agent.parameters())]
    assert all(moved) and agent.updates > 0
    assert metrics and all(torch.isfinite(torch.as_tensor(value)).all() for value in metrics.values())
    assert agent.update_once(part)


@pytest.mark.parametrize("name", ON_POLICY)
def test_a_sequence_learns_nothing_of_the_one_before(name: str) -> None:
    env = Recall(3, delay=9)
    agent = small(env, name, length=4)
    part = next(batches(env, agent, 8))
    batch = agent.rollout(part)
    assert torch.equal(batch["memory"], part["memory"][:, ::4].flatten(0, 1))
    observation = batch["observation"].requires_grad_()
    flat = agent.unrolled(batch)
    loss = agent.critic(flat["observation"])[5].sum() + agent.actor(flat["observation"])[5].sum()  # second of row 1
    (gradient,) = torch.autograd.grad(loss, observation)
    reached = gradient.abs().sum(-1) > 0
    assert reached[1, :2].all() and reached.sum() == 2


REPLAYED = [(name, kind, kind == "gru", 3 if kind == "gru" else 1) for name in OFF_POLICY for kind in KINDS]
REPLAYED += [(OFF_POLICY[0], kind, kind == "lstm", n_step) for kind in KINDS for n_step in (1, 3)]


@exhaustive(("name", "kind", "truncated", "n_step"), REPLAYED)
def test_replayed_features_are_those_of_acting(name: str, kind: str, truncated: bool, n_step: int) -> None:
    env = recall(name, 4, delay=2, truncated=truncated, dtype=torch.float64)
    agent = small(env, name, kind, n_step=n_step, epsilon=1.0, **options_of(name, target_actor=True))
    parts = list(islice(batches(env, agent, 4), 7))
    stream = torch.cat(parts, 1)
    for part in parts:
        agent.extend(part)
    replayed = agent.prepared(agent.replay.storage.get(torch.arange(len(agent.replay.storage))))
    flat = agent.unrolled(replayed)

    def transitions(core: Any) -> TensorDict:
        """Returns n-step transitions whose observations are a core's states after them; windows in order of time."""
        here, following = [], []
        memory = torch.zeros(4, core.core.memory_size, dtype=torch.float64)
        for t in range(stream.shape[1]):
            features, after = core.step(stream["observation"][:, t], memory)
            here.append(features)
            following.append(core.step(stream["next", "observation"][:, t], after)[0])
            memory = after.masked_fill(stream["next", "done"][:, t], 0.0)
        then = stream["next"].exclude("memory").set("features", torch.stack(following, 1))
        known = TensorDict({"here": torch.stack(here, 1), "action": stream["action"], "next": then}, stream.shape)
        wanted = n_step_returns(known, n_step, agent.config.gamma)[:, : len(flat) // 4]
        return wanted.unflatten(1, (-1, 4)).transpose(0, 1).flatten(0, 2)

    seen, following = flat["observation", REMEMBERED], flat["next", "observation", REMEMBERED]
    alive = ~flat["next", "terminated"][:, 0]
    assert set(following.keys()) == {*agent.memories, *(f"target_{target}" for target in agent.targets)}
    for role, core in agent.memories.items():
        wanted = transitions(core)
        torch.testing.assert_close(seen[role], wanted["here"], rtol=0, atol=1e-10)
        torch.testing.assert_close(flat["action"], wanted["action"], rtol=0, atol=1e-10)
        for key in ("reward", "terminated", "done"):
            torch.testing.assert_close(flat["next", key], wanted["next", key], rtol=0, atol=1e-12)
        torch.testing.assert_close(flat["gamma"], wanted["gamma"])
        for key in (role, f"target_{role}"):  # the target is a copy still
            torch.testing.assert_close(following[key][alive], wanted["next", "features"][alive], rtol=0, atol=1e-10)
        assert seen[role].requires_grad and not following[role].requires_grad
    for target in agent.targets.values():
        with torch.no_grad():
            next(target.network.parameters()).mul_(2)
    changed = agent.unrolled(replayed)["next", "observation", REMEMBERED]
    for role in agent.memories:
        assert torch.equal(changed[role], following[role])
        assert not torch.allclose(changed[f"target_{role}"], following[f"target_{role}"])


@pytest.mark.parametrize("name", ["td3", "sac"])
def test_an_actor_learns_from_critics_as_they_are(name: str) -> None:
    """Its loss is that of its own transitions, and its gradient reaches its own core, not those of the critics."""
    env = recall(name, 4, delay=2, dtype=torch.float64)
    agent = small(env, name, n_step=2)
    for part in islice(batches(env, agent, 4), 5):
        agent.extend(part)
    batch = agent.prepared(agent.replay.storage.get(torch.arange(len(agent.replay.storage))))
    if name == "sac":
        agent.loss.draw = torch.zeros_like
    loss, _ = agent.actor_objective(batch)
    torch.testing.assert_close(loss, agent.loss.actor_loss(agent.unrolled(batch))[0])
    cores = {role: list(core.core.parameters()) for role, core in agent.memories.items()}
    gradients = {
        role: torch.autograd.grad(loss, own, retain_graph=True, allow_unused=True) for role, own in cores.items()
    }
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients["actor"])
    assert all(gradient is None for role in agent.CRITICS for gradient in gradients[role])


def test_burning_in_repairs_a_stale_memory_and_is_not_learned_from() -> None:
    errors = {}
    for burn_in in (0, 8):
        env = Recall(4, delay=20, dtype=torch.float64)
        agent = small(env, "dqn", burn_in=burn_in)
        for part in islice(batches(env, agent, 16), 1):
            agent.extend(part)
        data = agent.prepared(agent.replay.storage.get(torch.arange(len(agent.replay.storage))))
        stale = data.copy().set("memory", data["memory"] + 0.3)
        exact, found = (agent.unrolled(each)["observation", REMEMBERED, "network"] for each in (data, stale))
        errors[burn_in] = float((found - exact).detach().abs().max())
        observation = data["observation"].requires_grad_()
        (gradient,) = torch.autograd.grad(agent.objective(data)[0], observation)
        assert (gradient[:, :burn_in] == 0).all() and (gradient[:, burn_in:] != 0).any()
    assert 0 < errors[8] < 0.2 * errors[0]


@exhaustive("name", REMEMBERING)
def test_a_split_batch_gives_the_gradients_of_the_whole(name: str) -> None:
    found = []
    for accumulate in (1, 2):
        env = WORLDS["marinenav"]() if name in ON_POLICY else recall(name, 6, delay=2, dtype=torch.float64)
        agent = (
            small(env, name, accumulate=accumulate, normalize_advantage=True)
            if name in ON_POLICY
            else small(env, name, accumulate=accumulate, n_step=2, **options_of(name, target_noise=0.0))
        )
        for optimizer in agent.optimizers.values():
            optimizer.lr = 0.0
        if name in ("sac", "tqc"):
            agent.loss.draw = torch.zeros_like
        if name == "iqn":
            agent.loss.draw_levels = lambda like: torch.full((len(like), 8), 0.3, dtype=like.dtype)
        parts = list(islice(batches(env, agent, 12), 2))
        if name in ON_POLICY:
            agent.optimizer.minimize(agent.objective, agent.for_step(agent.rollout(parts[1])))
        else:
            agent.update_once(torch.cat(parts, 1)[:4])
        found.append([parameter.grad for parameter in agent.parameters()])
    tolerance = 1e-5 if name in ON_POLICY else 1e-12  # MarineNav is in float32
    torch.testing.assert_close(*found, rtol=1e-3, atol=tolerance)


# -- masks of actions --------------------------------------------------------------------------------------------------


@exhaustive("name", ["ppo", "dqn", "sac", "a2c", "iqn"], quick=3)
@pytest.mark.parametrize("explore", [True, False])
def test_forbidden_choices_are_never_made(name: str, explore: bool) -> None:
    env = Recall(8, delay=2, masked=True)
    agent = small(env, name)
    rollout = env.rollout(24, agent.policy(explore=explore), break_when_any_done=False)
    allowed = rollout["action_mask"].gather(-1, rollout["action"].unsqueeze(-1))
    assert allowed.all() and not rollout["action_mask"].all()


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_the_log_probability_of_acting_under_masks_is_that_of_learning(name: str) -> None:
    env = Recall(6, delay=2, masked=True, dtype=torch.float64)
    agent = small(env, name, policy_gain=5.0)
    part = next(islice(batches(env, agent, 12), 1, None))
    flat = agent.unrolled(agent.rollout(part))
    logits = agent.actor(flat["observation"]).masked_fill(~flat["action_mask"], -torch.inf)
    by_hand = logits.log_softmax(-1).gather(-1, flat["action"].unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(flat["log_prob"], by_hand, rtol=1e-10, atol=1e-10)
    assert torch.isfinite(by_hand).all() and (~flat["action_mask"]).any()


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_replayed_targets_choose_among_what_is_allowed_next(name: str) -> None:
    env = Recall(4, delay=2, masked=True, dtype=torch.float64)
    agent = small(env, name, n_step=1)
    for part in islice(batches(env, agent, 4), 5):
        agent.extend(part)
    flat = agent.unrolled(agent.prepared(agent.replay.storage.get(torch.arange(len(agent.replay.storage)))))
    following, mask = flat["next"], flat["next", "action_mask"]
    shown = following["reward"].new_zeros(len(flat), 1)
    with torch.no_grad():
        if name == "dqn":
            best = agent.network(following["observation"]).masked_fill(~mask, -torch.inf).argmax(-1, keepdim=True)
            shown = agent.loss.target_network(following["observation"]).gather(-1, best)
        else:
            policy = agent.actor(following["observation"]).masked_fill(~mask, -torch.inf).softmax(-1)
            values = [critic(following["observation"]) for critic in agent.loss.target_critics]
            soft = torch.minimum(*values) - agent.temperature() * policy.clamp(min=1e-300).log()
            shown = (policy * soft).sum(-1, keepdim=True)
        wanted = following["reward"] + agent.config.gamma * shown * ~following["terminated"]
        torch.testing.assert_close(agent.loss.target_value(flat), wanted, rtol=1e-9, atol=1e-9)
    assert (~mask).any(-1).all() and len({tuple(row) for row in mask.tolist()}) == 2


# -- options -----------------------------------------------------------------------------------------------------------


def test_shared_layers_share_one_memory() -> None:
    env = Recall(4)
    agent = small(env, "ppo", shared_layers=1)
    part = next(batches(env, agent, 8))
    before = copies(agent.parameters())
    assert list(agent.memories) == ["actor"] and part["memory"].shape[-1] == 16
    assert agent.learn(part, 32) and not equal(before, copies(agent.parameters()))


@exhaustive(("name", "kind"), [("ppo", "lstm"), ("a2c", "gru"), ("ppo", "gru"), ("a2c", "lstm")], quick=2)
def test_in_low_precision_a_policy_acts_as_it_learns(name: str, kind: str) -> None:
    """Its log probabilities are those of the update, but for the rounding of batches of other sizes."""
    env = some_arrive()
    agent = small(env, name, precision="bfloat16", policy_gain=5.0, kind=kind)
    entries = agent.rollout(next(batches(env, agent, 8)))
    with agent.optimizer.autocast():
        flat = agent.unrolled(entries)
        found = agent.distribution(flat.get("observation"), None)
    apart = (found.log_prob(flat["action"]) - flat["log_prob"]).abs()
    assert apart.mean() < 1e-4


def test_adaptive_risk_looks_at_the_observation_itself() -> None:
    env = envs.make("marinenav", num_worlds=2, continuous_actions=False)
    agent = small(env, "iqn", cvar={"distance": 10.0})
    assert agent.interface.nearest is not None
    assert env.rollout(3, agent.policy(explore=False))["agents", "action"].shape[:2] == (2, 3)


def test_an_algorithm_of_the_users_own_adds_its_recurrent_class(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(PPO):
        """PPO as it is."""

    class RecurrentMine(RecurrentOnPolicy, Mine):
        """The same with a recurrent core."""

    with pytest.raises(ConfigError, match="Mine has no recurrent core"):
        recurrent_class(Mine)
    monkeypatch.setitem(RECURRENT, Mine, RecurrentMine)
    assert recurrent_class(Mine) is RecurrentMine


# -- Agents learn to use their recurrent state, in a task where without one half of the reward is the best possible


ON: dict[str, Any] = {"hidden": [16], "lr": 5e-3, "steps_per_batch": 16, "gamma": 0.95}
OFF: dict[str, Any] = {
    **{"hidden": [32], "lr": 4e-3, "gamma": 0.95, "batch_size": 256, "buffer_size": 10_000, "learning_starts": 500},
    **{"frames_per_update": 32, "target_tau": 0.1, "target_every": None, "n_step": 3},
    "epsilon": {"kind": "linear", "start": 1.0, "end": 0.1, "duration": 0.5},
}
ACTOR: dict[str, Any] = {
    **{key: OFF[key] for key in OFF if key not in ("epsilon", "lr", "target_every")},
    **{"lr_actor": 3e-3, "lr_critic": 3e-3, "target_tau": 0.05, "random_frames": 500},
}
LEARNERS: dict[str, dict[str, Any]] = {
    "ppo": {**ON, "minibatch_size": 128, "epochs": 6},
    "a2c": {**ON, "normalize_advantage": True, "steps_per_batch": 8},
    "dqn": OFF,
    "iqn": OFF,
    "td3": ACTOR,
    "ddpg": ACTOR,
    "sac": {**ACTOR, "lr_alpha": 1e-2, "alpha": 0.2},
    "tqc": {**ACTOR, "lr_alpha": 1e-2, "alpha": 0.2},
}
FRAMES = {"ppo": 7_936, "a2c": 39_936, "dqn": 13_952, "iqn": 24_000}
FRAMES |= {"td3": 12_032, "ddpg": 12_032, "sac": 16_128, "tqc": 16_128}


def score(name: str, memory: dict[str, Any] | None, frames: int, seed: int = 0, **options: Any) -> float:
    """Returns the mean reward of greedy episodes after training."""
    torch.manual_seed(seed)
    env = Recall(16, delay=4, **options)
    agent = make_agent(name, env, frames, recurrent=memory, **LEARNERS[name])
    for batch in make_collector(env, agent.policy(explore=True), agent.config.steps_per_batch, total_frames=frames):
        agent.learn(flatten_agents(batch, None), agent.frames + batch.numel())
    played = Recall(64, delay=4, seed=9, **options).rollout(40, agent.policy(explore=False), break_when_any_done=False)
    return float(played["next", "reward"][played["next", "done"]].mean())


GRU: dict[str, Any] = {"kind": "gru", "size": 16, "sequence_length": 8}
LSTM = {**GRU, "kind": "lstm"}
CONTINUOUS_ACTION, MASKED = {"continuous": True}, {"masked": True}


@exhaustive(
    ("name", "memory", "options"),
    [
        ("ppo", LSTM, {}),
        ("dqn", {**GRU, "burn_in": 2}, {}),
        ("ppo", GRU, {}),
        ("a2c", GRU, {}),
        ("dqn", LSTM, {}),
        ("iqn", GRU, {}),
        *((name, {**GRU, "burn_in": 2}, CONTINUOUS_ACTION) for name in ("td3", "sac", "tqc")),
        ("ddpg", {**LSTM, "burn_in": 2}, CONTINUOUS_ACTION),
        ("ppo", LSTM, MASKED),
        ("dqn", LSTM, MASKED),
    ],
    quick=0,
)
def test_it_learns_to_remember(name: str, memory: dict[str, Any], options: dict[str, bool]) -> None:
    frames = FRAMES[name] * (2 if options is MASKED else 1)
    wanted = 0.9 if options is CONTINUOUS_ACTION else 0.95
    # About one run in six of PPO with masks stays where it guesses; which, depends on how a processor rounds.
    assert any(score(name, memory, frames, seed, **options) > wanted for seed in range(3))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "td3", "sac"])
def test_without_a_memory_it_cannot_be_learned(name: str) -> None:
    assert score(name, None, FRAMES[name], continuous=name != "ppo") < 0.7
