"""Deletion vectors: which rows of a file are still there, and which of them a version deletes.

A version that deletes few rows leaves the file as it is, and removes and adds its name with another vector.  Then only
the rows come or go in which the two differ.

Source: the Delta transaction log protocol: "Deletion vectors".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from strandline.errors import SourceError
from strandline.sources.readers.delta.log import Effect

VECTORS: Final = "deletionVectors"
"""The feature of the protocol."""


class Mask(NamedTuple):
    """Which rows of a file are there, by their number; ``rest``: whether those are that lie behind."""

    rows: npt.NDArray[np.bool_]
    rest: bool = True

    def without(self, other: Mask) -> Mask:
        """Return the rows that are here and not in ``other``."""
        count = max(len(self.rows), len(other.rows))
        return Mask(self.span(0, count) & ~other.span(0, count), self.rest and not other.rest)

    def span(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """Return which of so many rows are there.

        >>> Mask(np.array([True, False])).span(1, 3).tolist()
        [False, True, True]
        """
        known = self.rows[first : first + count]
        return np.concatenate([known, np.full(count - len(known), self.rest)])


ALL: Final = Mask(np.zeros(0, np.bool_))


class Stored(Protocol):
    """Where the vectors of a version are found."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    def damaged(self, why: str) -> SourceError:
        """Return the error of a table whose files are not what its log says."""
        ...

    def masks(self, version: int) -> Mapping[str, Mask]:
        """Return which rows are there of the files that have vectors at ``version``, by path."""
        ...


class Masks:
    """The masks of one read; those of a version are asked for once."""

    def __init__(self, table: Stored) -> None:
        self._table = table
        self._known: dict[int, Mapping[str, Mask]] = {}

    def resolved(self, effects: Iterable[Effect]) -> Iterator[tuple[Effect, Mask | None]]:
        """Yield each effect with the rows that it is about; None: all of the file's."""
        by_path: dict[str, list[Effect]] = {}
        for effect in effects:
            if effect.changes:
                yield effect, None
            else:
                by_path.setdefault(effect.file.path, []).append(effect)
        for those in by_path.values():
            match [(effect, self._of(effect)) for effect in those]:
                case [(one, mask), (other, another)] if one.diff == -other.diff:
                    yield one, (mask or ALL).without(another or ALL)
                    yield other, (another or ALL).without(mask or ALL)
                case others:
                    yield from others

    def _of(self, effect: Effect) -> Mask | None:
        if effect.file.vector is None:
            return None
        version = effect.version if effect.diff > 0 else effect.version - 1  # what is removed was there before it
        if version not in self._known:
            self._known[version] = self._table.masks(version)
        mask = self._known[version].get(effect.file.path)
        if mask is None:
            why = f"file {effect.file.path!r} has no deletion vector at version {version}, though its log says so"
            raise self._table.damaged(why)
        return mask
