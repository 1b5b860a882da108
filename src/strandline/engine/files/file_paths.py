"""Paths, options and reads that decoding files and describing their errors have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession

from strandline.algebra.formats import DatedFile, Encoding, FileFormat
from strandline.engine.files.file_bytes import S3A
from strandline.engine.frames.rows import Local, dataframe

CORRUPT: Final = "__corrupt"
"""The column in which Spark keeps, whole, the text of a record that it cannot decode."""
PATH: Final = "__path"
"""The column with a row's file, as Spark spells it (`uris`)."""
_SAFE: Final = frozenset("/-_.!~*'();:@&=+$,")
"""What Hadoop's paths leave as it is in a URI, besides letters and digits of any alphabet."""
_WITHOUT_CHECKSUMS: Final = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
_GLOB: Final = frozenset("[]{}*?\\")


def uris(path: str) -> tuple[str, str]:
    """Return a path as Spark may spell it in ``_metadata.file_path``: a local one with one slash, or with three.

    >>> uris("/a b/é%[1].csv")
    ('file:/a%20b/é%25%5B1%5D.csv', 'file:///a%20b/é%25%5B1%5D.csv')
    >>> uris("s3a://b/a b.csv")[0]
    's3a://b/a%20b.csv'
    """
    if path.startswith(S3A):
        spelt = S3A + _spelt(path.removeprefix(S3A))
        return spelt, spelt
    spelt = _spelt(path)
    return f"file:{spelt}", f"file://{spelt}"


def _spelt(path: str) -> str:
    return "".join(c if c.isalnum() or c in _SAFE or c > "\x7f" else f"%{ord(c):02X}" for c in path)


def load(reader: DataFrameReader, format_name: str, files: Sequence[DatedFile]) -> DataFrame:
    """Return the rows of these files; a path is a path, whatever signs of a glob are in it.

    Hadoop's checksums have no name for a file with a colon in its own, so such files are read without them.
    """
    if any(":" in file.path and not file.path.startswith(S3A) for file in files):
        reader = reader.options(**_WITHOUT_CHECKSUMS)
    escaped = ("".join(f"\\{c}" if c in _GLOB else c for c in file.path) for file in files)
    paths = [path if path.startswith(S3A) else f"file://{path}" for path in escaped]
    return reader.format(format_name).load(paths)


def file_path(read: DataFrame) -> Column:
    """Return the path of the file that a row is read from, also where a column has the name of Spark's metadata."""
    return read.metadataColumn("_metadata")["file_path"]


def records(session: SparkSession, files: Sequence[DatedFile], ddl: str, form: FileFormat) -> DataFrame:
    """Return the records of text files as Spark's own reader has them: the columns of ``ddl``, `CORRUPT`, `PATH`."""
    reader = session.read.schema(f"{ddl}, {CORRUPT} string").options(**decoding(form))
    read = load(reader, form.encoding.value, files)
    return read.select("*", file_path(read).alias(PATH))


def paths_table(session: SparkSession, files: Sequence[DatedFile], columns: Mapping[str, pa.Array]) -> DataFrame:
    """Return a small frame to join with on `PATH`: for each spelling of each file's path a row with its ``columns``."""
    spellings = list(zip(*(uris(file.path) for file in files), strict=True))
    tables = [pa.table({PATH: pa.array(paths, pa.string()), **columns}) for paths in dict.fromkeys(spellings)]
    return dataframe(Local(pa.concat_tables(tables), plain=True), session)


def decoding(form: FileFormat) -> dict[str, str]:
    """Return Spark's options for a text format."""
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": CORRUPT,
        "multiLine": str(form.multiline).lower(),
    }
    if form.encoding is Encoding.CSV:
        options |= {
            "header": str(form.header).lower(),
            "sep": form.delimiter,
            "quote": form.quote,
            "escape": form.escape,
            "nullValue": form.null,
            "emptyValue": form.null,  # else a field of two quotes is an empty text where `null` is another token
            "columnPruning": "false",  # else whether a row has too many fields depends on which columns are used
        }
        if form.ends:
            options["lineSep"] = form.ends
    return options
