"""The catalogue of options, read from the yaml files and their comments."""

from pathlib import Path

import pytest
import yaml

from rlstack import envs
from rlstack.config import ConfigError, catalogue, load_group
from rlstack.config.catalogue import Option
from tests.refusals import refused

YAML = """\
# A thing: python -m rlstack.train agent=thing
# More of it.
name: thing
algorithm: original

# sizes
hidden: [64, 64]            # widths, see
                            # the paper
kind: late                  # late | early (sooner) | <other>
either: x                   # of both: either | or
nested:                     # of two
  deep: null                # cpu | gpu: if there is one
  on: true

# rest
list:
  - 1
  - 2
words: "a # b"              # no comment inside
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent" / "more").mkdir(parents=True)
    (tmp_path / "agent" / "thing.yaml").write_text(YAML)
    (tmp_path / "agent" / "original.yaml").write_text("# The first.\nlist: []   # of numbers\n")
    (tmp_path / "agent" / "mine.yaml").write_text("defaults: [thing, _self_]\nkind: early\nextra: 1  # of mine\n")
    (tmp_path / "agent" / "more" / "deep.yaml").write_text("# @package _global_\n# Deep.\n")
    return tmp_path


def test_keys_with_defaults_comments_and_headings(folder: Path) -> None:
    found = catalogue.options(folder / "agent" / "thing.yaml")
    assert found == [
        Option("name", "thing"),
        Option("algorithm", "original"),
        Option("hidden", "[64, 64]", "widths, see the paper", "sizes"),
        Option("kind", "late", "late | early (sooner) | <other>", "sizes"),
        Option("either", "x", "of both: either | or", "sizes"),
        Option("nested", "", "of two", "sizes"),
        Option("nested.deep", "null", "cpu | gpu: if there is one"),
        Option("nested.on", "true"),
        Option("list", "- 1 - 2", "", "rest"),
        Option("words", '"a # b"', "no comment inside", "rest"),
    ]
    choices = {option.key: option.choices for option in found if option.choices}
    assert choices == {"kind": ["late", "early"], "nested.deep": ["cpu", "gpu"], "nested.on": ["false", "true"]}


def test_a_file_takes_over_what_it_builds_on_and_what_is_said_there(folder: Path) -> None:
    found = {option.key: option for option in catalogue.group_options("agent", "mine", [folder])}
    assert found["kind"] == Option("kind", "early", "late | early (sooner) | <other>", "sizes")
    assert found["extra"].comment == "of mine" and found["hidden"].value == "[64, 64]"
    assert found["list"] == Option("list", "- 1 - 2", "of numbers", "rest")  # from the algorithm's own file


def test_names_and_headlines(folder: Path) -> None:
    assert catalogue.names("agent", [folder]) == ["mine", "original", "thing", "more/deep"]
    assert catalogue.headline(folder / "agent" / "thing.yaml") == "A thing"
    assert catalogue.headline(folder / "agent" / "more" / "deep.yaml") == "Deep."
    refused(ConfigError, "agent: no option 'thign', did you mean 'thing'", catalogue.find, "agent", "thign", [folder])


@pytest.mark.parametrize("text", ["a: [1\n", "- 1\n"])
def test_a_broken_file_is_named(folder: Path, text: str) -> None:
    (folder / "agent" / "thing.yaml").write_text(text)
    refused(ConfigError, r"thing\.yaml", catalogue.options, folder / "agent" / "thing.yaml")


@pytest.mark.parametrize(("group", "name"), [("agent", "ppo"), ("agent", "acqn_published"), ("env", "marinenav")])
def test_every_key_is_there_with_its_value(group: str, name: str) -> None:
    plain = load_group(group, name)
    for option in catalogue.group_options(group, name, catalogue.folders()):
        value = plain
        for part in option.key.split("."):
            value = value[part]
        if option.value:
            assert yaml.safe_load(option.value) == value, option
    leaves = {option.key.partition(".")[0] for option in catalogue.group_options(group, name, catalogue.folders())}
    assert leaves == set(plain)


@pytest.mark.parametrize(
    "name", ["arena", "cartpole", "echelon", "gymnasium", "marinenav", "pettingzoo", "rocket", "torchrl"]
)
def test_the_yaml_of_a_world_has_every_option_of_its_constructor(name: str) -> None:
    """Each option can then be given on the command line; options that the run sets are excluded."""
    of_some = {"observation_keep", "opponents"}  # for flat observations, and for worlds with two sides
    assert set(envs.options_of(name)) - {"device", "seed"} - of_some <= set(load_group("env", name))


def test_every_shipped_agent_and_world_says_what_it_is_in_one_line() -> None:
    where = catalogue.folders()
    for group in ("agent", "env", "logger", "curriculum"):
        for name in catalogue.names(group, where):
            line = catalogue.headline(catalogue.find(group, name, where))
            assert 10 < len(line) <= 130 and not line.endswith((" and", ",")), (group, name, line)


def test_a_command_knows_its_groups_and_what_it_builds_on() -> None:
    train, diagnose = catalogue.read_command("train"), catalogue.read_command("diagnose")
    assert train.groups == {
        **{"agent": "acqn", "env": "marinenav", "collector": "default", "logger": "tensorboard"},
        **{"curriculum": None, "experiment": None},
    }
    assert train.extends is None and diagnose.extends == "train" and diagnose.groups == {}
    assert "eval.every" in [option.key for option in train.options]
