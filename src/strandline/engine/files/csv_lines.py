"""CSV lines: each line is one record, or an error.

Spark's own reader of CSV replaces bytes that are not UTF-8 by U+FFFD, without an error.  So it reads only files that
are known to be UTF-8 as a whole.

In any other file that reader only finds the lines: it drops the header and blank lines.  It reads each byte as a
character (ISO 8859-1), from which the bytes of a line are restored.  Then ``from_csv``, which has the same parser,
takes the line apart.  That gives the same rows, and takes about twice as long.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.formats import DatedFile, FileFormat
from strandline.engine.files.file_paths import CORRUPT, PATH, decoding, load, records

LINE: Final = "__line"
_FOUND: Final = "__found"
_BYTE_A_CHARACTER: Final = "ISO-8859-1"
_NEVER_THERE: Final = {"sep": "\u0100", "quote": "\u0101", "escape": "\u0102"}
"""Characters that no byte is: so a line is one field, as it stands."""


def decoded(
    session: SparkSession, files: Sequence[DatedFile], ddl: str, form: FileFormat, sound: Collection[DatedFile]
) -> DataFrame:
    """Return the columns of ``ddl``, `PATH` and `CORRUPT`: a row a line that is not blank and no header.

    ``sound``: which of the files are known to be UTF-8.
    """
    frames = [records(session, known, ddl, form)] if (known := [file for file in files if file in sound]) else []
    if others := [file for file in files if file not in sound]:
        frames.append(parsed(_lines(session, others, form), ddl, form))
    return reduce(DataFrame.unionAll, frames)


def _lines(session: SparkSession, files: Sequence[DatedFile], form: FileFormat) -> DataFrame:
    """Return `LINE`, with the bytes of a line as they are, and `PATH`: a row a line that is not blank and no header."""
    reader = session.read.schema(f"{LINE} string").options(
        encoding=_BYTE_A_CHARACTER, header=str(form.header).lower(), **_NEVER_THERE
    )
    line = F.encode(LINE, _BYTE_A_CHARACTER).cast("string").alias(LINE)
    return load(reader, "csv", files).select(line, F.col("_metadata.file_path").alias(PATH))


def parsed(lines: DataFrame, ddl: str, form: FileFormat) -> DataFrame:
    """Return the columns of ``ddl`` of `LINE`, `CORRUPT`, and what is beside these: a row a line."""
    beside = [name for name in lines.columns if name != LINE]
    line = F.col(LINE)
    record = F.from_csv(line, f"{ddl}, {CORRUPT} string", decoding(form) | {"header": "false"})
    corrupt = F.when(F.is_valid_utf8(line), F.col(CORRUPT)).otherwise(line)
    split = lines.withColumn(_FOUND, record).select(f"{_FOUND}.*", *beside, LINE)
    return split.withColumn(CORRUPT, corrupt).drop(LINE)
