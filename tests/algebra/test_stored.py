"""What is proposed for a stored type is read, and its values stay what they are."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal as Number
from random import Random

import pyarrow as pa
import pytest

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.stored import Fit, converted, fit, same, type_of

LEAVES = [
    *(pa.null(), pa.bool_(), pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64(), pa.uuid()),
    *(getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Europe/Paris")),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.duration("s"), pa.duration("ns")),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(4)),
    *(pa.decimal128(38, 0), pa.decimal128(5, 5), pa.decimal256(38, 9), pa.decimal256(60, 1)),
    *(pa.month_day_nano_interval(), pa.json_(), pa.bool8(), pa.dictionary(pa.int8(), pa.string())),
]


def stored_type(random: Random, depth: int = 2) -> pa.DataType:
    """A type that a file may have."""
    if depth == 0 or random.random() < 0.5:
        return random.choice(LEAVES)
    inner = [stored_type(random, depth - 1) for _ in range(3)]
    names = [random.choice(["a", "A", "b c", "`", "é", ""]) for _ in range(random.randrange(3))]
    return random.choice(
        [
            pa.list_(inner[0]),
            pa.large_list(inner[0]),
            pa.list_(inner[0], 2),
            pa.map_(pa.string() if pa.types.is_null(inner[1]) else inner[1], inner[2]),
            pa.struct(list(zip(names, inner, strict=False))),
        ]
    )


def test_what_is_proposed_is_held() -> None:
    """Damage: a proposal of `strandline discover` is refused when it is run."""
    proposed = 0
    for seed in range(500):
        stored = stored_type(Random(seed))
        text = type_of(stored)
        if text is None:
            continue
        proposed += 1
        kind = types.parse("c", text)
        assert fit(kind, stored) > Fit.NEVER, stored
        assert not same(kind, stored) or fit(kind, stored) is Fit.ALWAYS, stored
        empty = converted(pa.nulls(2, stored), kind)
        assert (empty.type, empty.null_count) == (arrow(kind), 2), stored
    assert proposed > 250


UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
ZONE = dt.UTC


@pytest.mark.parametrize(
    ("declared", "stored", "wanted"),
    [
        ("date", pa.nulls(2), [None, None]),
        ("array<struct<a:int>>", pa.nulls(1), [None]),
        ("decimal(20,0)", pa.array([2**64 - 1, None], pa.uint64()), [Number(2**64 - 1), None]),
        ("bigint", pa.array([2**63 - 1], pa.uint64()), [2**63 - 1]),
        ("float", pa.array([1.5, None], pa.float16()), [1.5, None]),
        ("timestamp", pa.array([1_000], pa.timestamp("ns", "UTC")), [dt.datetime(1970, 1, 1, 0, 0, 0, 1, ZONE)]),
        ("timestamp_ntz", pa.array([1], pa.timestamp("s")), [dt.datetime(1970, 1, 1, 0, 0, 1)]),  # noqa: DTZ001
        ("string", pa.array([dt.time(1, 2, 3), dt.time(1, 2, 3, 50), None]), ["01:02:03", "01:02:03.000050", None]),
        ("string", pa.array([3], pa.time64("ns")), ["00:00:00.000000003"]),
        ("string", pa.array([3_600], pa.time32("s")), ["01:00:00"]),
        ("string", pa.array([UUID.bytes, None], pa.uuid()), [str(UUID), None]),
        ("binary", pa.array([UUID.bytes], pa.uuid()), [UUID.bytes]),
        ("bigint", pa.array([7], pa.duration("ms")), [7]),
        ("array<int>", pa.array([[1, 2], None, [3, None]], pa.list_(pa.int8(), 2)), [[1, 2], None, [3, None]]),
        (
            "array<struct<k:string,v:bigint>>",
            pa.array([[("b", 1), ("a", 2)], None, [], [("c", None)]], pa.map_(pa.string(), pa.int32())),
            [[{"k": "a", "v": 2}, {"k": "b", "v": 1}], None, [], [{"k": "c", "v": None}]],
        ),
        (
            "array<struct<k:int,v:array<struct<k:string,v:string>>>>",
            pa.array(
                [[(1, [("x", dt.time(1)), ("a", None)])]], pa.map_(pa.int32(), pa.map_(pa.string(), pa.time64("us")))
            ),
            [[{"k": 1, "v": [{"k": "a", "v": None}, {"k": "x", "v": "01:00:00"}]}]],
        ),
        ("struct<a:bigint>", pa.array([{"a": 1}, None], pa.struct([("a", pa.int8())])), [{"a": 1}, None]),
        ("string", pa.array(["a", None]).dictionary_encode(), ["a", None]),
    ],
)
def test_values_stay_what_they_are(declared: str, stored: pa.Array, wanted: list[object]) -> None:
    """Damage: a value is another one, or moves to another row; also in a slice of a batch."""
    kind = types.parse("c", declared)
    assert fit(kind, stored.type) > Fit.NEVER
    found = converted(stored, kind)
    found.validate(full=True)
    assert (found.type, found.to_pylist()) == (arrow(kind), wanted)
    assert converted(stored.slice(1), kind).to_pylist() == wanted[1:]


@pytest.mark.parametrize(
    ("declared", "stored"),
    [
        ("bigint", pa.array([2**63], pa.uint64())),
        ("timestamp", pa.array([1], pa.timestamp("ns", "UTC"))),
        ("timestamp", pa.array([2**62], pa.timestamp("s", "UTC"))),
        ("string", pa.array([b"\xff"], pa.binary()).view(pa.string())),
        ("array<bigint>", pa.array([[1], [2**64 - 1]], pa.list_(pa.uint64()))),
    ],
)
def test_a_value_that_does_not_fit_is_refused(declared: str, stored: pa.Array) -> None:
    """Damage: a value is cut, wrapped or rounded, and nothing says so."""
    with pytest.raises(pa.ArrowInvalid):
        converted(stored, types.parse("c", declared))
