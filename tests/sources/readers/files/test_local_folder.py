"""A listing of this machine's directories says what changed, and costs what changed."""

from __future__ import annotations

import asyncio
import glob
import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from strandline.sources.readers.files import local_folder
from strandline.sources.readers.files.local_folder import TRUST_MS, LocalFolder
from strandline.testing.doubles import HandClock


@pytest.fixture
def clock():
    """A clock that stands."""
    return HandClock(1_700_000_000_000)


def write(root, *names):
    """Create files."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1\n")


def changes(folder):
    """What changed."""
    return asyncio.run(folder.changes())


def test_a_quiet_listing_reads_no_directory(tmp_path, clock, monkeypatch):
    """Damage: each tick goes through a million names."""
    read = Counter()
    scandir = os.scandir
    monkeypatch.setattr(local_folder.os, "scandir", lambda path: read.update([Path(path).name]) or scandir(path))
    for directory in range(5):
        write(tmp_path, *(f"d{directory}/{number}.csv" for number in range(10)))
    folder = LocalFolder(tmp_path, "**/*.csv", clock)
    assert len(changes(folder).came) == 50
    clock.now += TRUST_MS
    assert changes(folder) == ([], [])
    read.clear()
    assert changes(folder) == ([], [])
    assert read == {}
    write(tmp_path, "d3/new.csv")
    assert changes(folder) == (["d3/new.csv"], [])
    assert read == {"d3": 1}


def test_what_changed_within_a_grain_of_the_clock_of_files_is_seen(tmp_path, clock):
    """Damage: a file that came in the same tick of a file system's clock as another is never taken."""
    folder = LocalFolder(tmp_path, "*.csv", clock)
    write(tmp_path, "a.csv")
    before = tmp_path.stat()
    assert changes(folder).came == ["a.csv"]
    write(tmp_path, "b.csv")
    os.utime(tmp_path, ns=(before.st_atime_ns, before.st_mtime_ns))
    clock.now += TRUST_MS - 1
    assert changes(folder).came == ["b.csv"]
    write(tmp_path, "c.csv")
    os.utime(tmp_path, ns=(before.st_atime_ns, before.st_mtime_ns))
    clock.now -= 60_000  # a clock that steps back trusts nothing
    assert changes(folder).came == ["c.csv"]


def test_a_file_in_the_place_of_another_comes(tmp_path, clock):
    """Damage: a replaced file is noticed only when its turn comes."""
    folder = LocalFolder(tmp_path, "*.csv", clock)
    write(tmp_path, "a.csv", "b.csv")
    changes(folder)
    write(tmp_path, "a.csv.new")
    (tmp_path / "a.csv.new").replace(tmp_path / "a.csv")
    assert changes(folder) == (["a.csv"], [])


def test_a_listing_whose_caller_was_cancelled_is_made_again(tmp_path, clock):
    """Damage: files that came while a tick was given up are never taken."""

    async def body():
        folder = LocalFolder(tmp_path, "*.csv", clock)
        write(tmp_path, "a.csv")
        task = asyncio.get_running_loop().create_task(folder.changes())
        await asyncio.wait_for(asyncio.shield(asyncio.to_thread(int)), 120)
        task.cancel()
        try:
            found = await task
        except asyncio.CancelledError:
            found = await folder.changes()
        assert found.came == ["a.csv"]

    asyncio.run(body())


def test_a_link_back_to_where_it_is_ends(tmp_path, clock):
    """Damage: a listing runs until the machine refuses the path."""
    write(tmp_path, "a/b.csv")
    (tmp_path / "a/loop").symlink_to(tmp_path)
    (tmp_path / "linked").symlink_to(tmp_path / "a")
    folder = LocalFolder(tmp_path, "**/*.csv", clock)
    assert changes(folder).came == ["a/b.csv", "linked/b.csv"]


def test_a_missing_directory_is_named(tmp_path, clock):
    """Damage: a mistyped path is an empty source."""
    with pytest.raises(NotADirectoryError):
        changes(LocalFolder(tmp_path / "none", "*", clock))


@pytest.mark.property
@pytest.mark.parametrize("pattern", ["*.csv", "**/*", "**", "a*/*.csv", "**/b/*.c*", "a/**/c.csv", "a/b", "[ab]/?.csv"])
def test_listings_add_up_to_what_the_shells_glob_finds(tmp_path, clock, pattern):
    """Damage: some files are never taken, or are taken though the pattern leaves them out."""
    random, names = Random(pattern), ("a", "b", "c.csv", ".c.csv", "aa.csv", "x.txt")
    root = tmp_path / "root"
    root.mkdir()
    folder, there = LocalFolder(root, pattern, clock), set()
    for _ in range(40):
        name = "/".join([*random.choices(names[:2], k=random.randrange(4)), random.choice(names)])
        path = root / name
        if path.is_file():
            path.unlink()
        elif path.is_dir() or any(parent.is_file() for parent in path.parents):
            continue
        else:
            write(root, name)
        clock.now += random.choice((1, TRUST_MS))
        listing = changes(folder)
        assert there.isdisjoint(listing.came)
        assert there.issuperset(listing.gone)
        there = there - {*listing.gone} | {*listing.came}
        assert there == {
            str(each.relative_to(root))
            for each in map(Path, glob.glob(f"{root}/{pattern}", recursive=True))  # noqa: PTH207 - it is the truth
            if each.is_file()
        }
