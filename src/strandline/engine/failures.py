"""What Spark says about stored rows, in our words.

Source: `strandline/errors.py` (whose move it is); design page "persist" (an accumulated diff < 0 is an error that names
the row); "compute" (ANSI: a row that fails to evaluate).
"""

from __future__ import annotations

import re
from typing import Final

from strandline.engine.inline import NEGATIVE
from strandline.errors import CollectionError, CorruptionError, StrandlineError

_UNREADABLE: Final = re.compile(r"\[FAILED_READ_FILE[A-Z_.]*\]\s*([^\n]*)")
_NEGATIVE: Final = re.compile(re.escape(NEGATIVE) + r"[^\n]*")
_DATA: Final = re.compile(r"\[([A-Z][A-Z0-9_.]*)\]\s*([^\n]*?)\s*SQLSTATE: 22")
"""SQLSTATE class 22 is the data exception: a value that the expression has no answer for."""
_STATE: Final = re.compile(r"\s*SQLSTATE:.*")


def told(error: Exception) -> StrandlineError | None:
    """Return our error for what Spark found wrong with stored rows; None for any other error.

    Known by its text, because the class depends on the call: PySpark's own from most, py4j's from ``toArrow``.
    """
    text = str(error)
    if found := _NEGATIVE.search(text):
        return CollectionError(_STATE.sub("", found[0]))
    if found := _UNREADABLE.search(text):
        return CorruptionError(f"a part fails its check: {_STATE.sub('', found[1])}")
    if found := _DATA.search(text):
        return CollectionError(f"a row cannot be evaluated: {found[1]}: {found[2]}")
    return None
