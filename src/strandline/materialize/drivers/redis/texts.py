"""Rows as keys and values of Redis, a table at a time, and back.

The key of a row is its resource, and behind a colon the values of its key columns with colons between them.  In a value
``%`` is ``%25`` and ``:`` is ``%3A``, and NULL is ``%NULL``; so different keys have different texts, and a key of
plain words and numbers is read as it is written: ``orders:42``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.types import Array, Atom, Struct, Type, parse
from strandline.errors import ProtocolViolation
from strandline.materialize.drivers.redis.options import Form
from strandline.materialize.drivers.rows.json_texts import bare, objects, one_zero
from strandline.materialize.protocol.task import Binding
from strandline.materialize.wire.values import column

SEPARATOR: Final = ":"
EMPTY: Final = "__null"
"""The field of a row all of whose columns are NULL: a hash without fields is not there."""
_NULL: Final = pa.scalar("%NULL")
_GLOB: Final = str.maketrans({sign: f"\\{sign}" for sign in "\\*?[]"})

Kept = bytes | Mapping[bytes, bytes]
"""What is under a key: a JSON text, or the fields of a hash."""


def prefix(resource: str) -> str:
    """Return what the keys of a resource's rows begin with.

    >>> prefix("orders")
    'orders:'
    """
    return resource + SEPARATOR


def pattern(resource: str) -> bytes:
    r"""Return the pattern that matches these keys and no others.

    >>> pattern("a*b")
    b'a\\*b:*'
    """
    return (prefix(resource).translate(_GLOB) + "*").encode()


def row_keys(binding: Binding, rows: pa.Table) -> list[bytes]:
    """Return the key of each row; ``rows`` has the key columns.

    >>> from strandline.algebra.schema import Column, Schema
    >>> b = Binding("v", "t", ("a", "b"), Schema((Column("a", "string"), Column("b", "double"))))
    >>> row_keys(b, pa.table({"b": [-0.0, None], "a": ["x:y", "%"]}))
    [b't:x%3Ay:0', b't:%25:%NULL']
    """
    keyed = one_zero(rows.select(list(binding.key)))
    parts: list[pa.Array | pa.Scalar] = []
    for name in binding.key:
        escaped = pc.replace_substring(pc.replace_substring(bare(keyed[name]), "%", "%25"), SEPARATOR, "%3A")
        parts.append(pc.fill_null(escaped, _NULL))
    joined = pc.binary_join_element_wise(*parts, SEPARATOR)
    whole = pc.binary_join_element_wise(pa.scalar(prefix(binding.resource)), joined, "")
    found: list[bytes] = whole.cast(pa.binary()).to_pylist()
    return found


def documents(binding: Binding, rows: pa.Table) -> list[bytes]:
    """Return each row as a JSON object."""
    found: list[bytes] = objects(rows, binding.schema.names).cast(pa.binary()).to_pylist()
    return found


def hashes(binding: Binding, rows: pa.Table) -> tuple[list[list[bytes]], list[bool]]:
    """Return the fields and values of each row in one list, as HSET takes them, and which rows have a NULL."""
    names = [name.encode() for name in binding.schema.names]
    texts = [bare(rows[name]).cast(pa.binary()).to_pylist() for name in binding.schema.names]
    fields, lacking = [], []
    for row in zip(*texts, strict=True):
        given = [part for name, text in zip(names, row, strict=True) if text is not None for part in (name, text)]
        fields.append(given or [EMPTY.encode(), b""])
        lacking.append(len(given) < 2 * len(names))
    return fields, lacking


def rows_of(binding: Binding, form: Form, kept: Sequence[Kept]) -> pa.Table:
    """Return rows as a table of the binding's columns.

    Raises `ProtocolViolation` if another program wrote there.
    """
    kinds = [parse(each.name, each.type) for each in binding.schema]
    found = [_json(each) if isinstance(each, bytes) else each for each in kept]
    return pa.table(
        [
            column(each.name, _values(form, each.name, kind, found), kind)
            for each, kind in zip(binding.schema, kinds, strict=True)
        ],
        names=list(binding.schema.names),
    )


def _json(kept: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(kept, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"what is kept under a key is no JSON object: {error}") from error


def _values(form: Form, name: str, kind: Type, kept: Iterable[Mapping[Any, Any]]) -> list[Any]:
    if form is Form.JSON:
        return [each.get(name) for each in kept]
    texts = (each.get(name.encode()) for each in kept)
    return [None if text is None else _read(kind, text.decode()) for text in texts]


def _read(kind: Type, text: str) -> Any:
    match kind:
        case Array() | Struct():
            return msgspec.json.decode(text)
        case Atom("boolean") if text in {"true", "false"}:
            return text == "true"
        case _:
            return text
