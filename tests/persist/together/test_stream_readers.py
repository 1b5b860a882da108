"""Readers of a stream, in any process, see sealed updates only, and each update once."""

from __future__ import annotations

import pytest

from strandline.errors import AsOfError, CollectionError, InvalidUsage
from strandline.persist.client import PersistClient
from strandline.persist.handles.updates import ValueCodec
from strandline.persist.together.stream import read_stream
from strandline.store.blob_kinds.reading import ReadingBlob, ReadingConsensus
from strandline.testing.doubles import CountingIds
from strandline.testing.simulation.kernel import run_sync
from streams_in_use import as_rows, client, opened, read, resolved, rows, words


@pytest.mark.parametrize("lease", [True, False])
def test_another_process_reads_and_fences_no_writer(place, lease):
    """Damage: a reader must write under an epoch, and fences the writer."""
    write, _ = opened(place, "n", process=client(place, epoch=3))
    reader = run_sync(read_stream(place.client(), "n", words(place), lease=lease))
    resolved(write.write([("a", 1, 1)]))
    resolved(write.seal(2))
    assert read(reader, 1) == [("a", 1)]
    resolved(write.write([("b", 2, 1)]))
    resolved(write.seal(3))
    assert read(reader, 2) == [("a", 1), ("b", 1)]
    run_sync(reader.close())


def test_a_reader_with_a_lease_holds_what_it_may_still_read(place):
    """Damage: a slow reader loses its history; or a reader that left holds history for ever."""
    write, _ = opened(place, "n")
    reader = run_sync(read_stream(place.client(), "n", words(place), lease=True))
    resolved(write.write([("a", 1, 1), ("a", 2, -1)]))
    resolved(write.seal(4))
    resolved(write.allow_compaction(3))
    assert read(reader, 1) == [("a", 1)]
    run_sync(reader.allow_compaction(2))
    with pytest.raises(AsOfError):
        read(reader, 1)
    assert read(reader, 2) == []
    run_sync(reader.close())
    resolved(write.allow_compaction(4))
    with pytest.raises(AsOfError):
        read(run_sync(read_stream(place.client(), "n", words(place), lease=False)), 2)


def test_a_reader_without_a_lease_writes_nothing(place):
    """Damage: an audit changes the shard."""
    write, _ = opened(place, "n")
    resolved(write.write([("a", 1, 1)]))
    resolved(write.seal(2))
    blob, consensus = ReadingBlob(place.blob), ReadingConsensus(place.consensus)
    process = PersistClient(place.clock, CountingIds("reader"), blob, consensus)
    assert read(run_sync(read_stream(process, "n", words(place), lease=False)), 1) == [("a", 1)]


def test_a_missing_name_and_another_codec_are_refused(place):
    """Damage: a mistyped name becomes an empty collection; or a codec decodes bytes of another codec."""
    assert run_sync(read_stream(place.client(), "n", words(place), lease=False)) is None
    opened(place, "n")
    with pytest.raises(InvalidUsage, match="cannot be opened as"):
        run_sync(read_stream(place.client(), "n", ValueCodec(place.blob, "other", str.encode, str), lease=False))


@pytest.mark.parametrize("codec", [words, rows])
def test_a_negative_count_is_an_error_at_that_time(place, codec):
    """Damage: a writer's mistake is read as data; or makes sound times unreadable."""
    value, other = ("tea", "coffee") if codec is words else as_rows("tea", "coffee")
    write, reader = opened(place, "n", codec=codec)
    resolved(write.write([(other, 1, 1), (value, 2, -1), (value, 3, 1)]))
    resolved(write.seal(4))
    with pytest.raises(CollectionError, match="at time 2 there are -1 of .*tea"):
        read(reader, 2)
    assert [count for _, count in read(reader, 1)] == [count for _, count in read(reader, 3)] == [1]


def test_a_listener_gets_each_update_once(place):
    """Damage: a listener misses updates, or gets them twice."""
    write, reader = opened(place, "n")
    resolved(write.write([("a", 1, 1), ("b", 2, 1), ("c", 3, 1)]))

    async def follow():
        seen, listen = [], reader.listen(0)
        for upper in (2, 4):
            await write.seal(upper)
            updates, frontier = await anext(listen)
            seen.append(([u.value for u in updates], frontier.at))
        await listen.aclose()
        return seen

    assert run_sync(follow()) == [(["a"], 2), (["b", "c"], 4)]
