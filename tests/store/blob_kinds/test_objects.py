"""The object store keeps the contracts of Blob and of Consensus, and the tests' server honours conditional puts."""

from __future__ import annotations

import asyncio
import itertools
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import obstore
import pytest
from obstore import exceptions

import s3_server as s3
from s3_server import S3Server
from strandline.errors import ConfigError, Determinate, Indeterminate, Unavailable
from strandline.store.blob_kinds.object_location import ObjectLocation
from strandline.store.blob_kinds.objects import LIST_PAGE, ObjectBlob
from strandline.store.consensus_kinds.object_consensus import ObjectConsensus
from strandline.testing.contracts.blob_contract import BlobContract, ObjectStoreContract, OpenBlob
from strandline.testing.contracts.consensus_contract import ConsensusContract, OpenConsensus, SharedConsensusContract

pytestmark = pytest.mark.server
PREFIXES = itertools.count()
WRITERS = 8
ROUNDS = 60


@pytest.fixture
def location(s3_server: S3Server) -> ObjectLocation:
    """Return a prefix that no other test has."""
    return ObjectLocation(f"s3://{s3_server.bucket}/tests/{next(PREFIXES)}", s3_server.storage)


class TestObjectBlob(BlobContract):
    @pytest.fixture
    def open_blob(self, location: ObjectLocation) -> OpenBlob:
        return lambda: ObjectBlob(location)


class TestObjectBlobDecidesRaces(ObjectStoreContract):
    @pytest.fixture
    def open_blob(self, location: ObjectLocation) -> Callable[[], ObjectBlob]:
        return lambda: ObjectBlob(location)


class TestObjectConsensusOnS3(ConsensusContract):
    @pytest.fixture
    def open_consensus(self, location: ObjectLocation) -> OpenConsensus:
        return lambda: ObjectConsensus(ObjectBlob(location))


class TestSharedObjectConsensusOnS3(SharedConsensusContract):
    @pytest.fixture
    def open_consensus(self, location: ObjectLocation) -> OpenConsensus:
        return lambda: ObjectConsensus(ObjectBlob(location))


def race(location: ObjectLocation, key: str, condition: obstore.PutMode, data: bytes) -> int:
    """Let `WRITERS` threads put one key on one condition at once; return how many puts reported success."""
    barrier = threading.Barrier(WRITERS)
    stores = [location.open(retries=0) for _ in range(WRITERS)]

    def put(number: int) -> bool:
        barrier.wait()
        try:
            obstore.put(stores[number], key, data + b"%d" % number, mode=condition, use_multipart=False)
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as pool:
        return sum(pool.map(put, range(WRITERS)))


def test_of_many_writers_of_one_key_the_server_lets_exactly_one_win(location: ObjectLocation) -> None:
    """Damage: all tests on this server prove nothing, because its conditional puts let two writers win."""
    store = location.open(retries=0)
    for key in map("race/{}".format, range(ROUNDS)):
        assert race(location, key, "create", b"created by ") == 1
        tag = obstore.head(store, key)["e_tag"]
        assert race(location, key, {"e_tag": tag}, b"replaced by ") == 1


def test_a_listing_goes_on_after_its_first_page(location: ObjectLocation) -> None:
    """Damage: the sweep and the leak audit see the first thousand objects of a shard."""
    blob = ObjectBlob(location)
    keys = [f"many/{number:04}" for number in range(LIST_PAGE + 7)]

    async def body() -> None:
        for key in keys:
            await blob.set(key, b"data")
        assert await blob.list("many/") == keys
        assert await blob.list("many/100") == keys[1000:]

    asyncio.run(body())


def test_what_hadoop_leaves_for_a_directory_is_no_object(s3_server: S3Server, location: ObjectLocation) -> None:
    """Damage: the leak audit finds objects for ever that it can neither read nor delete."""
    blob = ObjectBlob(location)
    asyncio.run(blob.set("parts/s/part", b"data"))
    asyncio.run(blob.set("parts/empty", b""))
    key = f"{location.url.removeprefix(f's3://{s3_server.bucket}/')}/parts/s/"
    urllib.request.urlopen(
        urllib.request.Request(f"{s3_server.endpoint}/{s3_server.bucket}/{key}", method="PUT")
    ).close()
    assert asyncio.run(blob.list("parts/")) == ["parts/empty", "parts/s/part"]


def test_a_wrong_location_is_refused_by_name_and_no_error_shows_a_secret(s3_server: S3Server) -> None:
    """Damage: a secret appears in a log; or a location that does not exist counts as empty."""
    wrong = [
        (ObjectLocation("s3://absent-bucket/x", s3_server.storage), ConfigError, "absent-bucket"),
        (ObjectLocation("s3://strandline/x", {**s3_server.storage, "colour": "hunter2"}), ConfigError, "colour"),
        (ObjectLocation("ftp://strandline/x", {}), ConfigError, "ftp"),
        (ObjectLocation("s3://b/x", {**s3_server.storage, "endpoint": "http://127.0.0.1:1"}), Unavailable, "answer"),
    ]
    for location, error, words in wrong:
        hidden = ObjectLocation(location.url, {**location.options, "secret_access_key": "hunter2"})
        with pytest.raises(error, match=words) as raised:
            ObjectBlob(hidden)
        assert "hunter2" not in str(raised.value)
        assert raised.value.__cause__ is None
        assert "hunter2" not in repr(hidden)


def test_the_errors_of_a_store_that_is_gone_say_whether_a_call_may_have_happened() -> None:
    """Damage: a put whose answer was lost counts as one that never happened."""
    server = s3.start("strandline")
    blob = ObjectBlob(ObjectLocation("s3://strandline/x", server.storage))
    server.stop()
    for write in (lambda: blob.set("k", b""), lambda: blob.create("k", b""), lambda: blob.replace("k", '"t"', b"")):
        with pytest.raises(Indeterminate):
            asyncio.run(write())
    for read in (lambda: blob.get("k"), lambda: blob.read("k"), lambda: blob.list("")):
        with pytest.raises(Determinate):
            asyncio.run(read())
