"""The comparison of policies under partial observation: its results, and the network with attention."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
import torch

from experiments.against import SHOWN
from experiments.echelon import memory
from experiments.echelon.contacts import Net
from experiments.runs import Job
from rlstack.envs.echelon.observation import CONTACT, SELF, SOUNDS, size


def test_attention_takes_nothing_from_contacts_that_are_unknown() -> None:
    torch.manual_seed(0)
    net, x = Net(size(5), 7), torch.randn(2, size(5))
    contacts = x[:, SELF + SOUNDS :][:, : 9 * CONTACT].view(2, 9, CONTACT)
    contacts[..., 13] = 1.0
    contacts[:, 4, 13] = 0.0
    before = net(x)
    contacts[:, 4, :13] = 5.0
    torch.testing.assert_close(net(x), before)
    contacts[:, 5, :13] = 5.0
    assert not torch.allclose(net(x), before)


def test_new_seeds_join_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {**dict.fromkeys(SHOWN, 1.0), "train/success": 0.5}

    def train(jobs: list[Job], parallel: int) -> list[Path]:
        for seed, folder, _ in jobs:
            (folder / f"seed{seed}").mkdir(parents=True)
            with open(folder / f"seed{seed}" / "metrics.csv", "w", newline="") as file:
                writer = csv.DictWriter(file, list(columns))
                writer.writeheader()
                writer.writerows([{**columns, "frames": frames} for frames in (1, 2)])
        return [folder / f"seed{seed}" for seed, folder, _ in jobs]

    judged = dict.fromkeys(("success", "hp_margin", "length", "frames", "cpu_minutes"), 0.5)
    monkeypatch.setattr(memory, "train", train)
    monkeypatch.setattr(memory, "judge", lambda *_: judged)
    for seed in ("0", "1"):
        words = ["--kinds", "lstm", "--seeds", seed, "--folder", str(tmp_path / "runs"), "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["memory", *words])
        memory.main()
    assert json.loads((tmp_path / "memory.json").read_text()) == {"lstm": {"0": judged, "1": judged}}
    rows = csv.DictReader((tmp_path / "memory.csv").read_text().splitlines())
    assert [(row["seed"], row["frames"]) for row in rows] == [("0", "1"), ("0", "2"), ("1", "1"), ("1", "2")]
