"""What changes of a table say of its rows, and where they say too little."""

from __future__ import annotations

import json

import pytest

from strandline.algebra.messages import GONE, KEPT
from strandline.algebra.schema import DIFF, ERROR, Column, Schema
from strandline.errors import SourceError
from strandline.sources.reader import Keyed, TakenBack
from strandline.sources.readers.postgres import pgoutput
from strandline.sources.readers.postgres.ledger import ColumnNote, TableNote
from strandline.sources.readers.postgres.pgoutput import Delete, Identity, Insert, Relation, RelationColumn, Update
from strandline.sources.readers.postgres.row_values import table_of
from strandline.sources.readers.postgres.server import Published, UpstreamColumn, UpstreamTable
from strandline.sources.readers.postgres.tables import MOVED_AND_KEPT, Reading, Stops, noted

INT, BIGINT, TEXT, VARCHAR, NUMERIC = 23, 20, 25, 1043, 1700
SCHEMA = Schema((Column("ID", "int"), Column("v", "string")))


def upstream(identity=Identity.DEFAULT, *columns):
    """A table of the publication."""
    given = columns or (("id", INT, True), ("v", TEXT, False), ("more", TEXT, False))
    made = tuple(UpstreamColumn(name, kind, -1, f"type {kind}", key) for name, kind, key in given)
    return UpstreamTable("public", "t", identity, made, Published(frozenset()))


def relation(identity=Identity.DEFAULT, *columns):
    """The same, as the stream describes it."""
    given = columns or (("id", INT, True, -1), ("v", TEXT, False, -1), ("more", TEXT, False, -1))
    made = tuple(
        RelationColumn(key or identity is Identity.FULL, name, kind, modifier) for name, kind, key, modifier in given
    )
    return Relation(1, "public", "t", identity, made)


def reading(identity=Identity.DEFAULT, schema=SCHEMA):
    """How the table is read."""
    return Reading("public.t", schema, noted("public.t", schema, upstream(identity)), item="s")


def said(reading, message, identity=Identity.DEFAULT):
    """What a message says, as rows without what is None."""
    changes = reading.changes(message, reading.layout(relation(identity), 1))
    found = table_of(reading, changes, [7] * len(changes), range(len(changes))).to_pylist()
    hidden = {"__lsn", "__order"}
    return [{k: v for k, v in row.items() if v is not None and k not in hidden} for row in found]


def test_a_column_is_found_by_its_name_or_by_its_name_without_case():
    """Damage: a column is read from another one."""
    assert [c.name for c in noted("t", SCHEMA, upstream()).columns] == ["id", "v"]
    both = upstream(Identity.FULL, ("Id", INT, False), ("id", INT, False), ("ID", TEXT, False), ("v", TEXT, False))
    assert noted("t", SCHEMA, both).columns[0].type_oid == TEXT
    alike = upstream(Identity.FULL, ("Id", INT, False), ("id", INT, False), ("v", TEXT, False))
    with pytest.raises(SourceError, match="has no column ID in the publication; it has Id, id, v; drop the table here"):
        noted("t", SCHEMA, alike)


def test_the_identity_decides_what_records_are():
    """Damage: rows as they were are taken for keys, or the other way round."""
    assert reading().records == Keyed(("ID",))
    assert reading(Identity.FULL).records == TakenBack()
    assert noted("t", SCHEMA, upstream(Identity.NOTHING)).key is None
    assert noted("t", SCHEMA, upstream(Identity.DEFAULT, ("id", INT, False), ("v", TEXT, False))).key is None
    with pytest.raises(SourceError, match="kept by its key, of which id is not declared.*REPLICA IDENTITY FULL"):
        noted("t", Schema((Column("v", "string"),)), upstream())


def test_the_sql_to_run_upstream_names_the_table_as_it_is_called_there():
    """Damage: public.Orders is public.orders to PostgreSQL, so another table is altered, or none."""
    with pytest.raises(SourceError, match='ALTER TABLE public."Orders" REPLICA IDENTITY FULL'):
        noted("public.Orders", Schema((Column("v", "string"),)), upstream())


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ((("id", INT, True, -1), ("v", VARCHAR, False, 9)), None),
        ((("more", TEXT, False, -1), ("v", TEXT, False, -1), ("new", INT, False, -1), ("id", INT, True, -1)), None),
        ((("id", INT, True, -1),), "column 'v' is gone upstream; first add it there"),
        ((("id", BIGINT, True, -1), ("v", TEXT, False, -1)), "column 'id' was of type type 23 and no longer is"),
        ((("id", TEXT, True, -1), ("v", TEXT, False, -1)), "column 'id' was of type type 23 and no longer is"),
        ((("id", INT, False, -1), ("v", TEXT, True, -1)), "was the key ID and is another now"),
        ((("id", INT, True, -1), ("v", TEXT, True, -1)), "was the key ID and is another now"),
    ],
)
def test_a_table_that_changes_upstream_is_read_on_or_stops(columns, why):
    """Damage: a column is filled with another's values, or rows change that no message names."""
    keyed = reading()
    if why is None:
        layout = keyed.layout(relation(Identity.DEFAULT, *columns), 1)
        assert [columns[n][0] for n in layout.positions] == ["id", "v"]
        return
    with pytest.raises(Stops, match=why):
        keyed.layout(relation(Identity.DEFAULT, *columns), 1)


@pytest.mark.parametrize(
    ("was", "now", "alike"),
    [((10, 2), (12, 2), True), ((10, 2), (12, 4), True), ((10, 4), (10, 2), False), ((10, 2), None, True),
     (None, (10, 2), False), (None, None, True)],
)  # fmt: skip
def test_a_number_with_fewer_digits_than_before_stops_the_table(was, now, alike):
    """Damage: upstream rounds every row, and sends none of them."""
    modifier = lambda digits: -1 if digits is None else (digits[0] << 16 | digits[1]) + 4  # noqa: E731
    note = TableNote("public.t", None, (ColumnNote("id", NUMERIC, modifier(was), "numeric"),), "d")
    number = Reading("public.t", Schema((Column("id", "decimal(20,4)"),)), note, item="s")
    told = relation(Identity.FULL, ("id", NUMERIC, False, modifier(now)))
    if alike:
        assert number.layout(told, 1).positions == (0,)
    else:
        with pytest.raises(Stops, match="no longer is"):
            number.layout(told, 1)


def test_keyed_changes_say_what_the_key_has_from_then_on():
    """Damage: a row that moved stays where it was, or one that stayed goes."""
    keyed = reading()
    row = {DIFF: 1, GONE: False}
    assert said(keyed, Insert(1, (b"1", b"a", b"x"))) == [{"ID": 1, "v": "a", **row}]
    assert said(keyed, Update(1, None, False, (b"1", b"b", b"x"))) == [{"ID": 1, "v": "b", **row}]
    assert said(keyed, Update(1, (b"1", None, None), True, (b"2", b"b", b"x"))) == [
        {"ID": 1, DIFF: 1, GONE: True},
        {"ID": 2, "v": "b", **row},
    ]
    assert said(keyed, Delete(1, (b"1", None, None), True)) == [{"ID": 1, DIFF: 1, GONE: True}]
    assert said(keyed, Update(1, None, False, (b"1", pgoutput.KEPT, b"x"))) == [{"ID": 1, KEPT: ["v"], **row}]
    assert said(keyed, Update(1, None, False, (b"1", b"a", pgoutput.KEPT))) == [{"ID": 1, "v": "a", **row}]


def test_full_rows_say_more_to_a_keyed_table():
    """Damage: REPLICA IDENTITY FULL, set to mend a table, stops it."""
    keyed, full = reading(), Identity.FULL
    moved = Update(1, (b"1", b"a", b"x"), False, (b"2", pgoutput.KEPT, b"x"))
    assert said(keyed, moved, full) == [{"ID": 1, DIFF: 1, GONE: True}, {"ID": 2, "v": "a", DIFF: 1, GONE: False}]
    assert said(keyed, Delete(1, (b"1", b"a", b"x"), False), full) == [{"ID": 1, DIFF: 1, GONE: True}]


def test_a_large_value_of_a_row_that_moved_is_an_error_of_its_key():
    """Damage: the value is invented, or the whole table stops."""
    gone, bad = said(reading(), Update(1, (b"1", None, None), True, (b"2", pgoutput.KEPT, b"x")))
    assert gone == {"ID": 1, DIFF: 1, GONE: True}
    assert (bad["ID"], bad[GONE]) == (2, False)
    assert json.loads(bad[ERROR]) == {
        "place": "public.t@0/7",
        "reason": MOVED_AND_KEPT,
        "raw": '{"ID":"2","v":null}',
    }


def test_a_key_that_cannot_be_read_is_an_error_that_stands_for_itself():
    """Damage: the error of an unknown row takes another row away."""
    (bad,) = said(reading(), Insert(1, (b"x", b"a", b"x")))
    assert GONE not in bad
    assert "ID" not in bad
    assert "column 'ID': it is no int" in bad[ERROR]
    (kept,) = said(reading(), Update(1, None, False, (pgoutput.KEPT, b"a", b"x")))
    assert "did not send its key" in kept[ERROR]


def test_rows_as_they_were_are_taken_back_with_their_errors():
    """Damage: an error stays after upstream has mended the row."""
    full = reading(Identity.FULL)
    before, after = said(full, Update(1, (b"x", b"a", b"x"), False, (b"2", b"a", b"x")), Identity.FULL)
    (came,) = said(full, Insert(1, (b"x", b"a", b"x")), Identity.FULL)
    told, taken = json.loads(came[ERROR]), json.loads(before[ERROR])
    assert taken["reason"] == "it takes back a record that is not here: " + told["reason"]
    assert taken["raw"] == told["raw"]
    assert before[DIFF] == came[DIFF] == 1
    assert after == {"ID": 2, "v": "a", DIFF: 1}
    assert said(full, Delete(1, (b"1", b"a", b"x"), False), Identity.FULL) == [{"ID": 1, "v": "a", DIFF: -1}]


@pytest.mark.parametrize("message", [Delete(1, (b"1", None, None), True), Update(1, None, False, (b"1", b"a", b"x"))])
def test_a_table_of_full_rows_stops_where_only_keys_are_said(message):
    """Damage: a row is withdrawn that was never there."""
    with pytest.raises(Stops, match="no longer FULL"):
        said(reading(Identity.FULL), message)
