"""What Spark says about stored rows, in our words.

Source: `strandline/errors.py` (whose move it is); design page "persist" (an accumulated diff < 0 is an error that names
the row).
"""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from strandline.engine.inline import NEGATIVE
from strandline.errors import CollectionError, CorruptionError

FROM_SPARK: Final = (PySparkException, Py4JJavaError)
"""What a failed job raises; which of the two depends on the call that ran it."""
_UNREADABLE: Final = re.compile(r"\[FAILED_READ_FILE[A-Z_.]*\]\s*([^\n]*)")
_NEGATIVE: Final = re.compile(re.escape(NEGATIVE) + r"[^\n]*")
_STATE: Final = re.compile(r"\s*SQLSTATE:.*")


def told(error: Exception) -> Exception:
    """Return our error for what Spark found wrong with stored rows; any other error as it is."""
    text = str(error)
    if found := _NEGATIVE.search(text):
        return CollectionError(_STATE.sub("", found[0]))
    if found := _UNREADABLE.search(text):
        return CorruptionError(f"a part fails its check: {_STATE.sub('', found[1])}")
    return error
