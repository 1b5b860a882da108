"""The syntax of Blob keys.

A key is a ``/``-separated path of segments of ``[A-Za-z0-9._=-]``, none of them ``.`` or ``..``: so a key can be a path
below a directory, an object's name in any store, and part of a URL, unchanged.  Every implementation of Blob refuses
any other string, so that a key that works in memory also works on disk.

See `strandline.store.blob`.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from strandline.errors import InvalidUsage

KEY_CHARS_MAX: Final = 1024
"""The longest key that the common object stores allow."""
SEGMENT_CHARS_MAX: Final = 200
"""The longest name that every file system allows (255), less room for the suffix of a temporary file."""
assert SEGMENT_CHARS_MAX <= KEY_CHARS_MAX

_ODD: Final = re.compile(rb"[^a-z0-9_-]")
_DIGEST_BYTES: Final = 16
_KEPT_CHARS: Final = SEGMENT_CHARS_MAX - 2 * _DIGEST_BYTES - len("==")
assert _KEPT_CHARS > 0

_SEGMENT: Final = rf"(?!\.\.?(?:/|\Z))[A-Za-z0-9._=-]{{1,{SEGMENT_CHARS_MAX}}}"
_KEY: Final = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_PREFIX: Final = re.compile(rf"(?:{_SEGMENT}(?:/{_SEGMENT})*/?)?")


def segment(text: str) -> str:
    """Return ``text`` as one segment of a key: different for each text, even on case-insensitive file systems.

    Each byte that is not a small letter, a digit, ``-`` or ``_`` becomes ``=`` and two hexadecimal digits.  A text that
    is too long is cut, and ends in ``==`` and a hash of the whole.

    >>> segment("s-7f"), segment("a/b"), segment(".."), segment("A") != segment("a")
    ('s-7f', 'a=2fb', '=2e=2e', True)
    >>> len(segment("x" * 1000)) == SEGMENT_CHARS_MAX and is_key(segment("x" * 1000))
    True
    """
    raw = text.encode("utf-8", "surrogatepass")
    written = _ODD.sub(lambda byte: b"=%02x" % ord(byte[0]), raw).decode() or "="
    if len(written) <= SEGMENT_CHARS_MAX:
        return written
    return f"{written[:_KEPT_CHARS]}=={blake2b(raw, digest_size=_DIGEST_BYTES).hexdigest()}"


def is_key(text: str) -> bool:
    """Return whether ``text`` is a valid key.

    >>> is_key("parts/s1/part-0.parquet"), is_key("a/../b"), is_key("/a"), is_key("a b"), is_key("")
    (True, False, False, False, False)
    """
    return len(text) <= KEY_CHARS_MAX and _KEY.fullmatch(text) is not None


def check_key(key: str) -> None:
    """Raise `InvalidUsage` if ``key`` is not a valid key."""
    if not is_key(key):
        raise InvalidUsage(f"{key!r} is not a Blob key: segments of [A-Za-z0-9._=-] between slashes, never '.' or '..'")


def check_prefix(prefix: str) -> None:
    """Raise `InvalidUsage` if no key can start with ``prefix``.  Every key starts with the empty prefix.

    >>> for prefix in ("", "parts", "parts/", "parts/s1/pa"):
    ...     check_prefix(prefix)
    """
    if len(prefix) > KEY_CHARS_MAX or _PREFIX.fullmatch(prefix) is None:
        raise InvalidUsage(f"no Blob key starts with {prefix!r}")
