"""A sidecar is what Hadoop would write, and tells every difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.engine.parts.part_store import mismatch, sidecar

DATA = bytes(range(256)) * 5  # two chunks and a half


def test_every_flipped_bit_of_either_side_is_a_mismatch() -> None:
    """Damage: a checksum that is not compared covers nothing."""
    stored = sidecar(DATA)
    assert mismatch(DATA, stored) is None
    for at in range(len(DATA)):
        damaged = bytearray(DATA)
        damaged[at] ^= 1 << (at % 8)
        assert mismatch(bytes(damaged), stored) == (
            f"the bytes from {at // 512 * 512} on are not those of which its sidecar has the checksum"
        )
    for at in range(len(stored)):
        for bit in range(8):
            flipped = bytearray(stored)
            flipped[at] ^= 1 << bit
            assert mismatch(DATA, bytes(flipped)) is not None, (at, bit)


@pytest.mark.parametrize("length", range(20))
def test_what_is_cut_off_is_a_mismatch(length: int) -> None:
    """Damage: a torn sidecar counts as one of a shorter file."""
    stored = sidecar(DATA)
    assert len(stored) == 20
    assert mismatch(DATA, stored[:length]) is not None
    assert mismatch(DATA[: length * 60], stored) is not None


def test_nothing_has_a_sidecar_too() -> None:
    """Damage: an empty file is an error of its own."""
    assert mismatch(b"", sidecar(b"")) is None
    assert mismatch(b"x", sidecar(b"")) == "its sidecar has 0 checksums; 1 were expected"


@pytest.mark.spark
def test_hadoop_writes_the_same_and_reads_ours(spark, tmp_path: Path) -> None:
    """Damage: Spark refuses, or does not look at, what this process wrote."""
    spark.range(3000).coalesce(1).write.parquet((tmp_path / "theirs").as_uri())
    (theirs,) = (tmp_path / "theirs").glob("*.parquet")
    written = theirs.with_name(f".{theirs.name}.crc")
    data = theirs.read_bytes()
    assert len(data) > 1024
    assert written.read_bytes() == sidecar(data)

    ours = tmp_path / "ours.parquet"
    ours.write_bytes(data)
    ours.with_name(".ours.parquet.crc").write_bytes(sidecar(data))
    assert spark.read.parquet(ours.as_uri()).count() == 3000
    ours.with_name(".ours.parquet.crc").write_bytes(sidecar(data[::-1]))
    with pytest.raises(Exception, match="[Cc]hecksum"):
        spark.read.parquet(ours.as_uri()).collect()
