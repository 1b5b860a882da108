"""Lines of scripts: what is said to a replica, and what it says, each as a text of a line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pyarrow as pa

from strandline.algebra.schema import Column, Schema
from strandline.compute.plan.view import plan_view
from strandline.compute.stage import split
from strandline.frontier import EMPTY, Every, Frontier, Refresh
from strandline.instance.commands import (
    Advance,
    Collection,
    Output,
    RunDataflow,
    RunIndex,
    RunIngestion,
    RunMaterialization,
    exports_of,
)
from strandline.instance.indexes.keys import packed, unpacked
from strandline.instance.protocol.codec import encode
from strandline.instance.protocol.messages import (
    AllowCompaction,
    AllowWrites,
    CancelPeeks,
    Create,
    CreateInstance,
    Frontiers,
    Hello,
    InitializationComplete,
    Peek,
    PeekResponse,
    Reconciled,
    Refused,
    Runnable,
    Schedule,
    Status,
    Unknown,
    UpdateConfiguration,
    Welcome,
)
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.testing.lists.list_assembly import ListAnalyst

FED: Final = Schema((Column("id", "int"), Column("value", "bigint")))
"""The columns of what a source feeds."""
SHOWN: Final = 5
"""More rows of an answer are counted, and not shown."""


@dataclass
class Commands:
    """Makes commands of lines.  ``collections``: those that what is created reads."""

    collections: dict[str, Collection]
    created: dict[str, str] = field(default_factory=dict)
    """What was created by each name, so that ``Create large`` says it again."""
    indexes: dict[str, str] = field(default_factory=dict)
    """The exports of indexes, which lines call by their names."""

    def frame(self, text: str) -> bytes:
        """Return the frame of a command; ``format=2 Schedule v`` has another format, ``+new=1`` a field more."""
        changed = re.match(r"format=(\d+) ", text)
        fields = dict(re.findall(r" \+(\w+)=(\w+)", text))
        text = re.sub(r"^format=\d+ | \+\w+=\w+", "", text)
        if text == "noise":
            return b"noise"
        found = msgspec.msgpack.decode(encode(self.command(text)))
        found["fields"] |= fields
        if changed is not None:
            found["format"] = int(changed[1])
        return msgspec.msgpack.encode(found)

    def command(self, text: str) -> Any:
        """Return the command that a line says: its kind, then its fields in short."""
        kind, _, rest = text.partition(" ")
        words = rest.split()
        options = dict(each.split("=", 1) for each in words if "=" in each)
        match kind:
            case "Hello":
                return Hello(int(words[0]), int(options.get("writes", 1)), options.get("location", "here"))
            case "CreateInstance":
                return CreateInstance("x", "r")
            case "InitializationComplete":
                return InitializationComplete()
            case "UpdateConfiguration":
                return UpdateConfiguration(options)
            case "Create":
                return self.create(rest)
            case "Schedule":
                return Schedule(words[0])
            case "AllowWrites":
                return AllowWrites(words[0])
            case "AllowCompaction":
                return AllowCompaction(self.export(words[0]), EMPTY if words[1] == "[]" else Frontier(int(words[1])))
            case "Advance":
                return Advance(int(words[0]), turn=int(options["turn"]))
            case "Peek":
                return self.peek(*words)
            case "CancelPeeks":
                return CancelPeeks(tuple(words))
            case "Welcome":
                return Welcome(words[0])
            case _:
                return Unknown(kind, options)

    def peek(self, uuid: str, index: str, key: str, at: str, time: str) -> Peek:
        """Return a peek as ``Peek p1 by_grp grp=a at 3`` says it."""
        assert at == "at"
        column, value = key.split("=")
        return Peek(uuid, self.export(index), packed(pa.table({column: pa.array([value], pa.string())})), int(time))

    def export(self, name: str) -> str:
        """Return the export of an index that was created last by this name; of anything else, what it is."""
        return self.indexes.get(name, name)

    def create(self, text: str) -> Create:
        """Return a creation as a text says it: ``name: what``, and just ``name`` what was said of it last.

        What: ``INDEX ON collection as_of=3``, ``SOURCE OF exports``, with ``ALONE`` if one replica may run it,
        ``SINK OF collection``, or a query, with ``EVERY milliseconds`` if it has a schedule, and ``INTO shard`` if that
        is not called as the view.
        """
        name, given, what = (each.strip() for each in text.partition(":"))
        what = self.created[name] = what if given else self.created[name]
        as_of = re.search(r" as_of=(\d+)", what)
        runnable = self.runnable(name, re.sub(r" as_of=\d+| ALONE", "", what))
        alone, exports = what.endswith(" ALONE"), exports_of(name, runnable)
        if isinstance(runnable, RunIndex):
            self.indexes[name] = exports[0]
        return Create(name, exports, runnable, int(as_of[1]) if as_of else None, alone=alone)

    def runnable(self, name: str, text: str) -> Runnable:
        """Return what is to run as ``name``."""
        kind, _, rest = text.partition(" ")
        match kind:
            case "INDEX":
                return RunIndex(self.collections[rest.removeprefix("ON ")], ("grp",))
            case "SOURCE":
                exports = rest.removeprefix("OF ").split(", ")
                schema = Schema((Column("id", "int"), Column("value", "bigint")))
                outputs = [Output(Collection(each, each, schema), each) for each in exports]
                self.collections |= {each.table: each.collection for each in outputs}
                return RunIngestion(name, tuple(outputs), "tide", {}, f"{name}-remap", f"{name}-progress")
            case "SINK":
                of = self.collections[rest.removeprefix("OF ")]
                spec = MaterializationSpec(name, (Binding(of.name, f"{name}-table", of.schema.names[:1], of.schema),))
                return RunMaterialization(spec, name, "memory", {}, (of,), continues=False)
            case _:
                return self.dataflow(name, text)

    def dataflow(self, name: str, text: str) -> RunDataflow:
        """Return a view by its query; the shards of its stages are called as it, with numbers."""
        text, _, shard = text.partition(" INTO ")
        query, _, every = text.partition(" EVERY ")
        planned = plan_view(query, {each: held.schema for each, held in self.collections.items()}, ListAnalyst())
        refresh = Refresh((Every(int(every)),), created=0) if every else None
        stages = split(planned, name, refresh)
        inputs = {each: self.collections[each] for each in planned.imports}
        output = self.collections[name] = Collection(name, shard or name, planned.schema)
        shards = {each.name: f"{name}.{number}" for number, each in enumerate(stages[:-1])}
        return RunDataflow(output, stages, shards, inputs, {}, frozenset(), refresh)


def expanded(text: str) -> list[str]:
    """Return the commands of a line: ``Begin v w`` is to schedule both and to let them write."""
    kind, *names = text.split()
    return [f"{each} {name}" for name in names for each in ("Schedule", "AllowWrites")] if kind == "Begin" else [text]


def response(said: Any) -> list[str]:
    """Return the lines that say a response; none for one of counters alone."""
    match said:
        case Welcome(incarnation):
            return [f"Welcome {incarnation}"]
        case Refused(kind, why):
            return [f"Refused {kind}: {why}"]
        case Reconciled(reused, replaced, dropped, created):
            counts = {"reused": reused, "replaced": replaced, "dropped": dropped, "created": created}
            return [f"Reconciled {_pairs({name: n for name, n in counts.items() if n})}".rstrip()]
        case Frontiers(writes, needs, advanced, gone):
            parts = [_pairs(_frontiers(writes)), f"needs {_pairs(_frontiers(needs))}" if needs else ""]
            parts.append("" if advanced is None else f"advanced {advanced}")
            parts.append(f"gone {' '.join(map(_short, gone))}" if gone else "")
            return [f"Frontiers {'; '.join(filter(None, parts))}"]
        case Status(problems, under_way, _):
            parts = [f"{name}: {why or 'fine'}" for name, why in sorted(problems.items())]
            parts += [f"{name} {'ended' if since is None else 'begun'}" for name, since in sorted(under_way.items())]
            return [f"Status {'; '.join(parts)}"] if parts else []
        case PeekResponse(uuid, rows, error, cancelled):
            shown = "cancelled" if cancelled else error
            return [f"PeekResponse {uuid} {_rows(rows) if rows is not None else shown}"]
        case _:
            return [repr(said)]


def _frontiers(given: Mapping[str, Frontier]) -> dict[str, str]:
    return {_short(name): "[]" if each.empty else str(each.at) for name, each in given.items()}


def _short(export: str) -> str:
    return export.split("/")[1] if export.startswith("index/") else export


def _pairs(given: Mapping[str, Any]) -> str:
    def shown(each: Any) -> str:
        return _pairs(each).replace("=", ":") if isinstance(each, dict) else str(each)

    return " ".join(f"{name}={shown(each)}" for name, each in sorted(given.items()))


def _rows(rows: bytes) -> str:
    found = [list(row.values()) for row in unpacked(rows).to_pylist()]
    return json.dumps(found) if len(found) <= SHOWN else f"{len(found)} rows"
