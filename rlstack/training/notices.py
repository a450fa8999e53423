"""Messages to a webhook about a run: its end, its failure, and every new best evaluation."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from typing_extensions import Self

from rlstack import __version__

from .hooks import Hook, Training

if TYPE_CHECKING:
    from rlstack.evaluation.evaluator import Evaluation

KEY = "notify"
_TIMEOUT = 5.0  # s for an answer, and at the end of a run for all pending messages
_LONGEST = 1900  # characters; Discord's limit is 2000


class Notices(Hook):
    """Posts messages as JSON from a separate thread; a run neither waits for it nor ends because of it.

    The body has the message twice: as ``content``, which Discord shows, and as ``text``, which Slack shows. A failure
    causes one warning. As a hook it posts every new best evaluation and the end of the run; as a context manager it
    posts a message about an exception, and waits a few seconds for pending messages.

    Args:
        url: address of the webhook, a secret that no output shows; None sends nothing.
        run: name of the run, with which every message begins.
    """

    def __init__(self, url: str | None, run: str) -> None:
        self._url, self._run = url, run
        self._pool = ThreadPoolExecutor(1, KEY)  # whose thread starts with the first message
        self._sent: list[Future[str]] = []
        self._warned = False

    def tell(self, message: str) -> None:
        """Queues a message."""
        self._warn()
        if self._url is not None:
            self._sent.append(self._pool.submit(_post, self._url, f"rlstack, {self._run}: {message}"[:_LONGEST]))

    def on_evaluation(self, training: Training, evaluation: Evaluation, is_best: bool) -> None:
        if is_best:
            self.tell(f"new best at {training.frames:,} frames: {evaluation.in_words()}")

    def on_end(self, training: Training) -> None:
        if training.evaluation is not None:
            self.tell(f"ended at {training.frames:,} frames: {training.evaluation.in_words()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            reason = str(error).strip().partition("\n")[0]
            interrupted = issubclass(kind, KeyboardInterrupt)
            self.tell("interrupted" if interrupted else f"failed: {kind.__name__}: {reason}")
        late = wait(self._sent, _TIMEOUT).not_done
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._warn("no answer in time" if late else "")

    def _warn(self, fault: str = "") -> None:
        """Warns once of a message that was not taken."""
        answers = [sent.result() for sent in self._sent if sent.done() and not sent.cancelled()]
        fault = next(filter(None, [*answers, fault]), "")
        if fault and not self._warned:
            self._warned = True
            host = urlsplit(str(self._url)).hostname
            warnings.warn(f"{KEY}: {host} has not taken a message ({fault})", RuntimeWarning, stacklevel=3)


def _post(url: str, message: str) -> str:
    """Sends a message; returns a description of the failure, without the address, or an empty string."""
    body = json.dumps({"content": message, "text": message}).encode()
    # Discord refuses urllib's default user agent.
    headers = {"Content-Type": "application/json", "User-Agent": f"rlstack/{__version__}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=_TIMEOUT):
            return ""
    except urllib.error.HTTPError as error:
        return f"HTTP status {error.code}"
    except Exception as error:  # no failure of a message ends the run
        reason = getattr(error, "reason", error)
        return str(reason) if isinstance(reason, OSError) else type(error).__name__


def check_address(url: str | None) -> None:
    """Checks that an address may be that of a webhook.

    Raises:
        ValueError: it cannot be; the message does not show it.
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
    """Returns command-line arguments without the address of a webhook."""
    return [f"{KEY}=***" if entry.lstrip("+").startswith(f"{KEY}=") else entry for entry in arguments]
