"""The contract of `Blob`, as a test suite that every implementation and every double runs.

Subclass it in a test module and give it a fixture ``open_blob``: a function that opens one more handle to *one* place,
which is empty when the test begins.

    class TestMyBlob(BlobContract):
        @pytest.fixture
        def open_blob(self, tmp_path):
            return lambda: MyBlob(tmp_path)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

import pytest

from strandline.errors import InvalidUsage
from strandline.store.protocols import Blob, ObjectStore

T = TypeVar("T")
OpenBlob: TypeAlias = Callable[[], Blob]
OpenObjectStore: TypeAlias = Callable[[], ObjectStore]

BIG = bytes(range(256)) * 40_000
"""10 MB: more than any intermediate buffer holds."""


class BlobContract:
    """The tests for every Blob."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run one test's coroutine.  A double that lives outside asyncio overrides this."""
        return asyncio.run(coroutine)

    def test_what_was_set_is_what_is_got(self, open_blob: OpenBlob) -> None:
        """Damage: a part loses or gains bytes on its way."""

        async def body() -> None:
            blob = open_blob()
            for key, data in {"empty": b"", "one": b"\x00", "ten-kib": bytes(10 << 10), "big": BIG}.items():
                await blob.set(key, data)
                assert await blob.get(key) == data

        self.run(body())

    def test_an_absent_key_is_none(self, open_blob: OpenBlob) -> None:
        """Damage: a reader cannot distinguish a collected part from an empty one."""

        async def body() -> None:
            blob = open_blob()
            assert await blob.get("absent") is None
            await blob.set("dir/present", b"")
            assert await blob.get("dir") is None
            assert await blob.get("dir/absent") is None
            assert await blob.get("dir/present") == b""

        self.run(body())

    def test_keys_do_not_clash(self, open_blob: OpenBlob) -> None:
        """Damage: one shard's part replaces another's."""
        keys = ["a", "b/a", "b/aa", "b/a.tmp", "b/.a", "b.a", "b-a", "b_a", "b=a", "c/b/a", "=", "_", "-", "x" * 200]

        async def body() -> None:
            blob = open_blob()
            for key in keys:
                await blob.set(key, key.encode())
            assert [await blob.get(key) for key in keys] == [key.encode() for key in keys]
            assert await blob.list("") == sorted(keys)

        self.run(body())

    def test_two_handles_to_one_place_see_each_other(self, open_blob: OpenBlob) -> None:
        """Damage: the process that appends a part cannot read what a worker staged."""

        async def body() -> None:
            one, other = open_blob(), open_blob()
            await one.set("s/k", b"data")
            assert await other.get("s/k") == b"data"
            assert await other.list("s/") == ["s/k"]
            assert await other.delete("s/k") is True
            assert await one.get("s/k") is None
            assert await one.list("") == []

        self.run(body())

    def test_deleting_twice_succeeds_and_says_it_did_nothing(self, open_blob: OpenBlob) -> None:
        """Damage: a garbage collection that is repeated after a crash fails for ever, or counts deletes twice."""

        async def body() -> None:
            blob = open_blob()
            await blob.set("k", b"data")
            assert await blob.delete("k") is True
            assert await blob.delete("k") is False
            assert await blob.delete("never/there") is False

        self.run(body())

    def test_deleting_a_key_leaves_its_neighbours(self, open_blob: OpenBlob) -> None:
        """Damage: collecting one part takes a live one with it."""

        async def body() -> None:
            blob = open_blob()
            for key in ("s/a", "s/ab", "s/b/c"):
                await blob.set(key, key.encode())
            assert await blob.delete("s/a") is True
            assert await blob.delete("s/b") is False
            assert await blob.list("") == ["s/ab", "s/b/c"]
            await blob.set("s/b/d", b"again in a directory that was there")
            assert await blob.delete("s/b/c") is True
            assert await blob.list("s/b/") == ["s/b/d"]

        self.run(body())

    def test_setting_the_same_bytes_again_changes_nothing(self, open_blob: OpenBlob) -> None:
        """Damage: a set whose outcome was unknown cannot be retried."""

        async def body() -> None:
            blob = open_blob()
            await blob.set("s/k", b"data")
            await blob.set("s/k", b"data")
            assert await blob.get("s/k") == b"data"
            assert await blob.list("") == ["s/k"]

        self.run(body())

    def test_a_prefix_is_of_characters_not_of_directories(self, open_blob: OpenBlob) -> None:
        """Damage: the leak audit overlooks objects."""

        async def body() -> None:
            blob = open_blob()
            for key in ("p/s1/b", "p/s1/a", "p/s10/a", "p/s2/a", "q"):
                await blob.set(key, b"")
            assert await blob.list("p/s1") == ["p/s1/a", "p/s1/b", "p/s10/a"]
            assert await blob.list("p/s1/") == ["p/s1/a", "p/s1/b"]
            assert await blob.list("p/s1/b") == ["p/s1/b"]
            assert await blob.list("p/s3") == []
            assert await blob.list("absent/") == []

        self.run(body())

    @pytest.mark.parametrize(
        "key", ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/.", "a b", "ä", "a\n", "a~", "x" * 2000]
    )
    def test_what_is_not_a_key_is_refused_and_nothing_is_stored(self, open_blob: OpenBlob, key: str) -> None:
        """Damage: a name from outside writes beyond the location, or works here and fails on another store."""

        async def body() -> None:
            blob = open_blob()
            with pytest.raises(InvalidUsage):
                await blob.set(key, b"data")
            with pytest.raises(InvalidUsage):
                await blob.get(key)
            with pytest.raises(InvalidUsage):
                await blob.delete(key)
            assert await blob.list("") == []

        self.run(body())

    @pytest.mark.parametrize("prefix", ["/", "../", "a/../", "a b", "*"])
    def test_what_starts_no_key_is_refused_as_a_prefix(self, open_blob: OpenBlob, prefix: str) -> None:
        """Damage: a listing shows what lies outside the location."""

        async def body() -> None:
            with pytest.raises(InvalidUsage):
                await open_blob().list(prefix)

        self.run(body())


class ObjectStoreContract:
    """The additional tests for every ObjectStore; run `BlobContract` too."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run one test's coroutine.  A double that lives outside asyncio overrides this."""
        return asyncio.run(coroutine)

    def test_only_the_first_creates_a_key(self, open_blob: OpenObjectStore) -> None:
        """Damage: two writers of a version both conclude that they won."""

        async def body() -> None:
            one, other = open_blob(), open_blob()
            assert await one.create("s/k", b"one") is True
            assert await other.create("s/k", b"other") is False
            assert await one.create("s/k", b"one") is False, "not even with the same bytes"
            assert await other.get("s/k") == b"one"
            assert await other.delete("s/k") is True
            assert await other.create("s/k", b"") is True
            assert await one.get("s/k") == b""

        self.run(body())

    def test_what_was_set_cannot_be_created(self, open_blob: OpenObjectStore) -> None:
        """Damage: a conditional create overwrites an existing object."""

        async def body() -> None:
            store = open_blob()
            await store.set("k", b"set")
            assert await store.create("k", b"created") is False
            assert await store.get("k") == b"set"

        self.run(body())

    def test_only_a_writer_with_the_current_tag_replaces_an_object(self, open_blob: OpenObjectStore) -> None:
        """Damage: a writer with a stale read moves back a marker that must only move forward."""

        async def body() -> None:
            one, other = open_blob(), open_blob()
            assert await one.read("k") is None
            assert await one.replace("k", '"nothing"', b"data") is False
            await one.set("k", b"5")
            seen, stale = await one.read("k"), await other.read("k")
            assert seen is not None
            assert stale is not None
            assert seen.data == stale.data == b"5"
            assert await one.replace("k", seen.tag, b"9") is True
            assert await other.replace("k", stale.tag, b"7") is False
            assert await other.get("k") == b"9"
            assert await other.delete("k") is True
            assert await one.replace("k", seen.tag, b"11") is False
            assert await one.get("k") is None

        self.run(body())

    @pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a b"])
    def test_what_is_not_a_key_is_refused(self, open_blob: OpenObjectStore, key: str) -> None:
        """Damage: a name from outside writes beyond the location."""

        async def body() -> None:
            store = open_blob()
            with pytest.raises(InvalidUsage):
                await store.create(key, b"")
            with pytest.raises(InvalidUsage):
                await store.read(key)
            with pytest.raises(InvalidUsage):
                await store.replace(key, "tag", b"")

        self.run(body())
