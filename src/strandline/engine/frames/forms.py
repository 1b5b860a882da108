"""Values of each type: what they become at rest and in a digest.

Each type of `algebra.types` answers three questions as text or plain data, with no JVM: how a value is *normalised*
before it is stored (−0.0 → 0.0, one NaN), how it is *hashed* into a digest, and which Arrow type carries it.

Two traps in Spark's ``xxhash64`` shape `hashed`: it skips NULLs and does not mark where an array ends, so nested values
are hashed with their null flags and sizes; and it hashes ``int`` 1 and ``bigint`` 1 differently, so numbers are hashed
in their widest form and a column may be widened without changing any digest.
"""

from __future__ import annotations

from typing import Final

from strandline.algebra.types import Array, Atom, Decimal, Struct, Type

_WIDEST: Final = {"tinyint": "bigint", "smallint": "bigint", "int": "bigint", "float": "double"}


def normalised(value: str, kind: Type, depth: int = 0) -> str:
    """Return SQL for ``value`` (SQL of type ``kind``) with −0.0 as 0.0 and one NaN, at any depth; all else as it is.

    >>> normalised("`a`", Atom("int"))
    '`a`'
    >>> normalised("`a`", Atom("double"))
    "CASE WHEN isnan(`a`) THEN double('NaN') WHEN `a` = 0 THEN double(0) ELSE `a` END"
    """
    match kind:
        case Atom("float" | "double" as name):
            return f"CASE WHEN isnan({value}) THEN {name}('NaN') WHEN {value} = 0 THEN {name}(0) ELSE {value} END"
        case Array(element) if has_floats(element):
            item = f"x{depth}"
            return f"transform({value}, {item} -> {normalised(item, element, depth + 1)})"
        case Struct(fields) if has_floats(kind):
            inner = ", ".join(
                f"{_literal(name)}, {normalised(_field(value, name), field, depth)}" for name, field in fields
            )
            return f"if({value} IS NULL, NULL, named_struct({inner}))"
        case _:
            return value


def hashed(value: str, kind: Type, depth: int = 0) -> str:
    """Return SQL whose ``xxhash64`` tells any two normalised values apart: wide numbers, null flags, sizes.

    >>> hashed("`a`", Atom("int")), hashed("`a`", Atom("string"))
    ('CAST(`a` AS bigint)', '`a`')
    """
    match kind:
        case Atom(name) if name in _WIDEST:
            return f"CAST({value} AS {_WIDEST[name]})"
        case Array(element):
            item = f"x{depth}"
            inner = f"struct({item} IS NULL, {hashed(item, element, depth + 1)})"
            return f"struct(size({value}), transform({value}, {item} -> {inner}))"
        case Struct(fields):
            flags = (
                f"{_field(value, name)} IS NULL, {hashed(_field(value, name), field, depth)}" for name, field in fields
            )
            return f"struct({', '.join(flags)})"
        case _:
            return value


def has_floats(kind: Type) -> bool:
    """Tell whether a value of this type can hold a float at any depth."""
    match kind:
        case Atom(name):
            return name in {"float", "double"}
        case Decimal():
            return False
        case Array(element):
            return has_floats(element)
        case Struct(fields):
            return any(has_floats(field) for _, field in fields)


def _field(value: str, name: str) -> str:
    """Return SQL for a field of the struct ``value``.

    Not with a dot: to Spark ``(t).id`` is the column ``id`` of a relation ``t``, if there is one, whatever stands in
    brackets.  A frame's columns keep the name that an author gave to their relation.
    """
    return f"{value}[{_literal(name)}]"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
