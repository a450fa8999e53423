"""Groups of options, read as Hydra composes them, and what is suggested for unknown names."""

from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from rlstack import envs
from rlstack.config import ConfigError, conf_dir, groups, load_group, to_plain
from rlstack.config.errors import OF_OTHERS, did_you_mean, nearest, nearest_path, unknown_key
from rlstack.config.groups import compose_config
from tests.refusals import refused


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "ddpg.yaml").write_text("lr: 1e-3\nfrac: 1e6\nnet: {hidden: [64, 64], act: relu}\n")
    (tmp_path / "agent" / "td3.yaml").write_text(
        "defaults: [ddpg, _self_]\nlr: 3e-4\nnet: {act: elu}\ndouble: ${agent.lr}\n"
    )
    (tmp_path / "agent" / "broken.yaml").write_text("a: [1\nb: 2\n")
    monkeypatch.setattr(groups, "conf_dir", lambda: tmp_path)
    return tmp_path


def test_reads_plain_values(conf: Path) -> None:
    agent = load_group("agent", "ddpg")
    assert agent == {"lr": 0.001, "frac": 1e6, "net": {"hidden": [64, 64], "act": "relu"}}
    assert type(agent) is dict and type(agent["net"]["hidden"]) is list
    assert type(agent["lr"]) is type(agent["frac"]) is float


def test_inherits_and_merges_overrides(conf: Path) -> None:
    agent = load_group("agent", "td3", {"lr": 1.0, "net": {"hidden": [8]}, "frac": {"start": 1, "end": 0}})
    assert agent == {
        "lr": 1.0,
        "frac": {"start": 1, "end": 0},
        "net": {"hidden": [8], "act": "elu"},
        "double": 1.0,  # interpolations see the overrides
    }


def test_what_is_read_belongs_to_whoever_asked(conf: Path) -> None:
    load_group("agent", "td3")["net"]["act"] = "tanh"
    assert load_group("agent", "td3")["net"]["act"] == "elu"


def test_files_of_ones_own_come_first_and_say_what_they_build_on(conf: Path, tmp_path: Path) -> None:
    (tmp_path / "mine" / "agent" / "more").mkdir(parents=True)
    (tmp_path / "mine" / "agent" / "ddpg.yaml").write_text("lr: 1.0\n")
    (tmp_path / "mine" / "agent" / "more" / "deep.yaml").write_text("defaults: [td3, _self_]\n")
    files = groups.option_files("agent", [tmp_path / "mine"])
    assert list(files) == ["broken", "ddpg", "td3", "more/deep"] and files["ddpg"].is_relative_to(tmp_path / "mine")
    assert [path.stem for path, _ in groups.inherited("more/deep", files)] == ["deep", "td3", "ddpg"]


@pytest.mark.parametrize(
    "name",
    [
        "arena",
        "cartpole",
        "echelon",
        "gymnasium",
        "marinenav",
        "mjlab",
        "pettingzoo",
        "playground",
        "rocket",
        "torchrl",
    ],
)
def test_the_yaml_of_a_world_has_every_option_of_its_constructor(name: str) -> None:
    """Each option can then be seen before the world is imported; options that the run sets are excluded."""
    of_some = {"observation_keep", "opponents"}  # for flat observations, and for worlds with two sides
    assert set(envs.options_of(name)) - {"device", "seed"} - of_some <= set(load_group("env", name))


def test_a_command_knows_its_groups() -> None:
    choices = {"agent": "acqn", "env": "marinenav", "collector": "default", "logger": "tensorboard"}
    assert groups.default_choices("train") == {**choices, "curriculum": None, "experiment": None}
    assert groups.default_choices("explain") == {}


def test_unknown_option_lists_what_exists(conf: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_group("agent", "dpg")
    assert str(caught.value) == "agent: no option 'dpg', did you mean 'ddpg'? available: broken, ddpg, td3"
    refused(ConfigError, "available: none", load_group, "nope", "x")


def test_broken_yaml_is_one_line(conf: Path) -> None:
    refused(ConfigError, r"broken\.yaml", load_group, "agent", "broken")


def test_leaves_a_running_hydra_application_alone(conf: Path) -> None:
    before = GlobalHydra.instance().hydra
    load_group("agent", "ddpg")
    assert GlobalHydra.instance().hydra is before


def test_a_group_can_be_read_while_hydra_is_in_use() -> None:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        outer = GlobalHydra.instance().hydra
        assert load_group("agent", "acqn")["algorithm"] == "acqn"
        assert GlobalHydra.instance().hydra is outer


# -- Errors for misspelt names suggest the nearest name --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "candidates", "expected"),
    [
        ("ppoo", ["ppo", "a2c"], ["ppo"]),
        ("PPO", ["ppo", "a2c"], ["ppo"]),
        ("lrr", ["lr_critic", "gamma", "lr_actor"], ["lr_actor", "lr_critic"]),
        ("nun_worlds", ["num_worlds", "num_cores"], ["num_worlds"]),
        ("nope", ["agent", "seed"], []),
        ("x", [], []),
    ],
)
def test_nearest(name: str, candidates: list[str], expected: list[str]) -> None:
    assert nearest(name, candidates) == expected


def test_what_is_unknown_is_told_with_the_nearest_and_all_others() -> None:
    assert did_you_mean(7, ["a"]) == ""
    assert unknown_key("agent.lrr", ["lr", "gamma"]) == "agent.lrr: unknown key, did you mean 'lr'? allowed: gamma, lr"
    assert "'agent.lr'" in unknown_key("lr", ["agent", "seed"], ["agent.lr", "env.lr"])


@pytest.mark.parametrize(
    ("theirs", "allowed", "ours"),
    [
        ("ent_coef", ["encoders", "entropy_coefficient", "epochs"], "'entropy_coefficient'"),
        ("learning_rate", ["lr_actor", "lr_critic", "learning_starts"], "'lr_actor' or 'lr_critic'"),
        ("n_steps", ["steps_per_batch", "epochs"], "'steps_per_batch'"),
        ("net_arch", ["hidden", "network"], "'hidden'"),
        ("batch_size", ["minibatch_size", "batch"], "'minibatch_size'"),
        ("ent_coef", ["encoders"], "'encoders'"),  # as before where there is no such option
    ],
)
def test_options_of_other_libraries_are_known(theirs: str, allowed: list[str], ours: str) -> None:
    assert f"did you mean {ours}? " in unknown_key(f"agent.{theirs}", allowed)


def test_names_of_other_libraries_stand_for_options_that_exist() -> None:
    groups = [to_plain(compose_config("train", words)) for words in (["agent=ppo"], ["agent=sac"], ["agent=td3"])]
    groups += [to_plain(compose_config("train", ["agent=dqn", f"env={env}"])) for env in ("cartpole", "gymnasium")]
    known = {key for config in groups for part in (config, config["agent"], config["env"]) for key in part}
    assert set(OF_OTHERS) <= known


def test_paths(tmp_path: Path) -> None:
    right = tmp_path / "runs" / "ppo_arena_seed0_20260101"
    right.mkdir(parents=True)
    assert nearest_path(tmp_path / "runs" / "ppo_arna_seed0") == f", did you mean {str(right)!r}?"
    assert nearest_path(tmp_path / "rnus" / right.name) == f", did you mean {str(right)!r}?"
    assert nearest_path(tmp_path / "runs" / "other") == "" == nearest_path(right)
    (tmp_path / "file").touch()
    assert nearest_path(tmp_path / "file" / "below") == ""
