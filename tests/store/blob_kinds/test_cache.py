"""The cache of objects: never wrong, within its budget, and no obstacle when it fails."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from strandline.errors import ConfigError
from strandline.store.blob_kinds.cache import ENTRIES_PER_BUDGET_MIN, LOOKS_PER_BUDGET, CachedBlob, FileCache
from strandline.store.memory import MemoryBlob
from strandline.store.seal import SEAL_BYTES
from strandline.testing.contracts.blob_contract import BlobContract, OpenBlob

ENTRY = 1000
BUDGET = 16 * ENTRY
PLENTY = 1 << 30


class TestCachedBlob(BlobContract):
    @pytest.fixture
    def open_blob(self, tmp_path: Path) -> OpenBlob:
        place: dict[str, bytes] = {}
        return lambda: CachedBlob(MemoryBlob(place), FileCache(tmp_path, PLENTY))


class CountingBlob(MemoryBlob):
    """Counts the reads of objects."""

    asked = 0

    async def get(self, key):
        self.asked += 1
        return await super().get(key)


def entry(number: int) -> bytes:
    """An object whose entry has exactly `ENTRY` bytes."""
    return number.to_bytes(4, "big") * ((ENTRY - SEAL_BYTES) // 4)


def held(root: Path) -> int:
    """Bytes in the directory."""
    return sum(path.stat().st_size for path in root.iterdir())


def in_order(root: Path, cache: FileCache, keys: list[str]) -> None:
    """Put objects under ``keys``, each used a second after the one before."""
    for number, key in enumerate(keys):
        before = set(root.iterdir())
        cache.put(key, entry(number))
        for path in set(root.iterdir()) - before:
            os.utime(path, (number, number))


def test_an_object_is_fetched_once(tmp_path):
    """Damage: the cache costs what it should save."""
    far = CountingBlob()

    async def body():
        await far.set("k", b"data")
        for _ in range(3):
            for cache in (FileCache(tmp_path, PLENTY), FileCache(tmp_path, PLENTY)):  # as two processes have it
                assert await CachedBlob(far, cache).get("k") == b"data"

    asyncio.run(body())
    assert far.asked == 1


def test_no_damage_of_an_entry_reaches_its_reader(tmp_path):
    """Damage: a bad disk under the cache gives wrong rows, though the store behind it is whole."""
    data = bytes(range(60))
    cache = FileCache(tmp_path, PLENTY)
    cache.put("k", data)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    flipped = [good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :] for at in range(len(good)) for bit in range(8)]
    damages = [*flipped, *(good[:end] for end in range(len(good))), good + b"\0"]
    for damaged in damages:
        path.write_bytes(damaged)
        assert cache.get("k") is None
        assert not path.exists()  # else it would be read and refused each time
    assert cache.counts.damaged == len(damages)
    path.write_bytes(good)
    assert cache.get("k") == data


def test_an_entry_under_another_key_is_a_miss(tmp_path):
    """Damage: one shard's rows are read as another's."""
    cache = FileCache(tmp_path, PLENTY)
    cache.put("a", b"rows of a")
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    cache.put("b", b"rows of b")
    (other,) = set(tmp_path.iterdir()) - {path}
    other.write_bytes(good)
    assert cache.get("b") is None
    assert cache.get("a") == b"rows of a"


def test_a_damaged_entry_is_fetched_again(tmp_path):
    """Damage: a part that is sound in its store cannot be read until an operator empties the cache."""
    far = CountingBlob()
    blob = CachedBlob(far, FileCache(tmp_path, PLENTY))

    async def body():
        await far.set("k", b"data")
        await blob.get("k")
        (path,) = tmp_path.iterdir()
        path.write_bytes(b"")
        assert await blob.get("k") == b"data"
        assert await blob.get("k") == b"data"

    asyncio.run(body())
    assert far.asked == 2


def test_the_budget_holds_and_what_was_used_last_stays(tmp_path):
    """Damage: the disk fills up, or objects that are read often are fetched at every read."""
    cache = FileCache(tmp_path, BUDGET)
    in_order(tmp_path, cache, [f"old-{n}" for n in range(8)])
    assert cache.get("old-0") is not None  # used now: younger than all others
    for number in range(100):
        cache.put(f"new-{number}", entry(number))
        assert held(tmp_path) <= BUDGET + BUDGET // LOOKS_PER_BUDGET
        assert cache.get("old-0") == entry(0)
    assert [cache.get(f"old-{n}") for n in range(1, 8)] == [None] * 7
    assert cache.get("new-99") == entry(99)
    assert cache.counts.evicted > 80


def test_processes_that_share_a_directory_share_its_budget(tmp_path):
    """Damage: each of ten processes takes the whole budget."""
    caches = [FileCache(tmp_path, BUDGET) for _ in range(3)]
    for number in range(60):
        caches[number % 3].put(f"k{number}", entry(number))
        assert held(tmp_path) <= BUDGET + 3 * BUDGET // LOOKS_PER_BUDGET
    assert sum(cache.counts.evicted for cache in caches) > 30


def test_an_object_that_would_drive_all_others_out_is_not_kept(tmp_path):
    """Damage: one large part empties the cache whenever it is read."""
    cache = FileCache(tmp_path, BUDGET)
    cache.put("small", entry(1))
    cache.put("large", bytes(BUDGET // ENTRIES_PER_BUDGET_MIN))
    assert cache.get("large") is None
    assert cache.get("small") == entry(1)


def test_what_a_crash_left_half_written_is_evicted_in_its_turn(tmp_path):
    """Damage: each crash takes a piece of the budget for ever."""
    cache = FileCache(tmp_path, BUDGET)
    cache.put("half", entry(0))
    (whole,) = tmp_path.iterdir()
    orphan = whole.rename(f"{whole}~7")
    os.utime(orphan, (0, 0))
    for number in range(40):
        cache.put(f"k{number}", entry(number))
    assert not orphan.exists()


def test_an_eviction_does_not_disturb_a_reader(tmp_path):
    """Damage: a read fails half-way because another process was short of room."""
    cache = FileCache(tmp_path, BUDGET)
    cache.put("k", entry(7))
    (path,) = tmp_path.iterdir()
    os.utime(path, (0, 0))
    with path.open("rb") as reading:
        half = reading.read(ENTRY // 2)
        for number in range(40):
            cache.put(f"k{number}", entry(number))
        assert not path.exists()
        assert (half + reading.read())[SEAL_BYTES:] == entry(7)


def test_a_cache_that_fails_is_no_cache_and_no_error(tmp_path):
    """Damage: a full or vanished cache disk stops everything."""
    root = tmp_path / "cache"
    far = CountingBlob()
    blob = CachedBlob(far, FileCache(root, PLENTY))
    root.rmdir()

    async def body():
        await far.set("k", b"data")
        assert [await blob.get("k") for _ in range(2)] == [b"data"] * 2
        assert await blob.delete("k") is True
        assert await blob.get("k") is None

    asyncio.run(body())


def test_a_directory_that_cannot_be_made_is_refused_when_the_cache_is_opened(tmp_path):
    """Damage: a mistyped path means silently no cache."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be made"):
        FileCache(tmp_path / "file" / "cache", PLENTY)


def test_a_directory_that_others_can_write_is_refused(tmp_path):
    """Damage: another user of the machine adds forged rows to what this user reads."""
    shared = tmp_path / "cache"
    shared.mkdir()
    shared.chmod(0o770)
    with pytest.raises(ConfigError, match="is writable by other users"):
        FileCache(shared, PLENTY)


@pytest.fixture
def victim(tmp_path):
    """A directory of a user's own files, older than any entry of a cache."""
    root = tmp_path / "victim"
    root.mkdir()
    (root / "thesis").write_bytes(bytes(ENTRY))
    os.utime(root / "thesis", (0, 0))
    return root


def test_a_link_in_the_place_of_the_directory_is_refused(tmp_path, victim):
    """Damage: another user puts a link under the guessable name, and the cache deletes files of this user."""
    (tmp_path / "cache").symlink_to(victim)
    with pytest.raises(ConfigError, match="is a link"):
        FileCache(tmp_path / "cache", BUDGET)
    assert [path.name for path in victim.iterdir()] == ["thesis"]


def test_a_link_that_comes_later_leads_nowhere(tmp_path, victim):
    """Damage: the directory is exchanged between the check and the use."""
    root = tmp_path / "cache"
    cache = FileCache(root, BUDGET)
    root.rename(tmp_path / "moved")
    root.symlink_to(victim)
    for number in range(40):
        cache.put(f"k{number}", entry(number))
    assert cache.get("k39") == entry(39)
    assert [path.name for path in victim.iterdir()] == ["thesis"]


def test_files_that_the_cache_did_not_write_are_neither_evicted_nor_counted(tmp_path, victim):
    """Damage: a mistyped `cache:` empties a user's directory, oldest files first."""
    cache = FileCache(victim, BUDGET)
    (victim / "photos").mkdir()
    (victim / "large").write_bytes(bytes(4 * BUDGET))
    for number in range(40):
        cache.put(f"k{number}", entry(number))
    assert cache.get("k39") == entry(39)
    assert {"thesis", "photos", "large"} <= {path.name for path in victim.iterdir()}


def test_a_link_in_the_place_of_an_entry_is_not_followed(tmp_path, victim):
    """Damage: the cache reads, touches or evicts a file that the link's creator could not reach."""
    cache = FileCache(tmp_path / "cache", BUDGET)
    cache.put("k", entry(1))
    (path,) = (tmp_path / "cache").iterdir()
    kept = path.rename(victim / "kept")
    os.utime(kept, (0, 0))
    path.symlink_to(kept)
    assert cache.get("k") is None
    assert kept.stat().st_mtime == 0
    for number in range(40):
        cache.put(f"k{number}", entry(number))
    assert kept.read_bytes()
    cache.put("k", entry(2))
    assert cache.get("k") == entry(2)
    assert kept.stat().st_size == ENTRY


def test_a_pipe_in_the_place_of_an_entry_is_a_miss(tmp_path):
    """Damage: a read waits for ever for the other end."""
    cache = FileCache(tmp_path, BUDGET)
    cache.put("k", entry(1))
    (path,) = tmp_path.iterdir()
    path.unlink()
    os.mkfifo(path)
    assert cache.get("k") is None


def test_no_other_user_can_read_the_cache(tmp_path):
    """Damage: every user of the machine can read this user's rows."""
    open_to_all = tmp_path / "cache"
    open_to_all.mkdir(mode=0o755)
    cache = FileCache(open_to_all, BUDGET)
    cache.put("k", entry(1))
    (path,) = open_to_all.iterdir()
    assert (open_to_all.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_directory_of_another_user_is_refused(tmp_path):
    """Damage: the owner of the directory decides which rows this user reads."""
    if os.getuid() != 0:
        pytest.skip("only root can give a directory away")
    theirs = tmp_path / "cache"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, 65534, 65534)
    with pytest.raises(ConfigError, match="another user's"):
        FileCache(theirs, BUDGET)


def test_a_cache_that_is_closed_gives_its_descriptor_back_and_uses_no_other(tmp_path):
    """Damage: a program that opens and closes environments runs out of descriptors; or writes into another's."""
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(3):
        cache = FileCache(tmp_path, BUDGET)
        cache.close()
        cache.put("k", entry(1))
        assert cache.get("k") is None
    assert len(list(descriptors.iterdir())) == before
    assert list(tmp_path.iterdir()) == []
