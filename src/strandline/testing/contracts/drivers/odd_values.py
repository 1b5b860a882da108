"""Values that Spark has and an endpoint may not have: each one is stored as it is, or refused by one sentence.

Law: M2.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import pyarrow as pa

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.schema import Column, Schema
from strandline.errors import DefinitionError
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.materialize.wire.values import plain
from strandline.testing.contracts.drivers.world import EndpointUnderTest, World

DAY: Final = 86_400_000_000
BEFORE_CHRIST, YEAR_0, YEAR_12000 = -735_525, -719_163, 3_663_385
"""Days since 1970: the first and the last of them are -0043-03-15 and in the year 12000."""
SCHEMA: Final = Schema(
    (
        Column("k", "string"),
        Column("d", "date"),
        Column("t", "timestamp"),
        Column("n", "timestamp_ntz"),
        Column("s", "string"),
        Column("x", "double"),
        Column("l", "array<date>"),
        Column("o", "struct<d:date,t:timestamp,s:string,x:double>"),
    )
)
ODD: Final[dict[str, dict[str, Any]]] = {
    "nothing": {},
    "date before Christ": {"d": BEFORE_CHRIST},
    "date of year 0": {"d": YEAR_0},
    "date after 9999": {"d": YEAR_12000},
    "last date": {"d": 2**31 - 1},
    "time before Christ": {"t": BEFORE_CHRIST * DAY + 1, "n": YEAR_0 * DAY + 1},
    "time after 9999": {"t": YEAR_12000 * DAY + 1, "n": YEAR_12000 * DAY - 1},
    "last time": {"t": 2**63 - 1, "n": 2**63 - 1},
    "NUL": {"s": "a\0b"},
    "backslashes": {"s": "\\0 \\u0000 \\\\u0000 \ud7ff\ue000"},
    "NaN": {"x": math.nan},
    "infinity": {"x": -math.inf},
    "dates in an array": {"l": [BEFORE_CHRIST, None, YEAR_12000, 2**31 - 1]},
    "times in a struct": {"o": {"d": BEFORE_CHRIST, "t": YEAR_12000 * DAY + 1, "s": None, "x": None}},
    "NUL in a struct": {"o": {"d": None, "t": None, "s": "\0", "x": None}},
    "backslashes in a struct": {"o": {"d": None, "t": None, "s": "\\0 \\u0000", "x": None}},
    "large number in a struct": {"o": {"d": None, "t": None, "s": "", "x": 1.7976931348623157e308}},
    "small number in a struct": {"o": {"d": None, "t": None, "s": "", "x": 5e-324}},
    "NaN in a struct": {"o": {"d": None, "t": None, "s": "", "x": math.nan}},
    "long key " + "".join(chr(0x4E00 + n % 20_000) for n in range(3_000)): {},
}


async def odd_values(endpoint: EndpointUnderTest) -> None:
    """Store all at once; take out the row that is refused, and go on, until the rest is stored.

    The endpoint's ``unholdable`` are the rows that it refuses, by their keys in `ODD`; if it is ``flat``, it has no
    arrays and structs.
    """
    flat = getattr(endpoint, "flat", False)
    schema = Schema(tuple(each for each in SCHEMA if not (flat and "<" in each.type)))
    kinds = {name: arrow(kind) for name, kind in types.columns(schema)}
    world = World(endpoint, MaterializationSpec("m", (Binding("odd", "Odd", ("k",), schema),)), kinds)
    (feed,) = world.feeds
    known = {key: given for key, given in ODD.items() if given.keys() <= kinds.keys()}
    rows = {key: {**dict.fromkeys(schema.names), "k": key, **given} for key, given in known.items()}
    feed.write(0, *((each, 1) for each in rows.values()))
    world.seal(1)
    runtime = world.runtime()
    refused: set[str] = set()
    while True:
        try:
            while await runtime.advance():
                pass
            break
        except DefinitionError as error:
            said = str(error)
            found = re.match(r"'odd' into 'Odd': the row with the key \(k = '([\w ]+)", said)
            assert found is not None, said
            assert re.search(r"in column '\w'.*cannot store: .+; take the row out, or|has a key of \d+ bytes", said), (
                said
            )
            key = next(each for each in rows if each == found[1] or each.startswith(f"long key {found[1][9:]}"))
            refused.add(key)
            feed.write(world.upper, (rows.pop(key), -1))
            world.seal(world.upper + 1)
    await runtime.close()
    expected = frozenset(getattr(endpoint, "unholdable", ()))
    assert {"long key" if key.startswith("long key") else key for key in refused} == expected
    binding = world.spec.bindings[0]
    held = await endpoint.driver().contents("m", binding)
    read = pa.concat_tables([table async for table in held.tables]).sort_by("k")
    stored = pa.table({n: pa.array([each[n] for each in rows.values()], kinds[n]) for n in schema.names}).sort_by("k")
    for name in schema.names:
        assert repr(plain(read[name]).to_pylist()) == repr(plain(stored[name]).to_pylist()), name
