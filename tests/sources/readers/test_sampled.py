"""What is proposed for sampled data holds the sample."""

from __future__ import annotations

import pyarrow as pa
import pytest

from strandline.algebra.messages import Encoding, FileFormat
from strandline.sources.readers.sampled import SAMPLE_BYTES, of_csv, of_json


@pytest.mark.parametrize(
    ("records", "ddl"),
    [
        ([b'{"a": 1}', b'{"a": 2.5}'], "`a` double"),
        ([b'{"a": 1}', b'{"a": "x"}'], "`a` string"),
        ([b'{"a": 123456789012345678}', b'{"a": 1}'], "`a` bigint"),
        ([b'{"a": 123456789012345678}', b'{"a": 2.5}'], "`a` string"),
        ([b'{"a": 12345678901234567890}', b'{"a": 2.5}'], "`a` string"),
        ([b'{"a": [123456789012345678, 2.5]}'], "`a` array<string>"),
        ([b'{"a": null}', b'{"a": 1}'], "`a` bigint"),
        ([b'{"a": 1}', b'{"a": null}'], "`a` bigint"),
        ([b'{"a": null}'], "`a` string"),
        ([b'{"a": {"x y": [1]}}'], "`a` struct<`x y`:array<bigint>>"),
        ([b'{"at": "2024-01-01T10:00:00Z"}'], "`at` timestamp"),
    ],
)
def test_a_column_of_json_holds_all_that_was_sampled(records: list[bytes], ddl: str) -> None:
    """Damage: the source that was proposed puts half of the sample into its error half."""
    assert [f"`{name}` {type_}" for name, type_ in of_json(records).columns] == [ddl]


def test_files_of_json_say_together_what_they_say_in_one() -> None:
    """Damage: identifiers of one file are doubles, because another file has a number with a point."""
    lines = [b'{"a": 123456789012345678, "b": null}', b'{"a": 2.5, "b": 1}']
    one, two = (of_json([line]) for line in lines)
    assert one.joined(two).columns == two.joined(one).columns == of_json(lines).columns


def test_what_is_no_object_is_refused() -> None:
    """Damage: a source of JSON is proposed for data that are none."""
    with pytest.raises(ValueError, match="no JSON object"):
        of_json([b"1,2"])


def test_a_record_that_the_sample_cuts_says_nothing() -> None:
    """Damage: a column of numbers is proposed as text, because the last number was cut."""
    sample = (b"a,b\n" + b"1,2\n" * SAMPLE_BYTES)[: SAMPLE_BYTES - 1]
    assert list(_of_csv(sample, FileFormat(Encoding.CSV, header=True))) == [("a", "bigint"), ("b", "bigint")]


def _of_csv(data: bytes, form: FileFormat) -> list[tuple[str, str | None]]:
    return list(of_csv(lambda: pa.BufferReader(data), form).columns)
