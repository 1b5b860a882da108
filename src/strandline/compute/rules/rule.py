"""Rule: how a stage that ends in a stateful node is maintained, and the sides of the inputs that it reads.

A rule takes plans (Δ, old, new of its inputs, and what is stored) and returns a plan; it never knows where rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from strandline.algebra.nodes import Get, Node
from strandline.algebra.schema import Column

_MARK: Final = ":"
_NUMBER: Final = "#"


class Phase(Enum):
    """A side of an input.

    A step over ``[lower, upper)`` sees each of its inputs as up to three frames: ``DELTA`` holds the updates of the
    window, ``OLD`` the contents before ``lower`` (their times advanced to ``lower``), ``NEW`` both.  So for each input
    new = old + Δ, as multisets of updates.  The stage's own stored output is one more input, of which only ``OLD`` is
    read.  In a stage's first step nothing is old, so Δ = new, and it is called ``NEW``.
    """

    DELTA = "delta"
    OLD = "old"
    NEW = "new"


def frame(name: str, phase: Phase) -> str:
    """Return how the frame of the collection ``name`` is called in a step plan.

    >>> frame("flights", Phase.OLD)
    'flights:old'
    """
    return f"{name}{_MARK}{phase.value}"


def source(frame_name: str) -> tuple[str, Phase]:
    """Return the collection and the phase that a step plan's frame stands for: the inverse of `frame`.

    >>> source("a:b:delta") == ("a:b", Phase.DELTA)
    True

    A number that tells look-ups of one side apart is passed over.

    >>> source("a#b:old#3") == ("a#b", Phase.OLD)
    True
    """
    name, _, phase = frame_name.rpartition(_MARK)
    return name, Phase(phase.partition(_NUMBER)[0])


@dataclass(frozen=True, slots=True)
class Window:
    """What is known of a step before it is planned.

    ``changed``: the inputs that have updates in the window (those of all others are known to be empty).  ``times``:
    the times that these updates may have, ascending; empty when they are not known.  ``first``: this is the stage's
    first step, so all its old sides are empty and ``times`` is not.  ``small``: the updates are few, so broadcast
    them.
    """

    changed: frozenset[str]
    times: tuple[int, ...]
    first: bool = False
    small: bool = True

    def __post_init__(self) -> None:
        if list(self.times) != sorted(set(self.times)):
            raise ValueError(f"times {self.times} are not strictly ascending")
        if self.first and not self.times:
            raise ValueError("the first step of a stage needs the time that it starts at")

    @property
    def start(self) -> int | None:
        """The time at which constants and global aggregates come to be, if that is in this window."""
        return self.times[0] if self.first else None


N = TypeVar("N", bound=Node)


def own_columns(node: Node, types: Mapping[str, str]) -> tuple[Column, ...]:
    """Return a node's own columns: what a rule keeps that stores the node's rows."""
    return tuple(Column(name, types[name]) for name in node.names)


def own_rows(node: Node, stage: str) -> Node:
    """Return the plan that reads a node's rows, as they are, from the collection ``stage``."""
    return Get.of(stage, node.names)


def own_names(node: Node) -> tuple[str, ...]:
    """Return the names of a node's own columns."""
    return node.names


def no_key(_: Node) -> tuple[str, ...]:
    """Say of every node that nothing looks up its rows by a key."""
    return ()


def no_reason(node: Node) -> None:
    """Say of every node that its rule is incremental."""


@dataclass(frozen=True, slots=True)
class Rule(Generic[N]):
    """One way to maintain a stage.  It is registered in `strandline.compute.rules.registry`.

    ``name`` begins the names of its internal stages; ``sentence`` says to people what a step does.

    ``takes``: whether it maintains a node.  ``updates``: the plan of the updates of what is stored in a window, or None
    if nothing can change; its second argument reads what was stored before the window.  ``described``: what the node
    computes, in the error of a stage that fails as a whole.

    What is stored are the node's rows as they are, or else: ``kept``, the columns that the stage stores for the node,
    given the types of the plan's columns; ``names``, their names; ``output``, the node's rows as a plan over the
    stage's collection, which is called by the second argument.  ``reason``: why nothing cheaper maintains the node, for
    people; None: the rule is incremental.  ``key``: the columns of ``names`` by which rules look up what is stored; it
    is sorted by them (none: by all columns).  ``reads_all``: its updates may read all rows of its inputs, so that what
    is joined for them is stored.
    """

    name: str
    sentence: str
    takes: Callable[[Node], bool]
    updates: Callable[[N, Node, Window], Node | None]
    described: Callable[[N], str]
    kept: Callable[[N, Mapping[str, str]], tuple[Column, ...]] = own_columns
    names: Callable[[N], tuple[str, ...]] = own_names
    output: Callable[[N, str], Node] = own_rows
    reason: Callable[[N], str | None] = no_reason
    key: Callable[[N], tuple[str, ...]] = no_key
    reads_all: bool = False
