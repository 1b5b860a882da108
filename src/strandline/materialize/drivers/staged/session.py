"""The session of a driver whose commit is the runtime's log, and whose tables are brought to it afterwards.

    Flushed         names a fresh directory for the transaction; the log has it before the first Store
    Store           rows become files there, of bounded size, which nothing names
    StartedCommit   names the files, and the number that the transaction has at its table; the log's record of it is
                    the commit
    Acknowledge     applies what the state names (`applying`), and only then is answered.  The first one of a session
                    applies again what the state that it was opened with names, and removes what a transaction left
                    behind that was never committed

So a Load, which comes after Acknowledge, sees every committed transaction.  A session that was replaced can stage files
and never name them: its log refuses.  What it had named before, its successor applies too, and the table takes it once.

Laws: M2, M3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from strandline.errors import CorruptionError, DefinitionError, Unavailable
from strandline.materialize.driver import Answers
from strandline.materialize.drivers.staged.applying import (
    NOTHING_STAGED,
    STAGED_IN,
    STAGING,
    Applier,
    Entry,
    KeyIndex,
    Work,
    entries,
    keys_in,
    named,
    owner_of,
    staged_in,
    staging,
    writer_of,
)
from strandline.materialize.drivers.staged.stage import Stage, found, unstage
from strandline.materialize.drivers.staged.table import Lake, Shape, Table, aligned, arrow_schema, shape_of
from strandline.materialize.drivers.threads import to_its_end
from strandline.materialize.protocol.messages import (
    Acknowledge,
    Acknowledged,
    Conversation,
    Flush,
    Flushed,
    Load,
    Loaded,
    Open,
    Opened,
    Request,
    Response,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import Binding, Checkpoint, StateUpdate
from strandline.store.clock import Ids


class StagedSession:
    """One conversation with the tables of a lake."""

    def __init__(self, lake: Lake, ids: Ids) -> None:
        self._lake = lake
        self._ids = ids
        self._index = KeyIndex()
        self._applier = Applier(ids, self._index)
        self._said = Conversation()
        self._answers = Answers()
        self._opened: Open | None = None
        self._state: Any = {}
        self._directory = ""
        self._tables: dict[int, Table] = {}
        self._shapes: dict[int, Shape] = {}
        self._stages: dict[int, Stage] = {}

    async def send(self, message: Request) -> None:
        """Check and process a message."""
        self._said = self._said.then(message)
        match message:
            case Open(spec=spec, state=state):
                self._opened, self._state = message, state if isinstance(state, Mapping) else {}
                self._tables = {place: self._lake.table(each.resource) for place, each in enumerate(spec.bindings)}
                self._shapes = {place: self._lake.stored(shape_of(each)) for place, each in enumerate(spec.bindings)}
                self._answer(Opened(None))
            case Acknowledge():
                self._answer(Acknowledged(self._changed(await to_its_end(self._acknowledge))))
            case Load(place, keys):
                rows = await to_its_end(lambda: self._load(place, keys))
                if rows.num_rows:
                    self._answer(Loaded(place, rows))
            case Flush():
                self._directory = self._ids.fresh("stage")
                tables = [each.resource for each in self._open.spec.bindings]
                self._answer(Flushed(self._changed({STAGING: self._directory, STAGED_IN: tables})))
            case Store(place, rows):
                with self._staging():
                    await to_its_end(lambda: self._stage(place).add(rows))
            case StartCommit(checkpoint):
                with self._staging():
                    patch = await to_its_end(lambda: self._staged(checkpoint))
                self._answer(StartedCommit(self._changed(patch)))

    async def receive(self) -> Response:
        """Return the next answer."""
        return await self._answers.take()

    async def close(self) -> None:
        """Do nothing: what is staged and not committed, the next session removes."""

    def _answer(self, message: Response) -> None:
        self._said = self._said.then(message)
        self._answers.put(message)

    def _changed(self, patch: Mapping[str, Any]) -> StateUpdate | None:
        """Return the update that changes the state by a merge patch, if there is any change."""
        if not patch:
            return None
        update = StateUpdate(dict(patch), merge_patch=True)
        self._state = update.apply(self._state)
        return update

    @property
    def _open(self) -> Open:
        assert self._opened is not None, "the grammar lets nothing come before Open"
        return self._opened

    def _binding(self, place: int) -> tuple[Binding, Table, Shape]:
        return self._open.spec.bindings[place], self._tables[place], self._shapes[place]

    def _acknowledge(self) -> dict[str, Any]:
        """Apply what the state names; return the patch that says so."""
        patch: dict[str, Any] = {}
        for state_key, entry in entries(self._state):
            if entry.work is not None:
                self._applier.apply(self._table(entry.work), entry)
                patch[state_key] = {"work": None}
        left = staging(self._state)
        if left is not None:
            for table in self._tables.values():
                unstage(table, left)
            for resource in sorted(staged_in(self._state) - {each.resource for each in self._open.spec.bindings}):
                _unstage_left(self._lake.table(resource), left)
            patch |= NOTHING_STAGED
        return patch

    def _table(self, work: Work) -> Table:
        for place, binding in enumerate(self._open.spec.bindings):
            if binding.resource == work.resource:
                return self._tables[place]
        return self._lake.table(work.resource)

    def _load(self, place: int, keys: pa.Table) -> pa.Table:
        """Return the stored rows that have one of ``keys``, as the binding has them."""
        binding, table, shape = self._binding(place)
        seen = table.snapshot(self._writer(place))
        wanted = keys_in(binding.key, shape, keys)
        names = [column.name for column in binding.columns]
        schema = arrow_schema(shape_of(binding))
        rows = [schema.empty_table()]
        for piece in () if seen is None else seen.pieces:
            mask = self._index.having(table, piece, shape, wanted)
            if mask is not None:
                rows.append(aligned(found(table, piece, shape, names, mask), schema))
        return pa.concat_tables(rows)

    def _stage(self, place: int) -> Stage:
        if place not in self._stages:
            binding, table, shape = self._binding(place)
            self._stages[place] = Stage(table, binding, shape, self._directory, place)
        return self._stages[place]

    def _writer(self, place: int) -> str:
        return writer_of(self._open.spec.name, self._open.spec.bindings[place].state_key, self._open.range)

    @contextmanager
    def _staging(self) -> Iterator[None]:
        """Read a file that is gone while it is written as what it means: a later session removes what this stages."""
        try:
            yield
        except FileNotFoundError as error:
            raise Unavailable(f"{error.filename} was removed while it was staged: another session took over") from error

    def _staged(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Write what is left into files; return the patch that names all of them."""
        patch: dict[str, Any] = {**NOTHING_STAGED}
        known = dict(entries(self._state))
        for place, binding in enumerate(self._open.spec.bindings):
            stage, last = self._stages.get(place), known.get(binding.state_key)
            if stage is None and (last is not None or checkpoint.of(binding.state_key) is None):
                continue  # nothing of it changed, or it begins with a later transaction
            stage = self._stage(place)
            stage.end()
            patch[binding.state_key] = named(self._entry(place, stage, last, checkpoint))
        self._stages.clear()
        return patch

    def _entry(self, place: int, stage: Stage, last: Entry | None, checkpoint: Checkpoint) -> Entry:
        binding, table, _ = self._binding(place)
        writer, range_ = self._writer(place), self._open.range
        if last is not None and last.writer == writer:
            number = last.number
        else:  # the first one of this split: what it may have done before, under another log, only the table knows
            seen = table.snapshot(writer)
            number = 0 if seen is None else seen.reached
        work = Work(
            owner=owner_of(self._open.spec.name, binding.state_key),
            resource=binding.resource,
            key=binding.key,
            directory=self._directory,
            upto=checkpoint.of(binding.state_key) or 0,
            pieces=tuple(stage.pieces),
            keys=tuple(stage.keys),
            replaces=last is None,
            begin=range_.begin,
            end=range_.end,
        )
        return Entry(writer, number + 1, work)


def _unstage_left(table: Table, directory: str) -> None:
    """Remove what was staged for a table that no view fills any longer, if that is still a table as we know them."""
    with suppress(DefinitionError, CorruptionError):
        if table.snapshot("") is not None:
            unstage(table, directory)
