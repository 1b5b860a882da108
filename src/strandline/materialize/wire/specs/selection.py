"""Which fields of a collection a connector stores, and why.

A connector answers Validate with a constraint for each field.  All columns are stored, or the collection is not
materialized (`driver.require_all`).  The whole document is stored only where the connector asks for it: many rebuild
documents from their columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from strandline.errors import DefinitionError, ProtocolViolation
from strandline.materialize.driver import REFUSALS, Constraint, ConstraintKind, Validated
from strandline.materialize.protocol.task import Binding
from strandline.materialize.wire.codec.messages import Message
from strandline.materialize.wire.specs.collections import document_field, key_columns

_UNSATISFIABLE: Final = 7
_WANTED: Final = (
    ConstraintKind.FIELD_REQUIRED,
    ConstraintKind.LOCATION_REQUIRED,
    ConstraintKind.LOCATION_RECOMMENDED,
)


@dataclass(frozen=True, slots=True)
class Selection:
    """What one binding stores where: the connector's answer, and the fields chosen by it.

    ``document`` is empty if documents are not stored.  ``verdicts`` has an entry per column.  ``reasons`` says for each
    field, the document's too, whether it is stored and why.
    """

    resource_path: tuple[str, ...]
    keys: tuple[str, ...]
    values: tuple[str, ...]
    document: str
    verdicts: Mapping[str, Constraint]
    reasons: tuple[str, ...]

    @property
    def validated(self) -> Validated:
        """The verdicts as a driver returns them."""
        return Validated(self.verdicts, empties=False)  # it knows what was applied last, and not what was before that

    @property
    def fields(self) -> dict[str, Sequence[str] | str]:
        """The fields of the wire's FieldSelection."""
        return {"keys": self.keys, "values": self.values, "document": self.document}


def select(binding: Binding, answer: Message) -> Selection:
    """Return the fields that a binding stores, given the connector's answer about it.

    Raises:
        DefinitionError: the connector needs a field that there is not, or stores only changes, or only rows.
        ProtocolViolation: the answer names no resource, or a constraint that there is not.
    """
    if not answer.resource_path or not all(answer.resource_path):
        raise ProtocolViolation(f"{binding.collection!r}: the connector names no path of its resource")
    if answer.delta_updates != binding.delta:
        raise DefinitionError(_other_mode(binding))
    document = document_field(binding)
    said = {name: _constraint(name, each) for name, each in _constraints(answer).items()}
    verdicts = _distinct({c.name: said.get(c.name, _UNMENTIONED) for c in binding.columns}, _folded(answer))
    for name in sorted(said.keys() - verdicts.keys() - {document}):
        if said[name].kind is ConstraintKind.FIELD_REQUIRED:
            raise DefinitionError(
                f"{binding.collection!r} into {binding.resource!r}: the connector needs a column {name!r}, "
                f"which there is not: {said[name].reason}"
            )
    of_document = said.get(document, _UNMENTIONED)
    stored = of_document.kind in _WANTED
    keys = key_columns(binding)
    return Selection(
        tuple(answer.resource_path),
        keys,
        tuple(sorted(c.name for c in binding.columns if c.name not in keys)),
        document if stored else "",
        verdicts,
        (
            *(_why(name, each, stored=each.kind not in REFUSALS) for name, each in verdicts.items()),
            _why(document, of_document, stored=stored),
        ),
    )


_UNMENTIONED: Final = Constraint(ConstraintKind.FIELD_FORBIDDEN, "the connector does not mention it")


def _constraints(answer: Message) -> dict[str, Message]:
    """Return the constraints of an answer by field, whichever of the two ways it has them in."""
    return {**answer.constraints, **{each.field: each.constraint for each in answer.projection_constraints}}


def _constraint(name: str, message: Message) -> Constraint:
    number = ConstraintKind.INCOMPATIBLE if message.type == _UNSATISFIABLE else message.type
    try:
        return Constraint(ConstraintKind(number), message.reason)
    except ValueError as error:
        raise ProtocolViolation(f"field {name!r}: {message.type} is no constraint") from error


def _folded(answer: Message) -> dict[str, str]:
    """Return the names under which fields are stored, where they differ from the fields' own."""
    return {name: each.folded_field for name, each in _constraints(answer).items() if each.folded_field}


def _distinct(verdicts: dict[str, Constraint], folded: Mapping[str, str]) -> dict[str, Constraint]:
    """Return the verdicts; of two columns that are stored under one name, the second is forbidden."""
    found: dict[str, Constraint] = {}
    taken: dict[str, str] = {}
    for name, each in verdicts.items():
        stored = folded.get(name, name)
        found[name] = each
        if stored in taken:
            reason = f"it would be stored as {stored!r}, like column {taken[stored]!r}: rename one of them"
            found[name] = Constraint(ConstraintKind.FIELD_FORBIDDEN, reason)
        taken.setdefault(stored, name)
    return found


def _why(name: str, constraint: Constraint, *, stored: bool) -> str:
    because = f": {constraint.reason}" if constraint.reason else ""
    return f"{name!r} is {'stored' if stored else 'not stored'}, {constraint.kind.name}{because}"


def _other_mode(binding: Binding) -> str:
    head = f"{binding.collection!r} into {binding.resource!r}"
    if binding.delta:
        return f"{head}: the connector keeps rows by key, and cannot be given changes; materialize it without DELTA"
    return f"{head}: the connector only takes changes, and keeps no row by its key; materialize it as DELTA"
