"""The server of a live page: what it shows, and what it refuses."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from rlstack.config import ConfigError
from rlstack.reporting.document import report
from rlstack.reporting.serving import FILES, LivePage, server_of
from tests.refusals import refused
from tests.reporting.made_runs import config, make_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret.mp4").write_bytes(b"outside")
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def server(folder: Path) -> Iterator[ThreadingHTTPServer]:
    page = LivePage(folder, partial(report, folder, films_from=FILES))
    with server_of(page, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def asked(
    server: ThreadingHTTPServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, answer.headers


def test_the_page_follows_the_runs(server: ThreadingHTTPServer, folder: Path) -> None:
    status, content, headers = asked(server, "/")
    assert status == 200 and b"nothing to show yet" in content and b"holds no runs" in content
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    run = make_run(folder / "run", config(total_frames=400))
    status, content, headers = asked(server, "/")
    assert b"train/return" in content and b'src="plotly.js"' in content and b'id="live"' in content
    assert asked(server, "/")[1] == content
    with (run / "metrics.csv").open("a") as file:
        file.write("300,9.0,,,,,30,27\n")
    status, newer, _ = asked(server, "/")
    assert status == 200 and b"75%" in newer


def test_plotly_and_films_are_served_whole_or_in_parts(server: ThreadingHTTPServer, folder: Path) -> None:
    run = make_run(folder / "a run", config())
    film = run / "evaluations/final/best 1.mp4"
    film.parent.mkdir(parents=True)
    film.write_bytes(bytes(range(100)))
    assert b'src="files/a%20run/evaluations/final/best%201.mp4#t=0.1"' in asked(server, "/")[1]
    address = "/files/a%20run/evaluations/final/best%201.mp4"
    status, content, headers = asked(server, address)
    assert (status, content, headers["Content-Type"]) == (200, film.read_bytes(), "video/mp4")
    status, content, headers = asked(server, address, Range="bytes=10-19")
    assert (status, list(content), headers["Content-Range"]) == (206, [*range(10, 20)], "bytes 10-19/100")
    assert asked(server, address, Range="bytes=90-")[1] == bytes(range(90, 100))
    assert asked(server, address, Range="bytes=100-")[0] == 416
    assert asked(server, address, "HEAD")[:2] == (200, b"")
    assert len(asked(server, "/plotly.js")[1]) > 1_000_000


@pytest.mark.parametrize(
    "path",
    [
        "/files/../secret.mp4",
        "/files/%2e%2e/secret.mp4",
        "/files/..%2Fsecret.mp4",
        "/files/link.mp4",
        "/files/linked/secret.mp4",
        "/files//etc/hostname.png",
        "/files/run/config.yaml",
        "/files/run/metrics.csv",
        "/files/%00.mp4",
        "/files/",
        "/run/x.mp4",
        "/secret.mp4",
        "//secret.mp4",
    ],
)
def test_only_films_below_the_folder_are_served(path: str, server: ThreadingHTTPServer, folder: Path) -> None:
    make_run(folder / "run", config())
    (folder / "link.mp4").symlink_to(folder.parent / "secret.mp4")
    (folder / "linked").symlink_to(folder.parent)
    status, content, _ = asked(server, path)
    assert status == 404 and b"outside" not in content


@pytest.mark.parametrize(
    ("host", "status"), [("localhost:9", 200), ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("", 403)]
)
def test_only_names_of_this_machine_are_answered(host: str, status: int, server: ThreadingHTTPServer) -> None:
    assert asked(server, "/", Host=host)[0] == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(method: str, server: ThreadingHTTPServer) -> None:
    assert asked(server, "/", method)[0] == 501


def test_it_listens_on_this_machine_alone(server: ThreadingHTTPServer, folder: Path) -> None:
    assert server.server_address[0] == "127.0.0.1"
    page = LivePage(folder, partial(report, folder))
    refused(ConfigError, "^port: .* cannot be had .*port=0", server_of, page, server.server_port)
