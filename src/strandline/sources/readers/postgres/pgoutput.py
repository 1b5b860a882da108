r"""The messages of PostgreSQL's output plugin ``pgoutput``, protocol version 1, from bytes.

A transaction is Begin, changes, Commit; it is sent whole, in the order of commits.  A relation is described before its
first change, and again when its description has changed, so a change names it by its OID alone.

A value is text in the server's output form (`bytes`), NULL (`None`), or `KEPT`: a large value that the update left as
it was, and which the log does not hold.  Names and texts are bytes in the client's encoding, which is UTF-8 here; a
database in SQL_ASCII sends any bytes, and those of a name that are no UTF-8 become escapes (``\xfc``).

Pure, and strict: bytes that are not exactly one message are a `DamagedMessage`.

Source: PostgreSQL's manual, "Logical Replication Message Formats".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from struct import Struct, error
from typing import Final, TypeAlias

from strandline.errors import CorruptionError


class Kept(Enum):
    """The value of a column that an update left as it was, stored out of line (TOAST): it is not in the log."""

    KEPT = "kept"


KEPT: Final = Kept.KEPT
Value: TypeAlias = bytes | Kept | None
Tuple: TypeAlias = tuple[Value, ...]


class Identity(Enum):
    """What an update or a delete says of the row as it was: the replica identity of its table."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction begins, whose commit record is at ``commit_lsn``."""

    commit_lsn: int
    committed_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction ends; the log up to ``end_lsn`` holds all of it."""

    commit_lsn: int
    end_lsn: int
    committed_us: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column: whether it belongs to the key of the replica identity, its name, its type's OID and modifier."""

    key: bool
    name: str
    type_oid: int
    modifier: int


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it is for the changes that follow."""

    oid: int
    schema: str
    name: str
    identity: Identity
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    """A row came."""

    oid: int
    new: Tuple


@dataclass(frozen=True, slots=True)
class Update:
    """A row changed.

    ``old``: its key (``key``: the other columns are None), or all of it; None: its key is that of ``new``.
    """

    oid: int
    old: Tuple | None
    key: bool
    new: Tuple


@dataclass(frozen=True, slots=True)
class Delete:
    """A row went: its key (``key``: the other columns are None), or all of it."""

    oid: int
    old: Tuple
    key: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """All rows of tables went."""

    oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class TypeName:
    """The name of a type that is not built in."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The server where the transaction was first committed."""

    commit_lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class Emitted:
    """A message that an application wrote into the log; no table's."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


Message: TypeAlias = Begin | Commit | Relation | Insert | Update | Delete | Truncate | TypeName | Origin | Emitted


class DamagedMessage(CorruptionError):
    """Bytes that are no message of this protocol."""


_BEGIN: Final = Struct(">QqI")
_COMMIT: Final = Struct(">BQQq")
_LSN: Final = Struct(">Q")
_EMITTED: Final = Struct(">BQ")
_OID: Final = Struct(">I")
_COUNT: Final = Struct(">H")
_COLUMN: Final = Struct(">Ii")
_TRUNCATE: Final = Struct(">IB")
_CASCADE: Final = 1
_RESTART_IDENTITY: Final = 2
_NULL, _UNCHANGED, _TEXT = b"nut"
_NEW, _KEY, _OLD = b"NKO"


def parse(data: bytes) -> Message:
    """Return the message that ``data`` is.

    >>> parse(b"I" + bytes([0, 0, 64, 1]) + b"N" + bytes([0, 2]) + b"t" + bytes([0, 0, 0, 1]) + b"7" + b"n")
    Insert(oid=16385, new=(b'7', None))

    Raises `DamagedMessage`: they are not exactly one message.
    """
    try:
        message, end = _PARSERS[data[:1]](data, 1)
    except (KeyError, IndexError, ValueError, error) as cause:
        why = f"{type(cause).__name__}: {cause}"
        raise DamagedMessage(f"a message of pgoutput cannot be read: {data[:32].hex(' ')} … ({why})") from cause
    if end != len(data):
        raise DamagedMessage(f"a message of pgoutput has {len(data) - end} bytes too many: {data[:32].hex(' ')} …")
    return message


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(errors="backslashreplace"), end + 1


def _row(data: bytes, at: int) -> tuple[Tuple, int]:
    (count,) = _COUNT.unpack_from(data, at)
    at += 2
    values: list[Value] = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == _TEXT:
            start = at + 4
            at = start + int.from_bytes(data[at:start], "big")
            if at > len(data):
                raise ValueError("a value is cut off")
            values.append(data[start:at])
        elif kind == _NULL:
            values.append(None)
        elif kind == _UNCHANGED:
            values.append(KEPT)
        else:
            raise ValueError(f"a value of kind {kind}")
    return tuple(values), at


def _begin(data: bytes, at: int) -> tuple[Message, int]:
    return Begin(*_BEGIN.unpack_from(data, at)), at + _BEGIN.size


def _commit(data: bytes, at: int) -> tuple[Message, int]:
    flags, commit_lsn, end_lsn, committed_us = _COMMIT.unpack_from(data, at)
    if flags:
        raise ValueError(f"flags {flags}")
    return Commit(commit_lsn, end_lsn, committed_us), at + _COMMIT.size


def _relation(data: bytes, at: int) -> tuple[Message, int]:
    (oid,) = _OID.unpack_from(data, at)
    schema, at = _text(data, at + 4)
    name, at = _text(data, at)
    identity = Identity(chr(data[at]))
    (count,) = _COUNT.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        key = {0: False, 1: True}[data[at]]
        called, at = _text(data, at + 1)
        type_oid, modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(RelationColumn(key, called, type_oid, modifier))
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns)), at


def _insert(data: bytes, at: int) -> tuple[Message, int]:
    (oid,) = _OID.unpack_from(data, at)
    new, at = _new(data, at + 4)
    return Insert(oid, new), at


def _new(data: bytes, at: int) -> tuple[Tuple, int]:
    if data[at] != _NEW:
        raise ValueError(f"a new row was expected, and not {data[at]}")
    return _row(data, at + 1)


def _update(data: bytes, at: int) -> tuple[Message, int]:
    (oid,) = _OID.unpack_from(data, at)
    kind = data[at + 4]
    old, at = _row(data, at + 5) if kind in {_KEY, _OLD} else (None, at + 4)
    new, at = _new(data, at)
    return Update(oid, old, kind == _KEY, new), at


def _delete(data: bytes, at: int) -> tuple[Message, int]:
    (oid,) = _OID.unpack_from(data, at)
    kind = data[at + 4]
    if kind not in {_KEY, _OLD}:
        raise ValueError(f"an old row was expected, and not {kind}")
    old, at = _row(data, at + 5)
    return Delete(oid, old, kind == _KEY), at


def _truncate(data: bytes, at: int) -> tuple[Message, int]:
    count, flags = _TRUNCATE.unpack_from(data, at)
    if flags & ~(_CASCADE | _RESTART_IDENTITY):
        raise ValueError(f"flags {flags}")
    at += _TRUNCATE.size
    end = at + 4 * count
    if end > len(data):
        raise ValueError("a list of tables is cut off")
    oids = tuple(int.from_bytes(data[start : start + 4], "big") for start in range(at, end, 4))
    return Truncate(oids, bool(flags & _CASCADE), bool(flags & _RESTART_IDENTITY)), end


def _type(data: bytes, at: int) -> tuple[Message, int]:
    (oid,) = _OID.unpack_from(data, at)
    schema, at = _text(data, at + 4)
    name, at = _text(data, at)
    return TypeName(oid, schema or "pg_catalog", name), at


def _origin(data: bytes, at: int) -> tuple[Message, int]:
    (lsn,) = _LSN.unpack_from(data, at)
    name, at = _text(data, at + 8)
    return Origin(lsn, name), at


def _emitted(data: bytes, at: int) -> tuple[Message, int]:
    flags, lsn = _EMITTED.unpack_from(data, at)
    if flags not in {0, 1}:
        raise ValueError(f"flags {flags}")
    prefix, at = _text(data, at + _EMITTED.size)
    (size,) = _OID.unpack_from(data, at)
    end = at + 4 + size
    if end > len(data):
        raise ValueError("its content is cut off")
    return Emitted(flags == 1, lsn, prefix, data[at + 4 : end]), end


_PARSERS: Final = {
    b"B": _begin,
    b"C": _commit,
    b"R": _relation,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"Y": _type,
    b"O": _origin,
    b"M": _emitted,
}


def lsn_text(lsn: int) -> str:
    """Return a position in the log as PostgreSQL writes it.

    >>> lsn_text(0x16_B374D848)
    '16/B374D848'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """Return the position that PostgreSQL writes as ``text``.

    >>> lsn_number("16/B374D848") == 0x16_B374D848
    True
    """
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)
