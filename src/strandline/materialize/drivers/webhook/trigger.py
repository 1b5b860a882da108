"""Triggers: one small POST to a URL, each on a connection of its own."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from strandline.materialize.drivers.threads import to_its_end
from strandline.materialize.drivers.webhook.options import WebhookEndpoint
from strandline.materialize.drivers.webhook.receiver import Meaning, Receiver

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
