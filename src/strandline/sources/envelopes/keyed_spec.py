"""What keyed records mean, as their definition says it: slow, obvious, and kept for ever for tests to compare with.

At each time a key has what its last record up to then says: one row, one error, or nothing.  So the updates at a time
withdraw what each key had just before it and insert what it has from then on; what stays equal is no update.

Rows are dicts: of the columns, ``__error``, ``__time``, ``__diff``, and for records the columns of `algebra.keyed`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from strandline.algebra.keyed import GONE, KEPT, NOTHING_KEPT, ORDER, key_of, with_key
from strandline.algebra.schema import DIFF, ERROR, TIME

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
