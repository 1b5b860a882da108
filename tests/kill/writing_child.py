"""A process that appends to one shard until it is killed, and writes down what was acknowledged.

    python writing_child.py PLACE-AS-JSON LOG NAME

Started by `test_two_writers.py`.  A line of the log is ``<time> <mark>``, fsynced after the append was acknowledged and
before the next one begins.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from strandline.errors import Indeterminate, Unavailable
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.records import Record
from strandline.persist.shard.state import Appended
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.blob_kinds.object_location import ObjectLocation
from strandline.store.blob_kinds.objects import ObjectBlob
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.consensus_kinds.object_consensus import ObjectConsensus
from strandline.store.consensus_kinds.postgres import PostgresConsensus
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.store.protocols import Consensus

SHARD = "s"
EPOCH = 1
ROLLUP_EVERY = 16
"""Often, so that truncation goes on while others append."""


def open_client(place: dict[str, dict[str, str]], root: Path) -> tuple[PersistClient, Callable[[], object]]:
    """Open the place: small batches are inline, so the consensus holds them; rollups are files."""
    consensus: Consensus
    match place:
        case {"sqlite": _}:
            consensus = SQLiteConsensus(root / "consensus.db")
            close = consensus.close
        case {"postgres": {"url": url, "schema": schema}}:
            consensus = PostgresConsensus(url, schema=schema)
            close = consensus.close
        case {"objects": {"url": url, **storage}}:
            consensus = ObjectConsensus(ObjectBlob(ObjectLocation(url, storage)))
            close = dict  # nothing is held open
        case _:
            raise AssertionError(place)
    blob = FileBlob(root / "blob")
    return PersistClient(SystemClock(), SystemIds(), blob, consensus, rollup_every=ROLLUP_EVERY, grace_ms=0), close


async def append_for_ever(client: PersistClient, log: int, name: str) -> None:
    """Append one mark after the other, each at the upper of the moment."""
    records = await client.records(SHARD, EPOCH)
    number = 0
    while True:
        mark = f"{name}.{number}"
        number += 1
        with suppress(Indeterminate, Unavailable):  # not known: then it is not written down, and is not tried again
            while True:
                upper = await records.refresh()
                assert upper.at is not None
                record = Record(mark.encode(), upper.at, 1)
                outcome = await records.append([record], upper, Frontier(upper.at + 1), token=mark)
                if isinstance(outcome, Appended):
                    os.write(log, f"{upper.at} {mark}\n".encode())
                    os.fsync(log)
                    break


def main(place: str, path: str, name: str) -> None:
    """Run until killed."""
    root = Path(path).parent
    client, _ = open_client(json.loads(place), root)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    asyncio.run(append_for_ever(client, log, name))


if __name__ == "__main__":
    main(*sys.argv[1:])
