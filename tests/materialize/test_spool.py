"""Spooled rows come back unchanged, from memory or from a file without a name."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.errors import Determinate
from strandline.materialize.spool import Spool


def tables(count: int) -> list[pa.Table]:
    """Return tables of one schema, the first of them empty."""
    return [
        pa.table({"k": pa.array(range(10 * n, 10 * n + n), pa.int64()), "s": pa.array(["x"] * n, pa.string())})
        for n in range(count)
    ]


@pytest.mark.parametrize("held_bytes_max", [0, 200, 1 << 20], ids=["file", "both", "memory"])
def test_rows_come_back_in_order_as_often_as_they_are_asked_for(held_bytes_max: int) -> None:
    """Damage: rows are lost, or stored twice, between the two sides of a transaction."""
    spool, given = Spool(held_bytes_max), tables(9)
    for table in given:
        spool.add(table)
    wanted = pa.concat_tables(given).to_pylist()
    assert spool.rows == len(wanted)
    assert spool.spilled is (held_bytes_max < 1 << 20)
    for _ in range(2):
        assert [row for table in spool.tables() for row in table.to_pylist()] == wanted
        relation = spool.relation()
        assert (relation if isinstance(relation, pa.Table) else relation.read_all()).to_pylist() == wanted
    assert max(len(table) for table in spool.tables()) == 8, "no table is larger than one that was added"
    spool.close()


def test_a_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a killed process leaves a user's rows in a directory that all users may read."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = Spool(0)
    for table in tables(3):
        spool.add(table)
    assert spool.spilled
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a full temporary directory ends the process, or looks like a bug of the driver."""

    def full(**how: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(Determinate, match=r"spooled in .*No space left on device"):
        Spool(0).add(tables(2)[1])
