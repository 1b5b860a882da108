"""Rows of Arrow tables as the wire's messages, and what a connector loads as rows again.

A message carries one row: its key as JSON and packed, so a connector of either codec finds what it looks for; a Store
also its values, in the order of the selection, and the whole document if the connector keeps it.  A key has one form
even where SQL knows two (-0.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from strandline.algebra import types
from strandline.errors import ProtocolViolation
from strandline.materialize.protocol.messages import DELETE, EXISTS
from strandline.materialize.protocol.task import Binding
from strandline.materialize.wire.codec import Message, Request
from strandline.materialize.wire.specs import Selection
from strandline.materialize.wire.tuples import keyed, packed, without_signed_zero
from strandline.materialize.wire.values import column, listed, plain, rows_of

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def loads(place: int, keys: pa.Table) -> Iterator[Message]:
    """Yield a Load for each row of ``keys``, the key columns of the binding at ``place``."""
    columns = keys.columns
    for texts, data in zip(_key_texts(columns), keyed(columns).to_pylist(), strict=True):
        yield Request(load={"binding": place, "key_json": texts, "key_packed": data})


def stores(place: int, selection: Selection, rows: pa.Table) -> Iterator[Message]:
    """Yield a Store for each row of a native Store's table."""
    keys = [rows[name] for name in selection.keys]
    values = [rows[name] for name in selection.values]
    count = len(rows)
    for key, key_packed, value, value_packed, document, exists, delete in zip(
        _key_texts(keys),
        keyed(keys).to_pylist(),
        _texts([listed(plain(each)) for each in values], count),
        packed(values).to_pylist() if values else [b""] * count,
        _documents(selection, rows),
        rows[EXISTS].to_pylist(),
        rows[DELETE].to_pylist(),
        strict=True,
    ):
        yield Request(
            store={
                "binding": place,
                "key_json": key,
                "key_packed": key_packed,
                "values_json": value,
                "values_packed": value_packed,
                "doc_json": document,
                "exists": exists,
                "delete": delete,
            }
        )


def _key_texts(columns: Sequence[pa.ChunkedArray]) -> list[bytes]:
    return _texts([listed(without_signed_zero(plain(each))) for each in columns], len(columns[0]))


def _texts(columns: Sequence[list[Any]], count: int) -> list[bytes]:
    return [_encode(row) for row in rows_of(columns)] if columns else [b"[]"] * count


def _documents(selection: Selection, rows: pa.Table) -> list[bytes]:
    if not selection.document:
        return [b""] * len(rows)
    names = [name for name in rows.column_names if name not in {EXISTS, DELETE}]
    columns = [listed(plain(rows[name])) for name in names]
    return [_encode(dict(zip(names, row, strict=True))) for row in rows_of(columns)]


def loaded(binding: Binding, documents: Sequence[bytes]) -> pa.Table:
    """Return the documents that a connector loaded as rows of the binding's collection.

    Raises:
        ProtocolViolation: one is no object, or a value is not of its column's type.
    """
    found = [_object(each) for each in documents]
    columns = {
        name: column(name, [each.get(name) for each in found], kind) for name, kind in types.columns(binding.schema)
    }
    return pa.table(columns)


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = _decode(text)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"a document is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ProtocolViolation(f"a document is a {type(found).__name__}, and must be an object")
    return found
