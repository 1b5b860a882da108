"""What readers declare beside themselves: the connections that they use, and how they find what there is to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar, runtime_checkable

from strandline.algebra.schema import RESERVED, Column, Schema
from strandline.frontier import Offsets
from strandline.problem import Way

ANEW: Final = Way("define it anew, with all that reads it", "strandline anew {item:shell} --apply")
"""What ends a problem of a source, or of a table of one, that has lost what it was to read next."""
REDEFINED: Final = (
    Way("once it has the declared columns again, define it anew", "strandline anew {item:shell} --apply"),
    Way("drop the source, and create it with the columns that there are"),
)
"""What ends a problem of a source whose columns upstream has no more."""
ELSEWHERE: Final = Way("if it is elsewhere, drop the source, and create it with the right options")
"""What ends a problem of a source whose options lead to nothing; they cannot be altered."""
O = TypeVar("O")  # noqa: E741 - a dataclass of options


@dataclass(frozen=True, slots=True)
class ConnectionKind:
    """What CREATE CONNECTION can be made TO: its name, and its options, a dataclass of `strandline.options`.

    The options of a reader that uses it extend that dataclass: a source gives them itself, or names a connection.
    """

    name: str
    options: type[Any]


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """How far a reader has come with the snapshot of ``table``: rows so far, and about how many there are, if known."""

    table: str
    rows: int
    about: int | None = None


@runtime_checkable
class TakesBounds(Protocol):
    """A reader that may know of less of upstream than another process has bound, an earlier one or one beside it."""

    def bound(self, offsets: Offsets) -> None:
        """Take note that offsets were bound: from now on `upstream_frontier` answers no less, if upstream has it."""
        ...


@runtime_checkable
class ConfirmsReads(Protocol):
    """A reader whose rows may be read after its `read` has returned, when upstream may be another one already."""

    async def confirm(self) -> None:
        """Raise `SourceError` or `Unavailable` if the rows of the last read, which were taken, may be wrong."""
        ...


@runtime_checkable
class ReportsSnapshots(Protocol):
    """A reader that can say how far it is; for people alone, so it may be roughly right."""

    def snapshots(self) -> Sequence[SnapshotProgress]:
        """Return the snapshots that are being read now, from memory; called from any thread."""
        ...


@dataclass(frozen=True, slots=True)
class Discovered:
    """Something that could be read: what upstream calls it, its columns, and the options to read it by.

    The options are those that are not given anyway.  ``note``: what a person should know before, one sentence; without
    columns, why it cannot be read.
    """

    name: str
    columns: Schema
    options: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def discovered(
    name: str,
    found: Sequence[tuple[str, str | None]],
    options: Mapping[str, str],
    notes: Sequence[str] = (),
    *,
    exact: bool = False,
) -> Discovered:
    """Return something that could be read: the columns ``found`` (name, type), but for those that cannot be read.

    A column without a type cannot, nor one without a name or with a reserved one, nor those whose names differ in case
    alone: of these ``exact`` keeps the first, because the reader finds it by its exact name.  The note names all that
    are left out.

    >>> left = discovered("t", [("a", "int"), ("A", "int"), ("m", None), ("b", "date")], {}, exact=True)
    >>> left.columns.ddl, left.note.partition(",")[2]
    ('`a` int, `b` date', " column 'm' (no type holds its values)")
    """
    times = Counter(column.lower() for column, _ in found)
    kept, left = list[Column](), list[str]()
    for column, kind in found:
        clashes = times[column.lower()] > 1 and not (exact and column.lower() not in {c.name.lower() for c in kept})
        if why := _unreadable(column, clashes=clashes, typed=kind is not None):
            left.append(f"column {column!r} ({why})")
        else:
            kept.append(Column(column, kind or ""))
    every = [*notes, *([f"left out: {', '.join(left)}"] if left else []), *([] if kept else ["no column can be read"])]
    return Discovered(name, Schema(tuple(kept)), options, "; ".join(every))


def _unreadable(column: str, *, clashes: bool, typed: bool) -> str:
    if not column:
        return "it has no name"
    if column.startswith(RESERVED):
        return f"names that start with {RESERVED} are reserved"
    if clashes:
        return "its name differs from another one in case alone"
    return "" if typed else "no type holds its values"


@dataclass(frozen=True, slots=True)
class Discovery(Generic[O]):
    """How to ask an upstream what it has: which options that takes, and the call, which changes nothing there.

    ``find`` raises `Unavailable` if upstream does not answer, `SourceError` or `DefinitionError` if nothing is there.
    ``needs``: the extras whose libraries it needs.
    """

    options: type[O]
    find: Callable[[O], Awaitable[Sequence[Discovered]]]
    needs: Sequence[str] = ()
