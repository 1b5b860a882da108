"""Every stored format that was ever released is read by this version, as what it was when it was written."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.engine.frames import inline
from strandline.engine.parts import part_store
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.fsck import check_location
from strandline.persist.handles.register import Register
from strandline.persist.shard import codec
from strandline.persist.shard.batch import BlobPart, InlinePart
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import Versioned
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.simulation.kernel import run_sync

HERE = Path(__file__).parent
FORMATS = sorted(path for path in HERE.iterdir() if path.name.startswith("format-"))


def plain(value):
    """As the maker writes it."""
    spec = importlib.util.spec_from_file_location("golden_make", HERE / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.plain(value)


@pytest.fixture(params=FORMATS, ids=lambda path: path.name)
def golden(request):
    """A released location, in memory; and what it must read as."""
    versions = json.loads((request.param / "consensus.json").read_text())
    place = {key: [Versioned(n, bytes.fromhex(data)) for n, data in each] for key, each in versions.items()}
    blob = request.param / "blob"
    objects = {p.relative_to(blob).as_posix(): p.read_bytes() for p in sorted(blob.rglob("*")) if p.is_file()}
    client = PersistClient(HandClock(), CountingIds("reader"), MemoryBlob(objects), MemoryConsensus(place))
    return client, json.loads((request.param / "expected.json").read_text())


def test_the_format_of_this_version_is_among_them():
    """Damage: a format is released, and nothing holds later versions to it."""
    assert f"format-{codec.FORMAT}" in {path.name for path in FORMATS}


def test_every_state_is_what_it_was(golden):
    """Damage: an upgrade reads another state than the one that was committed."""
    client, expected = golden
    for shard, entries in expected.items():
        assert run_sync(client.compactor(shard)) is not None
        assert plain(codec.entries(client.state_of(shard))) == entries, shard


def test_every_record_is_what_it_was(golden):
    """Damage: an upgrade loses the bindings of a source, or what was committed."""
    client, _ = golden
    log = run_sync(client.records("log", 9))
    found = {(r.data[:2], len(r.data), r.time): r.diff for r in run_sync(log.contents())}
    expected = {}
    for at in range(12):
        size = 20_000 if at % 5 == 0 else 3
        text = str(at).encode() * size
        expected[text[:2], len(text), at] = 1
        if at % 5 == 1:
            gone = str(at - 1).encode() * size
            expected[gone[:2], len(gone), at] = -1
    assert found == expected
    assert run_sync(Register("words", client.clock, client.ids, client.consensus).read()) == b"second"


def test_every_row_is_what_it_was(golden):
    """Damage: an upgrade cannot read the parts that Spark or Arrow wrote."""
    client, _ = golden
    run_sync(client.compactor("orders/Ä"))
    schema = Schema((Column("k", "string"), Column("n", "bigint"), Column("new", "double")))
    rows = [{"k": "a", "n": 1, "new": None}, {"k": None, "n": 2, "new": None}, {"k": "ü", "n": None, "new": None}]
    kinds = []
    for part in client.state_of("orders/Ä").parts:
        if isinstance(part, InlinePart):
            table = inline.decode("orders/Ä", part, schema)
        else:
            data = run_sync(client.blob.get(part.key))
            part_store.check(part, len(data), lambda start, length, data=data: data[start : start + length])
            table = inline.conform(part_store.load(part, data), inline.update_schema(schema))
        assert table.select(["k", "n", "new"]).to_pylist() == rows
        kinds.append((type(part), part.window.advance))
    assert kinds == [(InlinePart, 2), (BlobPart, 4)]


def test_it_is_sound_and_can_be_written_on(golden):
    """Damage: a location of the version before is called damaged, or takes no more appends."""
    client, _ = golden
    findings = run_sync(check_location(client))
    assert (findings.harmful, findings.shards) == ((), 3)
    writer = run_sync(client.writer("orders/Ä", 5, schema=client.state_of("orders/Ä").schema))
    run_sync(writer.compare_and_append([], Frontier(9), Frontier(12)))
    assert writer.state.upper == Frontier(12)
