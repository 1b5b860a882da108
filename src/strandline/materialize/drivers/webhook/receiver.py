"""Requests to a receiver: one POST at a time, what its answer means, and the small POSTs of triggers.

| answer | meaning |
| --- | --- |
| 2xx | it has the changes |
| 408, 409, 425, 429, 5xx, none | it may have them: send them again, later; not before `Retry-After` |
| 400, 413, 415, 422 and other 4xx | it refuses this content, now and later: a dead letter |
| 3xx, 401, 403, 404, 405, 407, 410 | it is not the receiver, or does not let us in: no request would be taken |

A trigger is one small POST to a URL, on a connection of its own.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final

from strandline.errors import ConfigError, first_line
from strandline.materialize.drivers.threads import to_its_end
from strandline.materialize.drivers.webhook.options import WebhookEndpoint
from strandline.store.secret import Secret

SHOWN_MAX: Final = 300
"""How much of an answer a message shows."""
READ_MAX: Final = 64 * 1024
RETRY_AFTER_SECONDS_MAX: Final = 300
"""A receiver that wants to be left alone for longer is asked again all the same."""
_LATER: Final = frozenset({408, 409, 425, 429})
_ELSEWHERE: Final = frozenset({401, 403, 404, 405, 407, 410})


class Meaning(Enum):
    """See the module."""

    TAKEN = auto()
    LATER = auto()
    REFUSED = auto()
    ELSEWHERE = auto()


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; ``status`` None: none came.  ``text`` says why, as far as it was said."""

    status: int | None
    text: str
    retry_after: str | None = None

    @property
    def meaning(self) -> Meaning:
        """What follows from it.

        >>> [Reply(status, "").meaning.name for status in (204, 503, 422, 301, None)]
        ['TAKEN', 'LATER', 'REFUSED', 'ELSEWHERE', 'LATER']
        """
        match self.status:
            case None:
                return Meaning.LATER
            case status if 200 <= status < 300:
                return Meaning.TAKEN
            case status if status >= 500 or status in _LATER:
                return Meaning.LATER
            case status if status < 400 or status in _ELSEWHERE:
                return Meaning.ELSEWHERE
        return Meaning.REFUSED

    def __str__(self) -> str:
        if self.status is None:
            return f"does not answer: {self.text}"
        return f"answers {self.status}{f': {self.text[:SHOWN_MAX]}' if self.text else ''}"

    def pause(self, now_ms: int) -> float:
        """Return how many seconds the receiver wants to be left alone.

        >>> Reply(429, "", "7").pause(0), Reply(503, "", "Thu, 01 Jan 1970 00:00:10 GMT").pause(4_000)
        (7.0, 6.0)
        >>> Reply(429, "", "soon").pause(0), Reply(429, "", "86400").pause(0)
        (0.0, 300.0)
        """
        wanted = self.retry_after
        if wanted is None:
            return 0.0
        if wanted.strip().isdecimal():
            return float(min(int(wanted), RETRY_AFTER_SECONDS_MAX))
        try:
            at = parsedate_to_datetime(wanted)
        except ValueError:
            return 0.0
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        return min(max(0.0, at.timestamp() - now_ms / 1000), float(RETRY_AFTER_SECONDS_MAX))


class Receiver:
    """One connection to the receiver, made when it is first asked; every call blocks for a bounded time."""

    def __init__(self, options: WebhookEndpoint) -> None:
        self._options = options
        self._context = self._trusting() if options.url.startswith("https") else None
        self._connection: HTTPConnection | None = None

    def _trusting(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cadata=self._options.tls_ca)
        except ssl.SSLError as error:
            raise ConfigError(f"option 'tls_ca' holds no certificates: {first_line(error)}") from None

    def post(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Send a request and return the answer."""
        token = {} if self._options.token is None else {"Authorization": f"Bearer {_text(self._options.token)}"}
        try:
            connection = self._connected()
            connection.request("POST", self._options.target, body, {**headers, **token})
            answer = connection.getresponse()
            text = answer.read(READ_MAX).decode(errors="replace")
            if not answer.isclosed():  # there is more of it, which no one reads
                self.close()
            return Reply(answer.status, " ".join(text.split()), answer.headers.get("Retry-After"))
        except (OSError, HTTPException) as error:
            self.close()
            return Reply(None, first_line(error))

    def close(self) -> None:
        """End the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> HTTPConnection:
        if self._connection is None:
            host, port = self._options.place
            seconds = self._options.request_timeout / 1000
            self._connection = (
                HTTPConnection(host, port, timeout=seconds)
                if self._context is None
                else HTTPSConnection(host, port, timeout=seconds, context=self._context)
            )
        return self._connection


def _text(secret: Secret) -> str:
    text = secret.reveal()
    if not text.isascii() or not text.isprintable():
        raise ConfigError("option 'token' must be a line of ASCII characters")
    return text


ANSWER_MS_MAX: Final = 10_000


class WebhookTrigger:
    """Calls a URL.  Raises `ValueError` if that is none."""

    def __init__(self, url: str) -> None:
        self._options = WebhookEndpoint(url=url, request_timeout=ANSWER_MS_MAX)

    async def __call__(self, body: bytes, key: str) -> str:
        """Send ``body``; return why it was not taken, for messages, or nothing.  ``key``: the same for a repetition."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}

        def post() -> str:
            with closing(Receiver(self._options)) as receiver:
                reply = receiver.post(body, headers)
            return "" if reply.meaning is Meaning.TAKEN else f"{self._options.origin} {reply}"

        return await to_its_end(post)
