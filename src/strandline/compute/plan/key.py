"""Keys: columns that identify the rows of a plan, where its shape shows them.

An endpoint needs one to update a row in place.  A key found here holds at every time; none found says nothing.
"""

from __future__ import annotations

from strandline.algebra.nodes import Filter, Join, Node, Opaque, Project, Reduce


def key(plan: Node) -> tuple[str, ...] | None:
    """Return columns of ``plan`` such that no two of its rows agree on all of them; None if none are known.

    The empty tuple is a key too: there is at most one row.

    >>> from strandline.algebra.nodes import Get
    >>> from strandline.algebra.scalar import scalar
    >>> reduced = Reduce(Get("t", (("a", "a"),)), (("k", scalar("`a`")),), ())
    >>> key(Project(reduced, (("x", scalar("`k`")), ("y", scalar("1")))))
    ('x',)
    """
    match plan:
        case Reduce(keys=keys):
            return tuple(name for name, _ in keys)
        case Filter(input=below):
            return key(below)
        case Opaque(picks=True, inputs=(only,)):
            found = key(only)
            return found if found is not None and set(found) <= set(plan.names) else None
        case Project(input=below, columns=columns):
            found = key(below)
            if found is None or any(value.generates for _, value in columns):
                return None
            passed = {value.column: name for name, value in reversed(columns)}
            return tuple(passed[k] for k in found) if all(k in passed for k in found) else None
        case Join(inputs=inputs):
            parts = [key(below) for below in inputs]
            return None if None in parts else tuple(name for part in parts for name in part or ())
        case _:
            return None
