"""Files to rows, on Spark: the decoder behind the files source.

All files of a step are one lazy frame; staging it is the one job.  Small files are decoded here and now, in no job
(`small.py`), to the same rows.  Avro is read by Python (`avro.py`), and so are the Parquet files that Spark does
not read as declared (`files/parquet_files.py`).  Text is read by Spark's own parsers, which
keep the text of a record that they cannot decode beside whatever they could; such a record becomes a row of the err
half.  Where it stands and what is wrong with it costs more passes over its file (`file_errors.py`), and is found only
when asked for (``locate``): the ok rows are the same either way, and of good input nothing is decoded twice.

A file that cannot be decoded at all (its header lacks a declared column, its Parquet schema has another type) is one
error, at the line that says so.  Headers and footers are read here, by the driver, before the job is planned: files
that agree are read together.  Damaged pages behind a sound footer fail the job of all files; which files have them is
found only when asked for, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra import types
from strandline.algebra.messages import DatedFile, Encoding, FileFormat
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema, quote
from strandline.algebra.schema import Column as Field
from strandline.engine.files import csv_lines, file_errors, json_lines, small
from strandline.engine.files.avro import AvroFiles
from strandline.engine.files.parquet_files import ParquetFiles, damaged_pages
from strandline.engine.files.paths import CORRUPT, PATH, S3A, FileBytes, file_path, load, paths_table
from strandline.engine.files.small import Layout, Unusable, group, is_small, line_that_is_not_utf8
from strandline.engine.frames import forms, inline
from strandline.engine.frames.failures import as_ours, held_until_unused
from strandline.engine.frames.rows import Distributed, Local, dataframe, unwrap, wrap
from strandline.engine.parts.aside import Arrivals, OfThisMachine, Places
from strandline.engine.prepared.plans import Here
from strandline.engine.session import s3a
from strandline.engine.session.workers import Workers
from strandline.errors import CorruptionError, DefinitionError
from strandline.persist.handles.contents import Rows
from strandline.store.blob_kinds.object_location import ObjectLocation
from strandline.store.secret import Secret

_UNLOCATED: Final = "not located"


class SparkFiles:
    """Decodes files in ``session``.  Every executor must see them under the same paths."""

    def __init__(self, session: SparkSession, workers: Workers | None = None, place: Places = OfThisMachine) -> None:
        """``workers``: the Python of executors, if that is another than this one; ``place``: see `Aside`."""
        self._session = session
        self._workers = workers
        self._place = place
        self._bytes = FileBytes()
        self._here = Here(session)

    async def reach(self, url: str, options: Mapping[str, str | Secret]) -> None:
        """Let files below an object store's ``url`` be decoded; ``options`` are those of `StorageOptions`.

        Raises `ConfigError` if the Spark application cannot reach it, or reaches its bucket with other options.
        """
        location = ObjectLocation(url, options)
        if self._bytes.know(location):
            await asyncio.to_thread(s3a.reach, self._session, location)

    def open(self, path: str) -> pa.NativeFile:
        """See `FileDecoder.open`."""
        return self._bytes.open(path)

    def stream(self, path: str) -> pa.NativeFile:
        """See `FileDecoder.stream`."""
        return self._bytes.stream(path)

    async def decode(self, files: Sequence[DatedFile], schema: Schema, form: FileFormat, *, locate: bool) -> Rows:
        """Return the records of all files (lazy): columns, ``__error``, ``__time``, ``__diff``, normalised.

        The diff is the file's.  A record that cannot be decoded is one error with diff 1; in a file that is withdrawn
        its reason says so.

        Raises `DefinitionError` if a column has a type that the format cannot hold.
        """
        return await asyncio.to_thread(partial(self._decode, files, schema, form, locate=locate))

    def _decode(self, files: Sequence[DatedFile], schema: Schema, form: FileFormat, *, locate: bool) -> Rows:
        _refuse_types(schema, form)
        _refuse_places(files, form)
        layouts, unusable = group(files, schema, form, self._bytes)
        refused = _refusals(unusable, schema)
        if not locate and is_small(files, form):
            found = [self._small(layout, form) for layout in layouts]
            tables = [table for table in found if table is not None]
            if len(tables) == len(found):
                return wrap(Local(_together([refused, *tables], schema), plain=not any(f.withdrawn for f in files)))
        if locate and form.encoding is Encoding.PARQUET:
            layouts, damaged = self._without_damaged(layouts)
            unusable += damaged
        here = [layout for layout in layouts if _by_python(layout, form)]
        if here and self._workers is not None and self._workers.lack_of_decoders() is not None:
            layouts = [layout for layout in layouts if layout not in here]
            frames = [self._decoded_here(here, schema, form)]  # first, since what is derived is held by the first
        else:
            frames = []
        frames += [_whole(frame, layout, schema) for layout in layouts for frame in self._decoded(layout, form, locate)]
        refused = _refusals(unusable, schema)  # with those whose pages are damaged
        if not frames:
            return wrap(Local(refused, plain=True))
        if unusable:
            frames.append(dataframe(Local(refused, plain=True), self._session))
        return wrap(Distributed(reduce(DataFrame.unionAll, frames), plain=not any(file.withdrawn for file in files)))

    def _decoded_here(self, layouts: Sequence[Layout], schema: Schema, form: FileFormat) -> DataFrame:
        """Return the rows of files that executors cannot decode: decoded in this process, and put aside."""
        rows = Arrivals(self._session, schema, keyed=False, place=self._place)
        target = inline.update_schema(schema)
        try:
            for layout in layouts:
                for file in layout.files:
                    for batch in self._batches(layout, file, form):
                        rows.add(inline.conform(pa.Table.from_batches([batch]), target))
            frame = dataframe(unwrap(rows.rows()), self._session)
        except BaseException:
            rows.close()
            raise
        error = F.col(ERROR) if ERROR in frame.columns else F.lit(None).cast("string").alias(ERROR)
        whole = frame.select(*map(quote, schema.names), error, TIME, DIFF)
        return _normal(held_until_unused(whole, rows.close), schema=schema)

    def _batches(self, layout: Layout, file: DatedFile, form: FileFormat) -> Iterator[pa.RecordBatch]:
        if form.encoding is Encoding.AVRO:
            return AvroFiles(layout.schema).of(file)
        return ParquetFiles(layout.schema).of(file, partial(self._bytes.open, file.path))

    def _small(self, layout: Layout, form: FileFormat) -> pa.Table | None:
        """Return the layout's rows, decoded in this process; None: a job must decode them."""
        schema = layout.schema
        key = ("files", schema, repr(form), layout.names)
        if form.encoding.text:
            table = small.lines(layout, form, self._bytes)
            rows = partial(_of_lines, fields=_fields(layout, schema), schema=schema, form=form)
        else:
            table = small.parquet(layout, schema, self._bytes)
            rows = partial(_normal, schema=schema)
        return None if table is None else self._here.run(key, table, rows) if table.num_rows else table.slice(0, 0)

    def _decoded(self, layout: Layout, form: FileFormat, locate: bool) -> list[DataFrame]:
        schema = layout.schema
        match form.encoding:
            case Encoding.AVRO:
                return [_normal(AvroFiles(schema).frame(self._session, layout.files), schema=schema)]
            case Encoding.PARQUET if layout.by_spark:
                return [self._parquet(layout, schema)]
            case Encoding.PARQUET:
                return [_normal(ParquetFiles(schema).frame(self._session, layout.files), schema=schema)]
            case _:
                return self._text(layout, schema, form, locate)

    def _parquet(self, layout: Layout, schema: Schema) -> DataFrame:
        reader = self._session.read.schema(schema.ddl).option("parquet.page.verify-checksum.enabled", "true")
        read = self._dated(load(reader, "parquet", layout.files), layout.files)
        return read.select(*_columns(schema), F.lit(None).cast("string").alias(ERROR), TIME, DIFF)

    def _without_damaged(self, layouts: Sequence[Layout]) -> tuple[list[Layout], list[Unusable]]:
        """Part from the layouts the files with pages that neither Arrow nor Spark can read.

        Spark fails also where a disk does, and Arrow where Spark need not: a file is damaged if both say so.
        """
        sound, damaged = [], []
        for layout in layouts:
            files, schema = layout.files if layout.by_spark else (), layout.schema
            doubted = {file: reason for file in files if (reason := damaged_pages(file, schema, self._bytes))}
            refused = [Unusable(f, 0, reason, "") for f, reason in doubted.items() if not self._reads(f, schema)]
            damaged += refused
            if len(refused) < len(layout.files):
                sound.append(layout.without({u.file for u in refused}))
        return sound, damaged

    def _reads(self, file: DatedFile, schema: Schema) -> bool:
        alone = self._parquet(Layout(schema, schema.names, (file,), (0,)), schema)
        try:
            alone.selectExpr(*(f"count({quote(name)})" for name in schema.names)).collect()
        except Exception as error:
            if isinstance(as_ours(error), CorruptionError):
                return False
            raise
        return True

    def _text(self, layout: Layout, schema: Schema, form: FileFormat, locate: bool) -> list[DataFrame]:
        """Return the layout's rows: good and bad in one frame, or, to locate the bad ones, in two."""
        fields = _fields(layout, schema)
        if form.encoding is Encoding.JSON:
            decoded = json_lines.decoded(self._session, layout.files, fields, form)
        else:
            sound = frozenset[DatedFile]() if locate or form.multiline else self._sound(layout)
            form = replace(form, ends=layout.ends)
            decoded = csv_lines.decoded(self._session, layout.files, fields, form, sound, whole=locate)
        read = self._dated(decoded, layout.files)
        if not locate:
            return [_unlocated(read, schema)]
        none = F.lit(None).cast("string").alias(ERROR)
        good = read.where(F.col(CORRUPT).isNull()).select(*_columns(schema), none, TIME, DIFF)
        located = file_errors.locate(self._session, read.where(F.col(CORRUPT).isNotNull()), layout, schema, form)
        nulls = [F.lit(None).cast(c.type).alias(c.name) for c in schema]
        return [good, self._dated(located, layout.files).select(*nulls, ERROR, TIME, _long(1).alias(DIFF))]

    def _sound(self, layout: Layout) -> frozenset[DatedFile]:
        """Return the files that are UTF-8.  Objects are not looked through: each would come here over the network."""
        here = [file for file in layout.files if not file.path.startswith(S3A)]
        return frozenset(file for file in here if not line_that_is_not_utf8(file, self._bytes))

    def _dated(self, read: DataFrame, files: Sequence[DatedFile]) -> DataFrame:
        """Return the rows with the path, the name, the time and the diff of their files."""
        if PATH not in read.columns:
            read = read.select("*", file_path(read).alias(PATH))
        if len({(file.time, file.diff) for file in files}) == 1:
            return read.withColumns({TIME: _long(files[0].time), DIFF: _long(files[0].diff)})
        known = {name: pa.array([getattr(f, own) for f in files], pa.int64()) for name, own in _OF_FILE.items()}
        unknown = F.raise_error(F.concat(F.lit("no time is known for file "), F.col(PATH))).cast("bigint")
        dated = read.join(F.broadcast(paths_table(self._session, files, known)), PATH, "left")
        return dated.withColumn(TIME, F.coalesce(TIME, unknown))


def _whole(frame: DataFrame, layout: Layout, schema: Schema) -> DataFrame:
    """Return the rows with the columns that the layout's files lack, as NULL."""
    if layout.schema == schema:
        return frame
    columns = [F.col(quote(c.name)) if c in layout.schema else F.lit(None).cast(c.type).alias(c.name) for c in schema]
    return frame.select(*columns, ERROR, TIME, DIFF)


def _by_python(layout: Layout, form: FileFormat) -> bool:
    """Return whether Python decodes the files, and not Spark."""
    return form.encoding is Encoding.AVRO or (form.encoding is Encoding.PARQUET and not layout.by_spark)


def _fields(layout: Layout, schema: Schema) -> tuple[Field, ...]:
    """Return what is parsed of a record: a layout's fields, those that are not declared as text."""
    declared = {c.name.lower(): c.type for c in schema}
    return tuple(Field(name, declared.get(name.lower(), "string")) for name in layout.names)


def _of_lines(frame: DataFrame, *, fields: Sequence[Field], schema: Schema, form: FileFormat) -> DataFrame:
    return _unlocated(small.parsed(frame, fields, form), schema)


def _normal(frame: DataFrame, *, schema: Schema) -> DataFrame:
    return frame.select(*_columns(schema), ERROR, TIME, DIFF)


def _unlocated(read: DataFrame, schema: Schema) -> DataFrame:
    """Return good and bad rows of text; of the bad ones only that they are."""
    bad = F.col(CORRUPT).isNotNull()
    diff = F.when(bad, 1).otherwise(F.col(DIFF)).cast("bigint").alias(DIFF)
    return read.select(*_columns(schema), F.when(bad, F.lit(_UNLOCATED)).alias(ERROR), TIME, diff)


def _together(tables: Sequence[pa.Table], schema: Schema) -> pa.Table:
    target = inline.update_schema(schema)
    return pa.concat_tables([inline.conform(table, target) for table in tables])


_OF_FILE: Final = {TIME: "time", DIFF: "diff"}


def _long(value: int) -> Column:
    return F.lit(value).cast("bigint")


def _columns(schema: Schema) -> list[Column]:
    return [F.expr(forms.normalised(quote(name), kind)).alias(name) for name, kind in types.columns(schema)]


def _refuse_places(files: Sequence[DatedFile], form: FileFormat) -> None:
    if form.encoding is Encoding.AVRO and any(file.path.startswith(S3A) for file in files):
        raise DefinitionError("Avro files are read from directories, not from object stores: use json or parquet there")


def _refuse_types(schema: Schema, form: FileFormat) -> None:
    for name, kind in types.columns(schema):
        if form.encoding is Encoding.CSV and not isinstance(kind, types.Atom | types.Decimal):
            raise DefinitionError(f"column {name!r}: a CSV field cannot hold {kind}")


def _refusals(unusable: Sequence[Unusable], schema: Schema) -> pa.Table:
    table = pa.table(
        {
            ERROR: pa.array([file_errors.described(u.file, u.line, u.reason, u.raw) for u in unusable], pa.string()),
            TIME: pa.array([u.file.time for u in unusable], pa.int64()),
            DIFF: pa.array([1] * len(unusable), pa.int64()),
        }
    )
    return inline.conform(table, inline.update_schema(schema))
