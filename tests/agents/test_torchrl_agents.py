"""Losses of TorchRL, and a user's own, as agents: ``algorithm: torchrl``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.nn.functional import smooth_l1_loss
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.objectives import SACLoss

import rlstack
from rlstack.agents import build_agent, completed, make_agent
from rlstack.config import ConfigError
from tests.agents.small_agents import Decisions, copies, take_empty_masks
from tests.conftest import Command
from tests.exhaustive import exhaustive
from tests.refusals import refused

TINY: dict[str, Any] = {"hidden": [8], "precision": "float32"}
REPLAY: dict[str, Any] = {**TINY, "batch_size": 16, "learning_starts": 0, "random_frames": 0, "buffer_size": 500}
ACTOR, JUDGES = {"kind": "actor"}, {"kind": "action_value", "copies": 2}
DETERMINISTIC, VALUES = {"kind": "deterministic"}, {"kind": "action_values"}


def numbers() -> Decisions:
    return Decisions(Unbounded(3), Bounded(-2.0, 2.0, shape=(2,)))


def choices(masked: bool = False) -> Decisions:
    return Decisions(Unbounded(3), Categorical(3, shape=()), masked)


def agent(env: Any = None, **options: Any) -> Any:
    """Returns the configuration of TorchRL's SAC with some values replaced."""
    torch.manual_seed(0)
    return make_agent("torchrl_sac", env or numbers(), 1000, **{**REPLAY, **options})


def own(loss: str, networks: dict[str, Any], env: Any, **options: Any) -> Any:
    config = {"name": "x", "algorithm": "torchrl", "loss": loss, "networks": networks, **REPLAY, **options}
    return build_agent(completed(config), env, 1000)


def test_the_agents_loss_is_that_of_torchrl_and_what_acts_is_in_it() -> None:
    made = agent()
    assert type(made.loss) is SACLoss
    trained = {id(parameter) for parameter in made.loss.parameters()}
    assert {id(parameter) for parameter in made.actor.parameters()} <= trained
    assert {id(parameter) for parameter in made.parameters()} == trained


def test_a_temperature_is_logged_apart_from_its_loss() -> None:
    made = agent()
    first = made.update_once(numbers().experience(made, 4, 8))
    assert first["policy/alpha"].item() == pytest.approx(1.0), "at first"
    torch.testing.assert_close(first["loss/alpha"], torch.zeros(()))  # times the logarithm of the temperature


def test_critics_of_an_ensemble_begin_with_weights_of_their_own() -> None:
    first, second = agent().loss.qvalue_network_params.flatten_keys(".").values().__iter__().__next__()
    assert not torch.equal(first, second)


OWN: dict[str, tuple[str, dict[str, Any], Callable[[], Decisions], dict[str, Any]]] = {
    "td3": ("TD3Loss", {"actor_network": DETERMINISTIC, "qvalue_network": JUDGES}, numbers, {}),
    "ddpg": ("DDPGLoss", {"actor_network": DETERMINISTIC, "value_network": {"kind": "action_value"}}, numbers, {}),
    "dqn": ("DQNLoss", {"value_network": VALUES}, choices, {"epsilon": 0.5}),
    "dqn masked": ("DQNLoss", {"value_network": VALUES}, lambda: choices(True), {"epsilon": 0.5}),
    "discrete sac": ("DiscreteSACLoss", {"actor_network": ACTOR, "qvalue_network": VALUES}, choices, {}),
}
SHIPPED = ["torchrl_sac", "crossq", "redq", "cql", "iql", "td3_bc"]


@exhaustive("name", [*SHIPPED, *OWN])
def test_a_loss_of_torchrl_learns_from_replay(name: str) -> None:
    """Every network moves, and the next action is legal."""
    loss, networks, world, options = OWN.get(name, ("", {}, numbers, {}))
    env, options = world(), {"frames_per_update": 8, **options}
    made: Any = (
        make_agent(name, env, 1000, **REPLAY, **options)
        if name in SHIPPED
        else own(f"torchrl.objectives.{loss}", networks, env, **options)
    )
    before = copies(made.parameters())
    metrics: dict[str, Any] = {}
    for step in range(1, 5):
        metrics = made.learn(env.experience(made, 4, 8), step * 32)
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in metrics.values())
    moved = [not torch.equal(old, new) for old, new in zip(before, made.parameters(), strict=True)]
    assert sum(moved) / len(moved) > 0.8
    acted = made.policy(explore=False)(env.draw(5))
    if env.masked:
        assert env.allowed.expand(5, -1).gather(-1, acted["action"].unsqueeze(-1)).all()


@pytest.mark.parametrize("name", ["discrete sac", "dqn", "torchrl_ppo", "discrete_iql", "discrete_cql"])
def test_masks_that_allow_some_choices_or_none_do_no_harm(name: str) -> None:
    env = Decisions(Bounded(-2.0, 2.0, shape=(3,)), Categorical(4, shape=()), masked=True)
    if name in OWN:
        loss, networks, *_ = OWN[name]
        made = own(f"torchrl.objectives.{loss}", networks, env)
    else:
        made = make_agent(name, env, 1000, **(TINY if name == "torchrl_ppo" else REPLAY))
    take_empty_masks(made, env)


def test_a_loss_of_the_users_own_learns_which_action_pays() -> None:
    networks, env = {"actor_network": ACTOR}, choices()
    made = own(
        "tests.agents.own_loss:RewardWeightedLoss", networks, env, lr=0.1, options={"scale": 2.0}, frames_per_update=4
    )
    for step in range(1, 9):
        experience = env.experience(made, 4, 4)
        experience["next", "reward"] = (experience["action"] == 2).float().unsqueeze(-1)
        made.learn(experience, 16 * step)
    assert (made.policy(explore=False)(env.draw(50))["action"] == 2).all()


@pytest.mark.parametrize("double", [True, False])
def test_a_loss_of_ours_is_one_too(double: bool) -> None:
    env = choices()
    options = {"options": {"double": double}, "gamma": 0.5, "target_tau": 1.0, "frames_per_update": 8}
    made = own("rlstack.losses.DQNLoss", {"network": VALUES}, env, **options)
    batch = env.experience(made, 2, 8)
    with torch.no_grad():
        here, then = (made.loss.network.module[0](part["observation"]) for part in (batch, batch["next"]))
    target = batch["next", "reward"] + 0.5 * then.amax(-1, keepdim=True) * ~batch["next", "terminated"]
    wanted = smooth_l1_loss(here.gather(-1, batch["action"].unsqueeze(-1)), target)
    torch.testing.assert_close(made.update_once(batch)["loss/critic"], wanted)
    made.learn(env.experience(made, 4, 8), 32)
    torch.testing.assert_close(*(net.state_dict() for net in (made.loss.network, made.loss.target_network)))
    seen = env.draw(20)
    values = made.loss.network.module[0](seen["observation"])
    assert torch.equal(made.policy(explore=False)(seen)["action"], values.argmax(-1))
    assert [*made.policy().networks] == ["actor"]


class Discounted(SACLoss):
    """A loss of a user's own with a discount."""

    def __init__(self, actor_network: Any, qvalue_network: Any, *, gamma: float = 0.99, action_spec: Any) -> None:
        super().__init__(actor_network, qvalue_network, action_spec=action_spec)
        self.own_gamma = gamma


def test_a_loss_of_the_users_own_gets_the_discount_of_the_agent() -> None:
    networks = {"actor_network": ACTOR, "qvalue_network": JUDGES}
    name = f"{__name__}:Discounted"
    assert own(name, networks, numbers(), gamma=0.5).loss.own_gamma == 0.5
    assert own(name, networks, numbers(), gamma=0.5, options={"gamma": 0.25}).loss.own_gamma == 0.25


def test_n_step_returns_are_discounted_by_their_number_of_steps() -> None:
    """The target of an entry with discount gamma^3 is r + gamma^3 v: TorchRL reads the number 3."""
    made = agent(gamma=0.9, n_step=3)
    batch = numbers().experience(made, 4, 4).reshape(-1)
    batch["gamma"] = torch.full((16, 1), 0.9**3)
    assert (made.loss_inputs(batch)["steps_to_next_obs"] == 3).all()
    batch["gamma"] = torch.zeros(16, 1)
    assert (agent(gamma=0).loss_inputs(batch)["next", "steps_to_next_obs"] == 1).all(), "without a discount, one step"


@pytest.mark.parametrize("name", ["torchrl_sac", "redq", "iql", "discrete_iql", "cql"])
def test_every_loss_discounts_n_step_returns(name: str) -> None:
    """One that does not is refused."""
    assert make_agent(name, choices() if name.startswith("discrete") else numbers(), 1000, **REPLAY, n_step=3)


def test_td3_bc_moves_its_targets_with_its_actor() -> None:
    """Fujimoto & Gu update both with every second step of the critics."""
    env, moved = numbers(), list[int]()
    made = make_agent("td3_bc", env, 1000, **REPLAY, frames_per_update=8)
    made.move_targets = lambda: moved.append(made.updates)
    made.learn(env.experience(made, 4, 12), 48)
    assert made.updates == 6 and moved == [1, 3, 5]


def test_optimisers_may_have_rates_and_rhythms_of_their_own() -> None:
    optimizers = {
        "critic": {"networks": ["qvalue_network"], "lr": 0.01},
        "actor": {"networks": ["actor_network", "log_alpha"], "lr": 0.02, "every": 2},
    }
    env = numbers()
    made = agent(env, optimizers=optimizers, frames_per_update=32)
    assert {name: optimizer.lr for name, optimizer in made.optimizers.items()} == {"lr_critic": 0.01, "lr_actor": 0.02}
    assert {name for name in made.schedule_metrics() if "lr" in name} == {"schedule/lr_critic", "schedule/lr_actor"}
    actor = [parameter.detach().clone() for parameter in made.actor.parameters()]
    moved = []
    for step in range(1, 5):
        made.learn(env.experience(made, 4, 8), 32 * step)
        moved.append(not torch.equal(actor[0], next(made.actor.parameters())))
        actor = [parameter.detach().clone() for parameter in made.actor.parameters()]
    assert moved in ([True, False, True, False], [False, True, False, True])
    rare = {"all": {**optimizers["actor"], "networks": ["actor", "qvalue", "log_alpha"]}}
    made, moved = agent(env, optimizers=rare, frames_per_update=32), []
    for step in range(1, 5):  # at every other update no optimiser is due, and nothing changes
        before = [parameter.detach().clone() for parameter in made.parameters()]
        made.learn(env.experience(made, 4, 8), 32 * step)
        moved.append(not all(map(torch.equal, before, made.parameters())))
    assert moved == [True, False, True, False]


def test_targets_move_every_so_many_frames() -> None:
    env, moves = numbers(), []
    made = agent(env, target_every=64, frames_per_update=32)
    for step in range(1, 5):
        before = made.loss.target_qvalue_network_params.clone()
        made.learn(env.experience(made, 4, 8), 32 * step)
        moves.append(not (made.loss.target_qvalue_network_params == before).all())
    assert moves == [False, True, False, True]


def test_advantages_are_normalised_over_those_who_are_there() -> None:
    env = choices()
    made = make_agent("torchrl_ppo", env, 10_000, **TINY)
    experience = env.experience(made, 4, 16)
    made.interface = replace(made.interface, group="agents")  # whose members come and go
    experience["active"][:, 8:] = False
    experience["next", "reward"][:, 8:] = 1e3
    advantage = made.rollout(experience)["advantage"]
    assert advantage.shape == (32, 1)
    assert float(advantage.mean()) == pytest.approx(0, abs=1e-5) and float(advantage.std()) == pytest.approx(
        1, abs=1e-3
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "torchrl.objectives.SACLos"}, "did you mean 'SACLoss'"),
        ({"loss": "torch.nn:Linear"}, "not a torchrl.objectives.LossModule"),
        ({"loss": "os.system"}, "neither torchrl.objectives.<Loss> nor package.module:Class"),
        ({"loss": "nowhere.losses:Mine"}, "cannot be imported"),
        ({"networks": {"actor": ACTOR, "qvalue_network": JUDGES}}, r"agent.networks.actor: unknown key, did you mean"),
        ({"networks": {"actor_network": ACTOR}}, "refuses its options: .*qvalue_network"),
        ({"networks": {"qvalue_network": JUDGES}}, "none of them can act"),
        ({"options": {"num_nets": 2}}, r"agent.options.num_nets: unknown key, did you mean"),
        ({"keys": {"rewards": "cost"}}, "refuses its options"),
        ({"keys": {"reward": "cost"}}, "does not take such data"),
        ({"optimizers": {"q": {"networks": ["qvalue_network"], "lr": 0.1}}}, "none trains actor_network_params"),
        (
            {"optimizers": {"q": {"networks": ["qvalue_network"], "lr": 0.1}}, "lr": 0.1},
            "lr is for agents without opti",
        ),
        (
            {
                "optimizers": {
                    "all": {
                        "networks": ["actor_network", "qvalue_network", "log_alpha"],
                        "lr": {"kind": "linear", "start": 0.1, "end": -0.1},
                    }
                }
            },
            r"agent\.optimizers\.all\.lr: -0\.1 is outside \[0, 100\]",
        ),
        ({"value_estimator": "td_lambda"}, "value_estimator=td_lambda needs sequences, data=rollout"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line_before_the_run(options: dict[str, Any], message: str) -> None:
    networks = {"actor_network": ACTOR, "qvalue_network": JUDGES}
    given: dict[str, Any] = {"loss": "torchrl.objectives.SACLoss", "networks": networks, **options}
    refused(ConfigError, message, own, given.pop("loss"), given.pop("networks"), numbers(), **given)


def test_a_loss_without_the_wanted_estimator_is_refused() -> None:
    networks = {"actor_network": DETERMINISTIC, "qvalue_network": JUDGES}
    with pytest.raises(ConfigError, match=r"agent.value_estimator: .*TD3Loss makes no gae; a loss of yours"):
        own("torchrl.objectives.TD3Loss", networks, numbers(), data="rollout", value_estimator="gae")
    refused(ConfigError, "n_step is for data=replay, leave it", make_agent, "torchrl_ppo", choices(), **TINY, n_step=5)
    message = r"agent.n_step: .*CloningLoss ignores the discount .* of 3 steps, give 1"
    refused(ConfigError, message, make_agent, "bc", numbers(), 1000, **REPLAY, n_step=3)
    made = make_agent("torchrl_ppo", choices(), 10_000, **TINY, value_estimator="td_lambda")
    assert type(made.loss.value_estimator).__name__ == "TDLambdaEstimator"


@pytest.mark.parametrize(("name", "uses"), [("torchrl_sac", True), ("redq", False), ("crossq", False), ("iql", False)])
def test_priorities_that_a_loss_does_not_correct_for_are_refused(name: str, uses: bool) -> None:
    options: dict[str, Any] = {**REPLAY, "replay": {"sampler": "prioritized"}}
    if uses:
        assert make_agent(name, numbers(), 1000, **options)
        return
    message = r"agent.replay.sampler: .* ignores the weights that correct .*; give uniform"
    refused(ConfigError, message, make_agent, name, numbers(), 1000, **options)
    assert make_agent(name, numbers(), 1000, **options, importance_exponent=0.0)


def test_images_are_learned_from_in_rollouts() -> None:
    env = Decisions(Bounded(0, 255, shape=(36, 36, 2), dtype=torch.uint8), Categorical(3, shape=()))
    made = make_agent("torchrl_ppo", env, 1000, **TINY, minibatch_size=16)
    assert torch.isfinite(torch.as_tensor(made.learn(env.experience(made, 2, 16), 32)["loss/objective"]))


def test_epsilon_replaces_whole_actions() -> None:
    """Also where there are as many worlds as numbers in an action."""
    made, seen, counts = agent(epsilon=0.5), torch.zeros(2, 3), []
    best = torch.tensor([0.25, -0.25])
    for _ in range(50):
        action = made.epsilon_greedy(lambda: best.expand(2, 2), seen)
        counts += (action != best).sum(-1).tolist()
    assert set(counts) == {0, 2}


@pytest.mark.parametrize("world", [numbers, choices])
def test_in_low_precision_a_policy_acts_as_it_learns(world: Callable[[], Decisions]) -> None:
    torch.manual_seed(0)
    env = world()
    made = make_agent("torchrl_ppo", env, 1000, **{**TINY, "hidden": [64, 64], "precision": "bfloat16"})
    batch = made.rollout(env.experience(made, 4, 32))
    with torch.autocast("cpu", torch.bfloat16):
        found = made.actor.get_dist(batch.select("observation")).log_prob(batch["action"])
    assert found.dtype == torch.float32 and (found - batch["log_prob"]).abs().max() < 1e-4


def test_trying_it_out_leaves_no_trace_in_statistics_and_draws_no_random_numbers() -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(1)
        made = make_agent("crossq", numbers(), 1000, **REPLAY)
        drawn.append(torch.rand(3))
    assert torch.equal(*drawn) and made.updates == 0
    found = {name: value for name, value in made.loss.state_dict().items() if "running" in name or "batches" in name}
    assert any(name.endswith("running_var") for name in found)
    for name, value in found.items():
        assert torch.equal(value, torch.full_like(value, float(name.endswith("running_var")))), name


@exhaustive("name", ["torchrl_ppo", "torchrl_sac"])
def test_a_run_is_evaluated_exported_and_loaded_like_any_other(
    name: str, rlstack_command: Command, tmp_path: Path
) -> None:
    run, exported = tmp_path / "run", tmp_path / "policy.pt"
    world = ["env=gymnasium", "env.id=Pendulum-v1", "env.num_envs=2", "env.workers=0"]
    short = ["total_frames=64", "threads=1", "eval.episodes=1", "eval.max_steps=5", "logger=csv"]
    steps = ["agent.steps_per_batch=16", "agent.hidden=[8]", "agent.batch_size=8"]
    steps += ["agent.learning_starts=16"] if name == "torchrl_sac" else []  # which rollouts do without
    assert rlstack_command("train", f"agent={name}", *world, *short, *steps, f"run_dir={run}").status == 0
    assert rlstack_command("convert", f"checkpoint={run}", f"out={exported}").status == 0
    loaded = rlstack.load(run)
    observation = torch.randn(5, 3)
    expected = loaded.agent.policy(explore=False).action(observation)
    torch.testing.assert_close(torch.jit.load(exported)(observation), expected)


QUICK = ["agent.lr=1e-3", "agent.batch_size=128", "eval.every=8000"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "least"),
    [
        (["agent=torchrl_ppo", "env=cartpole", "total_frames=200000"], 475),
        (["agent=torchrl_sac", "env=gymnasium", "env.id=Pendulum-v1", "total_frames=8000", *QUICK], -250),
    ],
)
def test_it_learns(overrides: list[str], least: float, rlstack_command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    short = ["threads=1", "eval.episodes=10", "agent.hidden=[64,64]", "seed=0", f"run_dir={run}"]
    assert rlstack_command("train", *overrides, *short).status == 0
    found = sorted((run / "evaluations").glob("*.json"))
    assert json.loads(found[-1].read_text())["summary"]["eval/return"] > least


def test_advantages_in_a_world_whose_observations_are_dicts_of_numbers() -> None:
    """They are those of the same numbers as one vector."""
    flat: Any = Decisions(Unbounded(5), Categorical(3, shape=()))
    keyed: Any = Decisions(Composite({"a": Unbounded(3), "b": Unbounded(2)}), Categorical(3, shape=()))
    agents = []
    for env in (flat, keyed):
        torch.manual_seed(0)
        agents.append(make_agent("torchrl_ppo", env, hidden=[8]))
    sequences = flat.experience(agents[0], 4, 6)
    parts = sequences.clone()
    for entry in (parts, parts["next"]):
        first, second = entry["observation"].split([3, 2], -1)
        entry["observation"] = TensorDict({"a": first, "b": second}, entry.batch_size)
    expected, found = (agent.with_advantage(data) for agent, data in zip(agents, (sequences, parts)))
    for name in ("advantage", "value_target"):
        torch.testing.assert_close(found[name], expected[name])
    assert type(found["observation"]) is TensorDict
