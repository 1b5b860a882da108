"""Names that a user's columns and tables may have, and that a careless driver lets run as SQL, or takes for others."""

from __future__ import annotations

HOSTILE = (
    'a"b',
    "a'b",
    "a`b",
    "a\\b",
    "nul\0nul",
    "; DROP TABLE t; --",
    "--",
    "/*",
    "$$",
    "{t}",
    "%s",
    "?",
    " lead",
    "trail ",
    "select",
    "\U0001f30a",
    "e\u0301",
    "\u202eright to left",
    "x" * 63,
    "x" * 62 + "yz",
    "\u00e4" * 32,
)
