"""A driver of ours serves any runtime of Flow's: the requests here are those of another author, a line each."""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.materialize.wire.served_endpoint import fork_server

from strandline.materialize.wire.tuples import pack

#: Where a runtime has read to: two journals, one of which has a producer in the middle of a transaction.
CHECKPOINT = {
    "sources": {
        "acme/orders/pivot=00;materialize/m": {
            "readThrough": "1234",
            "producers": [{"id": "AQIDBAUG", "state": {"lastAck": "77", "begin": "-1"}}],
        },
        "acme/orders/pivot=80;materialize/m": {"readThrough": "99"},
    }
}
COLLECTION = {
    "name": "acme/orders",
    "key": ["/id"],
    "uuidPtr": "/_meta/uuid",
    "projections": [
        {"ptr": "/address/city", "field": "address/city", "inference": {"types": ["string"], "string": {}}},
        {"ptr": "/address", "field": "address", "inference": {"types": ["object"]}},
        {"ptr": "/amount", "field": "amount", "inference": {"types": ["number"], "exists": "MAY"}},
        {"ptr": "", "field": "flow_document", "inference": {"types": ["object"], "exists": "MUST"}},
        {"ptr": "/id", "field": "id", "isPrimaryKey": True, "inference": {"types": ["integer"], "exists": "MUST"}},
        {"ptr": "/tags", "field": "tags", "inference": {"types": ["array", "null"]}},
    ],
    "writeSchema": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
}
FIELDS = ["address", "amount", "tags"]


class Runtime:
    """A runtime that has started the program, and talks to it in lines of JSON."""

    def __init__(self, command: str, path: Path) -> None:
        environment = {**os.environ, "FLOW_RUNTIME_CODEC": "json"}
        self.path = path
        self.process = subprocess.Popen(
            shlex.split(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def send(self, **request: Any) -> None:
        """Send a request."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the next answer."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return its answer."""
        self.send(**request)
        return self.receive()

    def end(self) -> tuple[int, str]:
        """End stdin; return the status and stderr's last line."""
        _, said = self.process.communicate(timeout=150)
        lines = said.strip().splitlines()
        return self.process.returncode, lines[-1] if lines else ""

    @property
    def config(self) -> dict[str, str]:
        """The endpoint's configuration."""
        return {"path": str(self.path)}

    @property
    def spec(self) -> dict[str, Any]:
        """The specification of the task."""
        binding = {
            "resourceConfig": {"table": "orders"},
            "resourcePath": ["orders"],
            "collection": COLLECTION,
            "fieldSelection": {"keys": ["id"], "values": FIELDS},
            "stateKey": "orders.v1",
            "backfill": 1,
            "later": {"unknown": True},
        }
        return {"name": "acme/m", "connectorType": "IMAGE", "config": self.config, "bindings": [binding]}

    def open(self) -> dict[str, Any]:
        """Apply and open the task; return Opened."""
        assert "applied" in self.ask(apply={"materialization": self.spec, "version": "v1", "state": {}})
        whole = {"keyEnd": 2**32 - 1, "rClockEnd": 2**32 - 1}
        opened = self.ask(open={"materialization": self.spec, "version": "v1", "range": whole, "state": {}})["opened"]
        self.send(acknowledge={})
        assert self.receive() == {"acknowledged": {}}
        return opened

    def commit(self, *stores: dict[str, Any]) -> None:
        """Store and commit."""
        assert self.ask(flush={}) == {"flushed": {}}
        for store in stores:
            self.send(store=store)
        assert self.ask(startCommit={"runtimeCheckpoint": CHECKPOINT}) == {"startedCommit": {}}
        assert self.receive() == {"acknowledged": {}}


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The command of the program."""
    with fork_server(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture
def runtime(command: str, tmp_path: Path) -> Iterator[Runtime]:
    """A runtime that has started the program."""
    found = Runtime(command, tmp_path / "x.duckdb")
    yield found
    found.process.kill()
    found.process.communicate()


ADDRESS = {"city": "Oslo", "zip": 150}


def order(number: int, amount: float | None = 1.5, **flags: bool) -> dict[str, Any]:
    """Return the Store of an order."""
    return {"key": [number], "values": [ADDRESS, amount, ["a", 1]], **flags}


def test_the_driver_describes_itself(runtime: Runtime) -> None:
    """Damage: a runtime does not know how the driver is configured, or where a table's name stands."""
    found = runtime.ask(spec={"connectorType": "IMAGE", "config": {}})["spec"]
    assert found["protocol"] == 3032023
    assert found["configSchema"]["required"] == ["path"]
    assert found["resourceConfigSchema"]["properties"]["table"]["x-collection-name"] is True
    assert runtime.ask(spec={})["spec"] == found, "it may be asked as often as one likes"
    assert runtime.end() == (0, "")


def test_every_top_of_a_document_is_stored_and_documents_are_not(runtime: Runtime) -> None:
    """Damage: a runtime stores a part of each document, and loads documents that lack the rest."""
    proposed = {"resourceConfig": {"table": "orders"}, "collection": COLLECTION, "groupBy": ["id"]}
    request = {"name": "acme/m", "connectorType": "IMAGE", "config": runtime.config, "bindings": [proposed]}
    (found,) = runtime.ask(validate=request)["validated"]["bindings"]
    assert {name: each["type"] for name, each in found["constraints"].items()} == {
        "id": "LOCATION_REQUIRED",
        "amount": "LOCATION_REQUIRED",
        "tags": "LOCATION_REQUIRED",
        "address": "LOCATION_REQUIRED",
        "address/city": "FIELD_OPTIONAL",
        "flow_document": "FIELD_FORBIDDEN",
    }
    assert found["resourcePath"] == ["orders"]
    assert all(each["reason"] for each in found["constraints"].values())
    assert runtime.end() == (0, "")


def test_documents_are_kept_as_columns_and_come_back_whole(runtime: Runtime, command: str) -> None:
    """Damage: Flow reduces into a document that is not the one it stored."""
    assert runtime.open() == {"runtimeCheckpoint": {}}
    runtime.commit(order(1), order(2, None), order(3))
    runtime.send(acknowledge={})
    for number in (1, 9, 2):
        runtime.send(load={"key": [number]})
    runtime.send(flush={})
    loaded = [runtime.receive()["loaded"]["doc"] for _ in range(2)]
    assert sorted(loaded, key=lambda each: each["id"]) == [
        {"id": 1, "address": ADDRESS, "amount": 1.5, "tags": ["a", 1]},
        {"id": 2, "address": ADDRESS, "amount": None, "tags": ["a", 1]},
    ]
    assert runtime.receive() == {"flushed": {}}
    runtime.send(store=order(1, 7.0, exists=True))
    runtime.send(store=order(3, exists=True, delete=True))
    assert runtime.ask(startCommit={"runtimeCheckpoint": CHECKPOINT}) == {"startedCommit": {}}
    assert runtime.receive() == {"acknowledged": {}}
    assert runtime.end() == (0, "")
    with duckdb.connect(str(runtime.path)) as connection:
        rows = connection.execute("SELECT id, amount, address, tags FROM orders ORDER BY id").fetchall()
    text = '{"city":"Oslo","zip":150}'
    assert rows == [(1, 7.0, text, '["a",1]'), (2, None, text, '["a",1]')]

    again = Runtime(command, runtime.path)
    assert again.open() == {"runtimeCheckpoint": CHECKPOINT}, "whoever's checkpoint it is, it comes back whole"
    assert again.end() == (0, "")


def test_keys_and_values_may_come_packed_alone(runtime: Runtime) -> None:
    """Damage: a runtime that sends no JSON beside the packed tuples cannot be served."""
    runtime.open()
    runtime.commit(
        {
            "keyPacked": _base64(pack([5])),
            "valuesPacked": _base64(pack([ADDRESS, 2.5, ["b"]])),
        }
    )
    runtime.send(acknowledge={})
    runtime.send(load={"keyPacked": _base64(pack([5]))})
    runtime.send(flush={})
    assert runtime.receive() == {"loaded": {"doc": {"id": 5, "address": ADDRESS, "amount": 2.5, "tags": ["b"]}}}


def test_what_was_not_committed_is_gone_with_stdin(runtime: Runtime) -> None:
    """Damage: half of a transaction is in the table."""
    runtime.open()
    assert runtime.ask(flush={}) == {"flushed": {}}
    runtime.send(store=order(1))
    assert runtime.end() == (0, "")
    with duckdb.connect(str(runtime.path)) as connection:
        assert connection.execute("SELECT count(*) FROM orders").fetchall() == [(0,)]


def test_a_newer_session_fences_an_older_one(runtime: Runtime, command: str) -> None:
    """Damage: two runtimes write one table."""
    runtime.open()
    newer = Runtime(command, runtime.path)
    newer.open()
    newer.commit(order(1))
    assert newer.end() == (0, "")
    assert runtime.ask(flush={}) == {"flushed": {}}
    runtime.send(store=order(2))
    runtime.send(startCommit={"runtimeCheckpoint": CHECKPOINT})
    status, said = runtime.end()
    assert status == 1
    assert said.startswith("FencedError: ")
    assert "fenced off by another" in said


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"flush": {}}, "ProtocolViolation: flush came before open"),
        ({}, "ProtocolViolation: a Request must hold one message"),
        ({"spec": 1}, "ProtocolViolation: the frame at byte 0 is damaged"),
        ({"validate": {"config": {}}}, "DefinitionError: "),
        ({"validate": {"config": {"path": "x"}, "bindings": [{"resourceConfig": {}}]}}, "lacks 'table'"),
        ({"apply": {"materialization": {"config": {"nowhere": "x"}}}}, "DefinitionError: "),
    ],
)
def test_a_wrong_request_is_answered_on_stderr(runtime: Runtime, request_: dict[str, Any], said: str) -> None:
    """Damage: an operator sees that a connector ended, and not why."""
    runtime.send(**request_)
    status, last = runtime.end()
    assert status == 1
    assert said in last


def test_a_wrong_row_is_answered_on_stderr(runtime: Runtime) -> None:
    """Damage: a value that does not fit its column is stored as another one."""
    runtime.open()
    assert runtime.ask(flush={}) == {"flushed": {}}
    runtime.send(store={"key": ["x"], "values": [None, None, None]})
    runtime.send(startCommit={"runtimeCheckpoint": CHECKPOINT})
    assert runtime.end() == (1, "ProtocolViolation: column 'id': 'x' is no bigint")


def test_what_is_printed_besides_does_not_reach_the_runtime(tmp_path: Path) -> None:
    """Damage: a line that a library prints is taken for an answer."""
    program = """
import sys
from strandline.wiring.registry import DRIVERS
from strandline.materialize.wire import serve
from strandline.materialize.wire.options import codec
from strandline.store.clock import Inline
from strandline.store.clock import SystemClock
asked = serve.Served._spec
def chatty(served):
    print("a library speaks", flush=True)
    return asked(served)
serve.Served._spec = chatty
sys.exit(serve.run(DRIVERS["duckdb"], codec("json"), SystemClock(), Inline))
"""

    asked = '{"spec":{}}\n'
    done = subprocess.run([sys.executable, "-c", program], input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == "a library speaks\n"
    assert list(json.loads(done.stdout)) == ["spec"]


def _base64(data: bytes) -> str:

    return base64.b64encode(data).decode()
