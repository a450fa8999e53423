"""Serves the page of a folder on this machine, anew while its runs go on."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rlstack.config import ConfigError

from .differences import GroupComparison
from .document import KINDS, ReportPage, plotly, render

HOST = "127.0.0.1"
FILES = "files/"
_HOSTS = {HOST, "localhost"}
"""Names by which a browser may ask: a page of another site that resolves to this machine has another."""
_POLICY = "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
_POLICY += "img-src 'self' data: blob:; media-src 'self'; connect-src 'self'; frame-ancestors 'none'"
_AT_LEAST_EVERY = 60.0  # s; a process that was killed changes no file
_SHOWN, _NOT_SHOWN = (".csv", ".json", ".yaml", *KINDS), ("checkpoints", "tensorboard", "wandb")
"""Endings of files, and folders."""


@dataclass
class LivePage:
    """The page of a folder, made anew when a file that it shows has changed.

    Args:
        folder: a run, or any folder with runs below it.
        make: makes the page.
    """

    folder: Path
    make: Callable[[], ReportPage]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _made: tuple[Any, float, bytes] = (None, 0.0, b"")

    def html(self) -> bytes:
        """Returns the present page; what is wrong with the folder, such as that it has no runs yet, is on it."""
        with self._lock:
            files, (before, since, html) = self._files(), self._made
            if files != before or time.monotonic() - since > _AT_LEAST_EVERY:
                try:
                    page = self.make()
                except ConfigError as error:
                    nothing, notes = GroupComparison([], None), [(self.folder.name, str(error))]
                    page = ReportPage(self.folder.resolve().name, "nothing to show yet", [], [], nothing, notes)
                html = render(page, live=True).encode(errors="replace")
                self._made = (files, time.monotonic(), html)
            return html

    def _files(self) -> list[tuple[str, int, int]]:
        """Returns names, sizes and times of the files that a page may show."""
        shown = []
        for path, folders, files in os.walk(self.folder):
            folders[:] = [name for name in folders if name not in _NOT_SHOWN and not name.startswith(".")]
            for file in (os.path.join(path, name) for name in files if Path(name).suffix in _SHOWN):
                with suppress(OSError):  # it may have gone
                    shown.append((file, os.stat(file).st_size, os.stat(file).st_mtime_ns))
        return shown


class Answers(BaseHTTPRequestHandler):
    """Answers GET and HEAD: the page, plotly, and films and pictures below the folder; nothing else exists."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "rlstack", ""

    def __init__(self, page: LivePage, *arguments: Any) -> None:
        self._page = page
        super().__init__(*arguments)

    def do_GET(self) -> None:
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        path = unquote(urlsplit(self.path).path)
        if host not in _HOSTS:
            self.send_error(403, "this server is for this machine alone")
        elif path == "/":
            self._send(self._page.html(), "text/html; charset=utf-8", "no-cache")
        elif path == "/plotly.js":
            self._send(plotly(), "text/javascript", "max-age=86400")
        elif (file := self._file(path.removeprefix(f"/{FILES}"))) is not None and path.startswith(f"/{FILES}"):
            self._send_file(file)
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def _file(self, name: str) -> Path | None:
        """Returns a film or picture below the folder, also after links have been followed."""
        try:
            top = self._page.folder.resolve()
            path = (top / name).resolve()
            inside = path.is_relative_to(top) and path.suffix.lower() in KINDS and path.is_file()
        except (OSError, ValueError, RuntimeError):  # such as a null byte, or links in a circle
            return None
        return path if inside else None

    def _send(self, content: bytes, kind: str, cached: str) -> None:
        self.send_response(200)
        self._headers(kind, Cache_Control=cached, Content_Length=str(len(content)))
        if self.command == "GET":
            self.wfile.write(content)

    def _send_file(self, path: Path) -> None:
        """Sends a file, or the range of it that a player of films asks for."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            asked = re.fullmatch(r"bytes=(\d{1,15})-(\d{1,15})?", self.headers.get("Range", ""))
            first, last = (int(asked[1]), min(int(asked[2] or size), size - 1)) if asked else (0, size - 1)
            if asked and first > last:
                self.send_error(416)
                return
            self.send_response(206 if asked else 200)
            more = {"Content_Range": f"bytes {first}-{last}/{size}"} if asked else {}
            length = last - first + 1
            self._headers(KINDS[path.suffix.lower()], Content_Length=str(length), Accept_Ranges="bytes", **more)
            if self.command == "GET":
                file.seek(first)
                self.wfile.write(file.read(length)) if asked else shutil.copyfileobj(file, self.wfile)

    def _headers(self, kind: str, **headers: str) -> None:
        safe = {"Content_Security_Policy": _POLICY, "X_Content_Type_Options": "nosniff"}
        safe |= {"Content_Type": kind, "Referrer_Policy": "no-referrer"}
        for name, value in {**safe, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Prints nothing."""


def server_of(page: LivePage, port: int) -> ThreadingHTTPServer:
    """Returns a server of the page on this machine alone, not yet serving; port 0 takes any that is free.

    Raises:
        ConfigError: the port cannot be had.
    """
    try:
        return ThreadingHTTPServer((HOST, port), partial(Answers, page))
    except OSError as error:
        raise ConfigError(f"port: {port} cannot be had ({error.strerror}); port=0 takes one that is free") from None


def serve(page: LivePage, port: int) -> None:
    """Serves the page until Ctrl-C."""
    with server_of(page, port) as server:
        address = f"http://{HOST}:{server.server_port}/"
        print(f"{address} shows {page.folder}, for this machine alone; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended")
