"""Files become rows as people wrote them; what cannot be decoded says where it stands and why."""

from __future__ import annotations

import asyncio
import bz2
import datetime as dt
import gzip
import io
import json
import math
from collections import Counter
from decimal import Decimal
from itertools import count

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.algebra.messages import RAW_CHARS_MAX, TAKES_BACK, DatedFile, Encoding, FileFormat
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.engine.files.decoder import SparkFiles
from strandline.engine.frames.rows import dataframe, unwrap
from strandline.engine.parts.part_store import PartStore
from strandline.engine.spark import SparkEngine
from strandline.errors import DefinitionError
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Half
from strandline.persist.handles.read import contents
from strandline.sources.ingest import Advanced, Ingestion
from strandline.sources.readers.files.local_folder import LocalFolder
from strandline.sources.readers.files.options import FileOptions, root_and_pattern
from strandline.sources.readers.files.reader import FileReader
from strandline.sources.readers.files.sequence import FileSequence
from strandline.sources.remap import RemapShard
from strandline.sources.steps import OutputShard
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.memory import MemoryConsensus
from strandline.testing.contracts.reader_contract import SharedReaderContract
from strandline.testing.doubles import CountingIds, HandClock

pytestmark = pytest.mark.spark

CSV = FileFormat(Encoding.CSV)
JSON = FileFormat(Encoding.JSON)
PARQUET = FileFormat(Encoding.PARQUET)
PAIR = Schema((Column("k", "int"), Column("v", "string")))


@pytest.fixture
def decode(spark, tmp_path):
    """Write files, decode them; return the good rows ``(*columns, time)`` counted, and the errors by file and line."""
    files = SparkFiles(spark)

    def write(name, content):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def run(named, schema=PAIR, form=CSV, times=(7,)):
        dated = []
        for number, (name, content) in enumerate(named.items()):
            path = write(name, content)
            dated.append(DatedFile(str(path), name, path.stat().st_size, times[number % len(times)]))
        found = {}
        for locate in (False, True):
            rows = asyncio.run(files.decode(dated, schema, form, locate=locate))
            updates = dataframe(unwrap(rows), spark).toArrow().to_pylist()
            assert all(row.pop(DIFF) == 1 for row in updates)
            good = [tuple(r[c] for c in (*schema.names, TIME)) for r in updates if r[ERROR] is None]
            found[locate] = good, [r for r in updates if r[ERROR] is not None]
        assert Counter(map(repr, found[False][0])) == Counter(map(repr, found[True][0])), "locating changes good rows"
        assert bool(found[False][1]) == bool(found[True][1])
        errors = [{**json.loads(row[ERROR]), TIME: row[TIME]} for row in found[True][1]]
        assert all(row[c] is None for row in found[True][1] for c in schema.names)
        good = found[True][0]
        return Counter(good) if not any(isinstance(v, list | dict) for row in good for v in row) else good, sorted(
            errors, key=lambda e: (e["file"], e["line"] or 0)
        )

    return run


def lines(errors):
    """Where the errors stand."""
    return [(error["file"], error["line"]) for error in errors]


def test_a_good_csv_file_is_its_rows(decode):
    """Damage: the plain case is wrong."""
    good, errors = decode({"a.csv": 'k,v\n1,a\n,"b ""q"", c"\n2,\n1,a\n'})
    assert good == {(1, "a", 7): 2, (None, 'b "q", c', 7): 1, (2, None, 7): 1}
    assert errors == []


def test_bad_csv_rows_have_file_line_reason_and_text_and_the_others_flow(decode):
    """Damage: one bad row stops a pipeline, or no error locates it."""
    good, errors = decode({"a.csv": "k,v\n1,a\nx,b\n2\n3,c,d\n\n4,e\n"})
    assert good == {(1, "a", 7): 1, (4, "e", 7): 1}
    assert errors == [
        {"file": "a.csv", "line": 3, "reason": "column `k`: 'x' is not a valid int", "raw": "x,b", TIME: 7},
        {"file": "a.csv", "line": 4, "reason": "it has 1 fields; 2 are expected", "raw": "2", TIME: 7},
        {"file": "a.csv", "line": 5, "reason": "it has 3 fields; 2 are expected", "raw": "3,c,d", TIME: 7},
    ]


@pytest.mark.parametrize("encoding", Encoding)
def test_a_file_that_came_before_a_column_has_null_there(decode, encoding):
    """Damage: once a source has got a column, each file without it is an error as a whole."""

    def file(**row):
        sink = io.BytesIO()
        match encoding:
            case Encoding.PARQUET:
                kinds = {"k": pa.int32(), "v": pa.string()}
                pq.write_table(pa.table({name: pa.array([row[name]], kinds[name]) for name in row}), sink)
            case Encoding.AVRO:
                fields = [{"name": name, "type": "int" if name == "k" else "string"} for name in row]
                fastavro.writer(sink, {"type": "record", "name": "r", "fields": fields}, [row])
            case Encoding.JSON:
                return json.dumps(row) + "\n"
            case Encoding.CSV:
                return f"{','.join(row)}\n{','.join(map(str, row.values()))}\n"
        return sink.getvalue()

    named = {"a": file(k=1, v="a"), "b": file(k=2), "c": file(v="c", k=3), "d": file(v="d")}
    good, errors = decode(named, form=FileFormat(encoding, later=("v",)), times=(7, 8))
    wanted = {(1, "a", 7): 1, (2, None, 8): 1, (3, "c", 7): 1}
    if encoding is Encoding.JSON:
        assert (good, errors) == (wanted | {(None, "d", 8): 1}, [])
    else:
        assert good == wanted
        assert [error["file"] for error in errors] == ["d"], "what the source began with is not to be missing"


def test_equal_bad_lines_are_an_error_each(decode):
    """Damage: mending one of two equal errors clears both."""
    _, errors = decode({"a.csv": "k,v\nx,b\n1,a\nx,b\n", "b.csv": "k,v\nx,b\n", "c.csv": "k,v\n1,x\n"})
    assert lines(errors) == [("a.csv", 2), ("a.csv", 4), ("b.csv", 2)]


def test_a_header_that_is_there_again_is_an_error_and_the_first_is_none(decode):
    """Damage: files that were concatenated lose a row in silence, or report their own header."""
    good, errors = decode({"a.csv": "\nk,v\n1,a\nk,v\n2,b\n"})
    assert good.total() == 2
    assert lines(errors) == [("a.csv", 4)]


def test_fields_in_quotes_are_counted_as_one(decode):
    """Damage: the reason names a wrong number of fields."""
    _, errors = decode({"a.csv": 'k,v\n1,"a, ""b"", c",2\n"",""\n,\n,,\n'})
    assert [e["reason"] for e in errors] == ["it has 3 fields; 2 are expected"] * 2
    assert lines(errors) == [("a.csv", 2), ("a.csv", 5)]


def test_columns_are_found_by_the_name_in_the_header(decode):
    """Damage: a file whose columns are in another order has its values swapped."""
    good, errors = decode(
        {"a.csv": "V,extra,K\na,9,1\n", "b.csv": "k,v\n2,b\n", "c.csv": "\ufeffk;,v,k\n"}, times=(7, 8)
    )
    assert good == {(1, "a", 7): 1, (2, "b", 8): 1}
    assert errors == []
    good, errors = decode({"a.csv": "V,extra,K\na,9,1\na,9,x\na,9\n"})
    assert [e["reason"] for e in errors] == ["column `k`: 'x' is not a valid int", "it has 2 fields; 3 are expected"]


def test_a_file_whose_header_lacks_a_column_is_one_error(decode):
    """Damage: a renamed column becomes NULLs."""
    good, errors = decode({"a.csv": "key,v\n1,a\n2,b\n", "b.csv": "k,v\n3,c\n", "c.csv": "k,v,K\n"}, times=(7, 8))
    assert good == {(3, "c", 8): 1}
    assert errors == [
        {"file": "a.csv", "line": 1, "reason": "the header has no column `k`; it has key, v", "raw": "key,v", TIME: 7},
        {
            "file": "c.csv",
            "line": 1,
            "reason": "the header has column `k` 2 times; it has k, v, K",
            "raw": "k,v,K",
            TIME: 7,
        },
    ]


def test_without_a_header_fields_are_taken_by_position(decode):
    """Damage: the first row of every file is lost."""
    form = FileFormat(Encoding.CSV, header=False, delimiter="|")
    good, errors = decode({"a.csv": "1|a\n2|b\n|\n|c|d\n"}, form=form)
    assert good == {(1, "a", 7): 1, (2, "b", 7): 1, (None, None, 7): 1}
    assert [(e["line"], e["reason"]) for e in errors] == [(4, "it has 3 fields; 2 are expected")]


def test_a_null_token_is_null_in_every_column(decode):
    """Damage: NA is a string here and an error there, or two quotes are NULL with one token and a text with another."""
    good, errors = decode({"a.csv": 'k,v\nNA,NA\n1,"NA"\n,x\n"",""\n'}, form=FileFormat(Encoding.CSV, null="NA"))
    assert good == {(None, None, 7): 2, (1, None, 7): 1, (None, "x", 7): 1}
    assert errors == []


def test_every_type_is_read_and_floats_are_normal(decode):
    """Damage: a value is another one, or equal rows have different digests."""
    schema = Schema(
        tuple(
            Column(kind.partition("(")[0], kind)
            for kind in ("boolean", "bigint", "double", "decimal(6,2)", "date", "timestamp", "timestamp_ntz")
        )
    )
    header = ",".join(schema.names)
    text = (
        f"{header}\ntrue,9007199254740993,-0.0,-12.50,2013-01-31,2013-01-31T05:00:00Z,2013-01-31T05:00:00\n,,NaN,,,,\n"
    )
    good, errors = decode({"a.csv": text}, schema)
    assert errors == []
    (full,) = (row for row in good if row[0] is not None)
    (nan,) = (row for row in good if row[0] is None)
    assert math.copysign(1, full[2]) == 1
    assert math.isnan(nan[2])
    at = dt.datetime(2013, 1, 31, 5)  # noqa: DTZ001 - a wall clock's time has no zone
    assert full[:2] + full[3:] == (
        True,
        2**53 + 1,
        Decimal("-12.50"),
        at.date(),
        at.replace(tzinfo=dt.UTC),
        at,
        7,
    )
    bad = ["yes?", "1.5", "x", "12345.6", "31.01.2013", "noon", "noon"]
    rows = [",".join(value if i == j else "" for i in range(len(bad))) for j, value in enumerate(bad)]
    good, errors = decode({"a.csv": "\n".join([header, *rows]) + "\n"}, schema)
    assert good == {}
    assert [e["reason"].partition(":")[0] for e in errors] == [f"column `{name}`" for name in schema.names]


def test_a_timestamp_is_read_in_the_format_that_was_said(decode):
    """Damage: a local format cannot be read, or day and month are swapped."""
    schema = Schema((Column("at", "timestamp"), Column("day", "date")))
    form = FileFormat(Encoding.CSV, timestamp_format="dd/MM/yyyy HH:mm", date_format="dd/MM/yyyy")
    good, errors = decode({"a.csv": "at,day\n02/01/2013 05:06,02/01/2013\n2013-01-02 05:06,\n"}, schema, form)
    assert good == {(dt.datetime(2013, 1, 2, 5, 6, tzinfo=dt.UTC), dt.date(2013, 1, 2), 7): 1}
    assert lines(errors) == [("a.csv", 3)]


def test_records_that_span_lines_need_multiline_and_then_have_the_line_they_start_at(decode):
    """Damage: a quoted newline tears a row in two."""
    text = 'k,v\r\n1,"a\r\nb"\r\nx,"c\r\nd"\r\n2,e\r\nx,"c\r\nd"\r\n3\r\n'
    good, errors = decode({"a.csv": text}, form=FileFormat(Encoding.CSV, multiline=True))
    assert {k: v.replace("\r", "") for k, v, _ in good} == {1: "a\nb", 2: "e"}
    assert [(e["line"], e["reason"]) for e in errors] == [
        (4, "column `k`: 'x' is not a valid int"),
        (7, "column `k`: 'x' is not a valid int"),
        (9, "it has 1 fields; 2 are expected"),
    ]
    good, errors = decode({"a.csv": text})
    assert set(good) == {(1, "a", 7), (2, "e", 7)}  # Spark takes a quote that is never closed for closed
    assert lines(errors) == [("a.csv", n) for n in (3, 4, 5, 7, 8, 9)]


@pytest.mark.parametrize(("quoted", "ends"), [("\n", "\r\n"), ("\r\n", "\n"), ("\r", "\n")])
@pytest.mark.parametrize("header", [True, False])
def test_another_line_end_in_the_quotes_of_the_first_record_ends_no_record(decode, quoted, ends, header):
    """Damage: Spark takes it for that of rows: a text keeps a carriage return, or rows are gone without an error."""
    rows = [f'1,"a{quoted}b"', "2,c", f'x,"d{quoted}e"', f'3,"f{quoted}"']
    first = [f'k,v,"more{quoted}"', *(f"{row},0" for row in rows)] if header else rows
    form = FileFormat(Encoding.CSV, multiline=True, header=header)
    good, errors = decode({"a.csv": ends.join([*first, ""])}, form=form)
    assert good == {(1, f"a{quoted}b", 7): 1, (2, "c", 7): 1, (3, f"f{quoted}", 7): 1}
    assert [e["reason"] for e in errors] == ["column `k`: 'x' is not a valid int"]


def test_other_quotes_and_escapes_can_be_said(decode):
    """Damage: what another program wrote cannot be read."""
    form = FileFormat(Encoding.CSV, delimiter=";", quote="'", escape="\\")
    good, errors = decode({"a.csv": "k;v\n1;'a;\\'b\\''\n2;'c';d\n"}, form=form)
    assert good == {(1, "a;'b'", 7): 1}
    assert [(e["line"], e["reason"]) for e in errors] == [(3, "it has 3 fields; 2 are expected")]


def test_json_lines_are_read_by_name(decode):
    """Damage: the plain case is wrong."""
    good, errors = decode({"a.json": '{"v":"a","k":1}\n{"k":2,"K":3,"x":[]}\n\n{}\n{"k":null,"v":null}\n'}, form=JSON)
    assert good == {(1, "a", 7): 1, (2, None, 7): 1, (None, None, 7): 2}
    assert errors == []


def test_bad_json_lines_have_file_line_reason_and_text(decode):
    """Damage: one bad line stops a pipeline, or no error locates it."""
    text = '{"k":1}\n{"k":"x","v":"a"}\n{"k":\nnull\n{"k":2.5}\n17\n{"k":"x","v":"a"}\n{"k":3}\n'
    good, errors = decode({"a.json": text}, form=JSON)
    assert {k for k, _, _ in good} >= {1, 3}
    reasons = {e["line"]: e["reason"] for e in errors}
    assert reasons[2] == reasons[7] == "column `k`: 'x' is not a valid int"
    assert reasons[3] == reasons[6] == "it is not a JSON object"
    assert reasons[5] == "column `k`: '2.5' is not a valid int"
    assert good.total() + len(errors) == 8


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"k":6}{"k":7}', "more than one"),
        ('{"k":5,"v":"t"} junk', "more than one"),
        ('{"k":5},{"k":6}', "more than one"),
        ('{"k":1}] [{"k":2}', "more than one"),
        ('{"k":1},0] [{"k":2}', "more than one"),
        ('[{"k":1},{"k":2}]', "not a JSON object"),
        ('{"k":1,"v":"{"}}', "more than one"),
    ],
)
def test_a_json_line_that_holds_more_than_one_object_is_an_error(decode, line, reason):
    """Damage: what follows the first object of a line is gone, and nothing says so."""
    good, errors = decode({"a.json": f'{{"k":1,"v":"}}{{"}}\n{line}\n {{"k":2}} \n'}, form=JSON)
    assert good == {(1, "}{", 7): 1, (2, None, 7): 1}
    assert lines(errors) == [("a.json", 2)]
    assert reason in errors[0]["reason"]


def test_a_json_line_that_is_no_text_is_an_error(decode):
    """Damage: a byte that is no UTF-8 becomes a replacement character, and the row looks right."""
    good, errors = decode({"a.json": b'{"k":1,"v":"caf\xe9"}\n{"k":2,"v":"caf\xc3\xa9"}\n'}, form=JSON)
    assert good == {(2, "café", 7): 1}
    assert len(errors) == 1


def test_nested_json_is_read_and_an_error_inside_is_named(decode):
    """Damage: a wrong value deep inside becomes NULL in silence."""
    schema = Schema((Column("a", "array<int>"), Column("s", "struct<x:double,y:string>")))
    _good, errors = decode({"a.json": '{"a":[1,null],"s":{"x":-0.0}}\n{"a":[1,"z"]}\n{"s":{"x":"z"}}\n'}, schema, JSON)
    assert errors
    assert lines(errors) == [("a.json", 2), ("a.json", 3)]
    assert all("column" in e["reason"] or "inside" in e["reason"] for e in errors)


def test_parquet_is_read_by_name_and_may_be_narrower(decode):
    """Damage: columns are swapped, or a file of a careful writer is refused."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"v": pa.array(["a", None]).dictionary_encode(), "K": pa.array([1, 2], pa.int8())}), sink)
    good, errors = decode({"a.parquet": sink.getvalue().to_pybytes()}, form=PARQUET)
    assert good == {(1, "a", 7): 1, (2, None, 7): 1}
    assert errors == []


def test_parquet_files_that_do_not_fit_are_one_error_each(decode):
    """Damage: a file of another schema fails every step from then on, or its columns are NULL."""

    def parquet(**columns):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), sink)
        return sink.getvalue().to_pybytes()

    files = {
        "a.parquet": parquet(k=["1"], v=["a"]),
        "b.parquet": parquet(k=pa.array([1], pa.int32())),
        "c.parquet": b"PAR1 and nothing PAR1",
        "d.parquet": parquet(k=pa.array([4], pa.int32()), v=["d"]),
        "e.parquet": parquet(k=pa.array([1], pa.int32()), v=pa.array([0], pa.timestamp("ns"))),
    }
    good, errors = decode(files, form=PARQUET, times=(7, 8))
    assert good == {(4, "d", 8): 1}
    reasons = {e["file"]: e["reason"] for e in errors}
    assert reasons["a.parquet"] == "column `k` is string there, which int does not hold"
    assert reasons["b.parquet"] == "it has no column `v`; it has k"
    assert reasons["c.parquet"].startswith("it cannot be read as Parquet")
    assert reasons["e.parquet"] == "column `v` is timestamp[ns] there, which string does not hold"


def _damaged_parquet():
    """Return a Parquet file whose footer is sound and one of whose pages is not."""
    sink = pa.BufferOutputStream()
    table = pa.table({"k": pa.array(range(1_000), pa.int32()), "v": [f"v{n}" for n in range(1_000)]})
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue().to_pybytes()[:40] + b"\xff" * 20 + sink.getvalue().to_pybytes()[60:]


def test_a_parquet_file_with_a_damaged_page_is_one_error_and_the_others_are_read(spark, tmp_path):
    """Damage: one damaged file stops its source, and no operator can skip it."""
    place = Place(spark, tmp_path, Encoding.PARQUET)

    async def body():
        ingestion = await place.ingestion()
        (place.root / "a.parquet").write_bytes(_damaged_parquet())
        pq.write_table(pa.table({"k": pa.array([4], pa.int32()), "v": ["d"]}), place.root / "b.parquet")
        await ingestion.tick(1000)
        assert await ingestion.catch_up()
        assert await place.updates(Half.OK) == [(4, "d", 1000, 1)]
        ((error, time, diff),) = await place.updates(Half.ERR)
        found = json.loads(error)
        assert (found["file"], time, diff) == ("a.parquet", 1000, 1)
        assert found["reason"].startswith("it cannot be read as Parquet")

    asyncio.run(body())
    place.engine.close()


@pytest.mark.parametrize("stored", [pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.timestamp("ms")], ids=str)
@pytest.mark.parametrize("declared", ["timestamp", "timestamp_ntz"])
def test_parquet_times_with_and_without_zone(decode, stored, declared):
    """Damage: a file that passes the check of its schema fails the job, at every step."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"at": pa.array([0], pa.int64()).cast(stored)}), sink)
    good, errors = decode({"a.parquet": sink.getvalue().to_pybytes()}, Schema((Column("at", declared),)), PARQUET)
    assert good.total() + len(errors) == 1
    assert bool(good) == ((stored.tz is None) == (declared == "timestamp_ntz"))


def test_each_file_has_its_own_time_whatever_its_name(decode):
    """Damage: rows of a file happen at another file's time, or a name is taken for a pattern."""
    odd = ["a b.csv", "ü%20+&.csv", "x[1]*{y}?\\.csv", "day=1/a.csv", "a;b,'c'.csv", "~^`|<>$.csv", "#@!.csv"]
    odd += ["2026-01-31T10:00:00.csv", "at=10:00/a.csv", ":.csv"]
    named = {name: f"k,v\n{i},{i}\nbad,{i}\n" for i, name in enumerate(odd)}
    good, errors = decode(named, times=range(10, 10 + len(odd)))
    assert good == {(i, str(i), 10 + i): 1 for i in range(len(odd))}
    assert sorted((e["file"], e["line"], e[TIME]) for e in errors) == sorted(
        (name, 3, 10 + i) for i, name in enumerate(odd)
    )


@pytest.mark.parametrize("form", [CSV, JSON, PARQUET])
def test_rows_of_a_withdrawn_file_are_taken_back_and_its_errors_say_so(spark, tmp_path, form):
    """Damage: a correction adds the old rows once more; or the error of an undecodable record cannot be matched."""
    content = {
        CSV: [b"k,v\n1,a\n2,b\nx,c\n", b"k,v\n1,a\n1,a\nx,c\n"],
        JSON: [
            b'{"k":1,"v":"a"}\n{"k":2,"v":"b"}\n{"k":"x"}\n',
            b'{"k":1,"v":"a"}\n{"k":1,"v":"a"}\n{"k":"x"}\n',
        ],
        PARQUET: [_parquet({"k": [1, 2], "v": ["a", "b"]}), _parquet({"k": [1, 1], "v": ["a", "a"]})],
    }[form]
    files = []
    for number, (data, time) in enumerate(zip(content, (7, 8), strict=True)):
        path = tmp_path / f"{number}.{form.encoding.value}"
        path.write_bytes(data)
        files.append(DatedFile(str(path), path.name, len(data), time, withdrawn=time == 8))
    for locate in (False, True):
        rows = asyncio.run(SparkFiles(spark).decode(files, PAIR, form, locate=locate))
        updates = dataframe(unwrap(rows), spark).toArrow().to_pylist()
        good = Counter((u["k"], u["v"], u[TIME], u[DIFF]) for u in updates if u[ERROR] is None)
        assert good == {(1, "a", 7, 1): 1, (2, "b", 7, 1): 1, (1, "a", 8, -1): 2}
        bad = sorted((u for u in updates if u[ERROR] is not None), key=lambda u: u[TIME])
        assert [(u[TIME], u[DIFF]) for u in bad] == [(7, 1), (8, 1)] * (form is not PARQUET)
        if bad and locate:
            came, went = (json.loads(u[ERROR]) for u in bad)
            assert (went["reason"], went["raw"]) == (TAKES_BACK + came["reason"], came["raw"])
        only = asyncio.run(SparkFiles(spark).decode(files[1:], PAIR, form, locate=locate))
        diffs = [u[DIFF] for u in dataframe(unwrap(only), spark).toArrow().to_pylist() if u[ERROR] is None]
        assert diffs == [-1, -1]
        assert not unwrap(only).plain


def _parquet(columns):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"k": pa.array(columns["k"], pa.int32()), "v": columns["v"]}), sink)
    return sink.getvalue().to_pybytes()


def test_compressed_text_is_read_with_its_lines(decode):
    """Damage: a compressed file has no header, or no line numbers."""
    good, errors = decode({"a.csv.gz": gzip.compress(b"k,v\n1,a\nx,b\n")})
    assert good == {(1, "a", 7): 1}
    assert lines(errors) == [("a.csv.gz", 3)]


@pytest.mark.parametrize(
    ("form", "whole", "header"), [(CSV, b"k,v\n1,a\n", b"k,v\n"), (JSON, b'{"k":1,"v":"a"}\n', b"")]
)
def test_compressed_text_that_is_damaged_anywhere_is_an_error_of_its_file_alone(decode, form, whole, header):
    """Damage: one upload that broke off stops all files of its source, and no message names it."""
    many = gzip.compress(header + b"\n".join(b"%d" % (n * n) for n in range(90_000)))
    damaged = {
        "broke off": many[: len(many) // 2],
        "broke off in the header": many[:12],
        "another check": many[:-8] + bytes(8),
        "not compressed": whole,
        "goes on": gzip.compress(whole) + b"more",
    }
    good, errors = decode(
        {"0.gz": gzip.compress(whole)}
        | {f"{name}.gz": data for name, data in damaged.items()}
        | {"cut.bz2": bz2.compress(whole)[:-3]},
        form=form,
    )
    assert good == {(1, "a", 7): 1}
    assert lines(errors) == [(name, None) for name in sorted([*(f"{name}.gz" for name in damaged), "cut.bz2"])]
    assert all(error["reason"].startswith("it cannot be decompressed: ") for error in errors)


def test_line_numbers_hold_in_a_file_that_is_read_in_many_blocks(spark, decode):
    """Damage: in a large file every line number is wrong."""
    split = spark.conf.get("spark.sql.files.maxPartitionBytes")
    cost = spark.conf.get("spark.sql.files.openCostInBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "5000")
    spark.conf.set("spark.sql.files.openCostInBytes", "10")
    try:
        bad = {2, 777, 1_500, 1_501, 2_999}
        text = "k,v\n" + "".join(f"{'x' if n in bad else n},{'é' * (n % 13)}\n" for n in range(2, 3_000))
        good, errors = decode({"a.csv": text, "b.csv": "k,v\nx,1\n"})
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", split)
        spark.conf.set("spark.sql.files.openCostInBytes", cost)
    assert lines(errors) == [("a.csv", n) for n in sorted(bad)] + [("b.csv", 2)]
    assert good.total() == 2_998 - len(bad)


def test_a_long_bad_line_is_cut(decode):
    """Damage: an error is as large as the file that caused it."""
    _, errors = decode({"a.csv": f"k,v\n{'y' * 10_000},b\n"})
    assert errors[0]["raw"] == "y" * RAW_CHARS_MAX
    assert len(errors[0]["reason"]) < 200


def test_empty_files_are_no_rows(decode):
    """Damage: an empty file stops the source."""
    assert decode({"a.csv": "", "b.csv": "\n\n", "c.csv": "k,v\n"}) == ({}, [])
    assert decode({"a.json": ""}, form=JSON) == ({}, [])


def test_a_type_that_csv_cannot_hold_is_refused_by_name(decode):
    """Damage: every row of the column is an error that no user understands."""
    with pytest.raises(DefinitionError, match="'a'"):
        decode({"a.csv": "a\n1\n"}, Schema((Column("a", "array<int>"),)))


# ---- the whole way: directory, sequence, remap, decoder, shard -------------------------------------------------------


class Place:
    """A directory of files, a location, and readers and ingestions of them on Spark."""

    table = ""

    def __init__(self, spark, root, encoding=Encoding.CSV):
        self.encoding = encoding
        self.root = root / "in"
        self.root.mkdir()
        (root / "blob").mkdir()
        self.engine, self.files = SparkEngine(spark, PartStore(root / "blob")), SparkFiles(spark)
        self.blob, self.consensus = FileBlob(root / "blob"), MemoryConsensus()
        self.clock, self.processes, self.numbers = HandClock(0), count(), count()

    def client(self):
        return PersistClient(self.clock, CountingIds(f"p{next(self.processes)}"), self.blob, self.consensus)

    async def reader(self, client=None):
        sequence = await FileSequence.open(await (client or self.client()).records("files", 1), 1)
        options = FileOptions(path=str(self.root), format=self.encoding, settle=0)
        folder = LocalFolder(*root_and_pattern(options.path), self.clock)
        return FileReader(self.clock, folder, sequence, self.files, PAIR, options, name="s")

    async def ingestion(self):
        client = self.client()
        remap = await RemapShard.open(await client.records("remap", 1), 1)
        data = await client.writer("data", 1, schema=PAIR.ddl)
        reader, output = await self.reader(client), OutputShard("", PAIR, data)
        return await Ingestion.open(self.clock, self.engine, reader, remap, [output], name="s")

    def write(self, name, text):
        (self.root / name).write_text(text)

    async def produce(self, *, undecodable=False):
        number = next(self.numbers)
        self.write(f"{number}.csv", f"k,v\n{number},a\n{number},a\n" + "x,b\n" * undecodable)

    async def break_promise(self):
        self.write("0.csv", "k,v\n")

    async def updates(self, half):
        state = (await self.client().reader("data", PAIR, "data")).state
        rows = await self.engine.read(contents(state, PAIR, 0, state.upper.at, advance=0, half=half))
        return sorted(tuple(row.values()) for row in (await self.engine.collect(rows)).to_pylist())


@pytest.fixture
def place(spark, tmp_path):
    """One directory and one location."""
    made = Place(spark, tmp_path)
    yield made
    made.engine.close()


class TestFilesOnSpark(SharedReaderContract):
    @pytest.fixture
    def place(self, place):
        return place


def test_files_are_ingested_once_with_their_errors_located_and_never_read_again(place):
    """Damage: the whole way differs from its parts."""

    async def body():
        first = await place.ingestion()
        place.write("b.csv", "k,v\n1,a\nx,b\n1,a\n")
        await first.tick(1000)
        assert await first.catch_up()
        place.write("a.csv", "k,v\n2,c\n")
        await first.tick(2000)  # bound; its process ends before the step
        second = await place.ingestion()
        place.write("c.csv", "k,v\n3,d\n")
        await second.tick(3000)
        assert await second.step() == Advanced(Frontier(2001))
        assert await second.step() == Advanced(Frontier(3001))
        assert (second.status.read_records, second.status.reread_records, first.status.error_records) == (2, 1, 1)
        assert await place.updates(Half.OK) == [
            (1, "a", 1000, 1),
            (1, "a", 1000, 1),
            (2, "c", 2000, 1),
            (3, "d", 3000, 1),
        ]
        ((error, time, diff),) = await place.updates(Half.ERR)
        assert (json.loads(error)["file"], json.loads(error)["line"], time, diff) == ("b.csv", 3, 1000, 1)

    asyncio.run(body())


def test_one_step_for_many_ticks_gives_the_very_same_updates(spark, tmp_path):
    """Law D.  Damage: one-day and one-week batching differ."""
    found = []
    for steps in (1, 4):
        (tmp_path / str(steps)).mkdir()
        place = Place(spark, tmp_path / str(steps))

        async def body(place=place, steps=steps):
            ingestion = await place.ingestion()
            for number in range(4):
                await place.produce(undecodable=number == 2)
                await ingestion.tick(1000 * (number + 1))
                if (number + 1) % steps == 0:
                    await ingestion.catch_up()
            assert ingestion.status.steps == 4 // steps
            return [await place.updates(half) for half in (Half.OK, Half.ERR)]

        found.append(asyncio.run(body()))
        place.engine.close()
    assert found[0] == found[1]
    assert len(found[0][0]) == 8
