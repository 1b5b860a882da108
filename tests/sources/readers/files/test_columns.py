"""Which columns files hold that their source does not read."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.algebra.messages import Encoding, FileFormat
from strandline.algebra.schema import Column, Schema, ddl_of
from strandline.errors import Unavailable
from strandline.sources.reader import ColumnsAdded, Surroundings
from strandline.sources.readers import sampled
from strandline.sources.readers.files.discovery import NewColumns, header, held

KNOWN: Final = Schema((Column("id", "bigint"), Column("city", "string")))
CSV: Final = FileFormat(Encoding.CSV)
JSON: Final = FileFormat(Encoding.JSON)
PARQUET: Final = FileFormat(Encoding.PARQUET)
IDS: Final = [{"name": "id", "type": "long"}, {"name": "city", "type": "string"}]
AVRO: Final = FileFormat(Encoding.AVRO)


class Opening:
    """Opens files of this machine, and notes which."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, path: str) -> pa.NativeFile:
        """See `FileDecoder.open`."""
        self.opened.append(Path(path).name)
        return pa.OSFile(path)

    def stream(self, path: str) -> pa.NativeFile:
        """See `FileDecoder.stream`."""
        self.opened.append(Path(path).name)
        return pa.input_stream(path, compression="detect")

    async def decode(self, *_: Any, **__: Any) -> Any:
        """It is not asked for."""
        raise AssertionError


def around(*, evolves: bool) -> Surroundings:
    """Return what a reader is opened with."""
    nothing: Any = None
    evolving = frozenset([""] if evolves else [])
    altering = {"": "ALTER SOURCE `s`"}
    return Surroundings(nothing, {"": KNOWN}, nothing, nothing, nothing, 1, nothing, evolving, altering)


def avro(path: Path, fields: Sequence[dict[str, Any]], *rows: dict[str, Any]) -> None:
    """Write an Avro file."""
    with path.open("wb") as into:
        fastavro.writer(into, {"type": "record", "name": "r", "fields": fields}, rows)


def parquet(path: Path, **columns: pa.Array) -> None:
    """Write a Parquet file."""
    pq.write_table(pa.table(columns), path)


CASES: Final[dict[str, tuple[FileFormat, Callable[[Path], object], str]]] = {
    "csv": (CSV, lambda p: p.write_text("ID,city,n,at\n1,Gh,7,2026-01-02\n"), "`n` bigint, `at` date"),
    "csv, of which all is known": (CSV, lambda p: p.write_text("City,id\nGh,1\n"), ""),
    "csv, without a value": (CSV, lambda p: p.write_text("id,city,n,m\n1,a,,2\n"), "`m` bigint"),
    "csv, compressed": (CSV, lambda p: p.write_bytes(gzip.compress(b"id,city,n\n1,a,7\n")), "`n` bigint"),
    "csv, with a token for NULL": (
        FileFormat(Encoding.CSV, null="NA"),
        lambda p: p.write_text("id,city,n,m\n1,a,7,NA\n2,b,NA,NA\n"),
        "`n` bigint",
    ),
    "csv, with a token that is a text": (CSV, lambda p: p.write_text("id,city,n\n1,a,7\n2,b,NA\n"), "`n` string"),
    "csv, with days written otherwise": (
        FileFormat(Encoding.CSV, date_format="yyyy/MM/dd"),
        lambda p: p.write_text("id,city,at\n1,a,2026-01-02\n"),
        "`at` string",
    ),
    "csv, with names twice": (CSV, lambda p: p.write_text("id,city,x,X,n,y,y\n1,a,2,3,4,5,6\n"), "`n` bigint"),
    "csv, without a header": (FileFormat(Encoding.CSV, header=False), lambda p: p.write_text("1,a,7\n"), ""),
    "csv, damaged": (CSV, lambda p: p.write_bytes(b"id,city,\xff\xfe\x00"), ""),
    "csv, without a column that it must have": (CSV, lambda p: p.write_text("id,n\n1,7\n"), ""),
    "csv, without one that came later": (
        FileFormat(Encoding.CSV, later=("city",)),
        lambda p: p.write_text("id,n\n1,7\n"),
        "`n` bigint",
    ),
    "json": (
        JSON,
        lambda p: p.write_text('{"id": 1, "n": null}\n' * 3 + '{"id": 2, "n": 1.5, "tags": ["a"], "x": null}\n'),
        "`n` double, `tags` array<string>",
    ),
    "json, beyond what a sample holds": (
        JSON,
        lambda p: p.write_text("\ufeff" + '{"id": 1}\r\n' * 900_000 + '{"id": 2, "late": true}'),
        "`late` boolean",
    ),
    "json, with what is no JSON": (JSON, lambda p: p.write_text('{"a\n{"id": NaN, "n": 1}\n[]\n7\n'), "`n` bigint"),
    "json, whose names differ in case": (JSON, lambda p: p.write_text('{"ID": 1}'), "`ID` bigint"),
    "json, over lines": (
        FileFormat(Encoding.JSON, multiline=True),
        lambda p: p.write_text(json.dumps([{"id": 1}, {"id": 2, "n": 1}], indent=1)),
        "`n` bigint",
    ),
    "parquet": (
        PARQUET,
        lambda p: parquet(
            p, id=pa.array([1]), city=pa.array(["a"]), n=pa.array([1], pa.int16()), u=pa.array([1], pa.uint8())
        ),
        "`n` smallint, `u` smallint",
    ),
    "parquet, damaged": (PARQUET, lambda p: p.write_bytes(b"PAR1 nothing PAR1"), ""),
    "avro": (
        AVRO,
        lambda p: avro(
            p,
            [*IDS, {"name": "n", "type": ["null", "int"]}],
            {"id": 1, "city": "a", "n": 2},
        ),
        "`n` int",
    ),
    "avro, which nothing reads": (
        AVRO,
        lambda p: avro(p, [*IDS, {"name": "u", "type": ["int", "string"]}], {"id": 1, "city": "a", "u": 1}),
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_columns_of_a_file_that_are_not_known_are_found(tmp_path: Path, case: str) -> None:
    """Damage: records of a new column are read without it, or as what they are not."""
    form, write, found = CASES[case]
    path = tmp_path / ("f.csv.gz" if "compressed" in case else "f")
    write(path)
    assert ddl_of(held([str(path)], KNOWN, form, Opening()).columns) == found


@pytest.mark.parametrize(("form", "text"), [(JSON, b'{"n": 1}\n' * 9_000), (CSV, b"id,city,n\n" + b"1,a,7\n" * 9_000)])
def test_a_file_that_cannot_be_decompressed_holds_none_and_one_that_is_refused_is_asked_again(
    tmp_path: Path, form: FileFormat, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: one damaged file stops a source for ever, or a disk that fails for a moment costs a column its values."""
    path, opening = tmp_path / "f.gz", Opening()
    path.write_bytes(gzip.compress(text)[:-20])
    assert held([str(path)], KNOWN, form, opening).columns == ()

    class Refused(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def read(self, size: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(opening, "stream", lambda _: pa.PythonFile(Refused(), mode="r"))
    with pytest.raises(Unavailable, match="Input/output error"):
        held([str(path)], KNOWN, form, opening)


def test_a_column_is_of_a_type_that_all_files_have(tmp_path: Path) -> None:
    """Damage: the second file of one tick is an error for each of its records."""
    for name, values in (("a", "1,2.5,x"), ("b", "2.5,1,7"), ("c", "1,7,1")):
        (tmp_path / name).write_text(f"id,city,i,f,t\n1,a,{values}\n")
    paths = [str(tmp_path / name) for name in "abc"]
    assert ddl_of(held(paths, KNOWN, CSV, Opening()).columns) == "`i` double, `f` double, `t` string"
    for name, kind in (("p", pa.int32()), ("q", pa.int64())):
        parquet(tmp_path / name, id=pa.array([1]), city=pa.array(["a"]), n=pa.array([1], kind))
    found = held([str(tmp_path / name) for name in "pq"], KNOWN, PARQUET, Opening())
    assert ddl_of(found.columns) == "`n` bigint"


def test_a_value_of_a_new_column_is_found_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a column whose first value comes late in a large file is none, and its values are lost."""
    monkeypatch.setattr(sampled, "SAMPLE_BYTES", 1)
    path = tmp_path / "f"
    path.write_text("id,late,city\n" + "1,,abcdefghijklmnop\n" * 200_000 + "1,42,a\n")
    assert ddl_of(held([str(path)], KNOWN, CSV, Opening()).columns) == "`late` bigint"
    path.write_text("id,late,city\n" + "1,7,abcdefghijklmnop\n" * 200_000 + "1,x,a\n")
    assert ddl_of(held([str(path)], KNOWN, CSV, Opening()).columns) == "`late` string"


def test_names_that_differ_in_case_alone_are_one_column_of_two_files(tmp_path: Path) -> None:
    """Damage: two columns are proposed that no source can have both, and it stands still for ever."""
    (tmp_path / "a").write_text("id,city,Extra\n1,a,7\n")
    (tmp_path / "b").write_text("id,city,extra\n1,a,2.5\n")
    paths = [str(tmp_path / name) for name in "ab"]
    assert ddl_of(held(paths, KNOWN, CSV, Opening()).columns) == "`Extra` double"
    for name in ("n", "N"):
        (tmp_path / name).write_text(f'{{"{name}": 1}}')
    paths = [str(tmp_path / name) for name in "nN"]
    assert ddl_of(held(paths, KNOWN, JSON, Opening()).columns) == "`n` bigint, `N` bigint"


@pytest.mark.parametrize("evolves", [False, True])
def test_names_that_a_header_has_twice_are_left_out_with_a_notice(tmp_path: Path, *, evolves: bool) -> None:
    """Damage: a column is added under whose name no file can be read; or one is left out in silence."""
    for name, text in (("a", "id,city\n1,a\n"), ("b", "id,city,x,X\n1,a,2,3\n")):
        (tmp_path / name).write_text(text)
    looking = NewColumns(Opening(), CSV, around(evolves=evolves))
    run_sync(looking.look([str(tmp_path / "b")], str(tmp_path / "a")))
    told = f"columns that a header names more than once are not read: `x` ({str(tmp_path / 'b')!r})"
    assert looking.notice.startswith(f"{told}; ")


def test_where_the_first_file_is_gone_every_column_that_is_not_read_is_news(tmp_path: Path) -> None:
    """Damage: where files leave once they are durable, a restart silences the notice of a column that came."""
    (tmp_path / "b").write_text("id,city,n\n1,a,2\n")
    looking = NewColumns(Opening(), CSV, around(evolves=False))
    run_sync(looking.look([str(tmp_path / "b")], str(tmp_path / "gone")))
    assert looking.notice.endswith("ALTER SOURCE `s` ADD COLUMNS (`n` bigint)")


def run_sync(call: Coroutine[Any, Any, None]) -> None:
    """Run a call that hands its work to a thread."""
    asyncio.run(call)


def test_where_the_source_evolves_every_file_is_looked_at_before_it_is_read(tmp_path: Path) -> None:
    """Damage: a column that an early file of a tick has is lost."""
    for name, text in (("a", "id,city,n\n1,a,1\n"), ("b", "id,city\n1,a\n")):
        (tmp_path / name).write_text(text)
    opening = Opening()
    looking = NewColumns(opening, CSV, around(evolves=True))
    with pytest.raises(ColumnsAdded) as raised:
        run_sync(looking.look([str(tmp_path / name) for name in "ab"], ""))
    assert raised.value.columns == (Column("n", "bigint"),)
    opening.opened.clear()
    with pytest.raises(ColumnsAdded):
        run_sync(looking.look([str(tmp_path / name) for name in "ab"], ""))
    assert opening.opened == [], "files are looked at once, as long as their columns cannot be added"
    run_sync(looking.look([str(tmp_path / "b")], ""))
    (tmp_path / "c").write_text('{"ID": 1}')
    with pytest.raises(ColumnsAdded, match="`ID` bigint"):
        run_sync(NewColumns(Opening(), JSON, around(evolves=True)).look([str(tmp_path / "c")], ""))
    with pytest.raises(Unavailable, match="cannot be read"):
        run_sync(looking.look([str(tmp_path / "none")], ""))


def test_else_only_headers_are_and_what_the_first_file_had_is_no_news(tmp_path: Path) -> None:
    """Damage: a column that came is not noticed, or one that was left out on purpose is spoken of for ever."""
    for name, head in (("a", "id,city,left"), ("b", "id,city,left"), ("c", "id,city,n")):
        (tmp_path / name).write_text(f"{head}\n1,2,3\n")
    first, opening = str(tmp_path / "a"), Opening()
    looking = NewColumns(opening, CSV, around(evolves=False))
    run_sync(looking.look([first], first))
    run_sync(looking.look([str(tmp_path / "b")], first))
    assert looking.notice == ""
    run_sync(looking.look([str(tmp_path / "b"), str(tmp_path / "c")], first))
    assert looking.notice.endswith("to read them from now on: ALTER SOURCE `s` ADD COLUMNS (`n` bigint)")
    opening.opened.clear()
    run_sync(looking.look([str(tmp_path / "c")], first))
    assert opening.opened == ["c"], "values are looked at once"
    (tmp_path / "j").write_text('{"new": 1}')
    assert header(str(tmp_path / "j"), KNOWN, JSON, opening) == ()
