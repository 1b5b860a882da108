"""A connection keeps nothing of a transaction that has ended, and of what was staged only the last."""

from __future__ import annotations

from contextlib import closing

import duckdb
import pyarrow as pa
import pytest

from strandline.algebra.types import Atom
from strandline.materialize.drivers.duckdb.file import DuckDBConnection
from strandline.materialize.drivers.sql.connection import Sql, Staged
from strandline.materialize.spool import Spool


def staged(name: str) -> Staged:
    """Return rows of whole numbers under a name."""
    return Staged(Sql(name), ("k",), (Atom("bigint"),), Sql("k BIGINT"), ("k",))


@pytest.mark.parametrize("end", ["commit", "rollback", "stage another"])
def test_what_is_staged_goes_with_its_transaction_or_with_what_is_staged_next(end: str) -> None:
    """Damage: rows of a transaction that was taken back are stored by the next one; or they fill the memory."""
    with duckdb.connect() as inner, closing(Spool()) as rows, closing(Spool()) as others:
        rows.add(pa.table({"k": [1, 2]}))
        others.add(pa.table({"k": [3]}))
        connection, stored = DuckDBConnection(inner), Sql("SELECT count(*) FROM mine")
        connection.begin()
        connection.stage(staged("mine"), rows)
        assert connection.query(stored) == [(2,)]
        match end:
            case "commit":
                connection.commit()
            case "rollback":
                connection.rollback()
            case _:
                connection.stage(staged("another"), others)
        with pytest.raises(duckdb.CatalogException, match="mine"):
            connection.query(stored)
