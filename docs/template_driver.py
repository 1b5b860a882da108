"""A driver to begin from: it keeps tables in one JSON file, with a checkpoint and a fence beside them."""

from __future__ import annotations

import fcntl
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.errors import FencedError
from strandline.materialize import driver
from strandline.materialize.driver import Answers
from strandline.materialize.protocol import messages as m
from strandline.materialize.protocol.task import Binding, Checkpoint, MaterializationSpec
from strandline.materialize.stores import second_row
from strandline.options import PLACE, TEXT, option


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    path: str = option(PLACE, "The JSON file; created if missing.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    table: str = option(TEXT, "The name of the table in the file.")


@contextmanager
def changing(path: Path) -> Iterator[dict[str, Any]]:
    """Give the document to one process at a time; what is made of it is kept whole, unless the block raises."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = json.loads(path.read_text()) if path.exists() else {}
        document = {"fences": {}, "checkpoints": {}, "tables": {}, **held}
        yield document
        path.with_suffix(".new").write_text(json.dumps(document))
        path.with_suffix(".new").replace(path)


@dataclass(frozen=True)
class JsonDriver:
    _path: Path

    async def spec(self) -> driver.DriverSpec:
        return KIND.spec

    async def validate(self, spec: MaterializationSpec) -> tuple[driver.Validated, ...]:
        return tuple(driver.Validated({c.name: _verdict(b, c.type) for c in b.schema}) for b in spec.bindings)

    async def apply(self, spec: MaterializationSpec, state: Any) -> driver.Applied:
        return driver.Applied()  # a table is there when it has rows

    async def preview(self, spec: MaterializationSpec) -> tuple[str, ...]:
        return ()

    async def open(self) -> driver.Session:
        return JsonSession(self._path)

    async def contents(self, task: str, binding: Binding) -> driver.Contents:
        with changing(self._path) as document:
            rows = list(document["tables"].get(binding.resource, {}).values())
            held = document["checkpoints"].get(task, "{}")
        return driver.Contents(Checkpoint.decode(held), _tables(binding, rows))


class JsonSession:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._answers = Answers()
        self._stores: list[m.Store] = []

    async def send(self, message: m.Request) -> None:
        match message:
            case m.Open(spec):
                self._spec = spec
                with changing(self._path) as document:  # from now on no older session can commit
                    self._fence = document["fences"][spec.name] = document["fences"].get(spec.name, 0) + 1
                    checkpoint = Checkpoint.decode(document["checkpoints"].get(spec.name, "{}"))
                self._answers.put(m.Opened(checkpoint, refuses=True))
                self._answers.put(m.Acknowledged())  # nothing is ever left to apply
            case m.Load(place, keys):
                binding = self._spec.bindings[place]
                with changing(self._path) as document:
                    table = document["tables"].get(binding.resource, {})
                wanted = (_key(binding, row) for row in keys.to_pylist())
                async for found in _tables(binding, [table[key] for key in wanted if key in table]):
                    self._answers.put(m.Loaded(place, found))
            case m.Flush():
                self._answers.put(m.Flushed())
            case m.Store():
                self._stores.append(message)
            case m.StartCommit(checkpoint):
                self._answers.put(m.StartedCommit())  # the runtime reads the next transaction meanwhile
                self._commit(checkpoint)
                self._answers.put(m.Acknowledged())

    async def receive(self) -> m.Response:
        return await self._answers.take()

    async def close(self) -> None:
        self._stores.clear()

    def _commit(self, checkpoint: Checkpoint) -> None:
        with changing(self._path) as document:
            if document["fences"][self._spec.name] != self._fence:
                raise FencedError(f"materialization {self._spec.name!r} was fenced off by another session")
            before = Checkpoint.decode(document["checkpoints"].get(self._spec.name, "{}"))
            for binding in self._spec.bindings:
                if before.of(binding.state_key) is None:  # its first transaction, perhaps after a backfill
                    document["tables"][binding.resource] = {}
            for store in self._stores:
                _store(document["tables"], self._spec.bindings[store.binding], store.rows)
            document["checkpoints"][self._spec.name] = checkpoint.encode()
        self._stores.clear()


def _verdict(binding: Binding, kind: str) -> driver.Constraint:
    if binding.delta or kind not in {"boolean", "tinyint", "smallint", "int", "bigint", "double", "string"}:
        return driver.Constraint(driver.ConstraintKind.INCOMPATIBLE, "this file keeps tables of numbers and texts")
    return driver.Constraint(driver.ConstraintKind.FIELD_OPTIONAL, "stored as JSON")


def _store(tables: dict[str, Any], binding: Binding, rows: pa.Table) -> None:
    for place, row in enumerate(rows.to_pylist()):
        exists, gone, key = row.pop(m.EXISTS), row.pop(m.DELETE), _key(binding, row)
        if not exists and key in tables[binding.resource]:
            raise second_row(binding, rows.slice(place, 1))
        tables[binding.resource].pop(key, None)
        tables[binding.resource].update({} if gone else {key: row})


def _key(binding: Binding, row: dict[str, Any]) -> str:
    return json.dumps([0.0 if row[name] == 0 else row[name] for name in binding.key])  # -0.0 is 0.0


async def _tables(binding: Binding, rows: list[dict[str, Any]]) -> AsyncGenerator[pa.Table, None]:
    kinds = types.columns(binding.schema)
    if rows:
        yield pa.table({name: pa.array([row[name] for row in rows], arrow(kind)) for name, kind in kinds})


KIND = driver.DriverKind("json", Options, Resource, "https://www.json.org", lambda o, _: JsonDriver(Path(o.path)))
