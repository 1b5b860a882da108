"""Exit statuses, and what is said when a command ends in an error: one sentence, no traceback.

Source: design page "the public face" (exit 0 ok, 1 failed, 2 usage, 3 difference found, 4 fenced).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from strandline.errors import FencedError, StrandlineError

TRACEBACK_VARIABLE: Final = "STRANDLINE_TRACEBACK"
"""Set to 1 to see where an error came from, and what Spark writes on standard error."""


class Exit(IntEnum):
    """What a command's exit status means.  2 (usage) is given by the parser of the command line itself."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DIFFERENCE = 3
    FENCED = 4


def exit_of(error: StrandlineError) -> Exit:
    """Return the exit status for an error.

    >>> exit_of(FencedError("gone")), exit_of(StrandlineError("no"))
    (<Exit.FENCED: 4>, <Exit.FAILED: 1>)
    """
    return Exit.FENCED if isinstance(error, FencedError) else Exit.FAILED


def wants_traceback(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether whoever runs this wants to see everything.

    >>> wants_traceback({}), wants_traceback({"STRANDLINE_TRACEBACK": "1"})
    (False, True)
    """
    return environment.get(TRACEBACK_VARIABLE, "") not in {"", "0"}
