"""Records that could not be decoded, as the error half of a source holds them, and how they leave with upstream's help.

Such an error is a JSON object ``{"file", "line", "reason", "raw"}`` (a reader may write plain text instead).  An
undecodable record that upstream takes back is an error too, whose reason begins with `TAKES_BACK`.  The two *match* if
they agree in everything but where they stand: reason and raw text.  Matching errors cancel one another in pairs, so a
record that came and was taken back leaves no error, and one that was taken back and never came stays one.

Which of several matching errors is cancelled is definite: the first in the order of their text.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

NO_OBJECT: Final = "it is not a JSON object"
HALF_A_PAIR: Final = "it holds half of a surrogate pair, which is no character"
DIGITS_MAX: Final = 1_000
"""Spark's parser of JSON takes no longer numbers, and no deeper nesting: either could keep it busy for minutes."""
TOO_LONG: Final = f"it holds a number of more than {DIGITS_MAX} digits"
TOO_DEEP: Final = "it is nested too deep"
NAME_CHARS_MAX: Final = 50_000
"""That parser takes no longer names of fields, of columns or not, and has no setting for it."""
LONG_NAME: Final = f"it has a field whose name has more than {NAME_CHARS_MAX} characters"
TAKES_BACK: Final = "it takes back a record that is not here: "
RAW_CHARS_MAX: Final = 4_096
"""How much of an undecodable record an error holds."""
VALUE_CHARS_MAX: Final = 100
"""How much of a value its reason shows."""


def of_record(file: str, record: int, reason: str, raw: str) -> str:
    """Return the error of a record of a file that has no lines: its number, from 1, takes the line's place."""
    told = {"file": file, "record": record, "reason": reason, "raw": raw[:RAW_CHARS_MAX]}
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


class Told(NamedTuple):
    """What an error says besides where it stands: why, of which text, and whether it takes such a record back."""

    reason: str
    raw: str | None
    takes_back: bool


def parsed(error: str) -> Told:
    """Return what ``error`` says.

    >>> parsed('{"file":"b.csv","line":2,"reason":"it takes back a record that is not here: short","raw":"1"}')
    Told(reason='short', raw='1', takes_back=True)
    >>> parsed("no JSON")
    Told(reason='no JSON', raw=None, takes_back=False)
    """
    try:
        found = json.loads(error)
    except ValueError:
        found = None
    described = found if isinstance(found, dict) and isinstance(found.get("reason"), str) else {"reason": error}
    reason = str(described["reason"])
    return Told(reason.removeprefix(TAKES_BACK), described.get("raw"), reason.startswith(TAKES_BACK))


def cancelled(errors: Mapping[str, int]) -> dict[str, int]:
    """Return which of ``errors`` (how often each is there) cancel one another, and how often.

    >>> cancelled({"a": 2, "b": 1, TAKES_BACK + "a": 1})
    {'a': 1, 'it takes back a record that is not here: a': 1}
    """
    sides: dict[tuple[str, str | None], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for error in sorted(errors):
        reason, raw, takes_back = parsed(error)
        sides[reason, raw][takes_back].append(error)
    found: dict[str, int] = {}
    for both in sides.values():
        pairs = min(sum(errors[error] for error in side) for side in both)
        for side in both:
            left = pairs
            for error in side:
                taken = min(left, errors[error])
                left -= taken
                found |= {error: taken} if taken else {}
    return found
