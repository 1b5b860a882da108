"""Which strings are Blob keys.

A key is a ``/``-separated path of segments of ``[A-Za-z0-9._=-]``, none of them ``.`` or ``..``: so a key can be a path
below a directory, an object's name in any store, and part of a URL, unchanged.  Every implementation of Blob refuses
anything else, so that what works in memory works on disk.

Source: design page "persist"; `strandline.store.blob`.
"""

from __future__ import annotations

import re
from typing import Final

from strandline.errors import InvalidUsage

KEY_CHARS_MAX: Final = 1024
"""What the common object stores allow."""
SEGMENT_CHARS_MAX: Final = 200
"""What every file system allows (255), with room for the suffix of a temporary file."""
assert SEGMENT_CHARS_MAX <= KEY_CHARS_MAX

_SEGMENT: Final = rf"(?!\.\.?(?:/|\Z))[A-Za-z0-9._=-]{{1,{SEGMENT_CHARS_MAX}}}"
_KEY: Final = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_PREFIX: Final = re.compile(rf"(?:{_SEGMENT}(?:/{_SEGMENT})*/?)?")


def is_key(text: str) -> bool:
    """Tell whether ``text`` may be a key.

    >>> is_key("parts/s1/part-0.parquet"), is_key("a/../b"), is_key("/a"), is_key("a b"), is_key("")
    (True, False, False, False, False)
    """
    return len(text) <= KEY_CHARS_MAX and _KEY.fullmatch(text) is not None


def check_key(key: str) -> None:
    """Refuse what is not a key, with `InvalidUsage`."""
    if not is_key(key):
        raise InvalidUsage(f"{key!r} is not a Blob key: segments of [A-Za-z0-9._=-] between slashes, never '.' or '..'")


def check_prefix(prefix: str) -> None:
    """Refuse what no key can start with, with `InvalidUsage`.  The empty prefix is every key's.

    >>> for prefix in ("", "parts", "parts/", "parts/s1/pa"):
    ...     check_prefix(prefix)
    """
    if len(prefix) > KEY_CHARS_MAX or _PREFIX.fullmatch(prefix) is None:
        raise InvalidUsage(f"no Blob key starts with {prefix!r}")
