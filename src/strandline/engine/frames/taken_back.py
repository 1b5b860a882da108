"""Undecodable records that upstream takes back: errors that cancel one another, on Spark.

What `algebra.undecoded.cancelled` says of a few texts, this says of any number: two windows over the errors, none over
the good rows.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.algebra.undecoded import TAKES_BACK
from strandline.engine.frames.rows import Distributed, Frame, dataframe

_OWN: Final = "__own"
_THERE: Final = "__there"
_REASON: Final = "__reason"
_RAW: Final = "__raw"
_SIDE: Final = "__side"


def cancelled(updates: Frame, errors_before: Frame, time: int, session: SparkSession) -> Distributed:
    """Return ``updates`` with the errors withdrawn that cancel one another, or one of ``errors_before``.

    The errors of the result are consolidated; the other rows are as they were.
    """
    rows, held = dataframe(updates, session), dataframe(errors_before, session)
    zero = F.lit(0).cast("bigint")
    new = rows.where(F.col(ERROR).isNotNull()).select(ERROR, F.col(DIFF).alias(_OWN), F.col(DIFF).alias(_THERE))
    errors = (
        new.unionAll(held.select(ERROR, zero, F.col(DIFF)))
        .groupBy(ERROR)
        .agg(F.sum(_OWN).alias(_OWN), F.sum(_THERE).alias(_THERE))
    )
    reason = F.coalesce(F.get_json_object(ERROR, "$.reason"), F.col(ERROR))
    takes_back = reason.startswith(TAKES_BACK)
    sided = errors.select(
        "*",
        F.when(takes_back, F.substr(reason, F.lit(len(TAKES_BACK) + 1))).otherwise(reason).alias(_REASON),
        F.get_json_object(ERROR, "$.raw").alias(_RAW),
        takes_back.alias(_SIDE),
    )
    matching = Window.partitionBy(_REASON, _RAW)
    before = Window.partitionBy(_REASON, _RAW, _SIDE).orderBy(ERROR).rowsBetween(Window.unboundedPreceding, -1)
    pairs = F.least(
        *(F.sum(F.when(F.col(_SIDE) == side, F.col(_THERE)).otherwise(0)).over(matching) for side in (True, False))
    )
    left = pairs - F.coalesce(F.sum(_THERE).over(before), zero)
    diff = F.col(_OWN) - F.greatest(zero, F.least(F.col(_THERE), left))
    withdrawn = sided.select(ERROR, F.lit(time).cast("bigint").alias(TIME), diff.alias(DIFF)).where(F.col(DIFF) != 0)
    good = rows.where(F.col(ERROR).isNull())
    return Distributed(good.unionByName(withdrawn, allowMissingColumns=True), plain=False)
