"""The verdicts of an endpoint that can only be pushed to."""

from __future__ import annotations

from strandline.algebra.schema import Column
from strandline.algebra.types import parse
from strandline.errors import DefinitionError
from strandline.materialize.driver import Constraint, ConstraintKind, Validated
from strandline.materialize.protocol.task import Binding


def push_only(binding: Binding, endpoint: str) -> Validated:
    """Return the verdict of ``endpoint`` (its name in a sentence): changes it takes, contents it cannot keep."""
    if binding.delta:
        return Validated({column.name: _pushed(binding, column) for column in binding.columns}, empties=False)
    refusal = Constraint(
        ConstraintKind.FIELD_FORBIDDEN,
        f"{endpoint} is pushed to and cannot be asked which rows it has; option delta = 'true' pushes the changes",
    )
    return Validated(dict.fromkeys(binding.schema.names, refusal))


def _pushed(binding: Binding, column: Column) -> Constraint:
    try:
        parse(column.name, column.type)
    except DefinitionError as error:
        return Constraint(ConstraintKind.INCOMPATIBLE, str(error))
    if column.name in binding.key:
        return Constraint(ConstraintKind.LOCATION_REQUIRED, "part of the key, pushed as JSON")
    return Constraint(ConstraintKind.FIELD_OPTIONAL, "pushed as JSON")
