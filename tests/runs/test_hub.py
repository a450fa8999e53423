"""``rlstack push`` and ``hf:<user>/<name>``, against a server here with the API calls of the Hugging Face Hub."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import rlstack
from rlstack.agents import Interface
from rlstack.config import ConfigError
from rlstack.data.recordings import save_arrays
from rlstack.envs import make
from rlstack.evaluation.results import Evaluation
from rlstack.runs import hub
from rlstack.runs.checkpoint import write_checkpoint
from rlstack.runs.loading import read_agent
from rlstack.runs.run_directory import published_file
from rlstack.training.recorded import read_recorded
from tests.play.duel import NAME, constant_run
from tests.refusals import refused

pytest.importorskip("safetensors")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Repositories by kind and name: files by path; ``asked`` are the tokens that requests held."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: list[str] = []


class Handler(BaseHTTPRequestHandler):
    """Creates repositories, takes commits, lists and sends files."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != "Bearer hf_right":
            self.answer({"error": "Invalid username or password."}, 401)
            return
        address = f"http://127.0.0.1:{self.server.server_port}"
        parts = self.path.strip("/").split("/")
        if parts[1:] == ["repos", "create"]:
            given = json.loads(body)
            name = f"{given.get('type', 'model')}s/{given['organization']}/{given['name']}"
            self.server.repositories.setdefault(name, {})
            self.server.private += [name] if given.get("private") or given.get("visibility") == "private" else []
            self.answer({"url": f"{address}/{name.removeprefix('models/')}", "name": name.partition("/")[2]})
            return
        if parts[1] == "validate-yaml":
            self.answer({"errors": [], "warnings": []})
            return
        files = self.server.repositories["/".join(parts[1:4])]
        if parts[4] == "preupload":
            given = [file["path"] for file in json.loads(body)["files"]]
            self.answer({"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in given]})
        elif parts[4] == "commit":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer({"commitOid": COMMIT, "commitUrl": f"{address}/{parts[2]}/{parts[3]}/commit/{COMMIT}"})

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[0] == "api":
            name = "/".join(parts[1:4])
        else:
            parts = parts if parts[0] == "datasets" else ["models", *parts]
            name = "/".join(parts[:3])
        files = self.server.repositories.get(name)
        if files is None:
            self.answer({"error": "Repository not found"}, 404, **{"X-Error-Code": "RepoNotFound"})
        elif parts[0] != "api":
            content = files["/".join(parts[5:])]
            self.answer(content, ETag=f'"{hashlib.sha1(content).hexdigest()}"')
        elif parts[4] == "tree":
            sizes = {file: len(content) for file, content in files.items()}
            self.answer([{"type": "file", "path": file, "size": size, "oid": "0"} for file, size in sizes.items()])
        else:
            siblings = [{"rfilename": file} for file in files]
            self.answer({"id": "/".join(parts[2:4]), "sha": COMMIT, "siblings": siblings})

    do_HEAD = do_GET


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub")
    running = Hub()
    threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{running.server_port}")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    yield running
    running.shutdown()
    running.server_close()


def test_an_agent_goes_to_the_hub_and_back(server: Hub) -> None:
    address = rlstack.push("zoo:marinenav", "me/sailor", license="apache-2.0", quiet=True)
    files = server.repositories["models/me/sailor"]
    assert address.endswith("/me/sailor") and not server.private
    assert sorted(files) == ["README.md", "SHA256SUMS", "config.json", "film.mp4", "model.safetensors"]
    sums = dict(line.split("  ")[::-1] for line in files["SHA256SUMS"].decode().splitlines())
    assert sums == {name: hashlib.sha256(files[name]).hexdigest() for name in files.keys() - {"SHA256SUMS"}}
    card = files["README.md"].decode()
    assert "license: apache-2.0" in card and "success_rate" in card and "film.mp4" in card and "hf:me/sailor" in card
    pushed = read_agent(hub.hub_file("hf:me/sailor"))
    original = read_agent(published_file("zoo:marinenav"))
    torch.testing.assert_close(pushed["agent"], original["agent"], rtol=0, atol=0)  # tuples count as lists
    assert pushed["frames"] == original["frames"]
    loaded = rlstack.load("hf:me/sailor@main")
    env = loaded.make_env(2)
    policies = (loaded.agent.policy(explore=False), rlstack.load_policy("hf:me/sailor", env))
    begun = env.reset()
    first, second = (policy(begun.clone()).get(("agents", "action")) for policy in policies)
    assert torch.equal(first, second)


def test_transitions_go_to_the_hub_and_back(server: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "recorded"
    folder.mkdir()
    for index in range(2):
        flags = {"terminated": torch.zeros(5, 1, dtype=torch.bool), "truncated": torch.zeros(5, 1, dtype=torch.bool)}
        following = {"observation": torch.rand(5, 4), "reward": torch.full((5, 1), float(index)), **flags}
        row = {"observation": torch.rand(5, 4), "action": torch.zeros(5, dtype=torch.int64), "next": following}
        save_arrays(folder / f"part{index}.npz", TensorDict(row, [5]))
    rlstack.push(folder, "me/poles", private=True, quiet=True)
    assert server.private == ["datasets/me/poles"]
    assert "data=hf:me/poles" in server.repositories["datasets/me/poles"]["README.md"].decode()
    interface = Interface.of(make("cartpole", num_worlds=1))
    found, wanted = (read_recorded(source, interface) for source in ("hf:me/poles", str(folder)))
    assert found.digest == wanted.digest and found.ordered and len(found.data) == 10


@pytest.mark.parametrize(
    ("start", "shown"),
    [
        (["/home/me/.venv/bin/rlstack", "train"], "rlstack train agent=acqn 'agent.hidden=[8, 8]'"),
        (["-m", "rlstack", "train"], "rlstack train agent=acqn 'agent.hidden=[8, 8]'"),
        (["-m", "rlstack.train"], "rlstack train agent=acqn 'agent.hidden=[8, 8]'"),
        (
            ["-m", "rlstack.train", "data=/home/me/x"],
            "rlstack train agent=acqn 'agent.hidden=[8, 8]' data=<recorded transitions>",
        ),
        (["-m", "rlstack.train", "init=runs/a"], "rlstack train agent=acqn 'agent.hidden=[8, 8]' init=<checkpoint>"),
        (["-m", "rlstack.train", "seed=5", "seeds=4"], "rlstack train agent=acqn 'agent.hidden=[8, 8]' seed=7"),
        (["-m", "rlstack.train", "init=null"], "rlstack train agent=acqn 'agent.hidden=[8, 8]'"),
        (["/home/me/.venv/bin/rlstack", "league", "train"], None),
        (["/home/me/.venv/bin/rlstack", "train", "-m", "seed=0,1"], None),
    ],
)
def test_a_card_shows_the_command_of_the_training(start: list[str], shown: str | None, tmp_path: Path) -> None:
    state = read_agent(published_file("zoo:marinenav"))
    write_checkpoint(tmp_path / "agent.pt", {**state, "config": {**state["config"], "seed": 7}}, state["frames"])
    command = [*start, "agent=acqn", "agent.hidden=[8, 8]", "run_dir=/home/me/run"]
    (tmp_path / "environment.json").write_text(json.dumps([{"command": command}]))
    rlstack.push(tmp_path / "agent.pt", "me/sailor", film="none", out=str(tmp_path / "made"), quiet=True)
    card = (tmp_path / "made/README.md").read_text()
    assert ("## Training" in card) is (shown is not None) and (shown is None or f"```\n{shown}\n```" in card)


def test_a_card_names_the_environment_of_another_library(tmp_path: Path) -> None:
    state = read_agent(published_file("zoo:marinenav"))
    state["config"]["env"] = {"name": "gymnasium", "id": "CartPole-v1"}
    write_checkpoint(tmp_path / "agent.pt", state, state["frames"])
    rlstack.push(tmp_path / "agent.pt", "me/cart", out=str(tmp_path / "made"), quiet=True)
    card = (tmp_path / "made/README.md").read_text()
    assert "\n# acqn in CartPole-v1\n" in card and "- gymnasium\n- CartPole-v1\n" in card


def test_what_a_strangers_agent_names_is_refused(server: Hub, tmp_path: Path) -> None:
    state = read_agent(published_file("zoo:marinenav"))
    state["config"]["agent"]["network"] = "os:system"
    write_checkpoint(tmp_path / "own" / "agent.pt", state, state["frames"])
    rlstack.push(tmp_path / "own" / "agent.pt", "me/hostile", film="none", quiet=True)
    refused(ConfigError, r"names 'os:system', which is used only if you allow it", rlstack.load, "hf:me/hostile")


def test_files_that_were_changed_are_refused(server: Hub) -> None:
    rlstack.push("zoo:marinenav", "me/changed", film="none", quiet=True)
    server.repositories["models/me/changed"]["config.json"] += b" "
    message = "hf:me/changed: config.json is missing, or not the file of SHA256SUMS"
    refused(ConfigError, message, rlstack.load, "hf:me/changed")


def test_servers_that_refuse_are_told_in_one_line(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(ConfigError, r"hf:me/nobody: cannot be downloaded \(", rlstack.load, "hf:me/nobody")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    message = r"to: me/x cannot be written .*hf auth login"
    refused(ConfigError, message, rlstack.push, "zoo:marinenav", "me/x", quiet=True)


@pytest.mark.parametrize(
    ("words", "keys", "message"),
    [
        ((), {}, "what and to: missing"),
        (("zoo:marinenav", "sailor"), {}, "to: 'sailor' is not of the form <user>/<name>"),
        (("zoo:marinenav", "me/x"), {"film": "no.mp4"}, "film: no.mp4 is not a file .mp4 or .gif"),
        (("runs/no", "me/x"), {}, "what: runs/no does not exist"),
        (("data.npz", "me/x"), {}, "what: data.npz does not exist"),
    ],
)
def test_wrong_arguments_are_refused(words: Any, keys: Any, message: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    refused(ConfigError, message, rlstack.push, *words, out="made", quiet=True, **keys)


def test_a_card_says_of_how_many_frames_its_scores_are(tmp_path: Path) -> None:
    run = constant_run(tmp_path / "run", 1, frames=2000)
    told = []
    for frames in (1500, 2000):
        Evaluation({"return": torch.tensor([4.0])}, ["all"], NAME, {}, 0).save(run / f"evaluations/{frames:012d}.json")
        rlstack.push(run, "me/one", out=str(tmp_path / str(frames)), quiet=True)
        card = (tmp_path / str(frames) / "README.md").read_text()
        told.append("Of the agent after 1,500 frames" in card)
        assert "Trained by rlstack for 2,000 frames." in card and "| return | 4 |" in card
    assert told == [True, False]


def test_the_files_can_be_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "rows.npz", reward=np.zeros((3, 1)))
    assert rlstack.push("rows.npz", "me/rows", out="made", quiet=True) == "made"
    assert hub.check_sums(tmp_path / "made") == [tmp_path / "made" / "rows.npz"]
    (tmp_path / "made" / "rows.npz").write_bytes(b"other")
    refused(ConfigError, "rows.npz is missing, or not the file of SHA256SUMS", hub.check_sums, tmp_path / "made")
    refused(ConfigError, "out: made exists already", rlstack.push, "rows.npz", "me/rows", out="made", quiet=True)
    refused(ConfigError, "film: is for agents", rlstack.push, "rows.npz", "me/rows", film="none", out="m", quiet=True)
