"""A file that is durable is deleted or archived if the definition says so, and no other file is."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from tests.sources.readers.files.conftest import Directory, LineDecoder, Remembered, names, up_to

from strandline.algebra.schema import DIFF, TIME
from strandline.errors import SourceError
from strandline.sources.readers.files.options import OnDurable
from strandline.sources.reclock import NOTHING_READ
from strandline.testing.lists.list_engine import updates
from strandline.testing.simulation.kernel import run_sync


@pytest.mark.parametrize(
    "policy", [{"on_durable": OnDurable.DELETE}, {"on_durable": OnDurable.ARCHIVE, "archive": "/old"}]
)
def test_what_is_durable_leaves_and_nothing_else(place, policy):
    """Law R4.  Damage: a file that was not durable is gone; or a directory grows for ever."""
    remembered = Remembered(place, **policy)
    archive = policy.get("archive", "")

    async def body():
        reader = await remembered.reader()
        assert reader.bounded
        for name in ("a.csv", "b.csv", "c.csv"):
            remembered.write(name, "1\n")
        await reader.upstream_frontier()
        await reader.commit(NOTHING_READ)
        assert remembered.folder.left == []
        for _ in range(2):
            await reader.commit(up_to(2))
            assert remembered.folder.left == [("a.csv", archive), ("b.csv", archive)]
            assert await reader.upstream_frontier() == up_to(3)
        assert await names(reader, 3, start=2) == ["c.csv"]
        remembered.write("a.csv", "1\n")
        assert await reader.upstream_frontier() == up_to(3), "what comes back as it was is the same file"
        await reader.commit(up_to(2))
        assert remembered.folder.left[2:] == [("a.csv", archive)]
        remembered.write("b.csv", "2\n")
        await reader.commit(up_to(2))
        with pytest.raises(SourceError, match="'b.csv' changed after it was made durable"):
            await reader.upstream_frontier()
        await reader.commit(up_to(2))
        assert "b.csv" in remembered.folder.files, "what is not as it was stays"

    with_files = LineDecoder.decode
    try:
        LineDecoder.decode = _of_names
        run_sync(body())
    finally:
        LineDecoder.decode = with_files


async def _of_names(_, files, schema, form, *, locate):
    return updates(schema, [{"file": file.name, "n": 1, TIME: file.time, DIFF: file.diff} for file in files])


def test_a_crash_between_a_file_leaving_and_anything_else_is_harmless(tmp_path):
    """Damage: after a crash the archive lacks a file, or the source stands still because one is gone."""

    async def body(other_file_system):
        root = tmp_path / str(other_file_system)
        root.mkdir()
        place = Directory(root, on_durable="archive", archive=str(root / "old"))
        reader = await place.reader()
        for name in ("a.csv", "sub/b.csv"):
            place.write(name, f"{len(name)}\n")
        await reader.upstream_frontier()
        await reader.commit(up_to(1))
        assert (root / "old/a.csv").read_text() == "5\n"
        assert not (place.root / "a.csv").exists()
        place.write("a.csv", "5\n")  # it was copied, and not yet removed
        (root / "old/a.csv.copying").write_text("torn")
        again = await place.reader()
        await again.commit(up_to(1))
        assert await again.upstream_frontier() == up_to(2)
        await again.commit(up_to(2))
        assert not (place.root / "a.csv").exists()
        assert not (place.root / "sub/b.csv").exists()
        assert (root / "old/a.csv").read_text() == "5\n"
        assert (root / "old/sub/b.csv").read_text() == "9\n"
        assert again.notices() == ()

    def refused(self, target):
        if self.name.endswith(".copying"):
            return replace(self, target)
        raise OSError(errno.EXDEV, "another file system")

    asyncio.run(body(False))
    replace = Path.replace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", refused)
        asyncio.run(body(True))


def test_what_cannot_leave_is_reported_and_tried_again(tmp_path):
    """Damage: a directory grows for ever and no operator knows; or a source stands still for a file that is durable."""

    async def body():
        (tmp_path / "old").write_text("no directory")
        place = Directory(tmp_path, on_durable="archive", archive=str(tmp_path / "old"))
        reader = await place.reader()
        place.write("a.csv")
        await reader.upstream_frontier()
        await reader.commit(up_to(1))
        assert reader.notices()[0].startswith("file 'a.csv' is durable and cannot be archived: ")
        assert await reader.upstream_frontier() == up_to(1)
        (tmp_path / "old").unlink()
        await reader.commit(up_to(1))
        assert reader.notices() == ()
        assert (tmp_path / "old/a.csv").exists()

    asyncio.run(body())
