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
        return "a partition was detached or dropped, and no change says which rows went with it"
    for column in note.columns:
        number, version = shape.columns.get(column.name, (0, 0))
        if not (column.number and number):
            continue  # it was not noted; or it is gone, which the next change says
        if number != column.number:
            return (
                f"column {column.name!r} was dropped or renamed, and another column has its name upstream now, and no "
                "change says what the other rows have in it"
            )
        if note.file and shape.file != note.file and version != column.version:
            return (
                f"column {column.name!r} was altered and the rows were rewritten (ALTER COLUMN … TYPE, for example), "
                "and no change says what they have now"
            )
    return ""


def unlike(part: str) -> str:
    """Return what to do about a partition whose replica identity is another than that of its table (`Published`)."""
    return (
        f"its partition {part} has another replica identity than the table, so changes may not say which row they are "
        f"about; first run ALTER TABLE {part} REPLICA IDENTITY … upstream, FULL or with the same columns as the table's"
    )


def shaped(note: TableNote, shape: Shape, flushed: int) -> TableNote:
    """Return the note of a table with its shape as it is.  While a column is gone, it stays as it was noted.

    ``flushed``: no change from before the look lies at or behind this position.
    """
    if any(column.name not in shape.columns for column in note.columns):
        return note
    columns = []
    for column in note.columns:
        number, version = shape.columns[column.name]
        columns.append(structs.replace(column, number=number, version=version))
    parts, others = (*sorted(shape.parts),), _others(note, shape, flushed)
    return structs.replace(
        note, columns=(*columns,), file=shape.file, parts=parts, others=others, highest=shape.highest
    )


def _others(note: TableNote, shape: Shape, flushed: int) -> tuple[OtherNote, ...]:
    """Return the columns that are not declared.  One that comes is blank unless a statement may have filled it.

    One that was there before the first note of others has values, as far as is known.  One that comes is in doubt if
    another column had its name since the last look: one that was noted, or one that came and went in between.  Numbers
    are given in turn, so one that nothing has now was such a column's.
    """
    there = {number for number, _ in shape.columns.values()}
    found = {
        other.number: other if other.number in there else structs.replace(other, version=0, blank=False)
        for other in note.others or ()
    }
    came = sum(number > note.highest for number in there)
    went = note.highest != 0 and shape.highest - note.highest != came
    named = {other.name for other in note.others or () if other.version}
    moved = note.file not in {0, shape.file}
    declared = {column.name for column in note.columns}
    for name, (number, version) in shape.columns.items():
        if name not in declared:
            late = note.others is not None
            doubt = flushed if late and (went or name in named) else 0
            blank = late and not doubt and name not in shape.filled
            before = found.get(number) or OtherNote(name, number, 0, late, blank, doubt)
            filled = moved and version != before.version  # by the statement that added it, or by one that altered it
            found[number] = structs.replace(before, name=name, version=version, blank=before.blank and not filled)
    return tuple(found[number] for number in sorted(found))
