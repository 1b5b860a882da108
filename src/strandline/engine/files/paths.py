"""Paths and bytes of a source's files, as the driver reads them: on this machine, or in an object store.

A path is one of this machine, or ``s3a://bucket/key`` in Spark's notation.  The options that reach a bucket hold for
the whole process, because Spark has one configuration for each bucket.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession

from strandline.algebra.messages import DatedFile, Encoding, FileFormat
from strandline.engine.frames.rows import Local, dataframe
from strandline.errors import ConfigError, Unavailable, first_line
from strandline.store.blob_kinds.object_location import READ_RETRIES_MAX, ObjectLocation
from strandline.store.secret import Secret

S3A: Final = "s3a://"


class FileBytes:
    """Opens files for reading."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Mapping[str, str | Secret], Any]] = {}  # by bucket: its options, its client

    def know(self, location: ObjectLocation) -> bool:
        """Learn how a bucket is reached; return whether that is new.

        Raises `ConfigError` if this process reaches it in another way.
        """
        bucket = _bucket(location.url.replace("s3://", S3A, 1))
        if bucket in self._known:
            if self._known[bucket][0] != location.options:
                raise ConfigError(f"another source reaches bucket {bucket} with other options; let both have the same")
            return False
        whole = ObjectLocation(f"s3://{bucket}", location.options)
        self._known[bucket] = (location.options, whole.open(retries=READ_RETRIES_MAX))
        return True

    def open(self, path: str) -> pa.NativeFile:
        """Return a file that can be read at any place.  Raises `OSError`, or `Unavailable`: a store does not answer."""
        if not path.startswith(S3A):
            return pa.OSFile(path)
        import obstore
        from obstore import exceptions

        bucket, _, key = path.removeprefix(S3A).partition("/")
        try:
            reader = obstore.open_reader(self._known[bucket][1], key)
        except (exceptions.BaseError, FileNotFoundError, PermissionError) as error:
            raise _unread(path, error) from error
        return pa.PythonFile(_Opened(path, reader, exceptions.BaseError), mode="r")

    def stream(self, path: str) -> pa.NativeFile:
        """Return a file's text as a stream, decompressed as its name says."""
        if not path.startswith(S3A):
            return pa.input_stream(path, compression="detect")
        codec = {"gz": "gzip", "bz2": "bz2"}.get(path.rpartition(".")[2])
        opened = self.open(path)
        return opened if codec is None else pa.CompressedInputStream(opened, codec)


class _Opened(io.RawIOBase):
    """An object that is read, as a file: pyarrow asks whether it is closed, and readers of obstore do not say so.

    ``failure``: what the reader raises if the store does not answer; then `Unavailable` is raised.
    """

    def __init__(self, path: str, reader: Any, failure: type[Exception]) -> None:
        super().__init__()
        self._path = path
        self._reader = reader
        self._failures = (failure, FileNotFoundError, PermissionError)

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that any place of it can be read."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes; all that are left, without a size."""
        try:
            return bytes(self._reader.read(None if size is None or size < 0 else size))
        except self._failures as error:
            raise _unread(self._path, error) from error

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, and return it."""
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        """Return the place of the next byte."""
        return int(self._reader.tell())


def _unread(path: str, error: Exception) -> Unavailable:
    return Unavailable(f"object {path} cannot be read: {first_line(error)}")


def _bucket(path: str) -> str:
    return path.removeprefix(S3A).partition("/")[0]


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
