"""Messages about a run to a webhook: its end, its failure, every new best."""

from __future__ import annotations

import json
import queue
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterable, MutableSequence
from contextlib import suppress
from types import TracebackType
from urllib.parse import urlsplit

from typing_extensions import Self

from rlstack import __version__

KEY = "notify"
_TIMEOUT = 5.0  # s for an answer, and at the end of a run for all that is still to be sent
_LONGEST = 1900  # characters; Discord takes 2000
_WAITING = 100  # messages; more are dropped


class Notices:
    """Posts messages as JSON from a thread of its own; a run neither waits for it nor ends because of it.

    The body has the message twice: as ``content``, which Discord shows, and as ``text``, which Slack shows. What goes
    wrong is a warning, once. As a context manager it tells of an exception, and waits a few seconds for what is still
    to be sent.

    Args:
        url: of the webhook, a secret that no message of ours shows; None sends nothing.
        run: whose name every message begins with.
    """

    def __init__(self, url: str | None, run: str) -> None:
        self._url, self._run = url, run
        self._queue: queue.Queue[str] = queue.Queue(_WAITING)
        self._fault, self._warned = "", False
        self._thread: threading.Thread | None = None

    def tell(self, message: str) -> None:
        """Sends a message, some time soon."""
        self._warn()
        if self._url is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=KEY, daemon=True)
            self._thread.start()
        with suppress(queue.Full):
            self._queue.put_nowait(f"rlstack, {self._run}: {message}"[:_LONGEST])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            said = str(error).strip().partition("\n")[0]
            interrupted = issubclass(kind, KeyboardInterrupt)
            self.tell("interrupted" if interrupted else f"failed: {kind.__name__}: {said}")
        with self._queue.all_tasks_done:  # as Queue.join does, but no longer than that
            if not self._queue.all_tasks_done.wait_for(lambda: not self._queue.unfinished_tasks, _TIMEOUT):
                self._fault = self._fault or "no answer in time"
        self._warn()

    def _work(self) -> None:
        while True:
            fault = _post(str(self._url), self._queue.get())
            self._fault = self._fault or fault
            self._queue.task_done()

    def _warn(self) -> None:
        if self._fault and not self._warned:
            self._warned = True
            host = urlsplit(str(self._url)).hostname
            warnings.warn(f"{KEY}: {host} has not taken a message ({self._fault})", RuntimeWarning, stacklevel=3)


def _post(url: str, message: str) -> str:
    """Sends a message; returns what went wrong, without the address, or nothing."""
    body = json.dumps({"content": message, "text": message}).encode()
    # Discord refuses the name that urllib gives itself.
    headers = {"Content-Type": "application/json", "User-Agent": f"rlstack/{__version__}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=_TIMEOUT):
            return ""
    except urllib.error.HTTPError as error:
        return f"HTTP status {error.code}"
    except Exception as error:  # whatever it is, the run goes on
        reason = getattr(error, "reason", error)
        return str(reason) if isinstance(reason, OSError) else type(error).__name__


def check_address(url: str | None) -> None:
    """Makes sure that an address may be one of a webhook.

    Raises:
        ValueError: it is not; the message does not show it.
    """
    if url is None:
        return
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable() and " " not in url
    except ValueError:
        sound = False
    if not sound:
        raise ValueError(f"{KEY}: not an address of the form https://<host>/<path>, or null")


def concealed(arguments: Iterable[str]) -> list[str]:
    """Command-line arguments without the address of a webhook."""
    return [f"{KEY}=***" if entry.lstrip("+").startswith(f"{KEY}=") else entry for entry in arguments]


def conceal(*commands: MutableSequence[str]) -> None:
    """Takes the address of a webhook out of commands, such as ``sys.argv``, which loggers write down."""
    for command in commands:
        command[:] = concealed(command)
