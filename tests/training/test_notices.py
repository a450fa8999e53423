"""A webhook hears of the end, a failure and every new best; its address stays secret, and it never harms a run."""

from __future__ import annotations

import json
import sys
import threading
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rlstack.config import build
from rlstack.config.allowed import granting
from rlstack.config.errors import RunError
from rlstack.train import _resumed
from rlstack.training import notices
from rlstack.training.config import TrainConfig
from rlstack.training.interrupt import Interrupted
from rlstack.training.loop import Training
from rlstack.training.notices import Notices, check_address, concealed
from rlstack.training.run import train
from tests.conftest import Command
from tests.training.test_failures import AtFrame, plain

SECRET = "T0PS3CRET"


class Webhook:
    """A local server that keeps what it receives, and answers as it is told to."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, dict[str, str], Any]] = []
        self.status = 204
        self.holds = threading.Event()
        self.holds.set()
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                webhook.taken.append((self.path, dict(self.headers), json.loads(body)))
                webhook.holds.wait(20)
                self.send_response(webhook.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hooks/{SECRET}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def texts(self) -> list[str]:
        return [body["text"] for _, _, body in self.taken]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    started = Webhook()
    yield started
    started.holds.set()
    started.server.shutdown()
    started.server.server_close()


def test_a_message_is_one_that_discord_and_slack_show(webhook: Webhook) -> None:
    with Notices(webhook.url, "ppo_seed0") as told:
        told.tell('a "new" best \N{BLACK STAR}' + 3000 * "x")
    [(path, headers, body)] = webhook.taken
    assert path == f"/hooks/{SECRET}" and headers["Content-Type"] == "application/json"
    assert headers["User-Agent"].startswith("rlstack/")
    assert set(body) == {"content", "text"} and body["content"] == body["text"]
    assert body["text"].startswith('rlstack, ppo_seed0: a "new" best \N{BLACK STAR}x') and len(body["text"]) <= 2000


def test_a_run_tells_of_new_bests_and_its_end_and_keeps_the_secret(
    webhook: Webhook, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("argv", "orig_argv"):
        monkeypatch.setattr(sys, name, ["train", "seed=0", f"notify={webhook.url}"])
    options = plain(tmp_path / "run", f"notify={webhook.url}", "total_frames=64", "eval.every=32")
    train(options)
    assert [text.partition(": ")[0] for text in webhook.texts] == ["rlstack, run"] * len(webhook.texts)
    first, *_, last = [text.partition(": ")[2] for text in webhook.texts]
    assert first.startswith("new best at 32 frames: return ") and last.startswith("ended at 64 frames: return ")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert any("notify=***" in path.read_text() for path in files if path.name == "environment.json")
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err + repr(build(TrainConfig, options)) + str(sys.argv)


def test_an_address_in_a_run_that_came_from_elsewhere_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlstack.train.given_overrides", list)
    stranger = plain(tmp_path, f"notify=https://host/{SECRET}", "total_frames=64")
    (tmp_path / "config.yaml").write_text(json.dumps(stranger))
    with granting(stranger):
        assert stranger["notify"] and _resumed({**stranger, "resume": str(tmp_path)})["notify"] is None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RunError("not finite: reward\nis nan"), "failed: RunError: not finite"),
        (KeyboardInterrupt(), "interrupted"),
        (Interrupted(), "interrupted"),
    ],
)
def test_failures_are_told(
    error: BaseException, message: str, webhook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(Training, "prepare", lambda self: None)
    with pytest.raises(type(error)):
        train(plain(tmp_path / "run", f"notify={webhook.url}", "total_frames=64"), [AtFrame(32, fails)])
    assert webhook.texts[-1].startswith(f"rlstack, run: {message}")


def failing(webhook: Webhook, how: str) -> str:
    if how == "hangs":
        webhook.holds.clear()
    if how == "refuses":
        webhook.status = 404
    return webhook.url if how != "is not there" else f"http://127.0.0.1:9/{SECRET}"


@pytest.mark.parametrize(
    ("how", "fault"), [("refuses", "HTTP status 404"), ("hangs", ""), ("is not there", "Connection refused")]
)
def test_a_webhook_that_fails_is_one_warning(
    how: str, fault: str, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_TIMEOUT", 0.3 if how == "hangs" else 20.0)
    with warnings.catch_warnings(record=True) as caught, Notices(failing(webhook, how), "run") as told:
        warnings.simplefilter("always")
        for number in range(3):
            told.tell(f"message {number}")
    [warning] = caught
    assert str(warning.message).startswith("notify: 127.0.0.1 has not taken a message (") and fault in str(
        warning.message
    )
    assert SECRET not in str(warning.message)


@pytest.mark.parametrize("url", ["ftp://host/T0PS3CRET", "T0PS3CRET", "https:///T0PS3CRET", "http://a b/T0PS3CRET"])
def test_what_is_no_address_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match=r"^notify: not an address of the form https://<host>/<path>, or null$"):
        check_address(url)


def test_commands_do_not_show_it(rlstack_command: Command) -> None:
    ended = rlstack_command("train", f"notify={SECRET}")
    assert ended.status == 2 and ended.err.startswith("error: notify: not an address") and SECRET not in ended.err
    ended = rlstack_command("train", f"notify=https://host/{SECRET}?a=[b")
    assert ended.status == 2 and "notify=***" in ended.err and SECRET not in ended.err
    assert concealed(["+notify=x", "seed=1"]) == ["notify=***", "seed=1"]
