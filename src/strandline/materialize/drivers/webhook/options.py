"""The options of a webhook endpoint.

CREATE MATERIALIZATION alerts INTO webhook OPTIONS (url 'https://example.org/hooks', token 'env:HOOK_TOKEN',
    delta 'true') AS late_orders KEY (id)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from strandline.connections.addresses import PORTS, SECRET, Address, of_url
from strandline.options import COUNT, DURATION_MS, PLACE, TEXT, option
from strandline.store.secret import Secret

REQUEST_BYTES_MIN: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WebhookEndpoint:
    """Where changes are sent, and how.

    >>> WebhookEndpoint(url="https://me:pw@h/x?token=y")
    WebhookEndpoint('https://h')
    """

    url: str = option(PLACE, "Where to POST, `https://…`, or by reference if it holds a secret.")
    token: Secret | None = option(SECRET, "Sent as `Authorization: Bearer …`, by reference.", default=None)
    signing_secret: Secret | None = option(
        SECRET,
        "Requests are signed with it (Standard Webhooks, HMAC-SHA256), by reference; `whsec_` and base64, or any text.",
        default=None,
    )
    tls_ca: str | None = option(
        PLACE, "The certificates to trust, as PEM, by reference; without it, those of this machine.", default=None
    )
    batch_rows: int = option(COUNT, "How many changes a request has at most.", default="500")
    max_request_size: int = option(COUNT, "How many bytes a request has at most.", default="1000000")
    request_timeout: int = option(DURATION_MS, "How long an answer may take.", default="30s")
    max_retries: int = option(
        COUNT, "How often a request is repeated before the task begins the transaction anew.", default="8"
    )
    retry_backoff: int = option(
        DURATION_MS,
        "How long to wait before the first repetition; each time twice as long, up to a minute.",
        default="500ms",
    )
    dead_letters: str | None = option(
        TEXT,
        "A directory that keeps the requests whose content the receiver refuses; without it, the task stops at them.",
        default=None,
    )

    def __post_init__(self) -> None:
        """Raise `ValueError` if options do not go together, or the URL is none."""
        parts = urlsplit(self.url)
        if parts.scheme not in PORTS or not parts.hostname or not self.url.isascii() or " " in self.url:
            raise ValueError("option 'url' must be a URL, as https://example.org/hooks")
        if self.tls_ca is not None and parts.scheme != "https":
            raise ValueError("option 'tls_ca' needs a url that begins with https://")
        if not self.batch_rows or not self.request_timeout:
            raise ValueError("options 'batch_rows' and 'request_timeout' must be more than 0")
        if self.max_request_size < REQUEST_BYTES_MIN:
            raise ValueError(f"option 'max_request_size' must be {REQUEST_BYTES_MIN} at least")

    def __repr__(self) -> str:
        return f"WebhookEndpoint({self.origin!r})"

    def addresses(self) -> Sequence[Address]:
        """See `Reaching`."""
        return of_url(self.url)

    @property
    def place(self) -> tuple[str, int]:
        """The host and the port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or PORTS[parts.scheme]

    @property
    def origin(self) -> str:
        """What of the URL may be shown: the rest may be a secret, as the path of a chat's webhook is."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    @property
    def target(self) -> str:
        """Path and query."""
        parts = urlsplit(self.url)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookResource:
    """What the changes of a collection are called."""

    table: str = option(TEXT, "The name in `resource` of each request.")
