"""Changes as Debezium writes them in JSON: what is wrong with one that cannot be decoded."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.undecoded import HALF_A_PAIR
from strandline.engine.files.file_errors import json_reason, no_object
from strandline.engine.files.file_paths import CORRUPT
from strandline.engine.files.json_lines import has_half_a_pair, one_value
from strandline.engine.files.notations import JsonValues
from strandline.engine.messages.parsed import AFTER, BEFORE, OP, Part


def change_reason(text: Column, part: Part, values: JsonValues) -> Column:
    """Say what is wrong with a change that cannot be decoded."""
    change = f"{OP} string, {AFTER} string, {BEFORE} string"
    outer = F.from_json(
        text, f"{change}, payload struct<{change.replace(' string', ':string')}>, {CORRUPT} string", _CORRUPT
    )
    after = F.when(outer["payload"].isNotNull(), outer["payload"][AFTER]).otherwise(outer[AFTER])
    inner = F.concat(F.lit("in `after`: "), json_reason(after, part.held, values, None))
    return (
        F.when(~F.is_valid_utf8(text), F.lit("it is not UTF-8"))
        .when(has_half_a_pair(text), F.lit(HALF_A_PAIR))
        .when(outer.isNull() | outer[CORRUPT].isNotNull(), no_object(text))
        .when(~one_value(text), F.lit("it holds more than one JSON object"))
        .when(after.isNull(), F.lit("a value inside it does not have its type"))
        .otherwise(inner)
    )


_CORRUPT: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
