"""Work: what a transaction staged for one binding, as the driver's state names it, and the state's documents.

    {"staging": "stage-…",                          the directory of the transaction that is being stored
     "staged-in": ["orders"],                       the tables that have it
     "orders.v0": {"writer": "…", "number": 7,      the binding's last transaction that the log has committed
                   "work": {…}}}                    present until it is known to be applied

Every update of the state is a merge patch.  ``staging`` is durable before the first file is written (with `Flushed`),
and a commit names another directory than every later transaction.  The tables are said beside it, for a view may be
dropped before the next session opens.  So a session that opens with a state that still has
it knows that nothing of it was committed, and that no one can commit it: the one that staged it is fenced by the log.

Law: M2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from strandline.errors import CorruptionError
from strandline.materialize.drivers.staged.table import Piece
from strandline.materialize.protocol.refusals import DAMAGED
from strandline.materialize.protocol.task import WHOLE, KeyRange, given_up

STAGING: Final = "staging"
STAGED_IN: Final = "staged-in"
"""A state key has a dot in it, so none is equal to these."""
NOTHING_STAGED: Final = {STAGING: None, STAGED_IN: None}


class PieceForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `Piece` as JSON."""

    name: str
    rows: int
    size: int


class Work(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pieces to add to a table, and keys whose rows go.

    ``replaces``: the rows of the writer's key range that were there before go, too: a backfill begins.
    """

    owner: str
    resource: str
    key: tuple[str, ...]
    directory: str
    upto: int
    pieces: tuple[PieceForm, ...]
    keys: tuple[PieceForm, ...]
    replaces: bool = False
    begin: int = WHOLE.begin
    end: int = WHOLE.end

    @property
    def range(self) -> KeyRange:
        """The key range of its writer."""
        return KeyRange(self.begin, self.end)

    @property
    def gives_up(self) -> bool:
        """Whether it empties the table, for any task to fill."""
        return given_up(state_key_of(self.owner))

    @property
    def added(self) -> tuple[Piece, ...]:
        """The pieces to add."""
        return tuple(Piece(each.name, each.rows, each.size) for each in self.pieces)


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the state has of one binding: its last transaction, and its work if that may not be applied yet."""

    writer: str
    number: int
    work: Work | None = None


def writer_of(task: str, state_key: str, range_: KeyRange) -> str:
    """Return the name under which a table says which transactions of a binding's split it has.

    >>> writer_of("m", "t.v0", WHOLE)
    'strandline:00000000-ffffffff:t.v0:m'
    """
    return f"strandline:{range_.begin:08x}-{range_.end:08x}:{state_key}:{task}"


def owner_of(task: str, state_key: str) -> str:
    """Return the name of a binding that fills a table: JSON of the task's name and the state key."""
    return msgspec.json.encode([task, state_key]).decode()


def task_of(owner: str) -> str | None:
    """Return the task in an owner's name; None: it is none of ours.

    >>> task_of(owner_of("m", "t.v0")), task_of(""), task_of("[1]")
    ('m', None, None)
    """
    try:
        return msgspec.json.decode(owner, type=tuple[str, str])[0]
    except msgspec.MsgspecError:
        return None


def state_key_of(owner: str) -> str:
    """Return the state key in an owner's name, which `task_of` finds to be one of ours."""
    return msgspec.json.decode(owner, type=tuple[str, str])[1]


def entries(state: Any) -> Iterator[tuple[str, Entry]]:
    """Yield what the state has of each binding, by state key.  Raises `CorruptionError` for what no driver wrote."""
    if not isinstance(state, Mapping):
        return
    for name in sorted(state):
        if "." in name:
            try:
                yield name, msgspec.convert(state[name], Entry)
            except msgspec.ValidationError as error:
                raise CorruptionError(DAMAGED.said(what=f"the driver's state of {name!r}", why=error)) from error


def staging(state: Any) -> str | None:
    """Return the directory of a transaction that was being stored when the state was written."""
    return state.get(STAGING) if isinstance(state, Mapping) else None


def staged_in(state: Any) -> frozenset[str]:
    """Return the tables that have that directory; none in a state that an earlier version wrote."""
    return frozenset(state.get(STAGED_IN, ())) if isinstance(state, Mapping) else frozenset()


def named(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON."""
    return dict(msgspec.to_builtins(entry))
