"""A process that ingests a webhook is killed with SIGKILL again and again: what it acknowledged is there, once.

Senders send again, with the same key, until they learn that a request is kept.  A message that was sent without an
acknowledgement, and never again, may be there or not; but never twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from webhook_place import SCHEMA

from strandline.persist.handles.read import contents
from strandline.testing.lists.list_engine import ListEngine, listed

sys.path.insert(0, str(Path(__file__).parent))
from webhook_child import DATA, open_client, start

pytestmark = [pytest.mark.kill, pytest.mark.time_limit(300)]

KILLS = 3
KEPT_MIN = 50
"""So many messages at least are acknowledged: fewer would try little."""
PATIENCE_S = 120.0
SENDERS = 4
SEED = 20261124


class Sender:
    """Sends numbers of its own, one request after the other; ``kept``: those that were acknowledged."""

    def __init__(self, port: int, name: int, done: threading.Event) -> None:
        self.port, self.own, self.done = port, name, done
        self.kept: list[int] = []
        self.given_up: list[int] = []
        self.again = 0

    def run(self) -> None:
        number = self.own
        while not self.done.is_set():
            numbers = [number, number + SENDERS]
            number += 2 * SENDERS
            keyed = len(self.kept) % 3 != 0
            while not self.post(numbers, keyed=keyed):
                if not keyed:
                    self.given_up += numbers
                    break
                if self.done.wait(0.05):
                    self.given_up += numbers
                    break
            else:
                self.kept += numbers

    def post(self, numbers: list[int], *, keyed: bool) -> bool:
        """Send numbers; return whether they are kept."""
        data = json.dumps([{"n": each} for each in numbers]).encode()
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": f"k{numbers[0]}"} if keyed else {})
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/numbers", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                self.again += "again" in json.load(answer)
                return bool(answer.status == 200)
        except (OSError, ValueError, urllib.error.URLError):
            return False


@contextmanager
def child(root: Path, port: int, epoch: int) -> Iterator[subprocess.Popen[str]]:
    """Run one incarnation until it listens, and kill it at the end."""
    log = (root / f"child-{epoch}.err").open("w")
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("webhook_child.py")), str(root), str(port), str(epoch)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n", (root / f"child-{epoch}.err").read_text()
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=180)
        log.close()


async def ended(root: Path, port: int) -> Counter[int]:
    """Ingest what is left, as the next incarnation does; return how often each number is in the collection."""
    client = open_client(root)
    ingestion, _ = await start(client, port, KILLS + 2)
    for _ in range(2):
        await ingestion.tick(client.clock.now_ms())
        await ingestion.catch_up()
    await ingestion.close()
    reader = await client.reader(DATA, SCHEMA, DATA)
    assert reader is not None
    upper = reader.state.upper.at
    assert upper is not None
    rows = listed(await ListEngine(client.blob).read(contents(reader.state, SCHEMA, 0, upper, advance=0))).rows
    found = Counter[int]()
    for row in rows:
        found[row["n"]] += row["__diff"]
    return found


def test_every_acknowledged_message_is_there_once(tmp_path: Path) -> None:
    """Damage: a message whose sender knows that it is kept is lost in a crash, or counts twice."""
    (tmp_path / "blob").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done, random = threading.Event(), Random(SEED)
    senders = [Sender(port, name, done) for name in range(SENDERS)]
    with ThreadPoolExecutor(SENDERS) as threads:
        try:
            for epoch in range(1, KILLS + 1):
                with child(tmp_path, port, epoch):
                    if epoch == 1:
                        sending = [threads.submit(sender.run) for sender in senders]
                    done.wait(1 + random.random())
            with child(tmp_path, port, KILLS + 1):
                done.wait(1)
                for _ in range(int(10 * PATIENCE_S)):  # a busy machine keeps fewer in the same time
                    if sum(len(sender.kept) for sender in senders) > KEPT_MIN:
                        break
                    done.wait(0.1)
                done.set()
                for each in sending:
                    each.result(PATIENCE_S)
        finally:
            done.set()
    found = asyncio.run(ended(tmp_path, port))
    kept = [number for sender in senders for number in sender.kept]
    maybe = {number for sender in senders for number in sender.given_up}
    assert len(kept) > KEPT_MIN
    assert sum(sender.again for sender in senders) <= len(kept)
    assert not [number for number in kept if found[number] != 1]
    assert not [number for number, times in found.items() if times != 1]
    assert found.keys() <= {*kept} | maybe
