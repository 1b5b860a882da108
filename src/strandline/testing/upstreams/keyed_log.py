"""A source of keyed records in memory, for any engine: partitions of messages, each what one key has from then on.

Its readers are as strict as the contract allows: what was committed is gone, and a read too early or too late raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from strandline.algebra.messages import GONE, KEPT, ORDER
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.errors import SourceError, Unavailable
from strandline.frontier import Offsets
from strandline.persist.handles.contents import Rows
from strandline.plane import Staging
from strandline.sources.reader import Keyed, ReaderKind, Records, Surroundings
from strandline.sources.reclock import NOTHING_READ, Slice

SCHEMA: Final = Schema((Column("k", "bigint"), Column("p", "string"), Column("v", "string"), Column("note", "string")))
KEY: Final = ("k", "p")
_TYPES: Final = {"k": pa.int64(), "p": pa.string(), "v": pa.string(), "note": pa.string()}


@dataclass(frozen=True, slots=True)
class Said:
    """A message: ``key`` (None: it has none that is known) has this row from now on.

    ``v`` and ``note`` are its values; ``gone``: there is no row; ``bad``: the value cannot be decoded;
    ``same``: upstream did not send ``note``, because it stays as it was.
    """

    key: tuple[int | None, str | None] | None
    v: str | None = None
    note: str | None = None
    gone: bool = False
    bad: bool = False
    same: bool = False


@dataclass
class KeyedLog:
    """The upstream, which survives every crash of a reader."""

    partitions: dict[str, list[Said]] = field(default_factory=dict)
    forgotten: Offsets = NOTHING_READ
    down: bool = False

    def say(self, *messages: Said, partition: str = "0") -> None:
        """Append messages; those of one key belong in one partition."""
        self.partitions.setdefault(partition, []).extend(messages)

    @property
    def frontier(self) -> Offsets:
        """Return how far it can be read."""
        return Offsets({partition: len(messages) for partition, messages in self.partitions.items()})


class KeyedLogReader:
    """A `SourceReader` of a `KeyedLog`, whose rows are those of ``engine``."""

    bounded = True

    def __init__(self, upstream: KeyedLog, engine: Staging) -> None:
        self.upstream = upstream
        self._engine = engine
        self._given = ExitStack()  # what holds the rows of the last read

    def records(self, table: str) -> Records:
        """See `SourceReader.records`."""
        return Keyed(KEY)

    async def snapshot(self, table: str) -> Offsets | None:
        """See `SourceReader.snapshot`: partitions are read from their first message."""
        return None

    async def upstream_frontier(self) -> Offsets:
        """See `SourceReader.upstream_frontier`."""
        if self.upstream.down:
            raise Unavailable("the upstream does not answer")
        return self.upstream.frontier

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """See `SourceReader.read`."""
        found: list[dict[str, Any]] = []
        for each in slices:
            for partition, end in each.upper.entries:
                for offset in range(each.lower[partition], end):
                    if self.upstream.forgotten.covers(partition, offset):
                        raise SourceError(f"message {offset} of partition {partition!r} is forgotten upstream")
                    said = self.upstream.partitions[partition][offset]
                    record = _record(said, f"{partition}@{offset}" if locate else None)
                    found.append({**record, TIME: each.time, DIFF: 1, ORDER: offset})
        self._given.close()
        into = self._given.enter_context(self._engine.arrivals(SCHEMA, keyed=True))
        into.add(_table(found))
        return into.rows()

    async def commit(self, resume: Offsets) -> None:
        """See `SourceReader.commit`."""
        self.upstream.forgotten = self.upstream.forgotten.join(resume)

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """See `SourceReader.likely_small`."""
        return True

    def notices(self) -> tuple[str, ...]:
        """See `SourceReader.notices`."""
        return ()

    async def close(self) -> None:
        """See `SourceReader.close`."""
        self._given.close()


@dataclass(frozen=True)
class KeyedLogOptions:
    """It takes none."""


def kind(upstream: KeyedLog) -> ReaderKind[KeyedLogOptions]:
    """Return the entry of a registry under which CREATE SOURCE reads ``upstream``: ``USING log``."""

    async def opened(_: KeyedLogOptions, around: Surroundings) -> KeyedLogReader:
        return KeyedLogReader(upstream, around.engine)

    return ReaderKind("log", KeyedLogOptions, opened)


def _record(said: Said, place: str | None) -> dict[str, Any]:
    error = None
    if said.key is None or said.bad:
        error = "somewhere" if place is None else f'{{"file":"{place}","reason":"it cannot be decoded","raw":"…"}}'
    k, p = said.key or (None, None)
    return {
        "k": k,
        "p": p,
        "v": None if error or said.gone else said.v,
        "note": None if error or said.gone or said.same else said.note,
        GONE: None if said.key is None else said.gone,
        KEPT: ["note"] if said.same else None,
        ERROR: error,
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    ours = {ORDER: pa.int64(), GONE: pa.bool_(), KEPT: pa.list_(pa.string()), ERROR: pa.string()}
    ours |= {TIME: pa.int64(), DIFF: pa.int64()}
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in (_TYPES | ours).items()})
