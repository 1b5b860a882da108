"""CSV lines: each line is one record, or an error.

Fields are read as texts, and `notations.value` makes values of them: Spark's own parser of CSV guesses.

Spark's own reader of CSV replaces bytes that are not UTF-8 by U+FFFD, without an error.  So it reads only files that
are known to be UTF-8 as a whole.

In any other file that reader only finds the lines: it drops the header and blank lines.  It reads each byte as a
character (ISO 8859-1), from which the bytes of a line are restored.  Then ``from_csv``, which has the same parser,
takes the line apart.  That gives the same rows, and takes about twice as long.  It is also how records are read whose
text is asked for (``whole``), because Spark keeps the text only of a record that has too few or too many fields.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.messages import DatedFile, FileFormat
from strandline.algebra.schema import Column as Field
from strandline.algebra.schema import quote
from strandline.engine.files.notations import value
from strandline.engine.files.paths import CORRUPT, PATH, decoding, load, records

LINE: Final = "__line"
_FOUND: Final = "__found"
_GIVEN: Final = "__given_"
_MORE: Final = "__more"
_BYTE_A_CHARACTER: Final = "ISO-8859-1"
_NEVER_THERE: Final = {"sep": "\u0100", "quote": "\u0101", "escape": "\u0102"}
"""Characters that no byte is: so a line is one field, as it stands."""


def decoded(
    session: SparkSession,
    files: Sequence[DatedFile],
    fields: Sequence[Field],
    form: FileFormat,
    sound: Collection[DatedFile],
    *,
    whole: bool,
) -> DataFrame:
    """Return the ``fields``, `PATH` and `CORRUPT`: a row a record that is not blank and no header.

    ``sound``: which of the files are known to be UTF-8; with `multiline` all are.  ``whole``: `CORRUPT` is the text of
    the record, else it need only be one.
    """
    if form.multiline and whole:
        # Spark's reader writes line ends in quotes as it likes, so what can be decoded comes from it here as well.
        good = decoded(session, files, fields, form, sound, whole=False)
        bad = parsed(_records(session, files, fields, form), fields, form)
        return good.where(F.col(CORRUPT).isNull()).unionAll(bad.where(F.col(CORRUPT).isNotNull()))
    known = [file for file in files if (file in sound or form.multiline) and not whole]
    frames = []
    if known:
        read = records(session, known, as_texts(fields), form)
        frames.append(_valued(read, fields, form, F.lit("")))
    if others := [file for file in files if file not in known]:
        frames.append(parsed(_lines(session, others, form), fields, form))
    return reduce(DataFrame.unionAll, frames)


def _lines(session: SparkSession, files: Sequence[DatedFile], form: FileFormat) -> DataFrame:
    """Return `LINE`, with the bytes of a line as they are, and `PATH`: a row a line that is not blank and no header."""
    reader = session.read.schema(f"{LINE} string").options(
        encoding=_BYTE_A_CHARACTER, header=str(form.header).lower(), **_NEVER_THERE
    )
    line = F.encode(LINE, _BYTE_A_CHARACTER).cast("string").alias(LINE)
    return load(reader, "csv", files).select(line, F.col("_metadata.file_path").alias(PATH))


def _records(session: SparkSession, files: Sequence[DatedFile], fields: Sequence[Field], form: FileFormat) -> DataFrame:
    """Return `LINE`, the text of a record that may span lines, and `PATH`: a row a record.

    Spark keeps the text of a record that has not as many fields as are asked for.  So one field more is asked for, and
    of a record that has just so many the text is taken from where Spark was asked for those that there should be.
    """
    texts, longer = as_texts(fields), f"{as_texts(fields)}, {_MORE} string"
    kept = [_kept(records(session, files, asked, form), fields) for asked in (longer, texts)]
    of_more = F.from_csv(F.col(LINE), f"{longer}, {CORRUPT} string", decoding(form) | {"header": "false"})
    return kept[0].unionAll(kept[1].where(of_more[CORRUPT].isNull()))


def _kept(read: DataFrame, fields: Sequence[Field]) -> DataFrame:
    """Return the texts that Spark kept.  It reads no file of which only these are asked for, so a field is, too."""
    nothing = F.substring(F.coalesce(quote(fields[0].name), F.lit("")), 1, 0)
    return read.where(F.col(CORRUPT).isNotNull()).select(PATH, F.concat(F.col(CORRUPT), nothing).alias(LINE))


def parsed(lines: DataFrame, fields: Sequence[Field], form: FileFormat) -> DataFrame:
    """Return the ``fields`` of `LINE`, `CORRUPT`, and what is beside these: a row a line."""
    beside = [name for name in lines.columns if name != LINE]
    line = F.col(LINE)
    record = F.from_csv(line, f"{as_texts(fields)}, {CORRUPT} string", decoding(form) | {"header": "false"})
    split = lines.withColumn(_FOUND, record).select(f"{_FOUND}.*", *beside, LINE)
    corrupt = F.when(F.is_valid_utf8(line), F.col(CORRUPT)).otherwise(line)
    return _valued(split.withColumn(CORRUPT, corrupt), fields, form, line).drop(LINE)


def _valued(texts: DataFrame, fields: Sequence[Field], form: FileFormat, text: Column) -> DataFrame:
    """Return ``texts`` with the values of its ``fields``; `CORRUPT` is ``text`` too where one of them is none."""
    typed = [field for field in fields if field.type != "string"]
    if not typed:
        return texts
    given = {field.name: f"{_GIVEN}{number}" for number, field in enumerate(typed)}
    # Two steps, so that Spark makes each value once.
    renamed = texts.withColumnsRenamed(given)
    valued = renamed.withColumns({f.name: value(F.col(given[f.name]), f.type, form) for f in typed})
    failed = reduce(Column.__or__, (F.col(g).isNotNull() & F.col(quote(n)).isNull() for n, g in given.items()))
    corrupt = F.coalesce(F.col(CORRUPT), F.when(failed, text))
    beside = [name for name in texts.columns if name not in {CORRUPT, *(field.name for field in fields)}]
    return valued.select(*(quote(field.name) for field in fields), *beside, corrupt.alias(CORRUPT))


def as_texts(fields: Iterable[Field]) -> str:
    """Return what reads all fields as texts."""
    return ", ".join(f"{quote(field.name)} string" for field in fields)
