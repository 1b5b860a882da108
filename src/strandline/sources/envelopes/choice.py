"""Which envelope a table's records take."""

from __future__ import annotations

from strandline.algebra.schema import Schema
from strandline.plane.enveloping import Enveloping
from strandline.sources.envelopes.append import Append
from strandline.sources.envelopes.envelope import Envelope, HeldState
from strandline.sources.envelopes.keyed import NewestByKey
from strandline.sources.envelopes.taken_back import Retracting
from strandline.sources.reader import Keyed, Plain, Records, TakenBack


def envelope_of(records: Records, schema: Schema, engine: Enveloping, held: HeldState) -> Envelope:
    """Return the envelope of ``records``, of ``schema``, whose updates so far are ``held``.

    Raises `DefinitionError` if they name a key that rows of ``schema`` cannot have.
    """
    match records:
        case Plain():
            return Append()
        case TakenBack():
            return Retracting(schema, engine, held)
        case Keyed(key):
            return NewestByKey(schema, key, engine, held)


def sort_of(records: Records) -> tuple[str, ...]:
    """Return the columns by which the batches of a table are to be sorted, so that its envelope finds rows.

    >>> sort_of(Keyed(("id",))), sort_of(Plain())
    (('id',), ())
    """
    return records.key if isinstance(records, Keyed) else ()
