"""Names as the wire allows them.

A name of a task or a collection is a *token* there: letters, digits, and a few signs.  Ours may be anything, so every
other byte is written as ``%`` and two hexadecimal digits; `untoken` turns a name back.  A *part* has no sign that means
something in a path, and is short.  A *pointer* names a field of a document (RFC 6901).
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

import xxhash

PART_MAX: Final = 160
_HASH_DIGITS: Final = 16


def token(name: str) -> str:
    """Return a name as a token.

    >>> token("acme/orders"), token("'; --~")
    ('acme/orders', '%27%3B%20--%7E')
    """
    return quote(name, safe="/+=-_.").replace("~", "%7E")


def untoken(text: str) -> str:
    """Return the name that a token stands for.

    >>> untoken(token("50% of 'é'"))
    "50% of 'é'"
    """
    return unquote(text, errors="surrogateescape")


def part(name: str) -> str:
    """Return a name as one component of a path, different for different names.

    >>> part("../a"), len(part("x" * 1000))
    ('%2E%2E%2Fa', 160)
    """
    whole = quote(name, safe="").replace("~", "%7E").replace(".", "%2E")
    if len(whole) <= PART_MAX:
        return whole
    return f"{whole[: PART_MAX - _HASH_DIGITS - 1]}-{xxhash.xxh3_64_hexdigest(name.encode('utf-8', 'surrogatepass'))}"


def pointer(*path: str) -> str:
    """Return the pointer to a field of a document; of no path, to the document itself.

    >>> pointer("a/b", "~"), pointer()
    ('/a~1b/~0', '')
    """
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in path)


def path_of(text: str) -> tuple[str, ...]:
    """Return what `pointer` was given.

    >>> path_of("/a~1b/~0"), path_of("")
    (('a/b', '~'), ())
    """
    return tuple(name.replace("~1", "/").replace("~0", "~") for name in text.split("/")[1:])
