"""Frames of `spark.read.format("strandline")`, in one application beside the environment that writes."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import strandline
from strandline.controller.retention import TICKS_BETWEEN
from strandline.datasource import release, streams
from strandline.datasource.opened import Place, opened
from strandline.datasource.sessions import keeper
from strandline.engine.frames.ddl import schema_of
from strandline.errors import ConfigError, DefinitionError, InvalidUsage, StrandlineError
from strandline.persist.shard.state import ShardState

pytestmark = pytest.mark.spark

EVERY_TYPE: Final = """
    SELECT CAST(id % 3 AS TINYINT) AS a, CAST(id AS SMALLINT) AS b, CAST(id AS INT) AS c, id AS d,
           CAST(id AS FLOAT) / 4 AS e, IF(id = 5, double('NaN'), -0.0D) AS f, id % 2 = 0 AS g,
           IF(id % 4 = 0, NULL, concat('zoë ', id)) AS h, CAST(concat('b', id) AS BINARY) AS i,
           CAST(id AS DECIMAL(20, 3)) AS j, date_add(DATE'0001-01-01', CAST(id AS INT)) AS k,
           timestamp_seconds(id) AS l, TIMESTAMP_NTZ'9999-12-31 23:59:59.999999' AS m,
           array(CAST(id AS INT), NULL) AS n,
           named_struct('x', IF(id = 7, NULL, array(named_struct('at', timestamp_seconds(id)))), 'y z', id) AS o
    FROM range(40)
"""
WAIT_S: Final = 120.0


@dataclass(frozen=True)
class Served:
    """An environment, and a registered session of the same application."""

    env: strandline.Environment
    spark: SparkSession
    location: str

    def read(self, collection: str, **options: Any) -> DataFrame:
        """Return a frame of a collection."""
        reader = self.spark.read.format("strandline").option("location", self.location)
        return reader.option("collection", collection).options(**options).load()

    def state(self, collection: str) -> ShardState:
        """Return the state of a collection's shard, as another process sees it."""
        with opened(Place(self.location, None, ())) as door:

            async def look() -> ShardState:
                return (await door.plain((await door.catalog()).collection(collection))).state

            return door.run(look())

    def frames(self, collection: str) -> list[str]:
        """Return the leases of frames."""
        return [name for name in self.state(collection).leased if name.startswith("spark-frame")]


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A table of every type, a view of it, and a view with errors; rows were deleted and are there twice."""
    location = tmp_path_factory.mktemp("location") / "data"
    session = spark.newSession()
    strandline.register(session)
    with strandline.open(str(location), spark=spark, config={"keep_history": "0"}) as env:
        columns = spark.sql(EVERY_TYPE)
        env.execute(f"CREATE TABLE t ({schema_of(columns.schema).ddl})")
        groups = "SELECT a, count(*) AS many, max(d) AS most FROM t GROUP BY a"
        env.execute(f"CREATE MATERIALIZED VIEW v KEEP HISTORY FOR '0' AS {groups}")
        env.execute("CREATE MATERIALIZED VIEW bad AS SELECT c, 10 / (c - 3) AS x FROM t")
        env.insert("t", columns)
        env.insert("t", columns.where("d < 20"))
        env.tick()
        env.execute("DELETE FROM t WHERE d BETWEEN 10 AND 14")
        env.tick()
        yield Served(env, session, str(location))


def same(frame: DataFrame, expected: DataFrame) -> None:
    """Hold two frames of different sessions for equal multisets."""
    assert sorted(map(str, frame.collect())) == sorted(map(str, expected.collect()))


def eventually(holds: Callable[[], bool], otherwise: str) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, otherwise
        time.sleep(0.2)  # noqa: TID251 - another thread is waited for


def released(env: strandline.Environment) -> int:
    """Let the environment release what no reader holds; return the time."""
    for _ in range(TICKS_BETWEEN):
        at = env.tick()
    return at


def test_a_frame_has_the_rows_of_a_query_of_every_type(place: Served) -> None:
    """Damage: a value becomes another one on its way, a row is missing, or one that was deleted comes back."""
    frame, answer = place.read("t"), place.env.query("SELECT * FROM t")
    assert frame.schema == answer.schema
    same(frame, answer)
    assert frame.count() >= 50, "other tests insert some"
    narrow = place.read("T", columns="O, a")
    assert narrow.columns == ["o", "a"]
    same(narrow, place.env.query("SELECT o, a FROM t"))


def test_changes_are_those_of_the_collection(place: Served) -> None:
    """Damage: a program that follows changes by itself sees others than the environment has."""
    since, upper = place.env.collection("v").since, place.env.collection("v").upper
    assert since is not None
    assert upper is not None
    at = place.env.insert("t", place.env.query("SELECT * FROM t WHERE c = 9"))
    place.env.tick()
    expected = place.env.collection("v").changes(upper, at + 1).groupBy("a", "many", "most", "__time").sum("__diff")
    found = place.read("v", changes="true", lower=upper, upper=at + 1)
    assert found.columns == ["a", "many", "most", "__time", "__diff"]
    same(found.groupBy("a", "many", "most", "__time").sum("__diff"), expected)
    whole = place.read("v", changes=True).groupBy("a", "many", "most").sum("__diff").where("`sum(__diff)` <> 0")
    same(whole.drop("sum(__diff)"), place.env.query("SELECT * FROM v"))


def test_a_frame_is_held_until_it_is_collected(place: Served) -> None:
    """Damage: two actions on one frame disagree or fail; or frames that are long gone keep history for ever."""
    place.env.execute("CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM t")
    place.env.tick()
    frame = place.read("counted")
    (lease,) = place.frames("counted")
    before, derived = frame.collect(), frame.select("*")
    del frame
    gc.collect()
    place.env.execute("INSERT INTO t (a) VALUES (100)")
    last = released(place.env)
    assert derived.collect() == before
    held = place.state("counted").leased[lease].since.at
    assert held == place.state("counted").since.at
    assert held is not None
    assert held < last - 1, "the frame's time was not held"
    del derived
    gc.collect()
    eventually(lambda: not place.frames("counted"), "a lease of a frame that was collected is held")
    place.env.execute("INSERT INTO t (a) VALUES (101)")
    released(place.env)
    since = place.state("counted").since.at
    assert since is not None
    assert since > held


def test_a_frame_holds_what_it_was_of_and_not_what_has_its_name_since(place: Served) -> None:
    """Damage: after a view was made anew, its frames hold the new one, and what they read is gone after a while."""

    def beat() -> None:
        keeper()._loop.run(keeper()._beat())

    view = "CREATE MATERIALIZED VIEW again AS SELECT count(*) AS n FROM t"
    place.env.execute(view)
    place.env.tick()
    frame = place.read("again")
    beat()
    assert place.frames("again")
    place.env.execute("DROP MATERIALIZED VIEW again")
    place.env.execute(view)
    place.env.tick()
    beat()
    assert place.frames("again") == []
    del frame


def test_a_wrong_read_is_the_sentence_of_a_query(place: Served) -> None:
    """Damage: a user reads a traceback of another process, and not what to do."""
    env, upper = place.env, place.env.collection("v").upper
    assert upper is not None
    for collection, at in (("w", None), ("v", 5), ("v", upper + 10**6), ("bad", upper - 1)):
        with pytest.raises(StrandlineError) as asked:
            env.query(f"SELECT * FROM {collection}", as_of=at)
        options = {} if at is None else {"asOf": at}
        with pytest.raises(type(asked.value)) as read:
            place.read(collection, **options)
        assert str(read.value) == str(asked.value).partition(" (at line")[0]
    assert len(place.frames("bad")) == 0, "a read that was refused is held"


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"collection": "v", "asOff": 1}, InvalidUsage, "option 'asoff' is not known; did you mean 'asof'?"),
        ({"collection": "v", "asOf": "now"}, InvalidUsage, "option 'asof' is 'now': it must be a number, 0 or more"),
        ({}, InvalidUsage, "option 'collection' is missing"),
        ({"collection": "v", "lower": 1}, InvalidUsage, "lower and upper are bounds of changes"),
        ({"collection": "v", "changes": True, "asOf": 1}, InvalidUsage, "leave one out"),
        ({"collection": "v", "changes": True, "lower": 2, "upper": 1}, InvalidUsage, r"lower \(2\) is after upper"),
        ({"collection": "v", "where": "q = 1"}, DefinitionError, "there is no column q; there are a, many, most"),
        ({"collection": "v", "where": "many = 'x'"}, InvalidUsage, "column 'many' is bigint"),
        ({"collection": "v", "columns": "a, q"}, DefinitionError, "'v' has no column 'q'; it has a, many, most"),
        ({"collection": "v", "consensus": "postgresql://me:hunter2@db/x"}, ConfigError, "say where it is"),
        ({"collection": "v", "storage.secret_access_key": "hunter2"}, ConfigError, "say where it is"),
        ({"collection": "v", "location": "memory://"}, ConfigError, "known to its own process alone"),
        ({"collection": "v", "location": "/nowhere/at/all"}, ConfigError, "nothing was stored at location"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(
    place: Served, options: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    """Damage: a misspelt option is ignored, or a password ends up in Spark's plans and logs."""
    reader = place.spark.read.format("strandline").options(**{"location": place.location} | options)
    with pytest.raises(kind, match=sentence) as refused:
        reader.load()
    assert "hunter2" not in str(refused.value)


def test_each_collection_is_a_view_at_one_time(place: Served, spark: SparkSession) -> None:
    """Damage: a query over two of the views joins rows of different times."""
    session = spark.newSession()
    with pytest.warns(UserWarning, match="there is no view of 'bad': 'bad' has"):
        strandline.register(session, place.location)
    at = place.env.collection("v").upper
    place.env.execute("INSERT INTO t (a) VALUES (77)")
    place.env.tick()
    query = "SELECT v.a, v.many, count(*) AS counted FROM v JOIN t ON v.a <=> t.a GROUP BY v.a, v.many"
    rows = session.sql(query).collect()
    assert rows
    assert all(row.many == row.counted and row.a != 77 for row in rows), at
    assert {row.viewName for row in session.sql("SHOW VIEWS").collect() if row.isTemporary} >= {"t", "v"}
    with pytest.raises(PySparkException, match="a schema of its own"):
        session.read.format("strandline").options(location=place.location, collection="v").schema(
            "a INT"
        ).load().count()


def test_a_name_that_the_session_would_change_gets_no_view(place: Served, spark: SparkSession) -> None:
    """Damage: the view replaces one of the caller's that has the changed name, or has the name of a secret."""
    place.env.execute("CREATE TABLE `t${x}` (a INT)")
    place.env.tick()
    try:
        session = spark.newSession()
        session.conf.set("spark.sql.variable.substitute", "true")
        with warnings.catch_warnings(record=True, action="always") as said:
            strandline.register(session, place.location)
        assert any("spark.sql.variable.substitute" in str(each.message) for each in said)
        session.conf.set("spark.sql.variable.substitute", "false")
        with pytest.warns(UserWarning, match="no view of 'bad'"):
            strandline.register(session, place.location)
        assert session.sql("SELECT * FROM `t${x}`").columns == ["a"]
    finally:
        place.env.execute("DROP TABLE `t${x}`")


def test_a_stream_gives_the_contents_and_then_each_change_once(
    place: Served, tmp_path: Path, spark: SparkSession
) -> None:
    """Damage: what a stream adds up to is not the collection; or after a restart it begins again, or misses changes."""
    frame = place.spark.readStream.format("strandline").options(location=place.location, collection="v").load()
    assert frame.columns == ["a", "many", "most", "__time", "__diff"]

    def run() -> list[Any]:
        query = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.option("path", str(tmp_path / "out")).trigger(availableNow=True).start().awaitTermination()
        added = spark.read.parquet(str(tmp_path / "out")).groupBy("a", "many", "most").sum("__diff")
        return sorted(added.where("`sum(__diff)` <> 0").drop("sum(__diff)").collect(), key=str)

    def now() -> list[Any]:
        return sorted(place.env.query("SELECT * FROM v").collect(), key=str)

    assert run() == now()
    begun = place.state("v").criticals
    (hold,) = (name for name in begun if name.startswith("spark-stream"))
    for each in range(2):
        place.env.execute(f"INSERT INTO t (a, d) VALUES (1, {1000 + each})")
        place.env.tick()
        released(place.env)
        assert run() == now()
    assert run() == now(), "nothing came, and something was read"
    assert list(streams(place.location)["v"]) == [hold]
    with pytest.raises(InvalidUsage, match="no stream has a hold 'history' here; there are: spark-stream-"):
        release(place.location, "history")
    assert begun[hold].since < place.state("v").criticals[hold].since
    assert "hunter2" not in "".join(path.read_text() for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]"))
    release(place.location, hold)
    assert streams(place.location) == {}


def test_a_stream_that_is_started_again_over_more_columns_is_refused(place: Served, tmp_path: Path) -> None:
    """Damage: rows are withdrawn that were never given, and what was written to a new column never comes."""
    place.env.execute("CREATE TABLE grown (k INT)")
    place.env.execute("INSERT INTO grown VALUES (1)")
    place.env.tick()
    found: list[Any] = []

    def run(**options: str) -> None:
        reader = place.spark.readStream.format("strandline").options(location=place.location, collection="grown")
        kept = reader.options(**options).load().writeStream.option("checkpointLocation", str(tmp_path))
        sink = kept.foreachBatch(lambda batch, _: found.extend(batch.drop("__time").collect()))
        sink.trigger(availableNow=True).start().awaitTermination()

    run()
    place.env.execute("ALTER TABLE grown ADD COLUMN note STRING")
    place.env.execute("INSERT INTO grown VALUES (2, 'b')")
    place.env.tick()
    with pytest.raises(PySparkException, match="`note` string came, and what was written there before"):
        run()
    run(columns="k")
    assert sorted(found) == [(1, 1), (2, 1)]
    for hold in streams(place.location)["grown"]:
        release(place.location, hold)


def test_options_of_a_frame_are_refused_for_a_stream_and_the_other_way(place: Served) -> None:
    """Damage: a stream that was to begin in the past begins now, without a word."""
    reader = place.spark.readStream.format("strandline").options(location=place.location, collection="v", upper="9")
    with pytest.raises(InvalidUsage, match="upper is of a frame; a stream begins at startingTime and has no end"):
        reader.load()
    with pytest.raises(PySparkException, match="startingTime is of a stream"):
        place.read("v", startingTime=9).count()
