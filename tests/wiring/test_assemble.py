"""Wiring: what a text names is what is opened."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import pytest

from postgres_server import PostgresServer
from s3_server import S3Server
from strandline.controller.location.config import Config, Mode
from strandline.errors import ConfigError, Unavailable
from strandline.store.consensus_kinds.object_consensus import ObjectConsensus
from strandline.store.consensus_kinds.postgres import PostgresConsensus
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.store.memory import MemoryConsensus
from strandline.store.protocols import Committed
from strandline.testing.contracts.consensus_contract import step
from strandline.wiring import assemble as wiring
from strandline.wiring import loop, on_spark
from strandline.wiring.locations import consensus_of, location_of

NUMBERS = itertools.count()


def opened(text: str | None, location: str, storage: dict[str, str] | None = None) -> type:
    """Open a consensus as `assemble` does, use it, close it, and return its class."""
    where = location_of(location, storage or {})
    with ExitStack() as stack:
        where.open(Mode.FULL, stack)
        consensus = consensus_of(text, where).open(stack, existing=False)
        requests = [step(f"k{number}", None) for number in range(3)]
        assert asyncio.run(consensus.compare_and_set_many(requests)) == [Committed()] * 3
        assert asyncio.run(consensus.list_keys()) == ["k0", "k1", "k2"]
    return type(consensus)


def test_without_a_text_the_location_has_its_own(tmp_path: Path) -> None:
    """Damage: states go to a place where no operator looks for them."""
    assert opened(None, "memory://") is MemoryConsensus
    assert opened(None, str(tmp_path / "new" / "place")) is SQLiteConsensus
    assert (tmp_path / "new" / "place" / "consensus.db").exists()
    assert opened(f"sqlite://{tmp_path}/other.db", "memory://") is SQLiteConsensus
    assert (tmp_path / "other.db").exists()


@pytest.mark.server
def test_a_database_is_used_in_the_schema_that_is_said(postgres_server: PostgresServer) -> None:
    """Damage: two projects in one database write into each other's states."""
    for _ in range(2):
        url = f"{postgres_server.url}?schema=wired_{next(NUMBERS)}&application_name=wired"
        assert opened(url, "memory://") is PostgresConsensus


@pytest.mark.server
@pytest.mark.parametrize("text", [None, "object-store"])
def test_a_bucket_is_its_own_consensus(
    text: str | None, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: several calls at once, as the environment makes them, wait for each other; or need a server besides."""
    (tmp_path / "secret").write_text(s3_server.storage["secret_access_key"])
    storage = {**s3_server.storage, "secret_access_key": f"file:{tmp_path / 'secret'}"}
    assert opened(text, f"s3://{s3_server.bucket}/wired/{next(NUMBERS)}", storage) is ObjectConsensus


def test_calls_run_together() -> None:
    """Damage: a tick over fifty idle shards on an object store takes fifty times as long as one."""
    met = asyncio.Barrier(3)

    async def call(number: int) -> int:
        await met.wait()  # no call passes until all have come
        return number

    async def body() -> list[int]:
        return await loop.outcomes([call(number) for number in range(3)])

    assert asyncio.run(body()) == [0, 1, 2]


def test_unfinished_files_are_swept_when_a_location_is_opened(tmp_path: Path) -> None:
    """Damage: what crashed writers left fills the disk."""
    leftover = tmp_path / "blob" / "s" / "part~0"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    os.utime(leftover, (0, 0))
    with ExitStack() as stack:
        location_of(str(tmp_path), {}).open(Mode.READ, stack)
        assert leftover.exists(), "a reader changes nothing"
        location_of(str(tmp_path), {}).open(Mode.FULL, stack)
    assert not leftover.exists()


def test_what_was_opened_is_closed_if_the_rest_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a caller that tries again until Java is installed runs out of file descriptors, and fills the disk."""
    closed: list[Path] = []
    monkeypatch.setattr(SQLiteConsensus, "close", lambda consensus: closed.append(consensus._path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def absent(_: object) -> NoReturn:
        raise ConfigError("Spark needs Java")

    monkeypatch.setattr(on_spark, "build", absent)
    with pytest.raises(ConfigError, match="Spark needs Java"):
        wiring.assemble("memory://", spark=None, consensus=f"sqlite://{tmp_path}/c.db", config=Config())
    assert closed == [tmp_path / "c.db"]
    assert not list(tmp_path.glob("strandline-*"))


@pytest.mark.parametrize("run", [loop.outcomes, loop.side_by_side])
def test_a_call_that_fails_beside_others_raises_its_own_error(run) -> None:
    """Damage: a read of a bucket that does not answer ends `strandline run`, because no handler knows its error."""

    async def away() -> None:
        raise Unavailable("the bucket does not answer")

    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Unavailable):
        asyncio.run(run([waits(), away()]))
