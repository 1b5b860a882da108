"""Streams as tests use them: opened, called, awaited and read in a line each."""

from __future__ import annotations

from strandline.persist.handles.updates import RowCodec, ValueCodec
from strandline.persist.together.stream import StreamClient
from strandline.testing.lists.list_engine import ListEngine
from strandline.testing.simulation.kernel import run_sync


def words(place):
    """A codec of text."""
    return ValueCodec(place.blob, "text", str.encode, bytes.decode)


def rows(place):
    """The codec of rows."""
    return RowCodec(ListEngine(place.blob), place.schema)


def client(place, epoch=1):
    """A process."""
    return StreamClient(place.client(), epoch)


def opened(place, *names, process=None, codec=words):
    """Open collections; return their writers and readers, in turn."""
    process = process or client(place)
    return [each for n in names for each in run_sync(process.create_or_load(n, codec(place)))]


def resolved(call):
    """Await a call."""

    async def wait():
        return await call

    return run_sync(wait())


def read(reader, as_of):
    """What is there at ``as_of``, without waiting."""
    return sorted(((u.value, u.diff) for u in run_sync(reader.snapshot(as_of, timeout_s=0))), key=str)


def versions(place, writer):
    """How often the shard has changed."""
    return len(place.versions[writer._writer.shard])


def as_rows(*words):
    """Rows of the place's schema."""
    return [{"k": word} for word in words]
