"""Changes of one table as an Arrow table of typed columns: good rows, and errors that say where and why.

A row of which one value has none of its column's type is an error as a whole: a JSON object with ``place`` (table and
position in the log), ``reason`` and ``raw`` (the texts of the declared columns).  An error that takes back a row which
was one says so, by the same reason and raw text, so that both leave (`algebra.undecoded`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from strandline.algebra import types
from strandline.algebra.keyed import GONE, KEPT, ORDER
from strandline.algebra.schema import DIFF, ERROR
from strandline.algebra.undecoded import TAKES_BACK
from strandline.sources.readers.postgres.pgoutput import lsn_text
from strandline.sources.readers.postgres.rows.values import typed
from strandline.sources.readers.postgres.tables import Change, Reading, Texts

LSN: Final = "__lsn"
"""Where in the log a change was committed; instead of its time, which a read knows."""


def table_of(reading: Reading, changes: Sequence[Change], lsns: Sequence[int], orders: Sequence[int]) -> pa.Table:
    """Return changes with their columns, `ERROR`, `DIFF`, `LSN`, and if they are keyed `ORDER`, `GONE` and `KEPT`."""
    names, kinds = reading.schema.names, [kind for _, kind in types.columns(reading.schema)]
    columns, bad = [], dict[int, list[str]]()
    for n, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        delimiter = reading.note.columns[n].delimiter
        values, reasons = typed([change.texts[n] for change in changes], kind, delimiter)
        columns.append(values)
        for row, why in reasons.items():
            if not (changes[row].gone and reading.key is not None and n not in reading.key):
                bad.setdefault(row, []).append(f"column {name!r}: {why}")
    unkeyed = _unkeyed(reading, bad, names)
    for row, change in enumerate(changes):
        if change.reason:
            bad.setdefault(row, []).insert(0, change.reason)
    errors = [
        _error(reading, change, lsn, bad[row]) if row in bad else None
        for row, (change, lsn) in enumerate(zip(changes, lsns, strict=True))
    ]
    table = pa.table(dict(zip(names, _withheld(reading, columns, bad, unkeyed), strict=True)))
    table = table.append_column(ERROR, pa.array(errors, pa.string()))
    diffs = [1 if row in bad else change.diff for row, change in enumerate(changes)]
    table = table.append_column(DIFF, pa.array(diffs, pa.int64()))
    table = table.append_column(LSN, pa.array(lsns, pa.int64()))
    if reading.key is None:
        return table
    gone = [None if row in unkeyed else change.gone and row not in bad for row, change in enumerate(changes)]
    kept = [
        [names[n] for n in change.kept] if change.kept and row not in bad else None
        for row, change in enumerate(changes)
    ]
    table = table.append_column(ORDER, pa.array(orders, pa.int64()))
    table = table.append_column(GONE, pa.array(gone, pa.bool_()))
    return table.append_column(KEPT, pa.array(kept, pa.list_(pa.string())))


def _unkeyed(reading: Reading, bad: dict[int, list[str]], names: Sequence[str]) -> frozenset[int]:
    """Return the rows whose key has no value."""
    if reading.key is None:
        return frozenset()
    marks = tuple(f"column {names[n]!r}: " for n in reading.key)
    return frozenset(row for row, reasons in bad.items() if any(reason.startswith(marks) for reason in reasons))


def _withheld(
    reading: Reading, columns: Sequence[pa.Array], bad: dict[int, list[str]], unkeyed: frozenset[int]
) -> list[pa.Array]:
    """Return the columns with NULL in the rows that are errors; a known key stays."""
    if not bad:
        return list(columns)
    found = []
    for n, column in enumerate(columns):
        keeps = reading.key is not None and n in reading.key
        out = [row in bad and not (keeps and row not in unkeyed) for row in range(len(column))]
        found.append(pa.compute.if_else(pa.array(out), pa.scalar(None, column.type), column))
    return found


def _error(reading: Reading, change: Change, lsn: int, reasons: Sequence[str]) -> str:
    told = {
        "place": f"{reading.reference}@{lsn_text(lsn)}",
        "reason": (TAKES_BACK if change.diff < 0 else "") + "; ".join(reasons),
        "raw": _raw(reading.schema.names, change.texts),
    }
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False)


def _raw(names: Sequence[str], texts: Texts) -> str:
    told = {name: None if text is None else _shown(text) for name, text in zip(names, texts, strict=True)}
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False)


def _shown(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(text).decode()
