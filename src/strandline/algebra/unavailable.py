r"""Debezium's placeholder of a value that PostgreSQL did not send, because a long value stayed as it was.

Debezium writes ``__debezium_unavailable_value`` in the type of the column:

- a text, a JSON document or an enum: the text; bytes: its bytes, in JSON in base 64 or, if so configured, in hex;
- an array of texts, bytes or UUIDs: the one element that the text, its bytes or their UUID (version 3) are;
- an array of numbers, dates or moments: its 28 bytes as numbers, of a decimal with a scale as unscaled ones;
- an array of booleans: 28 times true, which an array may well hold (`AMBIGUOUS`);
- an hstore: a map of the text to the text, or the JSON text of that map; a map may also be written as its entries;
- a geometry: a point that is nowhere.

The value alone decides whether it is one of these, whatever type its column has here.  The forms are texts of JSON, so
that Spark's expressions and Python's values are judged by the same patterns.

Debezium: ``UnchangedToastedPlaceholder``, ``unavailable.value.placeholder``.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from hashlib import md5
from typing import Any, Final
from uuid import UUID

PLACEHOLDER: Final = "__debezium_unavailable_value"
_BYTES: Final = PLACEHOLDER.encode()
_UUID: Final = str(UUID(bytes=md5(_BYTES, usedforsecurity=False).digest(), version=3))
TEXTS: Final = (PLACEHOLDER, b64encode(_BYTES).decode(), _BYTES.hex(), _UUID)
"""The texts of one value."""
OF_A_KEY: Final[tuple[str | bytes, ...]] = (*TEXTS, _BYTES)
"""What a column of the key has, which is of a plain type."""
_GEOMETRIES: Final = tuple(
    b64encode(bytes.fromhex(wkb)).decode()
    for wkb in (
        "0101000020E6100000000000FC83D797C1000000FC83D797C1",
        "0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640",
    )
)
_SCALE_MAX: Final = 38
NOISE: Final = r"\s+|(?<![0-9.])0[0.]*+|[.]"
"""What of an array's text goes, so that only the digits of its numbers remain."""
_END: Final = r"(?![\s\S])"
"""The end of a text: Java and Python have no escape for it in common."""
_TEXT: Final = "(?:" + "|".join(map(re.escape, TEXTS)) + ")"
_ONE: Final = rf'"{_TEXT}"'
_NAME: Final = r'"[^"\\]*+"\s*+:\s*+'
_ENTRY: Final = rf"(?:\[\s*+{_ONE}\s*+,\s*+{_ONE}\s*+\]|\{{\s*+{_NAME}{_ONE}\s*+,\s*+{_NAME}{_ONE}\s*+\}})"
CONTAINER: Final = rf"(?:\[\s*+(?:{_ONE}|{_ENTRY})\s*+\]|\{{\s*+{_ONE}\s*+:\s*+{_ONE}\s*+\}})"
"""A pattern of the arrays and maps of texts."""
QUOTED: Final = rf"(?:{_ONE}|{CONTAINER})"
"""A pattern of what a JSON object has as a member, apart from numbers and geometries."""
FORM: Final = (
    rf"\A(?:{_TEXT}|{CONTAINER}|"
    rf'\{{[^{{}}]*"wkb"\s*+:\s*+"(?:{"|".join(map(re.escape, _GEOMETRIES))})"[^{{}}]*\}}){_END}'
)
"""A pattern of all forms but numbers: a text is itself, without quotes, and all else is a text of JSON."""
_TRUE: Final = rf"true(?:\s*+,\s*+true){{{len(_BYTES) - 1}}}"
AMBIGUOUS: Final = rf"\A\[\s*+{_TRUE}\s*+\]{_END}"
"""A pattern of what may be a placeholder, or a value."""
_FIRSTS: Final = "".join(sorted({each[0] for each in (*TEXTS, *_GEOMETRIES)}))
_LITERALS: Final = "|".join(f"(?<={each[0]}){re.escape(each[1:])}" for each in (*TEXTS, *_GEOMETRIES))
_FIRST: Final = b64encode(_BYTES[:1]).decode()
_ARRAYS: Final = (
    rf'[0.]*+95[\s,.0]++95[\s,.0]++1|"{_FIRST}"|\{{\s*+"scale"\s*+:\s*+0\s*+,\s*+"value"\s*+:\s*+"{_FIRST}"|{_TRUE}'
)
ANYWHERE: Final = rf"[{_FIRSTS}\[](?:{_LITERALS}|(?<=\[)\s*+(?:{_ARRAYS}))"
"""A pattern that is found in each message that has a placeholder, and in few others.

It begins with a class of rare letters, because it searches all messages.
"""


def digits(text: str) -> str:
    """Return the text of an array without what `NUMBERS` lack.

    >>> digits("[0.95, 1.00, 95]"), digits("[95.0]")
    ('[95,100,95]', '[950]')
    """
    return re.sub(NOISE, "", text)


_BASE64: Final = [b64encode(bytes([byte])).decode() for byte in _BYTES]
NUMBERS: Final = frozenset(
    digits(json.dumps(array, separators=(",", ":")))
    for array in (
        *([byte * 10**scale for byte in _BYTES] for scale in range(_SCALE_MAX + 1)),
        _BASE64,
        [{"scale": 0, "value": each} for each in _BASE64],
    )
)
"""The placeholders of arrays of numbers (`digits`): at each scale, in base 64, and with a scale of their own."""


IN_THE_KEY: Final = "Debezium did not send it: set REPLICA IDENTITY FULL upstream"
INSIDE: Final = "Debezium's placeholder of a value that it did not send stands inside it"
LEFT_OPEN: Final = "28 times true may be Debezium's placeholder of a value that it did not send, or the value"


class Sent(Enum):
    """Whether a value was sent."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


def sent(value: Any) -> Sent:
    """Return whether a value, as Avro, Protobuf or JSON give it to Python, was sent or is a placeholder.

    >>> [sent(value).value for value in ("a", PLACEHOLDER, [PLACEHOLDER.encode()], {PLACEHOLDER: PLACEHOLDER})]
    ['yes', 'no', 'no', 'no']
    >>> [sent(value).value for value in ([*PLACEHOLDER.encode()], [*PLACEHOLDER.encode()][1:], [True] * 28)]
    ['no', 'yes', 'unknown']
    """
    text = _text(value)
    if text is None or re.search(ANYWHERE, text) is None:
        return Sent.YES
    if re.match(FORM, text) is not None or (text[:1] == "[" and digits(text) in NUMBERS):
        return Sent.NO
    return Sent.UNKNOWN if re.match(AMBIGUOUS, text) is not None else Sent.YES


def _text(value: Any) -> str | None:
    """Return a value as text, as `FORM` has it; None if it has none of the forms."""
    match value:
        case str():
            return value
        case bytes() | UUID():
            return str(_plain(value))
        case list() if len(value) in {1, len(_BYTES)}:
            return f"[{','.join(map(_json, value))}]"
        case Mapping() if len(value) <= len(_GEOMETRIES) + 1:
            return _json(value)
        case _:
            return None


def _json(value: Any) -> str:
    match value:
        case Decimal():
            return format(value, "f") if value.is_finite() else "null"
        case _:
            return json.dumps(value, default=_plain, separators=(",", ":"), ensure_ascii=False)


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return b64encode(value).decode()
        case Mapping():
            return dict(value)
        case _:
            return str(value)
