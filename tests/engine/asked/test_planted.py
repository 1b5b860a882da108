"""Mistakes that an author of parameters could make: the comparison with literals written by hand notices each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses
from tests.engine.asked.test_values import Both, differences

from strandline.engine.asked import catalyst, expressions
from strandline.engine.parts.part_store import PartStore
from strandline.engine.session.start import adopt
from strandline.engine.spark import SparkEngine

pytestmark = pytest.mark.spark

_column, _type_of, _literals, _with_values = (
    expressions._column,
    expressions.type_of,
    expressions.literals,
    catalyst.with_values,
)


def _written_into_the_text(session: SparkSession, sql: str, given: Sequence[pa.Scalar]) -> DataFrame:
    """Put what Python calls a value in the place of each question mark."""
    parts = sql.split("?")
    shown = [repr(each.as_py()) if each.is_valid else "NULL" for each in given]
    return session.sql(parts[0] + "".join(f"{value}{part}" for value, part in zip(shown, parts[1:], strict=True)))


def _last_first(session: SparkSession, plan: Any, given: Sequence[Any]) -> Any:
    """Give the first question mark the last value."""
    return _with_values(session, plan, given[::-1])


def _null_without_a_type(value: pa.Scalar) -> Column:
    """Take every NULL for a NULL of no type."""
    return _column(value) if value.is_valid else F.lit(None)


def _double(kind: pa.DataType) -> str:
    """Take a decimal for a double."""
    return "double" if pa.types.is_decimal(kind) else _type_of(kind)


def _always_narrow(session: SparkSession, given: Sequence[pa.Scalar]) -> list[Any]:
    """Take every whole number in the range of INT for one."""
    return _literals(session, [each.cast(pa.int32()) if expressions.fits_int(each) else each for each in given])


def _with_a_zone(kind: pa.DataType) -> str:
    """Take a time without a zone for a point in time."""
    return "timestamp" if pa.types.is_timestamp(kind) else _type_of(kind)


def _first_of_a_list(value: pa.Scalar) -> Column:
    """Leave out what a list has behind its first value."""
    if pa.types.is_list(value.type) and value.is_valid:
        return _column(pa.scalar(value.as_py()[:1], value.type))
    return _column(value)


BUGS: Final[dict[str, tuple[Any, str, Any, int]]] = {
    "a value is written into the text": (expressions, "query", _written_into_the_text, 1316),
    "values are bound from behind": (catalyst, "with_values", _last_first, 190),
    "NULL has no type": (expressions, "_column", _null_without_a_type, 2459),
    "a decimal becomes a double": (expressions, "type_of", _double, 548),
    "every small number is an INT": (expressions, "literals", _always_narrow, 143),
    "a time without a zone gets one": (expressions, "type_of", _with_a_zone, 8470),
    "a list has one value": (expressions, "_column", _first_of_a_list, 1314),
}
"""By the mistake: where it is planted, and the seed of a statement that shows it."""


@pytest.fixture(scope="module")
def both(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Our engine and plain Spark."""
    engine = SparkEngine(adopt(spark), PartStore(tmp_path_factory.mktemp("parts")))
    yield Both(engine, adopt(spark))
    engine.close()


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(both: Both, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the random statements pass whatever becomes of a parameter."""
    owner, attribute, bug, seed = BUGS[name]
    assert not differences(both, seed)
    monkeypatch.setattr(owner, attribute, bug)
    assert differences(both, seed)
