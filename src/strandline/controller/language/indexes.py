"""Indexes as statements: which collections are kept in memory, and by which columns rows are found in them.

``CREATE INDEX [IF NOT EXISTS] name ON collection (columns) [IN INSTANCE name]``
"""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.controller.language import clauses
from strandline.controller.language.cursor import Cursor
from strandline.controller.language.placed import Placed
from strandline.errors import Position


@dataclass(frozen=True, slots=True)
class CreateIndex(Placed):
    """CREATE INDEX: ``columns`` of ``collection``, each of which stands at its place in ``columns_at``.

    ``instance``: the one whose replicas hold it; empty: the process of the environment does.
    """

    name: str
    collection: str
    columns: tuple[str, ...]
    instance: str = ""
    if_not_exists: bool = False
    collection_at: Position | None = field(default=None, compare=False, repr=False)
    columns_at: tuple[Position, ...] = field(default=(), compare=False, repr=False)
    instance_at: Position | None = field(default=None, compare=False, repr=False)


def create(cursor: Cursor, *, quiet: bool) -> CreateIndex:
    """Take what comes behind CREATE INDEX."""
    at, name = cursor.position, cursor.only_name()
    cursor.take("ON")
    collection_at, collection = cursor.position, cursor.only_name("a collection")
    columns = cursor.names()
    instance, instance_at = clauses.instance(cursor)
    return CreateIndex(
        name,
        collection,
        tuple(column for column, _ in columns),
        instance,
        quiet,
        collection_at,
        tuple(column_at for _, column_at in columns),
        instance_at,
        at=at,
    )
