"""Behaviour cloning: from a policy, from recorded episodes, and as a part of a run."""

import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, MultiCategorical

import rlstack
from rlstack import envs
from rlstack.adapters.marinenav.agents import published_policy
from rlstack.agents.interface import Interface
from rlstack.config import ConfigError
from rlstack.data.recordings import save_arrays
from rlstack.runs.checkpoint import read_checkpoint
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.imitation import Imitation
from rlstack.training.loop import Training
from rlstack.training.recorded import decisions, read_file
from tests.adapters.small_worlds import Noise
from tests.agents.small_agents import CONTINUOUS, DISCRETE, options_of
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import SMALL_RUN, begun, composed, logged, reopened
from tests.test_train_command import train

WIDE = Bounded(-3.0, 5.0, shape=(2,))  # not what agents have, which is [-1, 1]


def choose(observation: Tensor) -> Tensor:
    """Returns the index of the largest of the first three features."""
    return observation[..., :3].argmax(-1)


def steer(observation: Tensor) -> Tensor:
    """Returns smooth actions between -3 and 5."""
    return 1 + 3 * torch.stack((torch.sin(observation[..., 0]), torch.tanh(observation[..., 1])), -1)


def scripted(function: Any, env: Any) -> TensorDictModuleBase:
    interface = Interface.of(env)
    return TensorDictModule(function, in_keys=[interface.key("observation")], out_keys=[interface.key("action")])


def agent_for(name: str, env: Any, **overrides: Any) -> Any:
    torch.manual_seed(0)
    small = options_of(name, hidden=[32, 32], self_features=32, candidates=1, cvar=1.0)
    return rlstack.make_agent(name, env, 10_000, **{**small, **overrides})


def act(agent: Any, observation: Any) -> Tensor:
    """Returns the greedy actions for a flat batch, in the world's units."""
    interface = agent.interface
    seen = TensorDict({}, [len(observation)]).set(interface.key("observation"), observation)
    return agent.policy(explore=False)(seen).get(interface.key("action"))


SETTINGS: dict[str, Any] = {"frames": 1500, "epochs": 12, "batch_size": 32, "lr": 5e-3}


@exhaustive("name", DISCRETE)
def test_choices_are_cloned(name: str) -> None:
    env = Noise(5, 3, num_worlds=16)
    agent = agent_for(name, env)
    metrics = rlstack.imitate(agent, env, scripted(choose, env), **SETTINGS)
    fresh = torch.randn(500, 5)
    accuracy = float((act(agent, fresh) == choose(fresh)).float().mean())
    assert accuracy > 0.95
    assert metrics["imitation/accuracy"] == pytest.approx(accuracy, abs=0.06)
    assert metrics["imitation/held_out"] < 0.25 and metrics["imitation/frames"] == 1500


@exhaustive("name", CONTINUOUS)
def test_continuous_actions_are_cloned_in_the_worlds_units(name: str) -> None:
    env = Noise(2, WIDE, num_worlds=16)
    agent = agent_for(name, env)
    metrics = rlstack.imitate(agent, env, scripted(steer, env), **SETTINGS)
    fresh = torch.randn(500, 2)
    error = (act(agent, fresh) - steer(fresh)).square().mean().sqrt()
    assert error < 0.3  # of a range of 8
    assert metrics["imitation/error"] == pytest.approx(float(error) / 4, abs=0.03)  # in [-1, 1]


def test_several_choices_are_cloned() -> None:
    env = Noise(4, MultiCategorical([2, 3], shape=(2,)), num_worlds=16)
    agent = agent_for("ppo", env)

    def both(observation: Tensor) -> Tensor:
        return torch.stack(((observation[..., 3] > 0).long(), choose(observation)), -1)

    assert rlstack.imitate(agent, env, scripted(both, env), **SETTINGS)["imitation/accuracy"] > 0.88


def test_numbers_and_choices_are_cloned_together() -> None:
    env = Noise(5, Composite(pick=Categorical(3), turn=WIDE), num_worlds=16)
    agent = agent_for("ppo", env)

    def both(observation: Tensor) -> TensorDict:
        return TensorDict({"pick": choose(observation), "turn": steer(observation)}, observation.shape[:-1])

    metrics = rlstack.imitate(agent, env, scripted(both, env), **SETTINGS | {"epochs": 20})
    fresh = torch.randn(500, 5)
    acted, wanted = act(agent, fresh), both(fresh)
    accuracy = (acted["pick"] == wanted["pick"]).float().mean()
    error = (acted["turn"] - wanted["turn"]).square().mean().sqrt() / 4  # in [-1, 1]
    assert accuracy > 0.85 and error < 0.15
    assert metrics["imitation/accuracy"] == pytest.approx(float(accuracy), abs=0.1)
    assert metrics["imitation/error"] == pytest.approx(float(error), abs=0.03)


# -- what else it does to an agent -------------------------------------------------------------------------------


def data(count: int = 400) -> TensorDict:
    observation = torch.randn(count, 2) * 10 + 3
    return TensorDict({"observation": observation, "action": steer((observation - 3) / 10)}, [count])


@exhaustive("name", ["acqn", "sac", "ddpg"], quick=2)
def test_only_the_actor_changes_and_targets_follow(name: str) -> None:
    agent = agent_for(name, Noise(2, WIDE), **({"target_actor": True} if name == "sac" else {}))
    if name == "acqn":
        own, target = agent.loss.actor_network_params, agent.loss.target_actor_network_params
        critic = agent.loss.critic_network_params
    else:
        own, target = (TensorDict.from_module(n) for n in (agent.actor, agent.targets["actor"].network))
        critic = TensorDict.from_module(agent.critics[0])
    before, critic_before = own.detach().clone(), critic.detach().clone()
    modes = [module.training for network in agent.networks.values() for module in network.modules()]
    optimizers = [str(optimizer.state_dict()) for optimizer in agent.optimizers.values()]
    rlstack.imitate(agent, data(), epochs=1)
    assert not (before == own.data).all()
    assert (own.data == target.data).all() and not target.data.requires_grad
    assert (critic_before == critic.data).all()
    assert [str(optimizer.state_dict()) for optimizer in agent.optimizers.values()] == optimizers
    assert [module.training for network in agent.networks.values() for module in network.modules()] == modes
    assert (agent.updates, agent.frames) == (0, 0)


@pytest.mark.slow
def test_the_normaliser_learns_the_scale_first() -> None:
    agent = agent_for("ddpg", Noise(2, WIDE), normalize_observations=True)
    metrics = rlstack.imitate(agent, data(3000), epochs=15, batch_size=32, lr=5e-3)
    moments = agent.normalizer.moments[0]
    assert moments.mean.tolist() == pytest.approx([3, 3], abs=1)
    assert moments.var.sqrt().tolist() == pytest.approx([10, 10], abs=1)
    assert metrics["imitation/error"] < 0.08


def test_the_held_out_share_is_not_learned_from() -> None:
    """The given actions are random, so that only those trained on can be learned by heart."""
    agent = agent_for("dqn", Noise(5, 3), hidden=[128, 128])
    tosses = TensorDict({"observation": torch.randn(200, 5), "action": torch.randint(3, (200,))}, [200])
    metrics = rlstack.imitate(agent, tosses, epochs=50, batch_size=20, lr=5e-3)
    assert metrics["imitation/loss"] < 0.3
    assert metrics["imitation/held_out"] > 1.0 and metrics["imitation/accuracy"] < 0.75


def test_inactive_entries_are_left_out() -> None:
    agent = agent_for("dqn", Noise(5, 3))
    observation = torch.randn(40, 10, 5)
    active = torch.rand(40, 10) < 0.5
    action = torch.where(active, choose(observation), 99)  # out of range: would raise
    sequences = TensorDict({"observation": observation, "action": action, "active": active}, [40, 10])
    assert rlstack.imitate(agent, sequences, epochs=1)["imitation/frames"] == int(active.sum())


@pytest.mark.slow
def test_the_experts_experience_fills_the_replay_memory() -> None:
    env = envs.make("marinenav", num_worlds=4, num_robots=2, num_obstacles=1, num_cores=0, max_steps=20)
    agent = agent_for("acqn", env, hidden=[16, 16], n_step=3, normalize_rewards=True)
    teacher = agent_for("acqn", env, hidden=[16, 16]).policy(explore=False)
    metrics = rlstack.imitate(agent, env, teacher, frames=400, epochs=1, replay=True)
    assert 0 < len(agent.replay) <= metrics["imitation/frames"] + 4 * 2 * agent.config.steps_per_batch
    assert agent.n_step.state_dict() == {}  # nothing waits for a next step in other worlds
    assert agent.replay.storage.get(torch.tensor([0])).get("action").shape == (1, 2)
    with pytest.raises(ConfigError, match="replay buffer"):
        rlstack.imitate(agent_for("ppo", Noise(5, 3)), Noise(5, 3), scripted(choose, Noise(5, 3)), replay=True)


# -- marinenav and files -----------------------------------------------------------------------------------------


def marinenav(**options: Any) -> Any:
    return envs.make("marinenav", num_worlds=8, num_robots=3, num_obstacles=2, num_cores=0, max_steps=40, **options)


@pytest.mark.slow
def test_a_published_agent_is_cloned_in_marinenav(fixtures_dir: Path) -> None:
    env = marinenav()
    expert = published_policy(fixtures_dir / "marinenav" / "AC_IQN_params.npz", env)
    agent = agent_for("acqn", env, hidden=[64, 64])
    sequences = rlstack.flatten_agents(env.rollout(20, expert, break_when_any_done=False))
    shown = sequences[sequences["active"]]

    def error() -> float:
        return float((act(agent, shown["observation"]) - shown["action"]).square().mean().sqrt())

    before = error()
    metrics = rlstack.imitate(agent, env, expert, frames=3000, epochs=8, batch_size=64)
    assert error() < 0.75 * before  # an expert that switches between the extremes
    assert metrics["imitation/error"] == pytest.approx(error(), abs=0.15)


def test_recorded_decisions_come_back_from_their_file(tmp_path: Path) -> None:
    env = marinenav()
    batches = [
        rlstack.flatten_agents(env.rollout(6, agent_for("ppo", env).policy(True), break_when_any_done=False))
        for _ in range(2)
    ]
    save_arrays(tmp_path / "d.npz", torch.cat([decisions(batch) for batch in batches]))
    back = read_file(tmp_path / "d.npz", Interface.of(env))
    wanted = torch.cat([batch[batch["active"]].select("observation", "action") for batch in batches])
    assert (back == wanted).all() and back["observation"].batch_size == back.batch_size
    agent = agent_for("ppo", env)
    metrics = rlstack.imitate(agent, tmp_path / "d.npz", epochs=1)
    assert metrics["imitation/frames"] == len(wanted)


def test_what_is_no_file_of_episodes_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    for name, told in (("text.npz", "cannot be read as recorded episodes"), ("nowhere.npz", "does not exist")):
        refused(ConfigError, f"{name} {told}", read_file, tmp_path / name, Interface.of(Noise(5, 3)))


def test_an_evaluations_file_gives_the_successes_of_its_best_evaluation(tmp_path: Path) -> None:
    from rlstack.adapters.marinenav.evaluations import Episode, Evaluations, RobotHistory

    def episode(success: bool, action: float, steps: int) -> Episode:
        own = np.arange(7.0) + np.arange(steps + 1.0)[:, None]
        mask = np.zeros((steps + 1, 5), dtype=bool)
        actions = np.full((steps, 2), action)
        robot = RobotHistory(own, np.zeros((steps + 1, 5, 5)), mask, actions, np.zeros((steps + 1, 13)), 0)
        return Episode([robot], 1.0, success, 1.0, 1.0)

    evaluations = Evaluations()
    evaluations.add(10, [episode(True, 0.1, 3), episode(False, 0.2, 3)])
    evaluations.add(20, [episode(True, 0.3, 4), episode(True, 0.4, 2)])
    evaluations.add(30, [episode(False, 0.5, 3), episode(True, 0.6, 3)])
    evaluations.save(tmp_path / "evaluations.npz")
    back = read_file(tmp_path / "evaluations.npz", Interface.of(marinenav()))
    assert back["action"][:, 0].tolist() == pytest.approx([0.3] * 4 + [0.4] * 2)
    assert back["observation", "self"][:, 0].tolist() == [0, 1, 2, 3, 0, 1]
    with pytest.raises(ConfigError, match=r"evaluations\.npz: action"):
        read_file(tmp_path / "evaluations.npz", Interface.of(marinenav(continuous_actions=False)))


@pytest.mark.parametrize(
    ("expert", "message"),
    [
        (lambda obs: obs, "actions are torch.float32"),
        (lambda obs: choose(obs) + 7, "actions in"),
        (lambda obs: obs @ torch.zeros(9, 1), "does not fit the env"),
    ],
)
def test_an_expert_that_does_not_fit_is_one_line(expert: Any, message: str) -> None:
    env = Noise(5, 3)
    caught = refused(ConfigError, message, rlstack.imitate, agent_for("dqn", env), env, scripted(expert, env))
    assert caught.startswith("imitation.expert: ")


# -- as a part of a run ------------------------------------------------------------------------------------------


DETOUR = {"name": "tests.agents.small_agents:Detour", "num_worlds": 8}


def plain_config(*overrides: str) -> dict[str, Any]:
    """Returns the configuration of a small run in a small world."""
    small = [value for value in SMALL_RUN if not value.startswith("env.")]
    small += ["total_frames=480", "eval.every=480", "checkpoint.every=480", "agent.buffer_size=2000"]
    small += ["imitation.frames=300", "imitation.epochs=2", "checkpoint.keep=5", "agent.candidates=1", "agent.cvar=1.0"]
    return {**composed(*small, *overrides), "env": DETOUR}


def resumed(folder: Path, plain: dict[str, Any]) -> Training:
    torch.manual_seed(99)
    training = reopened(folder, plain)
    training.restore()
    return training


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the checkpoint of a run whose untrained agent serves as an expert."""
    folder = tmp_path_factory.mktemp("runs") / "teacher"
    training = begun(folder, plain_config("seed=5"))
    training.env.reset()
    return Path(training.save())


@pytest.fixture(scope="module")
def finished(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "student"
    begun(folder, plain_config(f"imitation.expert={teacher}")).execute()
    return folder


@pytest.mark.slow
def test_a_run_imitates_first_then_learns_by_itself(finished: Path) -> None:
    rows = logged(finished)
    of = {name: [row[name] for row in rows] for name in rows[0]}
    assert of["frames"][0] == "0" and int(of["frames"][-1]) >= 480
    assert float(of["imitation/held_out"][0]) < 1 and not any(of["imitation/held_out"][1:])
    assert float(of["imitation/frames"][0]) == 300
    assert of["eval/return"][0] and any(of["loss/critic"])
    assert read_checkpoint(finished / "checkpoints" / "checkpoint_000000000000.pt")["imitated"] is True


def test_an_interrupted_imitation_starts_anew(finished: Path, teacher: Path, tmp_path: Path) -> None:
    plain = plain_config(f"imitation.expert={teacher}")
    training = begun(tmp_path / "run", plain)
    loss = training.agent.imitation_loss

    def interrupted(*arguments: Any) -> Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        return loss(*arguments)

    training.agent.imitation_loss = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        training.execute()
    assert RunDirectory(tmp_path / "run").checkpoints.latest() is None
    resumed(tmp_path / "run", plain).execute()
    assert logged(tmp_path / "run") == logged(finished)


@pytest.mark.parametrize("only", [False, True])
def test_an_interrupted_evaluation_keeps_the_imitation(
    only: bool, finished: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = plain_config(f"imitation.expert={teacher}", f"imitation.only={only}")
    training = begun(tmp_path / "run", plain)
    monkeypatch.setattr(training, "evaluate", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        training.execute()
    monkeypatch.setattr("rlstack.training.imitation.expert_policy", None)
    resumed(tmp_path / "run", plain).execute()
    of, expected = logged(tmp_path / "run"), logged(finished)[: 1 if only else None]
    assert len(of) == len(expected)
    assert all(row.items() <= other.items() for row, other in zip(of, expected))
    assert only or of == expected


@pytest.mark.slow
def test_imitation_can_be_the_whole_run(teacher: Path, tmp_path: Path) -> None:
    (tmp_path / "mine" / "env").mkdir(parents=True)
    (tmp_path / "mine" / "env" / "detour.yaml").write_text("name: tests.agents.small_agents:Detour\nnum_worlds: 8\n")
    small = [value for value in SMALL_RUN if not value.startswith("env.")]
    overrides = [f"imitation.expert={teacher}", "imitation.only=true", "imitation.frames=300", "run_dir=out"]
    result = train("--config-dir", "mine", "env=detour", *small, *overrides, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "imitating 300 decisions of" in result.stdout and "held-out loss" in result.stdout
    loaded = rlstack.load(tmp_path / "out")
    assert loaded.frames == 0
    assert (tmp_path / "out" / "checkpoints" / "best.pt").exists()
    assert len(list((tmp_path / "out" / "evaluations").iterdir())) == 1
    plain = loaded.config
    refused(ConfigError, r"imitation\.only=false", resumed(tmp_path / "out", plain).prepare)
    plain["imitation"]["only"] = False
    imitation = resumed(tmp_path / "out", plain).hook(Imitation)
    assert imitation is not None and imitation.done


@exhaustive(
    ("overrides", "message"),
    [
        (["imitation.expert=a", "imitation.episodes=b"], "imitation: set expert or episodes, not both"),
        (["imitation.only=true"], "imitation: only=true needs"),
        (["imitation.episodes=b", "imitation.replay=true"], "imitation: replay=true needs an expert"),
        (["imitation.expert=nowhere"], "imitation.expert: 'nowhere' does not exist"),
        (["imitation.expert=sb4:x"], "imitation.expert: .*sb4.*sb3"),
        (["imitation.episodes=nowhere.npz"], "imitation.episodes: nowhere.npz does not exist"),
    ],
)
def test_mistakes_are_known_before_anything_is_done(overrides: list[str], message: str, tmp_path: Path) -> None:
    refused(ConfigError, message, lambda: begun(tmp_path / "run", plain_config(*overrides)).prepare())
