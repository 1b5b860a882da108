"""Names, from a seed, that no database expects: each must be refused, or be a name and nothing else."""

from __future__ import annotations

from random import Random

import pyarrow as pa
from tests.materialize.drivers.sql.endpoint import SqlEndpoint

from strandline.algebra.schema import Column, Schema
from strandline.errors import DefinitionError
from strandline.materialize.protocol.messages import DELETE, EXISTS, Acknowledge, Flush, Open, StartCommit, Store
from strandline.materialize.protocol.task import NOTHING, WHOLE, Binding, MaterializationSpec

FEW, MANY = 500, 10_000
COLUMNS = 9
PIECES = (
    *"\"'`\\;-/*%?$:@#{}[]()<>|&^~!=+,. \t\n\r",
    *("--", "/*", "*/", "$$", "$1", "%s", "%(a)s", "{t}", "{", "}}", "''", '""', "``", "\\'", "\\x00", ":name", "?1"),
    *("; DROP TABLE t; --", "select", "FROM", "null", "rowid", "c0", "present", "gone", "t", "r", "strandline_rows"),
    *("\u00e4", "e\u0301", "\u202e", "\u200b", "\ufeff", "\u6f22", "\u00df", "\u0130", "\uff41", "\U0001f30a"),
    *("\0", "\x7f", "\x1b", "\ud800"),
    *("A", "b", "Z", "9", "_"),
)


def names_from(draw: Random, number: int) -> list[str]:
    """Return names that differ in a number, wherever it stands in them."""
    names = []
    for n in range(number):
        pieces = [draw.choice(PIECES) for _ in range(draw.choice((1, 2, 3, 5, 8)))]
        pieces.insert(draw.randrange(len(pieces) + 1), str(n))
        name = "".join(pieces)
        if draw.random() < 0.1:
            name += "x" * (draw.choice((62, 63, 64, 65)) - len(name))
        names.append(name.removeprefix("__") or str(n))
    return names


async def had(endpoint: SqlEndpoint, name: str) -> bool:
    """Tell whether a name can be had, as a table's and as a column's; if not, the message names it."""
    schema = Schema((Column(name, "string"),))
    try:
        await endpoint.driver().validate(MaterializationSpec("m", (Binding("v", name, (name,), schema),)))
    except DefinitionError as error:
        if repr(name) not in str(error):
            raise
        return False
    return True


async def fill_tables(endpoint: SqlEndpoint, number: int) -> None:
    """Fill tables of these names, with columns of these names, all in one materialization, and read them back."""
    taken = [name for name in names_from(Random(29), number) if await had(endpoint, name)]
    assert len(taken) > number // 3, "most of the names can be had"
    groups = [taken[at : at + COLUMNS + 1] for at in range(0, len(taken), COLUMNS + 1)]
    bindings = [
        Binding("v", group[0], (group[1],), Schema(tuple(Column(name, "string") for name in group[1:])))
        for group in groups
        if len(group) > 1
    ]
    spec = MaterializationSpec("m", tuple(bindings))
    driver = endpoint.driver()
    await driver.apply(spec, {})
    assert not await driver.preview(spec)
    session = await driver.open()
    await session.send(Open(spec, "1", WHOLE, {}))
    for time, flags in enumerate([(False, False), (True, False)]):
        await session.send(Acknowledge())
        await session.send(Flush())
        for place, binding in enumerate(bindings):
            await session.send(Store(place, stored(binding, str(time), *flags)))
        await session.send(StartCommit(NOTHING.advance(spec.state_keys, time + 1)))
    await session.close()
    for binding in bindings:
        held = await driver.contents("m", binding)
        rows = [row async for table in held.tables for row in table.to_pylist()]
        assert rows == stored(binding, "1", exists=True, delete=False).select(list(binding.schema.names)).to_pylist()
        names = {name for row in endpoint.rows(binding.resource) for name in row}
        assert names == set(binding.schema.names), "what another program sees"


def stored(binding: Binding, text: str, exists: bool, delete: bool) -> pa.Table:
    """Return one row of a binding, whose values are its columns' names; only the key's value stays."""
    row = {name: [name if name in binding.key else name + text] for name in binding.schema.names}
    table = pa.table(
        {name: pa.array([v.encode("utf-8", "replace").decode() for v in values]) for name, values in row.items()}
    )
    return table.append_column(EXISTS, pa.array([exists])).append_column(DELETE, pa.array([delete]))
