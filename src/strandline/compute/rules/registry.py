"""Every maintenance rule, in the order of preference: the first that takes a node maintains it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from strandline.algebra.nodes import Node
from strandline.compute.rules import accumulate, keyed, recompute, regroup, top
from strandline.compute.rules.rule import Rule

RULES: Final[tuple[Rule[Any], ...]] = (accumulate.RULE, regroup.RULE, keyed.RULE, top.RULE, recompute.RULE)


NAMED: Final[Mapping[str, Rule[Any]]] = {rule.name: rule for rule in RULES}


def rule_of(node: Node) -> Rule[Any] | None:
    """Return the rule that maintains ``node`` as a stage of its own; None for a node that is part of any stage."""
    return next((rule for rule in RULES if rule.takes(node)), None)
