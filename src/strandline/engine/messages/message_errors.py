"""Where a message that cannot be decoded stands, and what is wrong with it.

An error is a JSON object ``{"place": "<topic>[<partition>]@<offset>", "reason", "raw"}``: a sentence, and the bytes
that cannot be decoded (at most `RAW_CHARS_MAX` characters of them).  Bytes that are no text are in base 64, and
``"encoding": "base64"`` says so.  Of a null value there is no ``raw``.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.schema import ERROR
from strandline.algebra.undecoded import RAW_CHARS_MAX

RAW_BYTES_MAX: Final = RAW_CHARS_MAX // 4 * 3
"""So many bytes are `RAW_CHARS_MAX` characters in base 64."""


def described(reason: Column, raw: Column) -> Column:
    """Return the error of a message for ``reason``; NULL without a reason.  ``raw``: its bytes."""
    text = raw.cast("string")
    readable = F.is_valid_utf8(text)
    shown = F.when(readable, F.substring(text, 1, RAW_CHARS_MAX)).otherwise(
        F.base64(F.substring(raw, 1, RAW_BYTES_MAX))
    )
    place = F.concat(F.col("topic"), F.lit("["), F.col("partition"), F.lit("]@"), F.col("offset"))
    body = F.struct(
        place.alias("place"),
        reason.alias("reason"),
        shown.alias("raw"),
        F.when(~readable, F.lit("base64")).alias("encoding"),
    )
    return F.when(reason.isNotNull(), F.to_json(body)).alias(ERROR)
