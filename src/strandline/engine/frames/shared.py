"""What several stages ask for alike in one tick: each is found once, and shared.

A wave's stages read the same changes and look up the same rows.  What is found is a value, and so is what it is found
of: definite contents, or tables, which are the same if they are one object.  So an answer is right for as long as it is
kept; what was used longest ago goes first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa

BYTES_MAX: Final = 64 << 20
ANSWER_BYTES: Final = 2048
"""What an answer takes besides its rows: its key, and its place here."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer, or one that a thread is finding.  ``of`` are the tables that its key names by their identities."""

    found: Future[Any]
    of: Sequence[pa.Table]


class Shared:
    """Answers by what they were found of.  Safe to call from several threads."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._sizes: dict[Hashable, int] = {}
        self._total = 0  # of the sizes
        self._answers: OrderedDict[Hashable, _Answer] = OrderedDict()
        self._lock = threading.Lock()  # held for moments

    def get(
        self, key: Hashable, of: Sequence[pa.Table], find: Callable[[], _T], size: Callable[[_T], int | None]
    ) -> _T:
        """Return what ``find`` returns, or has returned for this ``key`` and the same tables ``of``.

        ``size``: bytes of an answer; None: it is not kept.  What ``find`` raises is this caller's alone.
        """
        whole = (key, *map(id, of))
        with self._lock:
            answer = self._answers.get(whole)
            if first := answer is None:
                answer = self._answers[whole] = _Answer(Future(), of)
            self._answers.move_to_end(whole)
        if not first:
            return find() if answer.found.exception() is not None else answer.found.result()
        try:
            found = find()
        except BaseException as error:
            self._keep(whole, None)
            answer.found.set_exception(error)
            raise
        self._keep(whole, size(found))
        answer.found.set_result(found)
        return found

    def _keep(self, whole: Hashable, size: int | None) -> None:
        with self._lock:
            if size is None:
                self._answers.pop(whole, None)
                return
            self._sizes[whole] = size + ANSWER_BYTES
            self._total += size + ANSWER_BYTES
            while self._total > self._bytes_max:
                oldest = next(key for key in self._answers if key in self._sizes)
                del self._answers[oldest]
                self._total -= self._sizes.pop(oldest)
