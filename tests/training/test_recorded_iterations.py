"""An iteration that is recorded and replayed (worlds, policy, updates, statistics) is the one that is computed.

A CPU rehearses it: what a CUDA graph could not record raises an error, which makes these tests fail.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictSequential
from torchrl.envs.utils import ExplorationType

import rlstack
from rlstack import envs
from rlstack.agents.optimizer import Compiler
from rlstack.config import to_plain
from rlstack.data import graphs
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.envs.cartpole.env import step
from rlstack.envs.foundation import tensors
from rlstack.envs.states import StartPool
from rlstack.play.pool import LEARNER
from rlstack.play.versus import SelfPlay
from rlstack.training.monitor import Monitor, count_frames
from tests.agents.small_agents import CASES, SMALL, YAMLS, options_of
from tests.exhaustive import exhaustive
from tests.host_waits import HostWaits
from tests.play.duel import NAME as DUEL
from tests.recorded_worlds import Crowd, Drift
from tests.rehearsal import rehearsing

Change: TypeAlias = Callable[[int, Any, Any, Any], Any]
"""What others do before an iteration, given its number, the worlds, the agent and the collector."""

_FALLS = {"kind": "linear", "start": 0.3, "end": 0.1}
_NORMALIZED = {"normalize_observations": True, "normalize_rewards": True}
_SCHEDULED = ("clip", "entropy_coefficient", "epsilon", "noise", "noise_scale", "lr", "lr_actor", "lr_critic")


_SMALL: dict[str, Any] = {
    **{"hidden": [16, 16], "buffer_size": 200, "batch_size": 16, "learning_starts": 10, "frames_per_update": 12},
    **{"minibatch_size": 8, "epochs": 2},
}


@pytest.fixture(autouse=True)
def _like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tensors, "FREE", set())
    monkeypatch.setattr(StartPool, "EVERY", 8)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".* is not recorded")
        yield


class Iterations:
    """Collects, learns and keeps statistics as a run does, and remembers everything that comes out.

    Attributes:
        seen: tensors by name, of every iteration.
        replayed: whether steps of worlds, and learning, were replayed in the end.
    """

    def __init__(
        self,
        agent: str,
        env: Any,
        options: dict[str, Any],
        change: Change = lambda *_: None,
        count: int = 7,
        steps: int = 4,
        explore: bool | None = True,
    ) -> None:
        torch.manual_seed(0)
        small = options_of(YAMLS[agent]["algorithm"], **_SMALL)
        self.agent = rlstack.make_agent(agent, env, 10_000, **{**SMALL.get(agent, {}), **small, **options})
        if "cpu" in graphs.GRAPHS and "recurrent" not in options:
            self.agent.compile(Compiler(compiles=False, graphs=True))
        collector: Any = make_collector(env, self.agent.policy(explore), steps)
        collector.lends = True
        batches, monitor, frames = iter(collector), Monitor(), 0
        self.seen: list[dict[str, torch.Tensor]] = []
        for number in range(count):
            change(number, env, self.agent, collector)
            batch = next(batches)
            sequences = flatten_agents(batch, self.agent.interface.group)
            frames += count_frames(batch, sequences, "decisions")
            metrics = self.agent.learn(sequences, frames)
            monitor.observe(batch, metrics)
            told = {"/".join(key) if isinstance(key, tuple) else key: batch[key] for key in batch.keys(True, True)}
            told |= {f"parameter {k}": value for k, value in enumerate(self.agent.parameters())}
            told |= {name: torch.as_tensor(value) for name, value in metrics.items()}
            for name, optimizer in self.agent.optimizers.items():
                for k, moments in optimizer.state_dict()["optimizer"]["state"].items():
                    told |= {f"{name} {k} {moment}": value for moment, value in moments.items()}
            self.seen.append({name: value.detach().clone() for name, value in told.items()})
        self.metrics = monitor.metrics()
        steps_of = [step for optimizer in self.agent.optimizers.values() for step in optimizer._steps.values()]
        learned = [*self.agent._recorded.values(), *steps_of]
        self.replayed = collector._recorded.replays, any(getattr(part, "replays", False) for part in learned)


def compared(agent: str, make: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **how: Any) -> Iterations:
    """Asserts that recorded iterations are those that are computed, to the last bit."""
    found = []
    for records in (False, True):
        with rehearsing(monkeypatch) if records else nullcontext():
            found.append(Iterations(agent, make(), options, **how))
    computed, recorded = found
    assert computed.replayed == (False, False) and recorded.replayed == (True, "recurrent" not in options)
    assert computed.agent.updates == recorded.agent.updates > 0
    for number, (one, other) in enumerate(zip(computed.seen, recorded.seen)):
        differing = [name for name in one if not torch.allclose(one[name], other[name], 0, 0, equal_nan=True)]
        assert not differing, (number, differing)
    assert computed.metrics == pytest.approx(recorded.metrics, abs=0, nan_ok=True)
    assert any(bool(step["next/done"].any()) for step in computed.seen[4:]), "no episode ended while replaying"
    return recorded


_BOTS = {"players": ["heuristic", "veteran", "self"], "side": "both", "evaluation": ["rush"]}
_SHORT, _TWO = {"max_steps": 7}, {"max_seconds": 0.5, "num_worlds": 2}
_MAPS = {**_SHORT, "maps": 4, "num_worlds": 2}
_STATE, _FEW = {"critic_inputs": ["observation", "state"]}, {**_SHORT, "num_robots": 2}
_WORLDS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("ppo", "cartpole", _SHORT, {}),
    ("dqn", "arena", _SHORT, {}),
    ("dqn", "cartpole", {**_SHORT, "action_repeat": 2, "frame_stack": 3, "observation_keep": [0, 2]}, {}),
    ("ppo", "arena", {"max_steps": 9, "action_repeat": 2, "frame_stack": 2}, {}),
    ("ppo", "marinenav", _SHORT, {}),
    ("acqn", "marinenav", {**_SHORT, "measure_safety": True, "num_robots": 3}, {}),
    *((agent, "marinenav", {**_FEW, "state": True}, _STATE) for agent in ("ppo", "sac")),
    *((agent, "marinenav", _FEW, {"inputs": "raw", **_NORMALIZED}) for agent in ("ppo", "sac")),
    ("ppo", "rocket", _TWO, {}),
    ("ppo", "echelon", {**_MAPS, "blue": 2, "red": 2}, {}),
    ("ppo", "echelon", {**_MAPS, "blue": 1, "red": 1, "actions": "hybrid"}, {}),
    ("ppo", "rocket", {**_TWO, "opponents": {"players": ["rule", "random"]}}, {}),
    ("ppo", "echelon", {**_MAPS, "blue": 2, "red": 2, "opponents": _BOTS}, {}),
]


@exhaustive(("agent", "world", "options", "own"), _WORLDS, quick=2)
def test_worlds(
    agent: str, world: str, options: dict[str, Any], own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(agent, lambda: envs.make(world, **{"num_worlds": 5, **options}), own, monkeypatch)


def test_the_whole_step_that_cartpole_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Any:
        env: Any = envs.make("cartpole", num_worlds=5, max_steps=7)
        env._whole_step = step  # not compiled
        return env

    compared("ppo", make, {}, monkeypatch)


@exhaustive(("agent", "choices"), CASES, quick=3)
def test_agents_with_all_that_may_follow_a_schedule(agent: str, choices: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    falls = options_of(agent, **dict.fromkeys(_SCHEDULED, _FALLS))
    compared(agent, lambda: Drift(choices=choices), falls, monkeypatch)


_XQC = {"critic": "categorical", "critic_norm": "batch_targets", "weight_norm": True, "critic_hidden": [8, 8]}
_OPTIONS: list[tuple[str, bool, dict[str, Any]]] = [
    ("ppo", False, {"advantage": "vtrace", "symmetry": "augment", "clip_value": 0.2, "shared_layers": 1}),
    ("ppo", True, {"target_kl": 1e-6, "normalize_over": "rollout"}),
    ("sac", False, {"n_step": 3, **_NORMALIZED, "symmetry": "augment", "actor_every": 2}),
    ("dqn", True, {"correction": "retrace", "n_step": 3}),
    ("ppo", False, {"rnd": {"coefficient": 1.0}, **_NORMALIZED}),
    ("ppo", True, {"lr": {"kind": "adaptive", "kl": 1e-4}}),
    ("ppo", False, {"accumulate": 2, "precision": "bfloat16"}),
    ("ppo_published", True, {}),
    ("a2c", True, {"advantage": "vtrace", **_NORMALIZED}),
    ("pqn", True, {"symmetry": "augment", **_NORMALIZED}),
    ("sac", False, {"replay": {"sampler": "prioritized"}, "critic_norm": "batch"}),
    ("sac", False, {"weight_norm": True, "critic_norm": "batch"}),
    ("sac", False, {**_XQC, "actor_every": 3, "normalize_rewards": True}),
    ("sac", False, {"critic": "categorical", "n_step": 2, "replay": {"sampler": "prioritized"}}),
    ("sac", True, {"replay": {"sampler": "prioritized"}, "n_step": 2}),
    ("td3", False, {"actor_every": 2, "n_step": 2, "random_frames": 40}),
    ("dqn", True, {"dueling": True, "double": False, "target_every": 50, "target_tau": 1.0}),
    ("qrdqn", True, {"correction": "retrace", "n_step": 3, "cvar": 0.5}),
    ("iqn", True, {"act_levels": "random", "target_action": "per_quantile", "cvar": 0.5}),
    ("rainbow", True, {"resample_noise": False, **_NORMALIZED}),
    *((name, False, {}) for name in ("torchrl_sac", "crossq", "iql", "td3_bc")),
    ("discrete_cql", True, {}),
]


@exhaustive(("agent", "choices", "options"), _OPTIONS, quick=4)
def test_options_of_agents(agent: str, choices: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    compared(agent, lambda: Drift(choices=choices), options, monkeypatch)


_GROUPS: list[tuple[str, bool, dict[str, Any]]] = [
    ("ppo", False, {"rnd": {"coefficient": 1.0}, **_NORMALIZED, "accumulate": 2, "symmetry": "augment"}),
    ("ppo", True, {"critic": "central", "normalize_over": "rollout", "advantage": "vtrace"}),
    ("ppo", True, {"lr": _FALLS, "clip": _FALLS, "entropy_coefficient": _FALLS, "clip_value": 0.2}),
    ("ppo", False, {"lr": {"kind": "adaptive", "kl": 1e-4}, "critic_inputs": ["observation", "state"]}),
    ("ppo_published", True, {}),
    ("a2c", True, {"normalize_advantage": True}),
    ("pqn", True, {"rnd": {"coefficient": 1.0}, "epsilon": _FALLS, **_NORMALIZED}),
]


@exhaustive(("agent", "choices", "options"), _GROUPS, quick=2)
def test_groups_of_agents(agent: str, choices: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    state = "critic_inputs" in options
    recorded = compared(agent, lambda: Crowd(choices=choices, state=state), options, monkeypatch)
    assert recorded.agent._recorded["learning from a batch"].replays
    assert 0.2 < recorded.seen[-1]["agents/active"].float().mean() < 0.9


_POOLS: list[tuple[list[str], dict[str, Any]]] = [
    (["low"], {"snapshot_every": 100, "at_once": 2}),
    (["self", "low", "random"], {"sampler": "pfsp"}),
]


@exhaustive(("players", "options"), _POOLS)
def test_opponents(
    players: list[str], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They act under masks; results count once a batch; a snapshot takes the place of another while replays go on."""
    opponents = {"players": players, "side": "both", "refresh": 5, "evaluation": ["low"], **options}
    plays: list[tuple[SelfPlay, Any]] = []
    replayed: list[tuple[Any, list[str]]] = []

    def joined(now: int, env: Any, agent: Any, collector: Any) -> None:
        if now == 0:
            config = {"agent": to_plain(agent.config), "env": {"name": DUEL, "opponents": {}}, "total_frames": 10_000}
            training: Any = SimpleNamespace(env=env, agent=agent, raw_config=config, ranks=SimpleNamespace(count=1))
            training.run, training.event = SimpleNamespace(path=tmp_path / str(len(plays))), lambda line: None
            made = SelfPlay.of(training)
            assert made is not None
            plays.append((made, training))
            return
        play, training = plays[-1]
        training.frames = 40 * now
        play.on_batch(training, None, {})  # type: ignore[arg-type]
        graphs = [part.graph for part in collector._recorded._recordings.values() if part.graph is not None]
        replayed.append((graphs[0] if graphs else None, list(env._names)))

    make = partial(envs.make, DUEL, num_worlds=6, opponents=opponents)
    compared("ppo", make, {"epochs": 1, "minibatch_size": 24}, monkeypatch, change=joined, count=16, steps=6)
    pools = [training.env.pool for _, training in plays]
    assert pools[0].state_dict() == pools[1].state_dict() and pools[0].ratings.rating(LEARNER) != 1500
    assert sum(entry.games > 0 for entry in pools[0].entries) >= 3
    if "snapshot_every" in options:
        pairs = list(pairwise(replayed))
        assert any(graph is later and graph and names != seated for (graph, names), (later, seated) in pairs)


class Simulator(Drift):
    """A world whose steps a recording could neither repeat nor undo."""

    saves_episodes = False
    calls = 0

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        Simulator.calls += 1
        return super()._advance(tensordict)


def test_simulators_outside_torch_make_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with rehearsing(monkeypatch):
        before = Simulator.calls
        made = Iterations("ppo", Simulator(), {}, count=7, steps=4)
    assert made.replayed == (False, True)
    assert Simulator.calls - before == 7 * 4


def test_masks_of_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    compared("ppo", lambda: Drift(choices=True, masked=True), {}, monkeypatch)
    compared("dqn", lambda: Drift(choices=True, masked=True), {}, monkeypatch)


@exhaustive("number", [3, 1, 2, 5])
def test_a_loaded_state_is_taken_over(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(now: int, _: Any, agent: Any, __: Any) -> None:
        if now == number:
            agent.load_state_dict(deepcopy(agent.state_dict()))

    compared("ppo", Drift, {}, monkeypatch, change=load)


@pytest.mark.slow
def test_a_stage_has_rules_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def enter(now: int, env: Any, *_: Any) -> None:
        if now == 5:
            env.set_stage(0)

    make = partial(envs.make, "arena", num_worlds=6, stage=5, start_phases=[4], max_steps=80)
    compared("ppo", make, {"minibatch_size": 200}, monkeypatch, change=enter, count=10, steps=40)


def test_a_collector_that_no_longer_explores(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(now: int, _: Any, __: Any, collector: Any) -> None:
        if now == 5:
            collector.exploration_type = ExplorationType.DETERMINISTIC

    compared("sac", Drift, {}, monkeypatch, change=stop, explore=None)


@exhaustive(("agent", "choices"), [("dqn", True), ("ppo", True), ("sac", False), ("td3", False)])
def test_agents_with_a_recurrent_core_act_in_recordings(
    agent: str, choices: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they learn is not recorded."""
    core = {"kind": "gru", "size": 8, "sequence_length": 4}
    options = {"recurrent": core, **options_of(agent, random_frames=0)}
    recorded = compared(agent, lambda: Drift(choices=choices), options, monkeypatch)
    assert "memory" in recorded.seen[-1]


_RETRACE = {"replay": {"sampler": "prioritized"}, "correction": "retrace", "n_step": 3}


@exhaustive(
    ("agent", "world", "options", "allowed"),
    [
        ("sac", Drift, {"n_step": 3, **_NORMALIZED}, 0),
        ("dqn", partial(Drift, choices=True), _RETRACE, 0),
        ("td3", Crowd, {"n_step": 2, **_NORMALIZED}, 2),  # how many frames, and which decisions are written
        ("pqn", partial(Crowd, choices=True), {}, 0),
    ],
)
def test_iterations_wait_for_nothing(
    agent: str, world: Any, options: dict[str, Any], allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing into a replay buffer and drawing from it included."""
    waits, begun = HostWaits(), 6

    def watch(number: int, *_: Any) -> None:
        if number == begun:
            waits.__enter__()
        elif number == begun + 1:
            waits.__exit__(None, None, None)

    with rehearsing(monkeypatch):
        Iterations(agent, world(), options, change=watch, count=begun + 2)
    assert waits.count == allowed, waits.places


@pytest.mark.parametrize("known", [True, False])
def test_a_policy_that_does_not_say_what_it_depends_on_is_not_recorded(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recurrent one says when its random frames end."""
    core = {"kind": "lstm", "size": 8, "sequence_length": 4}
    found = []
    for records in (False, True):
        with rehearsing(monkeypatch) if records else nullcontext():
            torch.manual_seed(0)
            env = Drift(choices=True)
            agent = rlstack.make_agent("dqn", env, recurrent=core, random_frames=150, epsilon=0.0)
            policy: Any = agent.policy(explore=True)
            collector: Any = make_collector(env, policy if known else TensorDictSequential(policy), 4)
            batches, seen = iter(collector), []
            for number in range(12):
                seen.append(next(batches)["action"].clone())
                agent.set_frames(24 * (number + 1))
            found.append(seen)
    assert collector._recorded.replays is known
    torch.testing.assert_close(found[1], found[0])
