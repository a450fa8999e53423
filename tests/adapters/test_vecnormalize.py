"""Observation statistics of Stable-Baselines3, and pickles that attempt something else."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlstack.adapters.sb3.vecnormalize import VecNormalize, load_vecnormalize
from rlstack.config import ConfigError, build
from tests.exhaustive import recordings
from tests.refusals import refused

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/sb3"


@recordings("sb3/*_vecnormalize.pkl", "sb3/*_vecnormalize.pkl")
def test_recorded_statistics(path: Path) -> None:
    """Reads the expected statistics, and normalises as recorded."""
    statistics = load_vecnormalize(path)
    expected = json.loads(path.with_name(path.stem + "_expected.json").read_text())
    assert build(VecNormalize, expected) == statistics
    with np.load(path.with_name(path.name.replace("_vecnormalize.pkl", "_io.npz"))) as file:
        keys = statistics.obs_keys
        names = [("raw", "norm")] if keys is None else [(f"raw_{key}", f"norm_{key}") for key in keys]
        raw, norm = (torch.from_numpy(np.concatenate([file[name] for name in part], -1)) for part in zip(*names))
    ours = statistics.normalise(raw)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, norm, rtol=0, atol=1e-6)


def statistics(**changes: Any) -> VecNormalize:
    entries: dict[str, Any] = {"clip_obs": 2.0, "clip_reward": 10.0, "gamma": 0.9, "epsilon": 0.0, "norm_obs": True}
    entries |= {"norm_reward": True, "obs_mean": [1.0, 0.0], "obs_var": [4.0, 0.25], "obs_count": 3.0}
    entries |= {"ret_mean": [0.0], "ret_var": [1.0], "ret_count": 3.0}
    return build(VecNormalize, entries | changes)


def test_normalising() -> None:
    seen = torch.tensor([[2.0, 0.5], [9.0, -9.0]], dtype=torch.float64)
    assert statistics().normalise(seen).tolist() == [[0.5, 1.0], [2.0, -2.0]]
    assert statistics(obs_mask=[True, False]).normalise(seen).tolist() == [[0.5, 0.5], [2.0, -9.0]]
    assert torch.equal(statistics(norm_obs=False).normalise(seen), seen.float())
    assert statistics(obs_var=[0.0, 0.0], epsilon=0.25).normalise(seen)[0].tolist() == [2.0, 1.0]


def test_json_files_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "normalisation.json"
    path.write_text(json.dumps(asdict(statistics())))
    assert load_vecnormalize(path) == statistics()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"surplus": 1}, "surplus: unknown key"),
        ({"obs_var": [1.0]}, "differs in length"),
        ({"obs_mean": [1.0, float("nan")]}, r"obs_mean\[1\]: nan is outside"),
        ({"obs_mean": ["a", "b"]}, r"obs_mean\[0\]: expected a number"),
    ],
)
def test_entries_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, statistics, **change)
    with pytest.raises(ConfigError, match="obs_mean: missing"):
        build(VecNormalize, {key: value for key, value in asdict(statistics()).items() if key != "obs_mean"})


# -- hostile and broken pickles ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["builtins\neval", "numpy\nload", "numpy.core.multiarray\n_reconstruct.__class__", "rlstack.config\nos"]
)
def test_allowed_modules_are_no_way_around(tmp_path: Path, name: str) -> None:
    path = tmp_path / "statistics.pkl"
    path.write_bytes(b"c" + name.encode() + b"\n.")
    refused(ConfigError, "refused", load_vecnormalize, path)


def test_a_pickle_cannot_change_what_stands_in(tmp_path: Path) -> None:
    """Writing to one of our classes (BUILD on the class itself) fails, and the next file is read as before."""
    path = tmp_path / "statistics.pkl"
    for name in (b"numpy\nndarray", b"numpy.core.multiarray\nscalar", b"_codecs\nencode", b"collections\nOrderedDict"):
        path.write_bytes(b"\x80\x02c" + name + b"\n}X\x05\x00\x00\x00codes}s\x86b.")
        refused(ConfigError, "not the statistics", load_vecnormalize, path)
    test_recorded_statistics(FIXTURES / "a2c_multi_default_vecnormalize.pkl")
