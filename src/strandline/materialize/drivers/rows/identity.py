"""By what consumers tell pushed rows apart."""

from __future__ import annotations

from strandline.materialize.protocol.task import WHOLE, KeyRange


def label(task: str, range_: KeyRange) -> str:
    """Return the name of a task's key range in what it pushes.

    >>> label("m", WHOLE), label("m", KeyRange(0, 9))
    ('m', 'm[00000000-00000009]')
    """
    return task if range_ == WHOLE else f"{task}[{hexadecimal(range_)}]"


def hexadecimal(range_: KeyRange) -> str:
    """Return a range as a text of one length.

    >>> hexadecimal(WHOLE)
    '00000000-ffffffff'
    """
    return f"{range_.begin:08x}-{range_.end:08x}"
