"""Tools see the collections that there are, and what the server can do."""

from __future__ import annotations

import pyarrow as pa
import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import InvalidUsage
from strandline.serving.messages import made, packed, unpacked
from strandline.serving.metadata import told

COLLECTIONS = {
    "Orders": ("table", Schema((Column("id", "bigint"), Column("x y", "decimal(10,2)")))),
    "total_1": ("view", Schema((Column("n", "bigint"),))),
    "totals": ("view", Schema((Column("n", "bigint"),))),
}


def listed(**asked: object) -> list[tuple[str, str]]:
    """Return the names and types of the tables in the answer."""
    found = told(made("CommandGetTables", **asked), lambda: COLLECTIONS)
    assert found is not None
    return list(zip(found["table_name"].to_pylist(), found["table_type"].to_pylist(), strict=True))


def test_tables_are_found_by_pattern_and_type() -> None:
    """Damage: a tool shows no tables, or those of another name."""
    assert listed(table_name_filter_pattern="orders") == [("Orders", "TABLE")]
    assert listed(table_name_filter_pattern=r"total\_%") == [("total_1", "VIEW")]
    assert listed(table_name_filter_pattern="total_", table_types=["VIEW"]) == [("totals", "VIEW")]
    assert {name for name, _ in listed(db_schema_filter_pattern="strandline")} >= {"steps", "frontiers"}
    assert listed(catalog="elsewhere") == []


def test_a_tool_may_ask_for_columns() -> None:
    """Damage: a tool cannot complete the names of columns."""
    found = told(made("CommandGetTables", table_name_filter_pattern="orders", include_schema=True), lambda: COLLECTIONS)
    assert found is not None
    schema = pa.ipc.read_schema(pa.BufferReader(found["table_schema"][0].as_py()))
    assert schema == pa.schema([("id", pa.int64()), ("x y", pa.decimal128(10, 2))])


def test_what_the_server_is_can_be_asked_in_part() -> None:
    """Damage: a driver takes the server for one that has no transactions, or that takes no SQL."""
    found = told(made("CommandGetSqlInfo", info=[0, 3, 8]), dict)
    assert found is not None
    assert found["info_name"].to_pylist() == [0, 3, 8]
    assert found["value"].to_pylist() == ["Strandline", False, 1]


@pytest.mark.parametrize(
    "kind",
    [
        "CommandGetCatalogs",
        "CommandGetDbSchemas",
        "CommandGetTableTypes",
        "CommandGetPrimaryKeys",
        "CommandGetXdbcTypeInfo",
    ],
)
def test_other_questions_have_an_answer(kind: str) -> None:
    """Damage: a tool that asks for keys or schemas ends with an error, and shows nothing."""
    assert told(made(kind), dict) is not None


def test_what_is_no_message_is_refused() -> None:
    """Damage: garbage on the socket ends the process that writes."""
    assert unpacked(packed(made("CommandGetCatalogs"))).DESCRIPTOR.name == "CommandGetCatalogs"
    for garbage in (b"", b"\xff" * 40, b"SELECT 1"):
        with pytest.raises(InvalidUsage):
            unpacked(garbage)
