"""Statements upstream by which rows change or go, of which no change is sent: how the catalog shows them.

A change names its columns by name and type alone, so a column that has the name of another, or the same type and other
values, reads as before.  The rows that are not changed afterwards would stay wrong.
"""

from __future__ import annotations

from msgspec import structs

from strandline.sources.readers.postgres.ledger import OtherNote, TableNote
from strandline.sources.readers.postgres.server import Shape


def rewritten(note: TableNote, shape: Shape) -> str:
    """Return why rows may have gone, or have other values in a declared column, without a change; empty: none has."""
    if not shape.parts.issuperset(note.parts):
        return "a partition was detached or dropped, and no change says which rows went with it:"
    for column in note.columns:
        number, version = shape.columns.get(column.name, (0, 0))
        if not (column.number and number):
            continue  # it was not noted; or it is gone, which the next change says
        if number != column.number:
            return (
                f"column {column.name!r} was dropped or renamed, and another column has its name upstream now, and no "
                "change says what the other rows have in it:"
            )
        if note.file and shape.file != note.file and version != column.version:
            return (
                f"column {column.name!r} was altered and the rows were rewritten (ALTER COLUMN … TYPE, for example), "
                "and no change says what they have now:"
            )
    return ""


def unlike(part: str) -> str:
    """Return what to do about a partition whose replica identity is another than that of its table (`Published`)."""
    return (
        f"its partition {part} has another replica identity than the table, so changes may not say which row they are "
        f"about: run ALTER TABLE {part} REPLICA IDENTITY … upstream, FULL or with the same columns as the table's"
    )


def shaped(note: TableNote, shape: Shape) -> TableNote:
    """Return the note of a table with its shape as it is.  While a column is gone, it stays as it was noted."""
    if any(column.name not in shape.columns for column in note.columns):
        return note
    columns = []
    for column in note.columns:
        number, version = shape.columns[column.name]
        columns.append(structs.replace(column, number=number, version=version))
    others = _others(note, shape)
    return structs.replace(note, columns=(*columns,), file=shape.file, parts=(*sorted(shape.parts),), others=others)


def _others(note: TableNote, shape: Shape) -> tuple[OtherNote, ...]:
    """Return the columns that are not declared.  One that comes is blank unless a statement may have filled it.

    One that was there before the first note of others has values, as far as is known.
    """
    there = {number for number, _ in shape.columns.values()}
    found = {
        other.number: structs.replace(other, blank=other.blank and other.number in there) for other in note.others or ()
    }
    moved = note.file not in {0, shape.file}
    declared = {column.name for column in note.columns}
    for name, (number, version) in shape.columns.items():
        if name not in declared:
            late = note.others is not None
            before = found.get(number) or OtherNote(name, number, 0, late, late and name not in shape.filled)
            filled = moved and version != before.version  # by the statement that added it, or by one that altered it
            found[number] = structs.replace(before, name=name, version=version, blank=before.blank and not filled)
    return tuple(found[number] for number in sorted(found))
