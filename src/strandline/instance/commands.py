"""Commands: what a controller has an instance run, as values.

A command names everything that running an item takes: shards, schemas, plans, options.  So an instance needs no
catalog, and two commands are equal iff running the one is running the other.  The controller gives all of them again at
the first tick after the catalog has changed: the instance keeps what is commanded as it runs, and ends what is
commanded otherwise or not at all.  Every tick starts what does not run yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from strandline.algebra.schema import Schema
from strandline.compute.stage import Stage
from strandline.frontier import Refresh
from strandline.materialize.protocol.task import MaterializationSpec


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection that is written or read: its name in messages, its shard, and its columns.

    ``kept``: how long its history is kept, as its author wrote it, for messages alone.
    """

    name: str
    shard: str
    schema: Schema
    kept: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class RunTable:
    """Let a table be written to."""

    output: Collection


@dataclass(frozen=True, slots=True)
class Output:
    """A collection that a source feeds.

    ``table``: what upstream calls it, "" where the source is one collection.  ``errors_max``: with how many errors it
    may go on; None: with any number.  ``evolves``: it is to get the columns that its upstream gets.
    ``grown``: how many of its columns, the last ones, came after it was first read.
    """

    collection: Collection
    table: str = ""
    errors_max: int | None = None
    evolves: bool = False
    grown: int = 0

    @property
    def later(self) -> tuple[str, ...]:
        """The columns that came after it was first read."""
        names = self.collection.schema.names
        return names[len(names) - self.grown :]


@dataclass(frozen=True, slots=True)
class RunIngestion:
    """Keep collections equal to what a connector reads.  ``remap`` and ``progress`` are the reader's own shards.

    ``name``: of the source, in messages.  The outputs have tables of different names.  ``starts``: how often it was to
    be opened anew.  What runs by an earlier count is opened anew though all else is equal, since a reference among the
    options may lead to another password now.
    """

    name: str
    outputs: tuple[Output, ...]
    connector: str
    options: Mapping[str, str]
    remap: str
    progress: str
    starts: int = 0


@dataclass(frozen=True, slots=True)
class RunDataflow:
    """Maintain a view.

    ``stages``: inputs first; the last one writes the output.  ``shards``: of the others, by the stage's name.
    ``inputs``: the collections that the stages read, by the name that the stages know.  ``conf``: the settings that
    change answers.  ``forgiven``: the inputs whose errors are none of the view's.  ``refresh``: its schedule (None: it
    follows each time).  ``seed``: the shard in which what the output is to hold was prepared; empty: in none.
    ``fence``: how far beyond the instance's epoch the output is written: what runs a query of before is fenced there.
    ``begins``: no earlier time of the output is read; its history begins there if its inputs allow, else later.
    """

    output: Collection
    stages: tuple[Stage, ...]
    shards: Mapping[str, str]
    inputs: Mapping[str, Collection]
    conf: Mapping[str, str]
    forgiven: frozenset[str]
    refresh: Refresh | None = None
    seed: str = field(default="", compare=False)
    fence: int = 0
    begins: int = 0


@dataclass(frozen=True, slots=True)
class RunMaterialization:
    """Keep tables of an endpoint equal to collections.

    ``log`` is the key of its recovery log.  ``inputs`` are the collections that ``spec`` binds, in its order; what it
    binds beyond these are tables that are emptied.
    ``continues``: push the good rows of a collection that has errors.  ``every`` (milliseconds) and ``within``: see
    `materialize/schedule.py`.  ``trigger``: the URL that is called after transactions, or a reference to
    it; empty: none is.  ``fence``: how far beyond the instance's epoch its log is opened: what runs the task with a
    table that it has let go is fenced there.
    """

    spec: MaterializationSpec
    log: str
    endpoint: str
    options: Mapping[str, str]
    inputs: tuple[Collection, ...]
    continues: bool
    every: int = 0
    within: str = ""
    trigger: str = ""
    fence: int = 0


@dataclass(frozen=True, slots=True)
class RunIndex:
    """Keep a collection's contents in memory, arranged by ``key``, so that rows are found by it.

    ``forgiven``: errors of the collection keep nothing from being read.
    """

    of: Collection
    key: tuple[str, ...]
    forgiven: bool = False


@dataclass(frozen=True, slots=True)
class Advance:
    """Bring sources to ``time``: what is there now is bound to it.

    ``step``: what is bound is made durable, too.  ``wait``: for an upstream's answer, however long that takes.
    ``turn``: how often its sender has said this; a time may be commanded again, when more has come to it.  ``hurried``:
    materializations, by id, that come to a time as soon as they can, whatever their schedules say.
    """

    time: int
    step: bool = True
    wait: bool = False
    turn: int = 0
    hurried: Mapping[str, int] = field(default_factory=dict)


Command: TypeAlias = RunTable | RunIngestion | RunDataflow | RunMaterialization | RunIndex


def outputs_of(command: Command) -> tuple[Collection, ...]:
    """Return the collections that running ``command`` writes."""
    match command:
        case RunTable(output=output) | RunDataflow(output=output):
            return (output,)
        case RunIngestion(outputs=outputs):
            return tuple(each.collection for each in outputs)
        case RunMaterialization() | RunIndex():
            return ()


def inputs_of(command: Command) -> tuple[Collection, ...]:
    """Return the collections that running ``command`` reads; a table is read to change its rows."""
    match command:
        case RunDataflow(inputs=inputs):
            return tuple(inputs.values())
        case RunMaterialization(inputs=inputs):
            return inputs
        case RunTable(output=output) | RunIndex(of=output):
            return (output,)
        case RunIngestion():
            return ()


def shards_of(command: Command) -> frozenset[str]:
    """Return the shards that running ``command`` reads or writes."""
    found = {each.shard for each in (*inputs_of(command), *outputs_of(command))}
    match command:
        case RunDataflow(shards=internal, seed=seed):
            found |= {*internal.values(), *filter(None, (seed,))}
        case RunIngestion(remap=remap, progress=progress):
            found |= {remap, progress}
        case _:
            pass
    return frozenset(found)


def exports_of(name: str, command: Command) -> tuple[str, ...]:
    """Return what is reported of what runs ``command`` as ``name``: names that mean nothing else, now or later.

    That is the shards that it writes, since a name that is used again means another one; else the log of an endpoint.
    """
    match command:
        case RunMaterialization(log=log):
            return (log,)
        case RunIndex(of=of, key=key):
            return (f"index/{name}/{of.shard}/{','.join(key)}",)
        case _:
            return tuple(each.shard for each in outputs_of(command)) or (name,)
