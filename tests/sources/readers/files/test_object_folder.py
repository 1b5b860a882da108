"""Objects of S3 are files: listed by prefix, told apart by their tags, and gone when the source says so."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections import Counter

import obstore
import pytest

from compiled import as_in_production
from s3_server import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, S3Server
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.engine.session import s3a
from strandline.errors import SourceError, Unavailable
from strandline.frontier import Offsets
from strandline.options import understood
from strandline.persist.client import PersistClient
from strandline.sources.readers.files import object_folder
from strandline.sources.readers.files.object_folder import ObjectFolder
from strandline.sources.readers.files.options import FileOptions, object_root_and_pattern
from strandline.sources.readers.files.reader import PARTITION, FileReader
from strandline.sources.readers.files.sequence import FileSequence
from strandline.store.blob_kinds.object_location import ObjectLocation
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.contracts.reader_contract import SharedReaderContract
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, updates

pytestmark = pytest.mark.server
PREFIXES = itertools.count()
SCHEMA = Schema((Column("file", "string"), Column("n", "bigint")))


class Bucket:
    """A prefix of a bucket, and readers of it."""

    table = ""

    def __init__(self, server: S3Server, pattern="", **options):
        self.url = f"s3://{server.bucket}/files/{next(PREFIXES)}"
        self.location = ObjectLocation(self.url, server.storage)
        self.store, self.pattern, self.options = self.location.open(retries=0), pattern, options | server.storage
        self.engine, self.blob, self.consensus = ListEngine(MemoryBlob()), MemoryBlob(), MemoryConsensus()
        self.processes, self.numbers = itertools.count(), itertools.count()

    def write(self, name, text="1\n"):
        obstore.put(self.store, name, text.encode())

    def there(self):
        return sorted(each["path"] for page in obstore.list(self.store) for each in page)

    def folder(self):
        url, pattern = object_root_and_pattern(f"{self.url}/{self.pattern}")
        return ObjectFolder(ObjectLocation(url, self.location.options), pattern, f"s3a{url[2:]}")

    async def reader(self):
        options = understood("s", FileOptions, {"path": f"{self.url}/{self.pattern}", "format": "csv", **self.options})
        clock = HandClock(1)
        client = PersistClient(clock, CountingIds(f"p{next(self.processes)}"), self.blob, self.consensus)
        sequence = await FileSequence.open(await client.records("files", 1), 1)
        return FileReader(clock, self.folder(), sequence, self, SCHEMA, options, name="s")

    async def decode(self, files, schema, form, *, locate):
        """Decode lines of numbers, as the engine would from the paths that it gets."""
        rows = []
        for file in files:
            name = file.path.removeprefix(f"s3a{self.url[2:]}/")
            for number, line in enumerate(bytes(obstore.get(self.store, name).bytes()).decode().splitlines()):
                try:
                    rows.append({"file": file.name, "n": int(line), TIME: file.time, DIFF: file.diff})
                except ValueError:
                    rows.append({ERROR: f"{file.name}:{number + 1}" if locate else "somewhere", TIME: file.time})
        return updates(schema, rows)

    async def produce(self, *, undecodable=False):
        number = next(self.numbers)
        self.write(f"{number:03}.csv", f"{number}\n{'x' * undecodable}\n" if undecodable else f"{number}\n{number}\n")

    async def break_promise(self):
        self.write("000.csv", "another\n")


class TestFilesInS3(SharedReaderContract):
    @pytest.fixture
    def place(self, s3_server):
        return Bucket(s3_server)


def changes(folder):
    """What changed, its names without their order."""
    listing = asyncio.run(folder.changes())
    return list(listing.came), sorted(listing.gone)


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("", ["a.csv", "b/c.csv", "b/d/e.txt"]),
        ("*.csv", ["a.csv"]),
        ("**/*.csv", ["a.csv", "b/c.csv"]),
        ("b/*", ["c.csv"]),
        ("b/c.csv", ["c.csv"]),
    ],
)
def test_the_pattern_says_which_keys_are_files(s3_server, pattern, wanted):
    """Damage: what lies beside the data becomes data."""
    bucket = Bucket(s3_server, pattern)
    for name in ("a.csv", "b/c.csv", "b/d/e.txt"):
        bucket.write(name)
    assert changes(bucket.folder()) == (wanted, [])


def test_listings_add_up_whatever_comes_goes_or_changes(s3_server, monkeypatch):
    """Damage: an object is never taken; or a changed one is never noticed; or each tick lists them all."""
    monkeypatch.setattr(object_folder, "LIST_MAX", 10)
    monkeypatch.setattr(object_folder, "PAGE", 5)
    bucket = Bucket(s3_server)
    for number in range(40):
        bucket.write(f"{number:03}.csv")
    folder = bucket.folder()
    assert len(changes(folder)[0]) == 40
    bucket.write("900.csv")
    assert changes(folder) == (["900.csv"], []), "what comes in the order of keys is seen at once"
    bucket.write("0005.csv")
    bucket.write("025.csv", "2\n")
    obstore.delete(bucket.store, "033.csv")
    obstore.delete(bucket.store, "002.csv")
    came, gone = Counter(), Counter()
    for _ in range(8):
        listing = changes(folder)
        came.update(listing[0])
        gone.update(listing[1])
    assert came == {"0005.csv": 1, "025.csv": 1}
    assert gone == {"033.csv": 1, "002.csv": 1}


def test_a_listing_asks_for_as_many_keys_however_many_there_are(s3_server, monkeypatch):
    """Damage: each tick of a source costs more for ever, with every object that was ever taken."""
    monkeypatch.setattr(object_folder, "LIST_MAX", 10)
    monkeypatch.setattr(object_folder, "PAGE", 10)
    bucket, asked = Bucket(s3_server), Counter()
    folder = bucket.folder()
    for number in range(200):
        bucket.write(f"{number:03}.csv")
    changes(folder)
    matches = folder._matches
    monkeypatch.setattr(folder, "_matches", lambda name: asked.update([name]) or matches(name))
    for _ in range(20):
        asked.clear()
        assert changes(folder) == ([], [])
        assert asked.total() <= 10


def test_durable_objects_leave(s3_server):
    """Law R4.  Damage: a bucket grows for ever; or an object is gone that was not durable."""

    async def body(bucket, archived):
        reader = await bucket.reader()
        for name in ("a.csv", "b/c.csv", "d.csv"):
            bucket.write(name)
        assert await reader.upstream_frontier() == Offsets({PARTITION: 3})
        await reader.commit(Offsets({PARTITION: 2}))
        await reader.commit(Offsets({PARTITION: 2}))
        assert bucket.there() == [*archived, "d.csv"]
        again = await bucket.reader()
        await again.commit(Offsets({PARTITION: 2}))
        assert await again.upstream_frontier() == Offsets({PARTITION: 3})
        bucket.write("a.csv", "other\n")
        with pytest.raises(SourceError, match="'a.csv' changed"):
            await again.upstream_frontier()
        await again.commit(Offsets({PARTITION: 2}))
        assert "a.csv" in bucket.there()

    asyncio.run(body(Bucket(s3_server, on_durable="delete"), []))
    bucket = Bucket(s3_server, on_durable="archive")
    bucket.options["archive"] = f"{bucket.url}/_done"
    asyncio.run(body(bucket, ["_done/a.csv", "_done/b/c.csv"]))


def test_a_bucket_that_is_not_there_is_named_and_no_secret_is(s3_server):
    """Damage: a mistyped bucket is an empty source; or a log holds a key."""
    bucket = Bucket(s3_server)
    bucket.location = ObjectLocation("s3://no-such-bucket/x", s3_server.storage)
    bucket.url = bucket.location.url

    async def body():
        reader = await bucket.reader()
        with pytest.raises(Unavailable, match="s3a://no-such-bucket/x' cannot be listed") as found:
            await reader.upstream_frontier()
        assert SECRET_ACCESS_KEY not in f"{found.value!r} {reader._options!r}"

    asyncio.run(body())


CHILD = """
import json, sys
import strandline

endpoint, region = sys.argv[1:]
secrets = {"access_key_id": "env:OUR_ID", "secret_access_key": "env:OUR_KEY"}
storage = {"endpoint": endpoint, "region": region, **secrets}
config = {"storage": storage, "spark": {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"}}
given = ", ".join(f"{name} '{value}'" for name, value in storage.items())
with strandline.open("s3://strandline/files/end/to/end", config=config) as env:
    for kind in ("json", "csv", "parquet"):
        path = f"s3://strandline/files/incoming/*.{kind}"
        options = f"path '{path}', settle '0', on_error 'continue', {given}"
        env.execute(f"CREATE SOURCE s_{kind} (n bigint) USING files OPTIONS ({options})")
    env.tick(wait=True)
    found = {}
    for kind in ("json", "csv", "parquet"):
        row = env.query(f"SELECT count(*) AS rows, sum(n) AS total FROM s_{kind}").collect()[0]
        errors = env.query(f"SELECT file, line FROM s_{kind}_errors").collect()
        found[kind] = [row.rows, row.total, sorted([each.file, each.line] for each in errors)]
    print(json.dumps(found))
"""


@pytest.mark.spark
@pytest.mark.time_limit(900)  # Spark may have to fetch what reads from S3
def test_spark_reads_large_objects_and_the_driver_small_ones(s3_server, tmp_path):
    """Damage: a source in a bucket cannot be read, or its errors name no place."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    store = ObjectLocation(f"s3://{s3_server.bucket}/files/incoming", s3_server.storage).open(retries=0)
    rows = 200_000
    obstore.put(store, "a small.json", b'{"n":1}\n{\n')
    obstore.put(store, "large.json", b"".join(b'{"n":%d}\n' % n for n in range(rows)) + b"x\n")
    obstore.put(store, "large.csv", b"n\n" + b"".join(b"%d\n" % n for n in range(rows)) + b"y\n")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": pa.array(range(rows), pa.int64())}), sink)
    obstore.put(store, "large.parquet", sink.getvalue().to_pybytes())
    environment = {key: value for key, value in as_in_production().items() if not key.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, s3_server.endpoint, REGION],
        env={**environment, "OUR_ID": ACCESS_KEY_ID, "OUR_KEY": SECRET_ACCESS_KEY},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    if "unresolved dependency" in done.stderr:
        pytest.skip(f"Spark cannot fetch {s3a.PACKAGES[0]} and what goes with it from a Maven repository")
    assert done.returncode == 0, done.stderr[-4000:]
    assert SECRET_ACCESS_KEY not in done.stderr
    total = rows * (rows - 1) // 2
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "json": [rows + 1, total + 1, [["a small.json", 2], ["large.json", rows + 1]]],
        "csv": [rows, total, [["large.csv", rows + 2]]],
        "parquet": [rows, total, []],
    }
