"""Another process that reads a location twice at once: with push and by polling.  Started by `test_push.py`.

It prints a line for each version that either reader sees: the reader, the upper, and the time by the machine's
monotonic clock.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from strandline.algebra.schema import Column, Schema
from strandline.persist.client import PersistClient
from strandline.persist.notices import Polling, PushClient
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.testing.lists.list_engine import ListEngine, listed

SCHEMA = Schema((Column("k", "string"),))


def say(*words: object) -> None:
    """Print a line, flushed."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def client_at(root: Path, notifier) -> PersistClient:
    """A client of the location in ``root``."""
    consensus = SQLiteConsensus(root / "consensus.db")
    return PersistClient(SystemClock(), SystemIds(), FileBlob(root / "blob"), consensus, notifier=notifier)


async def follow(root: Path, name: str, notifier) -> None:
    """Print each version until the shard is closed; then the contents."""
    client = client_at(root, notifier)
    reader = await client.reader("s", SCHEMA, "orders")
    engine, seen = ListEngine(client.blob), []
    say(name, "ready")
    async for contents, upper in reader.listen(0):
        say(name, upper.at, time.monotonic())
        seen += [row["k"] for row in listed(await engine.read(contents)).rows]
    say(name, "saw", ",".join(sorted(seen)))
    say(name, "notices", client.metrics.notices)


async def main(root: Path) -> None:
    """Follow by push and by polling, at once."""
    push = PushClient(root / "push", SystemClock(), SystemIds())
    async with asyncio.TaskGroup() as both:
        both.create_task(follow(root, "push", push))
        both.create_task(follow(root, "poll", Polling(SystemClock())))
    push.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
