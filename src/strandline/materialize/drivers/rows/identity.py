"""By what consumers tell pushed rows apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from strandline.materialize.protocol.task import WHOLE, KeyRange

TRANSACTIONS: Final = "transactions"
"""In the state of a session: the number of the last transaction of each state key."""


def joined(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of what several key ranges are joined to: no number of a transaction comes again.

    >>> joined([{"transactions": {"t.v0": 3}}, {"transactions": {"t.v0": 5}}])
    {'transactions': {'t.v0': 5}}
    """
    numbers: dict[str, int] = {}
    for state in states:
        for key, number in state.get(TRANSACTIONS, {}).items():
            numbers[key] = max(number, numbers.get(key, 0))
    return {TRANSACTIONS: numbers}


def label(task: str, range_: KeyRange) -> str:
    """Return the name of a task's key range in what it pushes.

    >>> label("m", WHOLE), label("m", KeyRange(0, 9))
    ('m', 'm[00000000-00000009]')
    """
    return task if range_ == WHOLE else f"{task}[{range_}]"
