"""Messages become rows as they were written; what cannot be decoded says where it stands and why."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.algebra.test_unavailable import IN_JSON

from strandline.algebra.messages import GONE, KEPT, ORDER, MessageEncoding, MessageFormat, Metadata, Shape, order
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.algebra.unavailable import IN_THE_KEY, INSIDE, LEFT_OPEN
from strandline.engine.frames.rows import Local, dataframe, unwrap
from strandline.engine.messages.decoder import SparkMessages, conformed, decoded
from strandline.testing.lists.list_engine import listed
from strandline.testing.lists.list_messages import ListMessages

pytestmark = pytest.mark.spark

PAIR = Schema((Column("k", "int"), Column("v", "string")))
JSON, CSV, TEXT, BYTES = (
    MessageEncoding.JSON,
    MessageEncoding.CSV,
    MessageEncoding.TEXT,
    MessageEncoding.BYTES,
)
HEADERS = "array<struct<key:string,value:binary>>"
AT = dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.UTC)


def raw(values, keys=None):
    """Return raw messages, at offsets from 0 on, all at time 7."""
    given = [value.encode() if isinstance(value, str) else value for value in values]
    named = [key.encode() if isinstance(key, str) else key for key in keys or [None] * len(given)]
    return pa.table(
        {
            "topic": ["t"] * len(given),
            "partition": ["2"] * len(given),
            "offset": pa.array(range(len(given)), pa.int64()),
            "timestamp": pa.array([AT] * len(given), pa.timestamp("us", "UTC")),
            "key": pa.array(named, pa.binary()),
            "value": pa.array(given, pa.binary()),
            "headers": pa.array(
                [[{"key": "h", "value": b"\x01"}]] * len(given),
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
            TIME: pa.array([7] * len(given), pa.int64()),
        }
    )


@pytest.fixture(scope="module")
def messages(spark):
    """Return the decoder, which the tests share: its plans are kept."""
    return SparkMessages(spark)


@pytest.fixture
def decode(spark, messages):
    """Decode messages both ways; return their rows as dicts in the order of the messages, errors as what they say."""

    def run(values, schema=PAIR, form=MessageFormat(JSON), keys=None):  # noqa: B008 - it is a value
        table = raw(values, keys)
        here = unwrap(asyncio.run(messages.messages(table, schema, form, locate=True)))
        assert isinstance(here, Local), "few messages took a job"
        assert messages._here.failed == 0, "a plan could not be prepared"
        lazy = dataframe(Local(conformed(table, form), plain=True), spark)
        there = dataframe(unwrap(decoded(lazy, schema, form, locate=True)), spark).toArrow().to_pylist()
        rows = [{ERROR: None, **({KEPT: None} if KEPT in there[0] else {}), **row} for row in here.table.to_pylist()]
        assert Counter(map(repr, map(_sorted, rows))) == Counter(map(repr, map(_sorted, there)))
        unlocated = unwrap(asyncio.run(messages.messages(table, schema, form, locate=False))).table.to_pylist()
        assert [_sorted(row) for row in unlocated if row.get(ERROR) is None] == [
            _sorted(row) for row in here.table.to_pylist() if row.get(ERROR) is None
        ] or any(row.get(ERROR) for row in unlocated)
        assert [bool(row.get(ERROR)) for row in unlocated] == [bool(row[ERROR]) for row in rows]
        assert all(row.pop(DIFF) == 1 and row.pop(TIME) == 7 for row in rows)
        return [{**row, ERROR: row[ERROR] and json.loads(row[ERROR])} for row in rows]

    return run


def _sorted(row):
    return sorted(row.items())


def good(rows, *names):
    """Return the good rows as tuples."""
    return [tuple(row[name] for name in names or (n for n in row if n != ERROR)) for row in rows if row[ERROR] is None]


def reasons(rows):
    """Return the reasons of the errors."""
    return [row[ERROR]["reason"] for row in rows if row[ERROR] is not None]


def test_a_json_object_is_a_row(decode):
    """Damage: a row has other values than its message."""
    rows = decode(['{"k":1,"v":"a"}', ' {"v": "x {y}", "more": {"z": [1, {}]}, "k": null}\n', "{}"])
    assert good(rows) == [(1, "a"), (None, "x {y}"), (None, None)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('{"k":1', "it is not a JSON object"),
        ("[1]", "it is not a JSON object"),
        ("5", "it is not a JSON object"),
        ("null", "it is not a JSON object"),
        ("", "it is empty"),
        (" ", "it is empty"),
        ('{"k":1} x', "it holds more than one JSON object"),
        ('{"k":1}{"k":2}', "it holds more than one JSON object"),
        ('{"k":1},"w":{"k":2}', "it holds more than one JSON object"),
        ('{"k":1},"v":{"k":2}', "it holds more than one JSON object"),
        ('{"k":1}}', "it holds more than one JSON object"),
        ('{"k":1}}} junk', "it holds more than one JSON object"),
        ('{"k":1}},"x":{"v":{"k":2}', "it holds more than one JSON object"),
        ('{"k":"x"}', "column `k`: 'x' is not a valid int"),
        ('{"k":3000000000}', "column `k`: '3000000000' is not a valid int"),
        ('{"k":1.5}', "column `k`: '1.5' is not a valid int"),
        (b'{"v":"\xff"}', "it is not UTF-8"),
        (r'{"v":"\ud83d"}', "it holds half of a surrogate pair, which is no character"),
        (r'{"v":"\\\ud83d\u0041"}', "it holds half of a surrogate pair, which is no character"),
        (r'{"v":"\ude00\ud83d"}', "it holds half of a surrogate pair, which is no character"),
        (r'{"\uD83D":"\ud83d\ude00"}', "it holds half of a surrogate pair, which is no character"),
        (f'{{"k":{"9" * 1_200}}}', "it holds a number of more than 1000 digits"),
        (f'{{"x":[-0.{"9" * 1_200}],"k":1}}', "it holds a number of more than 1000 digits"),
        (f'{{"x":{"[" * 2_000}{"]" * 2_000}}}', "it is nested too deep"),
        (f'{{"x":{"9" * 1_200}', "it is not a JSON object"),
        (None, "its value is null"),
    ],
)
def test_a_value_that_is_no_such_object_is_an_error(decode, value, reason):
    """Damage: a message is lost, or half of it is taken for the whole."""
    (row,) = decode([value])
    assert row[ERROR]["reason"] == reason
    assert row[ERROR]["place"] == "t[2]@0"
    assert row["k"] is row["v"] is None
    match value:
        case bytes():
            assert base64.b64decode(row[ERROR]["raw"]) == value
            assert row[ERROR]["encoding"] == "base64"
        case None:
            assert "raw" not in row[ERROR]
        case _:
            assert row[ERROR]["raw"] == value


def test_a_byte_order_mark_before_a_message_is_none_of_its_bytes(decode):
    """Damage: the first record of each request is an error, or its first text begins with a sign that is not shown."""
    rows = decode(['\ufeff{"k":1,"v":"\ufeffa"}', "\ufeff"])
    assert good(rows) == [(1, "\ufeffa")]
    assert reasons(rows) == ["it is empty"]
    rows = decode(["\ufeff1,a", '\ufeff"2",b'], form=MessageFormat(CSV))
    assert good(rows) == [(1, "a"), (2, "b")]
    text = decode(["\ufeffa"], Schema((Column("x", "string"),)), MessageFormat(TEXT))
    assert good(text) == [("\ufeffa",)]


def test_numbers_are_exact(decode):
    """Damage: an amount passes through a double and comes out as another one."""
    schema = Schema((Column("d", "decimal(38,9)"), Column("l", "bigint"), Column("t", "timestamp")))
    rows = decode(
        [
            '{"d":12345678901234567890123456789.123456789,"l":9007199254740993}',
            '{"d":"0.1","t":"2024-01-02T03:04:05.123456+01:00"}',
            '{"d":0.1e-1}',
            '{"d":1234567890123456789012345678901}',
        ],
        schema,
    )
    assert good(rows, "d", "l") == [
        (Decimal("12345678901234567890123456789.123456789"), 9007199254740993),
        (Decimal("0.100000000"), None),
        (Decimal("0.010000000"), None),
    ]
    assert rows[1]["t"] == dt.datetime(2024, 1, 2, 2, 4, 5, 123456, dt.UTC)
    assert reasons(rows) == ["column `d`: '1234567890123456789012345678901' is not a valid decimal(38,9)"]


def test_a_decimal_of_json_never_comes_from_a_double(decode):
    """Damage: an amount is that of the nearest double, or Spark writes out the digits of an exponent for minutes."""
    schema = Schema((Column("d", "decimal(38,20)"), Column("e", "decimal(6,2)"), Column("t", "timestamp")))
    rows = decode(
        [
            '{"d":0.10000000000000001,"e":1e-99999999,"t":0}',
            '{"d":12345678.99999999999999999,"e":"1.5"}',
            '{"d":1234567890.1230000000000001e-5,"e":9999.99499999999999999}',
            '{"d":12345678901234567891e-5,"e":1234567890123456789e-16}',
            '{"d":1234567890123457e1,"e":12345678901234567E-13}',
            '{"d":0.1000000000000000055511151231257827,"e":"6,5"}',
            '{"d":0.1000000000000000055511151231257827,"e":"1\\u006599999999"}',
            '{"d":0.1000000000000000055511151231257827,"e":1e99999999}',
            '{"d":0.1000000000000000055511151231257827,"e":9999.99500000000000000}',
        ],
        schema,
    )
    assert good(rows, "d", "e") == [
        (Decimal("0.10000000000000001000"), Decimal("0.00")),
        (Decimal("12345678.99999999999999999000"), Decimal("1.50")),
        (Decimal("12345.67890123000000000000"), Decimal("9999.99")),
        (Decimal("123456789012345.67891000000000000000"), Decimal("123.46")),
        (Decimal("12345678901234570.00000000000000000000"), Decimal("1234.57")),
    ]
    assert rows[0]["t"] == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert [reason.split(":")[0] for reason in reasons(rows)] == ["column `e`"] * 4


def test_a_number_is_no_text_of_a_pattern(decode):
    """Damage: October is written as 2020.10, and read as January."""
    schema = Schema((Column("d", "date"), Column("t", "timestamp"), Column("n", "timestamp_ntz")))
    form = MessageFormat(JSON, timestamp_format="yyyy.MM", date_format="yyyyMMdd")
    rows = decode(
        [
            '{"d":"20201002","t":"2020.10","n":"2020.10"}',
            '{"t":0}',
            '{"d":20201002}',
            '{"t":2020.10}',
            '{"n":2020.10}',
            '{"d":"2020-10-02"}',
        ],
        schema,
        form,
    )
    october = dt.datetime(2020, 10, 1, tzinfo=dt.UTC)
    assert good(rows, "d", "t", "n") == [
        (dt.date(2020, 10, 2), october, october.replace(tzinfo=None)),
        (None, dt.datetime(1970, 1, 1, tzinfo=dt.UTC), None),
    ]
    assert [reason.split(":")[0] for reason in reasons(rows)] == [
        "column `d`",
        "column `t`",
        "column `n`",
        "column `d`",
    ]


def test_nested_values_and_floats_are_normal(decode):
    """Damage: two rows that are equal differ in their bytes, or a wrong value inside one is not seen."""
    schema = Schema((Column("s", "struct<a:int,b:array<double>>"), Column("f", "double")))
    rows = decode(['{"s":{"a":1,"b":[-0.0,1]},"f":-0.0}', '{"s":{"a":"x"}}', '{"s":{"b":[1,"x"]}}'], schema)
    assert repr(good(rows)) == "[({'a': 1, 'b': [0.0, 1.0]}, 0.0)]"
    assert len(reasons(rows)) == 2


def test_csv_fields_are_columns_by_position(decode):
    """Damage: a record with a field too many is shifted into the wrong columns, or its second line is lost."""
    rows = decode(
        ['1,"a,b"', "2,\n", '3,"x\ny"', "4,a,b", "5", "x,y", "6,a\n7,b", "", b"8,\xff"], form=MessageFormat(CSV)
    )
    assert good(rows) == [(1, "a,b"), (2, None), (3, "x\ny")]
    assert reasons(rows) == [
        "it has 3 fields; 2 are expected",
        "it has 1 fields; 2 are expected",
        "column `k`: 'x' is not a valid int",
        "it holds more than one line",
        "it is empty",
        "it is not UTF-8",
    ]


def test_text_and_bytes_are_one_column(decode):
    """Damage: bytes are changed on their way."""
    text = decode(["a\nb", "", b"\xff", None], Schema((Column("x", "string"),)), MessageFormat(TEXT))
    assert good(text) == [("a\nb",), ("",)]
    assert reasons(text) == ["it is not UTF-8", "its value is null"]
    data = decode([b"\x00\xff", b""], Schema((Column("x", "binary"),)), MessageFormat(BYTES))
    assert good(data) == [(b"\x00\xff",), (b"",)]


def test_columns_can_hold_what_is_known_of_a_message(decode):
    """Damage: a view cannot tell where a row comes from."""
    schema = Schema(
        (
            *PAIR,
            Column("p", "int"),
            Column("o", "bigint"),
            Column("at", "timestamp"),
            Column("h", HEADERS),
            Column("top", "string"),
            Column("key", "string"),
        )
    )
    included = {
        "p": Metadata.PARTITION,
        "o": Metadata.OFFSET,
        "at": Metadata.TIMESTAMP,
        "h": Metadata.HEADERS,
        "top": Metadata.TOPIC,
        "key": Metadata.KEY,
    }
    rows = decode(
        ['{"k":1}', '{"k":2}', '{"k":3}'], schema, MessageFormat(JSON, included=included), ["a", None, b"\xff"]
    )
    header = [{"key": "h", "value": b"\x01"}]
    assert good(rows) == [(1, None, 2, 0, AT, header, "t", "a"), (2, None, 2, 1, AT, header, "t", None)]
    assert reasons(rows) == ["it is not UTF-8"]


def test_the_newest_value_of_a_key_is_its_row_and_a_null_value_deletes_it(decode):
    """Damage: a key keeps a row that was deleted, or an error has no key that could take it back."""
    form = MessageFormat(JSON, Shape.UPSERT, ("k",), TEXT)
    rows = decode(
        ['{"v":"a","k":9}', None, '{"v":', '{"v":"b"}', '{"v":"c"}'], form=form, keys=["1", "1", "2", None, "x"]
    )
    assert [
        (row["k"], row["v"], row[ORDER] - order("2", 0), row[GONE], row[ERROR] and row[ERROR]["reason"]) for row in rows
    ] == [
        (1, "a", 0, False, None),
        (1, None, 1, True, None),
        (2, None, 2, False, "it is not a JSON object"),
        (None, None, 3, None, "its key is null"),
        (None, None, 4, None, "'x' is not a valid int"),
    ]


def test_messages_of_a_key_in_two_partitions_count_by_partition(spark, messages):
    """Damage: a topic got more partitions, and the row of a key is an older one, or another one at each read."""
    form = MessageFormat(JSON, Shape.UPSERT, ("k",), TEXT)
    table = raw(['{"v":"a"}', '{"v":"b"}', '{"v":"c"}'], ["1"] * 3)
    table = table.set_column(1, "partition", pa.array(["10", "9", "10"])).set_column(2, "offset", pa.array([3, 70, 2]))
    here = unwrap(asyncio.run(messages.messages(table, PAIR, form, locate=False))).table.to_pylist()
    there = unwrap(decoded(dataframe(Local(conformed(table, form), plain=True), spark), PAIR, form, locate=False))
    lists = listed(asyncio.run(ListMessages().messages(table, PAIR, form, locate=False))).rows
    for rows in (here, dataframe(there, spark).toArrow().to_pylist(), lists):
        assert [row["v"] for row in sorted(rows, key=lambda row: row[ORDER])] == ["b", "c", "a"]


def test_a_key_may_be_an_object_or_a_bare_value(decode):
    """Damage: a key that another program wrote is an error though it is clear."""
    form = MessageFormat(JSON, Shape.UPSERT, ("k",), JSON)
    rows = decode(['{"v":"a"}'] * 4, form=form, keys=['{"k":1}', "2", '{"k":null}', "[3]"])
    assert good(rows, "k", "v") == [(1, "a"), (2, "a")]
    assert len(reasons(rows)) == 2
    assert reasons(rows)[0] == "key column `k` is null"


def test_a_text_of_digits_is_no_day(decode):
    """Damage: 20240101 without its hyphens is a day of the year 57385, and no error."""
    rows = decode(['{"d":"20240101"}', '{"d":"-5"}', '{"d":"2024-01-01"}'], Schema((Column("d", "date"),)))
    assert good(rows, "d") == [(dt.date(2024, 1, 1),)]
    assert reasons(rows) == [f"column `d`: '{text}' is not a valid date" for text in ("20240101", "-5")]


def test_a_bare_key_is_one_value_and_nothing_besides(decode):
    """Damage: a key that is no JSON is read as another row's key."""
    form = MessageFormat(JSON, Shape.UPSERT, ("k",), JSON)
    keys = ['1,"k":2', '1,"x":2', "1 2", "1}", "1],[2", ',"k":3', "[1]", " 4 "]
    rows = decode(['{"v":"a"}'] * len(keys), form=form, keys=keys)
    assert good(rows, "k", "v") == [(4, "a")]
    assert reasons(rows)[:6] == ["it is not one JSON value"] * 6


def _change(op, before=None, after=None, **more):
    return json.dumps({"op": op, "before": before, "after": after, "source": {"x": {"y": 1}}, **more})


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
def test_debezium_says_what_a_row_is_now(decode, wrapped, keyed):
    """Damage: a change is applied to another row, or one is lost."""
    form = MessageFormat(JSON, Shape.DEBEZIUM, ("k",), JSON if keyed else None)
    changes = [
        _change("c", None, {"k": 1, "v": "a"}),
        _change("r", None, {"k": 2, "v": "b"}),
        _change("u", {"k": 1, "v": "a"}, {"k": 1, "v": "c"}),
        _change("u", None, {"k": 2, "v": "__debezium_unavailable_value"}),
        _change("d", {"k": 1, "v": "c"}),
        None,
        _change("t"),
        _change("x", None, {"k": 2, "v": "b"}),
        _change("c"),
        '{"op":"c"',
        _change("c", None, {"k": 3, "v": {"z": 1}}),
    ]
    keys = ['{"k":1}', '{"k":2}', '{"k":1}', '{"k":2}', '{"k":1}', '{"k":1}', None, *['{"k":3}'] * 4]
    if wrapped:
        changes = [None if c is None else f'{{"schema":{{"type":"struct"}},"payload":{c}}}' for c in changes]
        keys = [None if k is None else f'{{"schema":{{}},"payload":{k}}}' for k in keys]
    rows = decode(changes, form=form, keys=keys)
    assert [(r["k"], r["v"], r[ORDER] - order("2", 0), r[GONE], r[KEPT]) for r in rows if r[ERROR] is None] == [
        (1, "a", 0, False, None),
        (2, "b", 1, False, None),
        (1, "c", 2, False, None),
        (2, None, 3, False, ["v"]),
        (1, None, 4, True, None),
        (3, '{"z":1}', 10, False, None),
    ]
    assert [(r["k"], r[ORDER] - order("2", 0), r[GONE], r[ERROR]["reason"]) for r in rows if r[ERROR] is not None] == [
        (None, 6, None, "it truncates the table, and does not say which rows were there"),
        (3 if keyed else None, 7, False if keyed else None, "op 'x' is not one of c, r, u, d"),
        (3 if keyed else None, 8, False if keyed else None, "it has no `after`"),
        (3 if keyed else None, 9, False if keyed else None, "it is not a JSON object"),
    ]


KINDS = {
    "s": "string", "b": "binary", "i": "int", "n": "decimal(9,2)", "d": "date", "m": "timestamp", "t": "boolean",
    "ss": "array<string>", "bb": "array<binary>", "ii": "array<int>", "ff": "array<double>",
    "nn": "array<decimal(9,2)>", "dd": "array<date>", "tt": "array<boolean>",
    "st": "struct<a:string,b:int>", "g": "struct<wkb:binary,srid:int>",
    "e": "array<struct<key:string,value:string>>", "q a": "array<struct<value:string>>",
}  # fmt: skip


def test_a_placeholder_is_never_a_value(decode):
    """Damage: what Debezium writes for a long value that stayed takes its place, or the value becomes NULL."""
    schema = Schema((Column("k", "int"), *(Column(name, kind) for name, kind in KINDS.items())))
    form = MessageFormat(JSON, Shape.DEBEZIUM, ("k",))
    cells = [(name, shape) for name in KINDS for shape in IN_JSON]
    changes = [_change("u", None, {"k": n, "i": 7, name: IN_JSON[shape]}) for n, (name, shape) in enumerate(cells)]
    spaced = [json.dumps(json.loads(change), indent=1) for change in changes]
    for rows in (decode(changes, schema, form), decode(spaced, schema, form)):
        wrong = set()
        for n, (name, shape) in enumerate(cells):
            (row,) = [row for row in rows if row[ORDER] == order("2", n)]
            if row[ERROR] is not None:
                wrong.add((name, shape))
            else:
                assert (row["k"], row[KEPT]) == (n, [name]), (name, shape, row)
        plain = {"text", "bytes", "bytes in hex", "texts", "several bytes", "UUIDs", "map", "entries", "pairs"}
        assert {shape for _, shape in wrong}.isdisjoint(plain), "they are read whatever type the column has"
        right = {"ii": "numbers", "ff": "fractions", "nn": "numbers", "g": "geometry", "s": "numbers", "bb": "decimals"}
        assert wrong.isdisjoint(right.items())
    over = listed(asyncio.run(ListMessages().messages(raw(changes), schema, form, locate=True))).rows
    for n, (row, cell) in enumerate(zip(over, cells, strict=True)):
        assert (row["k"], row[KEPT]) == (n, [cell[0]]), cell


def test_what_only_holds_a_placeholder_or_may_be_one_is_an_error(decode):
    """Damage: a value inside a column becomes NULL, a list of booleans an older one, or two rows share a key."""
    schema = Schema((Column("k", "string"), Column("v", "struct<v:string,w:string>"), Column("t", "array<boolean>")))
    placeholder, form = IN_JSON["text"], MessageFormat(JSON, Shape.DEBEZIUM, ("k",))
    changes = [
        _change("u", {"v": placeholder}, {"k": "1", "v": {"v": placeholder, "w": "a"}}),
        _change("u", None, {"k": "2", "t": [True] * 28}),
        _change("u", None, {"k": placeholder, "v": None}),
        _change("u", {"v": placeholder, "k": "4"}, {"k": "4", "v": {"v": "a", "w": placeholder}, "t": [True] * 27}),
        _change("u", None, {"k": "5", "v": placeholder, "t": None}),
    ]
    rows = decode(changes, schema, form)
    assert reasons(rows) == [
        f"in `after`: column `v`: {INSIDE}",
        f"in `after`: column `t`: {LEFT_OPEN}",
        f"key column `k`: {IN_THE_KEY}",
    ]
    assert good(rows, "k", "v", KEPT) == [("4", {"v": "a", "w": placeholder}, None), ("5", None, ["v"])]
    keyed = MessageFormat(JSON, Shape.DEBEZIUM, ("k",), TEXT)
    (row,) = decode([_change("u", None, {"v": None})], schema, keyed, keys=[placeholder])
    assert (row[ERROR]["reason"], row[GONE]) == (f"key column `k`: {IN_THE_KEY}", None)


def test_a_change_of_another_key_before_deletes_that_key(decode):
    """Damage: the row of the old key stays for ever beside the one that took its place."""
    schema = Schema((*PAIR.columns, Column("j", "string")))
    form = MessageFormat(JSON, Shape.DEBEZIUM, ("k", "j"))
    changes = [
        _change("u", {"k": 6, "j": "x", "v": "a"}, {"k": 66, "j": "x", "v": "b"}),
        _change("u", {"k": 7, "j": "x", "v": "a"}, {"k": 7, "j": "x", "v": "b"}),
        _change("u", {"k": 8, "v": "a"}, {"k": 9, "j": "x", "v": "b"}),
        _change("u", {"k": 6, "j": "x"}, {"k": None, "j": "x"}),
    ]
    rows = decode(changes, schema, form)
    assert [(r["k"], r["j"], r["v"], r[ORDER] - order("2", 0), r[GONE]) for r in rows] == [
        (6, "x", None, 0, True),
        (66, "x", "b", 0, False),
        (7, "x", "b", 1, False),
        (9, "x", "b", 2, False),
        (None, None, None, 3, None),
    ]
    assert reasons(rows) == ["key column `k` is null"]
    listed_rows = listed(asyncio.run(ListMessages().messages(raw(changes), schema, form, locate=True))).rows
    assert [(r["k"], r["v"], r[GONE]) for r in listed_rows] == [(r["k"], r["v"], r[GONE]) for r in rows]


def test_debezium_writes_days_as_numbers(decode):
    """Damage: a number of microseconds becomes a moment in the far future, without an error."""
    schema = Schema((Column("k", "int"), Column("d", "date"), Column("t", "timestamp"), Column("n", "timestamp_ntz")))
    form = MessageFormat(JSON, Shape.DEBEZIUM, ("k",))
    rows = decode(
        [
            _change("c", None, {"k": 1, "d": 19724, "t": "2024-01-02T03:04:05Z", "n": "2024-01-02T03:04:05"}),
            _change("c", None, {"k": 2, "d": "2024-01-02", "t": None}),
            _change("c", None, {"k": 3, "t": 1700000000000000}),
            _change("c", None, {"k": 4, "d": "soon"}),
        ],
        schema,
        form,
    )
    day = dt.date(2024, 1, 2)
    assert good(rows, "k", "d", "t", "n") == [
        (1, day, dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC), dt.datetime(2024, 1, 2, 3, 4, 5)),  # noqa: DTZ001
        (2, day, None, None),
    ]
    assert reasons(rows) == [
        "in `after`: column `t`: '1700000000000000' is not a valid timestamp",
        "in `after`: column `d`: 'soon' is not a valid date",
    ]


def test_a_frame_is_taken_off(decode):
    """Damage: the id of a schema is taken for a part of the value."""
    form = MessageFormat(JSON, framed=True)
    rows = decode([b'\x00\x00\x00\x00\x07{"k":1}', b'{"k":1}', b"\x00\x00"], form=form)
    assert good(rows, "k") == [(1,)]
    assert reasons(rows) == ["it does not begin with a schema's id"] * 2


def test_no_message_is_no_row(messages):
    """Damage: a tick without messages fails."""
    assert unwrap(asyncio.run(messages.messages(raw([]), PAIR, MessageFormat(JSON), locate=False))).table.num_rows == 0


def test_few_messages_take_no_job(spark, messages):
    """Damage: a tick with ten messages costs what a job costs."""
    table = raw(['{"k":1,"v":"a"}', '{"k":'])
    asyncio.run(messages.messages(table, PAIR, MessageFormat(JSON), locate=True))
    tracker = spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup())
    for _ in range(3):
        asyncio.run(messages.messages(table, PAIR, MessageFormat(JSON), locate=True))
    assert len(tracker.getJobIdsForGroup()) == before
