"""Envelopes: what turns the records of a step, as a reader returns them, into the updates that are staged.

An envelope stands between reading and staging.  It may look at the contents of the source's shard before the step, and
at nothing else; so the same records over the same contents give the same updates, whichever instance makes the step.

`Append` takes plain records, `NewestByKey` keyed ones, and `Retracting` records that upstream takes back; `envelope_of`
chooses by the table's records.

Keyed records mean: at each time a key has what its last record up to that time says, which is one row, one error, or
nothing.  The updates at a time withdraw what each key had just before and insert what it has from then on; an unchanged
key makes no update.  `changed` says the same slowly and plainly, and is kept for ever for tests to compare with.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from msgspec.structs import replace

from strandline.algebra.messages import GONE, KEPT, NOTHING_KEPT, ORDER, check_key, key_of, with_key
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema
from strandline.frontier import Frontier, as_time
from strandline.persist.handles.contents import Contents, Half, Rows
from strandline.persist.handles.read import contents, erring
from strandline.persist.shard.state import ShardState
from strandline.plane import Enveloping
from strandline.sources.reader import Keyed, Plain, Records, TakenBack
from strandline.sources.reclock import Slice


class Envelope(Protocol):
    """One way to read records as updates."""

    @property
    def by_binding(self) -> bool:
        """Whether a step takes one binding, because its updates depend on what is held just before its time."""
        ...

    @property
    def settled(self) -> bool:
        """Whether no two updates cancel, and all are normal as the reader gave them (`StageRequest.normalised`)."""
        ...

    async def updates(self, rows: Rows, slices: Sequence[Slice], lower: Frontier, *, located: bool) -> Rows:
        """Return the updates of the records ``rows`` (lazy), which `SourceReader.read` returned for ``slices``.

        The shard is durable up to ``lower``.  ``located``: the errors among ``rows`` say where they are.
        """
        ...


class HeldState(Protocol):
    """Where the source's shard is seen: its writer's handle."""

    @property
    def state(self) -> ShardState:
        """The newest state known."""
        ...


class Append:
    """Every record is an update.  See `Envelope`."""

    by_binding = False
    settled = True

    async def updates(self, rows: Rows, slices: Sequence[Slice], lower: Frontier, *, located: bool) -> Rows:
        """See `Envelope.updates`."""
        return rows


Row: TypeAlias = Mapping[str, Any]
Key: TypeAlias = tuple[Any, ...]


def changed(
    records: Iterable[Row], held: Iterable[Row], errors: Iterable[Row], names: Sequence[str], key: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the updates that ``records`` make where ``held`` and ``errors`` are there already.

    ``held``: updates of at least the keys of the records; ``errors``: those of the err half.
    ``names``: the columns; ``key``: those of them that are the key.

    >>> record = {"id": 1, "v": "b", "__time": 5, "__order": 0, "__gone": False}
    >>> held = {"id": 1, "v": "a", "__diff": 1}
    >>> for update in changed([record], [held], [], ["id", "v"], ["id"]):
    ...     print(update)
    {'id': 1, 'v': 'a', '__error': None, '__time': 5, '__diff': -1}
    {'id': 1, 'v': 'b', '__error': None, '__time': 5, '__diff': 1}

    Rows are dicts: of the columns, ``__error``, ``__time``, ``__diff``, and for records the columns of
    `algebra.messages`.
    """
    given = sorted(records, key=lambda record: (record[TIME], record[ORDER]))
    there = _standing(held, errors, given, names, key)
    found = []
    for time in sorted({record[TIME] for record in given}):
        now = [record for record in given if record[TIME] == time]
        touched = {_key(record, key) for record in now if record[GONE] is not None}
        before = {each: there.get(each, []) for each in touched}
        for record in now:
            if record[GONE] is None:
                found.append(_shown({ERROR: record[ERROR]}, names) | {TIME: time, DIFF: 1})
            else:
                own = _key(record, key)
                there[own] = _after(record, there.get(own, []), names, key)
        for own in sorted(touched, key=repr):
            found += _difference(before[own], there[own], time)
    return found


def _after(
    record: Row, before: Sequence[dict[str, Any]], names: Sequence[str], key: Sequence[str]
) -> list[dict[str, Any]]:
    """Return what the key of ``record`` has once it has come."""
    if record[GONE]:
        return []
    texts = key_texts(record, key)
    if record.get(ERROR) is not None:
        return [_shown({ERROR: with_key(record[ERROR], texts)}, names)]
    kept = [name for name in names if name in (record.get(KEPT) or ())]
    if not kept:
        return [_shown(record, names)]
    if len(before) != 1 or before[0][ERROR] is not None:
        return [_shown({ERROR: with_key(f'{{"reason":"{NOTHING_KEPT}"}}', texts)}, names)]
    return [_shown(record, names) | {name: before[0][name] for name in kept}]


def _standing(
    held: Iterable[Row], errors: Iterable[Row], records: Sequence[Row], names: Sequence[str], key: Sequence[str]
) -> dict[Key, list[dict[str, Any]]]:
    """Return what each key has before the records, each row as often as it is there."""
    there: dict[Key, list[dict[str, Any]]] = {}
    for row in _added_up(held, names):
        there.setdefault(_key(row, key), []).extend([_shown(row, names)] * row[DIFF])
    texts = {tuple(key_texts(record, key).items()): _key(record, key) for record in records if record[GONE] is not None}
    for row in _added_up(errors, (ERROR,)):
        own = texts.get(tuple((key_of(row[ERROR]) or {}).items()))
        if own is not None:
            there.setdefault(own, []).extend([_shown(row, names) | dict.fromkeys(names)] * row[DIFF])
    return there


def _added_up(updates: Iterable[Row], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return each row once, with how often it is there."""
    sums: Counter[str] = Counter()
    shown: dict[str, dict[str, Any]] = {}
    for row in updates:
        values = {name: normal(row[name]) for name in names}
        sums[repr(values)] += row[DIFF]
        shown[repr(values)] = values
    return [shown[each] | {DIFF: count} for each, count in sums.items() if count]


def _difference(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], time: int) -> list[dict[str, Any]]:
    sums: Counter[str] = Counter()
    for rows, diff in ((before, -1), (after, 1)):
        for row in rows:
            sums[repr(row)] += diff
    shown = {repr(row): row for row in (*before, *after)}
    return [shown[each] | {TIME: time, DIFF: diff} for each, diff in sorted(sums.items(), key=_withdrawn_first) if diff]


def _withdrawn_first(counted: tuple[str, int]) -> tuple[int, str]:
    return counted[1], counted[0]


def _shown(row: Row, names: Sequence[str]) -> dict[str, Any]:
    return {name: normal(row.get(name)) for name in (*names, ERROR)}


def _key(row: Row, key: Sequence[str]) -> Key:
    """Return what is equal iff the keys are: NULL is a value like others, and so is NaN."""
    return tuple(repr(normal(row[name])) for name in key)


def key_texts(row: Row, key: Sequence[str]) -> dict[str, str | None]:
    """Return a key's values as texts, for its errors."""
    return {name: None if row[name] is None else str(normal(row[name])) for name in key}


def normal(value: Any) -> Any:
    """Return a value as it is stored: no −0.0, one NaN, at any depth.

    >>> normal([-0.0, {"x": float("nan")}])
    [0.0, {'x': nan}]
    """
    match value:
        case float():
            return math.nan if math.isnan(value) else value + 0.0
        case list():
            return [normal(each) for each in value]
        case dict():
            return {name: normal(each) for name, each in value.items()}
        case _:
            return value


PRUNE_ROWS_MIN: Final = 100_000
"""Fewer rows than this are read whole: to ask for the bounds of the keys takes as long."""


class NewestByKey:
    """Each record is what its key has from its time on.  See `Envelope`.

    A step takes any number of bindings: what each time sees before it is held, or is among the step's own records.

    Its state is the source's own shard.  The rows of the keys are looked up there, so a step costs what it changes and
    not the size of the collection; only where a look-up is not the better way, a part of the shard, or all of it, is
    read.

    The errors of the shard are read whole: they are few, or the source needs attention before speed.

    What keyed records mean: `changed`.
    """

    by_binding = False
    settled = False

    def __init__(self, schema: Schema, key: Sequence[str], engine: Enveloping, held: HeldState) -> None:
        """Raise `DefinitionError` if ``key`` cannot be the key of rows of ``schema``."""
        check_key(schema, key)
        self._schema = schema
        self._key = tuple(key)
        self._engine = engine
        self._held = held

    async def updates(self, rows: Rows, slices: Sequence[Slice], lower: Frontier, *, located: bool) -> Rows:
        """See `Envelope.updates`."""
        before = contents(self._held.state, self._schema, 0, as_time(lower), advance=slices[0].time)
        held = await self._of_keys(before, rows) if before.batches else None
        return await self._engine.keyed(rows, held, await self._errors(before), self._schema, self._key)

    async def _of_keys(self, before: Contents, rows: Rows) -> Rows:
        """Return the updates of ``before`` that have a key of ``rows``, and perhaps others."""
        found = await self._engine.lookup(before, self._key, [(rows, self._key)], nulls=True)
        if found is None and before.rows >= PRUNE_ROWS_MIN and all(b.sort[:1] == self._key[:1] for b in before.batches):
            found = await self._engine.prune(before, self._key[0], [(rows, self._key[0])], nulls=True)
        return await self._engine.read(before) if found is None else found

    async def _errors(self, before: Contents) -> Rows | None:
        """Return the updates of the errors of ``before``; None if there are none for sure."""
        held = replace(erring(before), half=Half.ERR, here=True)
        return await self._engine.read(held) if held.batches else None


class Retracting:
    """Records come and go; an undecodable one that goes cancels with the error that it left.  See `Envelope`.

    Its text is part of a located error alone, so a step without errors is left as it is.
    """

    by_binding = True
    settled = False  # an upstream that rewrites a file takes back most rows of it to say them again

    def __init__(self, schema: Schema, engine: Enveloping, held: HeldState) -> None:
        self._schema = schema
        self._engine = engine
        self._held = held

    async def updates(self, rows: Rows, slices: Sequence[Slice], lower: Frontier, *, located: bool) -> Rows:
        """See `Envelope.updates`."""
        if not located:
            return rows
        (only,) = slices
        held = contents(self._held.state, self._schema, 0, as_time(lower), advance=only.time, half=Half.ERR)
        return await self._engine.cancel(rows, await self._engine.read(erring(held)), time=only.time)


def envelope_of(records: Records, schema: Schema, engine: Enveloping, held: HeldState) -> Envelope:
    """Return the envelope of ``records``, of ``schema``, whose updates so far are ``held``.

    Raises `DefinitionError` if they name a key that rows of ``schema`` cannot have.
    """
    match records:
        case Plain():
            return Append()
        case TakenBack():
            return Retracting(schema, engine, held)
        case Keyed(key):
            return NewestByKey(schema, key, engine, held)


def sort_of(records: Records) -> tuple[str, ...]:
    """Return the columns by which the batches of a table are to be sorted, so that its envelope finds rows.

    >>> sort_of(Keyed(("id",))), sort_of(Plain())
    (('id',), ())
    """
    return records.key if isinstance(records, Keyed) else ()
