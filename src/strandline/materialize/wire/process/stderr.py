"""What a connector writes to stderr: the end of it is kept, and its last line says why the connector failed.

A line may be a text, or JSON as structured logs write it (``msg`` or ``message``, with ``error`` or ``err``).  Texts
that are secret do not appear in what `Tail.last` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from strandline.store.secret import SHOWN, Secret

KEPT_BYTES: Final = 64 << 10
LINE_MAX: Final = 1_000
"""How much of the last line a message shows."""
_SECRET_MIN: Final = 3
"""Shorter texts are in many words: to hide them would hide nothing and garble all."""


class Tail:
    """The last bytes that were written."""

    def __init__(self, secrets: Sequence[Secret] = ()) -> None:
        self._kept = bytearray()
        self._secrets = secrets

    def add(self, data: bytes) -> None:
        """Keep ``data``, and drop what is too old."""
        self._kept += data[-KEPT_BYTES:]
        del self._kept[:-KEPT_BYTES]

    @property
    def last(self) -> str:
        """The last line that is not empty, for a message; an empty text if there is none."""
        lines = bytes(self._kept).decode("utf-8", "replace").split("\n")
        found = next((line.strip() for line in reversed(lines) if line.strip()), "")
        reason = _message(found)
        for secret in sorted(self._secrets, key=lambda each: -len(each.reveal())):
            if len(secret.reveal()) >= _SECRET_MIN:
                reason = reason.replace(secret.reveal(), SHOWN)
        return f"{reason[:LINE_MAX]}…" if len(reason) > LINE_MAX else reason


def _message(line: str) -> str:
    """Return what a line of a structured log says; any other line as it is.

    >>> _message('{"level":"fatal","msg":"failed","error":"no such host"}'), _message("plain")
    ('failed: no such host', 'plain')
    """
    try:
        found = msgspec.json.decode(line) if line.startswith("{") else None
    except msgspec.MsgspecError:
        return line
    if not isinstance(found, dict):
        return line
    parts = [_text(found, "msg", "message"), _text(found, "error", "err")]
    return ": ".join(part for part in parts if part) or line


def _text(found: dict[str, Any], *names: str) -> str:
    return next((str(found[name]) for name in names if found.get(name)), "")
