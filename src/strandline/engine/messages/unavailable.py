"""Values of a JSON change that Debezium did not send: which they are, and the text without their placeholders.

The text of a change is rewritten where a member that is named like a column is a placeholder, because the column's type
may be one that cannot read it.  Which columns were not sent is read from the text as it was.  A placeholder that was
taken out of another member of that name, inside a column, makes the change an error.

Few changes have one, so each text is searched once for what all forms have, and only where that is found is it parsed.

The forms: `algebra.unavailable`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.schema import quote
from strandline.algebra.unavailable import (
    AMBIGUOUS,
    ANYWHERE,
    FORM,
    INSIDE,
    LEFT_OPEN,
    NOISE,
    NUMBERS,
    QUOTED,
)
from strandline.engine.messages.parsed import AFTER, UNLOCATED, UNSENT, Part, wrong

_GIVEN: Final = "__given"
_REST: Final = "__rest"


def withheld(frame: DataFrame, text: str, part: Part, *, locate: bool) -> DataFrame:
    """Return ``frame`` with `UNSENT`, why that is not known (`wrong`), and NULL for each placeholder in ``text``.

    ``text``: the column of the changes' texts, and of what is returned.
    """
    names = part.sendable
    if not names:
        return frame
    given = frame.withColumn(_GIVEN, F.when(F.col(text).rlike(ANYWHERE), _texts(F.col(text), names)))
    rest = F.regexp_replace(text, _member(names), "$1null")
    given = given.withColumn(text, F.when(F.col(_GIVEN).isNotNull(), rest).otherwise(F.col(text)))
    given = given.withColumn(_REST, F.when(F.col(_GIVEN).isNotNull(), _texts(F.col(text), names)))
    # A lambda for all columns, so that the plan does not grow with their number.
    columns = F.array(*(_column(name) for name in names))
    unsent = F.transform(F.filter(columns, lambda each: _is_placeholder(each["given"])), lambda each: each["name"])
    wrongly = F.filter(columns, lambda each: _is_open(each) | _is_changed(each))
    told = F.when(F.size(wrongly) > 0, _reason(wrongly[0]) if locate else F.lit(UNLOCATED))
    found = given.withColumn(UNSENT, F.when(F.col(_GIVEN).isNotNull() & (F.size(unsent) > 0), unsent))
    return found.withColumn(wrong(UNSENT), F.when(F.col(_GIVEN).isNotNull(), told)).drop(_GIVEN, _REST)


def _column(name: str) -> Column:
    """Return a column of a change: its name, its text, and its text without placeholders."""
    texts = (F.lit(name).alias("name"), F.col(_GIVEN)[name].alias("given"), F.col(_REST)[name].alias("rest"))
    return F.struct(*texts)


def _is_placeholder(text: Column) -> Column:
    numbers = text.startswith("[") & F.regexp_replace(text, NOISE, "").isin(*sorted(NUMBERS))
    return F.coalesce(text.rlike(FORM) | numbers, F.lit(False))


def _is_open(column: Column) -> Column:
    return F.coalesce(column["given"].rlike(AMBIGUOUS), F.lit(False))


def _is_changed(column: Column) -> Column:
    return ~_is_placeholder(column["given"]) & ~column["given"].eqNullSafe(column["rest"])


def _reason(column: Column) -> Column:
    reason = F.when(_is_open(column), F.lit(LEFT_OPEN)).otherwise(F.lit(INSIDE))
    return F.concat(F.lit(f"in `{AFTER}`: column `"), column["name"], F.lit("`: "), reason)


def _member(names: Sequence[str]) -> str:
    """Return a pattern of members with these names whose value is a placeholder that not every type can read."""
    written = "|".join(re.escape(json.dumps(name, ensure_ascii=False)) for name in names)
    return rf"((?:{written})\s*+:\s*+){QUOTED}(?=\s*+[,}}])"


def _texts(change: Column, names: Sequence[str]) -> Column:
    """Return what a change has in its columns, as texts."""
    after = f"{AFTER}:struct<{','.join(f'{quote(name)}:string' for name in names)}>"
    found = F.from_json(change, f"struct<{after},payload:struct<{after}>>", _OPTIONS)
    return F.coalesce(found["payload"][AFTER], found[AFTER])


_OPTIONS: Final[Mapping[str, str]] = {"mode": "PERMISSIVE"}
