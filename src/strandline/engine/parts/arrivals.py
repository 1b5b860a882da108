"""What a reader made of its records, one bounded table after the other, as a frame: `Aside` with times of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from strandline.algebra.keyed import GONE, KEPT, ORDER
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema, quote
from strandline.engine.frames import inline
from strandline.engine.frames.rows import Distributed, Frame, Local
from strandline.engine.parts.aside import HELD_BYTES_MAX, Aside, OfThisMachine, Places
from strandline.errors import InvalidUsage

_KEYED: Final[Mapping[str, tuple[pa.DataType, str]]] = {
    ORDER: (pa.int64(), "bigint"),
    GONE: (pa.bool_(), "boolean"),
    KEPT: (pa.list_(pa.field("element", pa.string())), "array<string>"),
}


class Arrivals(Aside):
    """See `Engine.arrivals`."""

    known: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        session: SparkSession,
        schema: Schema,
        *,
        keyed: bool,
        held_bytes_max: int = HELD_BYTES_MAX,
        place: Places = OfThisMachine,
    ) -> None:
        super().__init__(session, schema, 0, held_bytes_max, place)
        more = _KEYED if keyed else {}
        stored = inline.update_schema(schema)
        fields = [
            *(stored.field(name) for name in (*schema.names, ERROR)),
            *(pa.field(n, t[0]) for n, t in more.items()),
        ]
        self._target = pa.schema([*fields, stored.field(TIME), stored.field(DIFF)])
        ours = {ERROR: "string", **{name: kind for name, (_, kind) in more.items()}, TIME: "bigint", DIFF: "bigint"}
        self._ddl = ", ".join([schema.ddl, *(f"{quote(name)} {kind}" for name, kind in ours.items())])
        self._plain = not keyed
        self._erring = False

    def add(self, table: pa.Table) -> None:
        """See `Aside.add`."""
        given, wanted = {*table.column_names}, {*self._target.names}
        missing, unknown = wanted - given - {ERROR, KEPT}, given - wanted
        if missing or unknown:
            raise InvalidUsage(
                f"a reader's records have the columns {', '.join(self._target.names)}; "
                f"missing: {', '.join(sorted(missing)) or 'none'}; unknown: {', '.join(sorted(unknown)) or 'none'}"
            )
        aligned = inline.conform(table, self._target)
        self._plain = self._plain and pc.all(pc.equal(aligned[DIFF], 1)).as_py() is not False
        self._erring = self._erring or aligned[ERROR].null_count < aligned.num_rows
        self._put(aligned)

    def _frame(self) -> Frame:
        names = [name for name in self._target.names if name != ERROR or self._erring]
        if not self._files:
            table = pa.concat_tables([self._target.empty_table(), *self._held])
            return Local(table.select(names), plain=self._plain)
        scan = self._scan(self._ddl)
        return Distributed(scan.select(*map(quote, names)), plain=self._plain)
