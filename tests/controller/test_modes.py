"""Full, read and independent: what each may do at a location, what it holds, and what happens to frames afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import replace

import pytest

import strandline
from strandline.client import Environment
from strandline.client.access import Access
from strandline.controller.core import Core
from strandline.controller.location.config import Config, Mode
from strandline.errors import AsOfError, ConfigError, CorruptionError, DefinitionError, InvalidUsage
from strandline.persist import notices
from strandline.wiring.assemble import assemble
from strandline.wiring.loop import LoopThread

pytestmark = pytest.mark.spark

VIEW = "CREATE MATERIALIZED VIEW totals AS SELECT k, sum(n) AS n FROM orders GROUP BY k"
OTHER = """
import sys, strandline
for mode in sys.argv[2:]:
    with strandline.open(sys.argv[1], mode=mode) as env:
        print(sorted(tuple(row) for row in env.query("SELECT * FROM totals").collect()), env.status()["mode"])
"""


class Refusing:
    """A store that fails the test at any change, and is the one behind it otherwise."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        if name not in {"get", "list", "head", "scan", "list_keys", "read"}:
            raise AssertionError(f"{name} was called")
        return getattr(self._inner, name)


@pytest.fixture
def filled(place):
    """A location with a table and a view."""
    with place.open() as env:
        env.execute("CREATE TABLE orders (k STRING, n INT)")
        env.execute(VIEW)
        env.insert("orders", [{"k": "a", "n": 1}, {"k": "b", "n": 2}])
        env.tick()
    return place


def leases(env, name):
    """The leased readers of a collection's shard."""
    return [holder for holder in env.inspect(name)["holders"] if holder["lease_left_ms"] is not None]


def totals(env):
    """What the view holds."""
    return sorted(tuple(row) for row in env.query("SELECT * FROM totals").collect())


def test_an_independent_environment_makes_no_change_and_no_connection(filled, monkeypatch):
    """Damage: a process that must be invisible takes a lease, wakes the writer, or fences it."""

    def connects(*_):
        raise AssertionError("it connects")

    with filled.open():  # a writer, which serves notices
        monkeypatch.setattr(notices.PushClient, "connect", connects)
        monkeypatch.setattr(notices.PushServer, "serve", connects)
        location = f"file://{filled.root}"
        assembly = assemble(location, spark=filled.spark, consensus=None, config=Config(), mode=Mode.INDEPENDENT)
        assembly = replace(assembly, blob=Refusing(assembly.blob), consensus=Refusing(assembly.consensus))
        loop = LoopThread()
        core = loop.run(Core.open(assembly, Config(), Mode.INDEPENDENT))
        with Environment(Access(core, assembly, loop)) as env:
            assert totals(env) == [("a", 1), ("b", 2)]
            assert env.verify("totals").ok
            assert env.status()["mode"] == "independent"
            upper = env.collection("orders").upper
            assert env.collection("orders").changes(0, upper).count() == 2
            assert env.fsck()["harmful"] == 0
            with pytest.raises(InvalidUsage, match="read-only"):
                env.tick()


def test_an_independent_environment_leaves_no_trace(filled):
    """Damage: an audit leaves files of its own user there, and the writer can no longer open its database."""
    before = traces(filled.root)
    with filled.open(mode="independent") as env:
        assert totals(env) == [("a", 1), ("b", 2)]
        assert (env.verify("totals").ok, env.fsck()["harmful"], env.gc(), env.status()["mode"]) == (
            True,
            0,
            [],
            "independent",
        )
        assert [shard["outcome"] for shard in env.compact("orders")] in ([], ["due"])
        for change in (env.fsck, env.compact, env.gc):
            with pytest.raises(InvalidUsage, match="changes nothing"):
                change(apply=True)
    assert traces(filled.root) == before


def traces(root):
    """All that is below a directory, and when it was changed."""
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in root.rglob("*"))


@pytest.mark.parametrize("mode", ["read", "independent"])
def test_who_only_reads_makes_no_location(place, tmp_path, mode):
    """Damage: a mistyped location is made, and looks empty and healthy to every check."""
    with pytest.raises(ConfigError, match="nothing was stored at location .* yet"):
        place.open(mode=mode)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="nothing was stored at this location yet"):
        strandline.open("memory://", spark=place.spark, mode=mode)


def test_a_reader_holds_what_it_reads_until_its_frames_are_gone(filled):
    """Damage: garbage is collected under a frame in use, or never because of one that is not."""
    with filled.open(read_only=True) as env:
        frame = env.query("SELECT * FROM totals")
        (hold,) = env._access._holds
        assert len(leases(env, "totals")) == 1
        derived = frame.where("n > 1").select("k")
        del frame
        gc.collect()
        assert hold._taken
        assert [row.k for row in derived.collect()] == ["b"]
        del derived
        gc.collect()
        env.status()  # the loop has had its turn
        assert not hold._taken
    with filled.open(mode="independent") as env:
        assert leases(env, "totals") == []  # closing gave it up


def test_a_frame_whose_environment_is_closed_is_refused(filled):
    """Damage: a frame goes on reading what is no longer held, until one day it fails in the middle of a job."""
    with filled.open(read_only=True) as env:
        frames = [env.query("SELECT * FROM totals"), env.collection("totals").snapshot()]
        frames.append(frames[0].where("n > 0"))
        assert [frame.count() for frame in frames] == [2, 2, 2]
    for frame in frames:
        with pytest.raises(AsOfError, match="is closed"):
            frame.collect()
        with pytest.raises(AsOfError, match="is closed"):
            frame.where("n > 1")


def test_a_frame_whose_parts_were_deleted_is_refused(filled):
    """Damage: a reader without a hold gets fewer rows, or an error of Spark's that says nothing."""
    with filled.open() as env:
        env.insert("orders", filled.spark.range(3).selectExpr("repeat(uuid(), 9000) AS k", "CAST(id AS INT) AS n"))
    with filled.open(mode="independent") as env:
        frame = env.query("SELECT * FROM orders")
        for part in (filled.root / "blob").rglob("part-*.parquet"):
            part.unlink()
        for use in (frame.collect, frame.where("n > 1").toArrow, frame.select("n").toPandas):
            with pytest.raises(AsOfError, match="garbage collection has deleted"):
                use()
        with pytest.raises(CorruptionError, match="is missing"):  # no merge replaced it: it is lost
            env.query("SELECT * FROM orders")


def test_another_process_reads_while_this_one_writes(filled):
    """Damage: a reader stops the writer, or the other way round."""
    modes = ["read", "independent"]
    command = [sys.executable, "-c", OTHER, f"file://{filled.root}", *modes]
    with (
        filled.open() as env,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as other,
    ):
        try:
            while other.poll() is None:
                env.insert("orders", [{"k": "c", "n": 3}])
                env.tick()
            said = other.stdout.read().splitlines()
        finally:
            other.kill()
    found = [line.rsplit(" ", 1) for line in said]
    assert [told for _, told in found] == modes
    assert all(("a", 1) in eval(rows) for rows, _ in found)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("mode", ["read", "independent"])
def test_a_reader_answers_for_the_view_that_there_is(filled, mode):
    """Damage: a view that was made anew is answered, explained and verified as what it was when the reader opened."""
    with filled.open() as env, filled.open(mode=mode) as reader:
        assert totals(reader) == [("a", 1), ("b", 2)]
        env.execute("DROP MATERIALIZED VIEW totals")
        with pytest.raises(DefinitionError, match="there is no collection 'totals'"):
            totals(reader)
        env.execute(VIEW.replace("sum(n)", "10 * sum(n)"))
        env.execute(VIEW.replace("totals", "others"))
        env.tick()
        assert totals(reader) == [("a", 10), ("b", 20)]
        assert reader.verify("totals").ok
        assert "10" in str(reader.explain("totals"))
        assert reader.query("SELECT k FROM others JOIN totals USING (k)").count() == 2
        env.execute("DROP MATERIALIZED VIEW others")
        with pytest.raises(DefinitionError, match="there is no"):
            reader.explain("others")


def test_modes_that_contradict_each_other_are_refused(filled):
    """Damage: a caller that asks for a reader gets a writer."""
    with pytest.raises(InvalidUsage, match="contradict"):
        filled.open(read_only=True, mode="full")
    with pytest.raises(InvalidUsage, match="there is no mode 'writer'; there are full, read, independent"):
        filled.open(mode="writer")
    with pytest.raises(ConfigError, match="cache_bytes"):
        filled.open(config={"cache_bytes": -1})


def test_status_reports_what_the_writer_met(filled):
    """Damage: a store that fails every other time looks healthy in `status`."""
    with filled.open() as writer:
        writer._core.client.metrics.retries += 7
        with filled.open(read_only=True) as reader:
            told = reader.status()
            assert told["writer_persist"]["retries"] == writer.status()["persist"]["retries"] >= 7
            assert told["persist"]["retries"] < 7
    with strandline.open(f"file://{filled.root}", spark=filled.spark, read_only=True) as alone:
        assert alone.status()["writer_persist"] is None
