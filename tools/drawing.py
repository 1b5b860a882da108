"""Which long tests, and which of their cases, `make test` runs: a share of them, drawn anew in each run.

A test marked ``drawn(n)`` has many cases that are much alike.  One in ``n`` of them, and one at least, runs in its
stage; the others belong to `long` in that run.  Another test that takes long (`sides.py`) runs in one run of so many,
by what it took when that was last recorded: so a run has the same length, however many tests there are that take long.
A seed decides, which the runner prints and takes (``--draw``).  Without a seed, as when pytest is called by hand, all
run.

Warning: `stages.py`, a pytest plugin, imports this; it must import nothing but the standard library.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from math import ceil
from typing import Final

SELDOM: Final = 12
"""Every test runs in one run of so many at least."""


def left_out(cases: Iterable[tuple[str, str, int]], seed: int) -> frozenset[str]:
    """Return the names of the cases that were not drawn.

    ``cases``: of each its test, its name, and that one in so many is drawn.  Their order, which pytest changes with the
    files that it is given, does not matter.

    >>> sorted(left_out([("t", "t[a]", 2), ("t", "t[b]", 2), ("t", "t[c]", 2), ("u", "u", 9)], seed=1))
    ['t[b]']
    >>> sorted(left_out([("t", "t[a]", 2), ("t", "t[b]", 2), ("t", "t[c]", 2), ("u", "u", 9)], seed=2))
    ['t[a]', 't[c]']
    """
    by_test: dict[tuple[str, int], list[str]] = {}
    for test, name, one_in in cases:
        by_test.setdefault((test, one_in), []).append(name)
    out: set[str] = set()
    for (test, one_in), names in by_test.items():
        first = zlib.crc32(f"{seed} {test}".encode()) % min(one_in, len(names))
        out |= {name for position, name in enumerate(sorted(names)) if position % one_in != first}
    return frozenset(out)


def one_in(seconds: float, share_s: float) -> int:
    """Return in one run of how many a test runs that takes ``seconds``, so that it takes ``share_s`` of each.

    >>> [one_in(seconds, 10) for seconds in (0, 10, 11, 31, 10_000)]
    [1, 1, 2, 4, 12]
    """
    return max(1, min(SELDOM, ceil(seconds / share_s)))


def put_off(tests: Iterable[tuple[str, int]], seed: int) -> frozenset[str]:
    """Return those of ``tests`` (name, and that it runs in one run of so many) that do not run.

    >>> [len(put_off([("a", 3), ("b", 3), ("c", 1)], seed)) for seed in range(6)]
    [1, 1, 2, 2, 0, 1]
    """
    return frozenset(name for name, one_in in tests if zlib.crc32(f"{seed} {name}".encode()) % one_in)
