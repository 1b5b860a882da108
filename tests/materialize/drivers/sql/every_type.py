"""A table with a column of each type, and its least, its greatest and its odd values."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
from tests.materialize.drivers.sql.endpoint import SqlEndpoint

from strandline.algebra.arrow_types import arrow
from strandline.algebra.schema import Column, Schema
from strandline.algebra.types import parse
from strandline.materialize.protocol.messages import (
    DELETE,
    EXISTS,
    Acknowledge,
    Flush,
    Load,
    Loaded,
    Open,
    StartCommit,
    Store,
)
from strandline.materialize.protocol.task import NOTHING, WHOLE, Binding, MaterializationSpec

FIRST, LAST = (dt.datetime.fromisoformat(text) for text in ("0001-01-01T00:00:00.000001", "9999-12-31T23:59:59.999999"))
STRUCT = "struct<a:int,`b c`:array<string>,d:decimal(5,2)>"
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-(2**7), 2**7 - 1],
    "smallint": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "float": [3.4028234663852886e38, 1.401298464324817e-45, 0.30000001192092896],
    "double": [1.7976931348623157e308, 5e-324, 0.9601271002174996],
    "decimal(38,7)": [Decimal("9" * 31 + ".9999999"), Decimal("-0.0000001")],
    "decimal(10,0)": [Decimal(9999999999), Decimal(-1)],
    "string": ["", 'it\'s "quoted"\n\\.\n\\N, \t\r\n \u00e4\u6f22\U0001f30a NULL '],
    "binary": [b"", bytes(range(256))],
    "date": [FIRST.date(), LAST.date()],
    "timestamp": [FIRST.replace(tzinfo=dt.UTC), LAST.replace(tzinfo=dt.UTC)],
    "timestamp_ntz": [FIRST, LAST],
    "array<double>": [[], [1.5, None, -0.25]],
    "array<array<string>>": [[[], ["a", None]], [None]],
    STRUCT: [{"a": 1, "b c": ["x", '"'], "d": Decimal("-1.50")}, {"a": None, "b c": None, "d": None}],
}
ODD = {"float": [math.nan, -math.inf], "double": [math.inf, math.nan]}


async def store_every_type(endpoint: SqlEndpoint) -> None:
    """Store rows of values and one of NULLs, replace them by themselves, and read them by both ways."""
    values = {**VALUES, **({} if endpoint.finite else {f"{kind} ": some for kind, some in ODD.items()})}
    count = 1 + max(map(len, values.values()))
    values = {kind: [*some, *[None] * (count - len(some))] for kind, some in values.items()}
    kinds = {f"c {n}": kind.strip() for n, kind in enumerate(values)}
    schema = Schema((Column("k", "bigint"), *(Column(name, kind) for name, kind in kinds.items())))
    spec = MaterializationSpec("m", (Binding("v", "t", ("k",), schema),))
    rows = pa.table(
        {
            "k": pa.array(range(count), pa.int64()),
            **{
                name: pa.array(some, arrow(parse(name, kind)))
                for (name, kind), some in zip(kinds.items(), values.values(), strict=True)
            },
        }
    )
    driver = endpoint.driver()
    await driver.apply(spec, {})
    assert not await driver.preview(spec), "a column of each type is found as it was made"
    session = await driver.open()
    await session.send(Open(spec, "1", WHOLE, {}))
    for time, exists in enumerate([False, True]):
        await session.send(Acknowledge())
        await session.send(Flush())
        flagged = rows.append_column(EXISTS, pa.array([exists] * count)).append_column(
            DELETE, pa.array([False] * count)
        )
        await session.send(Store(0, flagged))
        await session.send(StartCommit(NOTHING.advance(spec.state_keys, time + 1)))
    await session.send(Acknowledge())
    await session.send(Load(0, rows.select(["k"])))
    await session.close()
    loaded = []
    while session._answers:
        answer = await session.receive()
        loaded += [answer.rows] if isinstance(answer, Loaded) else []
    held = await driver.contents("m", spec.bindings[0])
    read = [table async for table in held.tables]
    for found in (pa.concat_tables(loaded), pa.concat_tables(read)):
        assert found.schema.names == rows.schema.names
        for name in rows.schema.names:
            assert repr(found.sort_by("k")[name].to_pylist()) == repr(rows[name].to_pylist()), (name, kinds.get(name))
