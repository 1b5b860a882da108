"""Calls: what a client of ours asks beside Flight SQL, which has no word for times, subscriptions and status.

A *call* (the action `CALL`) is JSON with the name of a method of the environment, and is answered with JSON; only what
is listed here can be called, and rows in it are an Arrow stream in base64.  The tickets `QUERY` and `SUBSCRIBE` ask for
a stream, and the command `ROWS` brings one; JSON behind each says which.  `published` is how a client finds the server.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from strandline.compute.rules.explanation import Explanation
from strandline.errors import InvalidUsage, ProtocolViolation, Unavailable
from strandline.instance.indexes.keys import packed, same, unpacked

if TYPE_CHECKING:
    from strandline.controller.asking.verification import Verification
    from strandline.serving.desk import Desk

Arguments: TypeAlias = Mapping[str, Any]

CALL: Final = "strandline.call"
QUERY: Final = b"strandline.query "
SUBSCRIBE: Final = b"strandline.subscribe "
ROWS: Final = b"strandline.rows "
BEARER: Final = "Bearer "
"""In the header of authorization, before a token."""
WHO: Final = "strandline-who"
"""The header in which a client of ours says who asks."""
DIRECTORY: Final = "serving"
ADDRESSES: Final = "addresses"
TRUE_AT: Final = b"strandline.as_of"
"""In a stream's metadata: the time at which a query's answer is true."""

PLAIN: Final = (
    "progress",
    "backfill",
    "deploy",
    "anew",
    "skip",
    "withdraw",
    "retry",
    "inspect",
    "fsck",
    "compact",
    "gc",
    "sync_now",
    "promote",
    "written_by",
    "queries",
    "cancel_query",
    "acknowledge",
)
"""What answers with JSON as it is."""


class Addresses(msgspec.Struct, frozen=True):
    """Where a process serves; ``http``: its console and metrics, if it has them."""

    flight_sql: list[str]
    pid: int
    http: str | None = None

    @property
    def told(self) -> dict[str, Any]:
        """What ``strandline status --json`` says of it."""
        return {"flight_sql": self.flight_sql, "http": self.http}


class Call(msgspec.Struct, frozen=True):
    """One call; ``handle``: by which the client may cancel it; empty: it will not."""

    method: str
    arguments: dict[str, Any] = {}
    handle: str = ""


class Query(msgspec.Struct, frozen=True):
    """A query, at a time, or at the latest one; ``handle``: by which the client may cancel it.

    ``timeout``: after so many seconds the server cancels it.
    """

    sql: str
    as_of: int | None = None
    handle: str = ""
    timeout: float | None = None


class Subscribe(msgspec.Struct, frozen=True):
    """A subscription; see `Environment.subscribe`."""

    what: str
    as_of: int | None = None
    until: int | None = None


class Rows(msgspec.Struct, frozen=True):
    """Rows to insert into a table, or to delete from it, in a transaction (empty: in one of their own)."""

    table: str
    deletes: bool = False
    token: str | None = None
    transaction: str = ""


_ARROW: Final = "arrow"
S = TypeVar("S", Call, Query, Subscribe, Rows)


def read(kind: type[S], body: bytes) -> S:
    """Return what is asked.  Raises `InvalidUsage` if it is not that."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidUsage(f"this is no {kind.__name__.lower()}: {error}") from error


def published(root: Path) -> Addresses | None:
    """Return where the process that writes the location in ``root`` said that it serves; None: it does not say."""
    try:
        return msgspec.json.decode((root / DIRECTORY / ADDRESSES).read_bytes(), type=Addresses)
    except (OSError, msgspec.MsgspecError):
        return None


def called(desk: Desk, body: bytes) -> bytes:
    """Make the call that ``body`` says, and return its answer.  Raises `InvalidUsage` for one that there is not."""
    asked = read(Call, body)
    how = _CALLS.get(asked.method)
    if how is None:
        raise InvalidUsage(f"there is no call {asked.method!r}; there are {', '.join(sorted(_CALLS))}")
    try:
        with desk.cancellable(asked.handle):
            return msgspec.json.encode(how(desk, asked.arguments), enc_hook=str)
    except (TypeError, KeyError, AttributeError) as error:
        raise InvalidUsage(f"{asked.method} does not take {dict(asked.arguments)}") from error


def _plain(name: str) -> Callable[[Desk, Arguments], Any]:
    return lambda desk, arguments: getattr(desk.env, name)(**arguments)


def _status(desk: Desk, _: Arguments) -> Any:
    return {**desk.env.status(), "serving": desk.served}


def _execute(desk: Desk, arguments: Arguments) -> Any:
    return desk.executed(arguments["sql"], arguments.get("transaction", "").encode())


def _commit(desk: Desk, arguments: Arguments) -> Any:
    return desk.commit(arguments["transaction"].encode())


def _explain(desk: Desk, arguments: Arguments) -> Any:
    return asdict(desk.env.explain(**arguments))


def _verify(desk: Desk, arguments: Arguments) -> Any:
    return _shown(desk.env.verify(**arguments))


def _shown(found: Verification) -> dict[str, Any]:
    return {
        "name": found.name,
        "as_of": found.as_of,
        "missing": found.missing,
        "extra": found.extra,
        "sample": rows_text(found.sample),
        "repaired": found.repaired,
        "tables": [_shown(table) for table in found.tables],
    }


def _collection(desk: Desk, arguments: Arguments) -> Any:
    found = desk.env.collection(**arguments)
    return {
        "name": found.name,
        "columns": [[column.name, column.type] for column in found.schema],
        "since": found.since,
        "upper": found.upper,
    }


def _peek(desk: Desk, arguments: Arguments) -> Any:
    return rows_text(desk.peek(**{**arguments, "key": _read(arguments["key"])}))


def written(keys: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the keys of a peek as JSON holds them; a value that JSON does not have is a table in Arrow.

    JSON has no dates, no decimals, no whole numbers of any size, and null for NaN.

    >>> _read(written([{"a": 1, "b": float("inf"), "c": None}]))
    [{'a': 1, 'b': inf, 'c': None}]
    """
    return [{name: _value(value) for name, value in key.items()} for key in keys]


def _value(value: Any) -> Any:
    if value is None or type(value) in {bool, str} or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is int:
        if -(1 << 63) <= value < 1 << 63:
            return value
        value = Decimal(value)  # Arrow's whole numbers end there; SQL's are decimals from there on
    try:
        held = pa.array([value])
        if not same(value, held.to_pylist()[0]):
            raise ValueError("it has more digits than any column")
        return {_ARROW: rows_text(pa.table([held], [_ARROW]))}
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise InvalidUsage(f"no column holds {str(value)[:60]!r}, which a key has: {error}") from error


def _read(keys: Any) -> Any:
    """Return what `written` was given; what it did not write is for `Environment.peek` to judge."""
    listed = [keys] if isinstance(keys, Mapping) else keys
    if not isinstance(listed, list) or not all(isinstance(key, Mapping) for key in listed):
        return keys
    return [{name: _own(value) for name, value in key.items()} for key in listed]


def _own(value: Any) -> Any:
    if not isinstance(value, Mapping) or value.keys() != {_ARROW} or not isinstance(value[_ARROW], str):
        return value
    try:
        (found,) = unpacked(base64.b64decode(value[_ARROW])).column(0).to_pylist()
    except (ValueError, IndexError, OverflowError, ProtocolViolation) as error:
        raise InvalidUsage(f"a value of the key is no table of one value: {error}") from error
    return found


_CALLS: Final[Mapping[str, Callable[[Desk, Arguments], Any]]] = {
    **{name: _plain(name) for name in PLAIN},
    "status": _status,
    "execute": _execute,
    "cancel": lambda desk, arguments: desk.cancel(arguments["handle"]),
    "commit": _commit,
    "tick": lambda desk, _: desk.tick(),
    "sync": lambda desk, arguments: desk.sync(**arguments),
    "explain": _explain,
    "verify": _verify,
    "collection": _collection,
    "peek": _peek,
}


def explanation(found: Mapping[str, Any]) -> Explanation:
    """Return what `explain` answered."""
    return Explanation(**found)


def verification(found: Mapping[str, Any]) -> Verification:
    """Return what `verify` answered."""
    from strandline.controller.asking.verification import Verification  # it brings all that verifies

    tables = tuple(verification(each) for each in found["tables"])
    return Verification(**{**found, "sample": rows(found["sample"]), "tables": tables})


def rows_text(table: pa.Table) -> str:
    """Return rows as a text: an Arrow stream in base64."""
    return base64.b64encode(packed(table)).decode()


def rows(text: str) -> pa.Table:
    """Return the rows in a text of `rows_text`.  Raises `Unavailable` for any other text."""
    try:
        return unpacked(base64.b64decode(text))
    except (ValueError, ProtocolViolation) as error:
        raise Unavailable(f"the server sent rows that cannot be read: {error}") from error
