"""Rule: how a stage that ends in a stateful node is maintained.

A rule takes plans (Δ, old, new of its inputs, and what is stored) and returns a plan; it never knows where rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from strandline.algebra.nodes import Get, Node
from strandline.algebra.schema import Column
from strandline.compute.rules.phase import Window

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
