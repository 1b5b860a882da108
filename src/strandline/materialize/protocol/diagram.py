"""The page docs/materialize-protocol.md, printed from the transition table.

After a change of the table, print it again (a test compares):

    python -m strandline.materialize.protocol.diagram > docs/materialize-protocol.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from strandline.materialize.protocol.fsm import RULES, Rule
from strandline.materialize.protocol.states import HEADS, TAIL_EVENTS, TAILS

_HEADER = """# The runtime's side of a materialization

Printed from `materialize.protocol.fsm.RULES` by `python -m strandline.materialize.protocol.diagram`; do not edit.

Two machines walk side by side: the *head* takes a transaction from reading its changes to the commit of the recovery
log, the *tail* sees the previous transaction acknowledged. An event that has no row below, in the state it comes in, is
a `ProtocolViolation`.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_HEADER, *_machine("Head", HEADS), *_machine("Tail", TAILS)]) + "\n"


def _machine(title: str, states: Sequence[type[Any]]) -> Iterator[str]:
    rules = [rule for rule in RULES if rule.state in states]
    yield f"## {title}"
    yield ""
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {states[0].__name__}"
    for rule in rules:
        for target in _targets(rule) or (rule.state,):
            yield f"    {rule.state.__name__} --> {target.__name__}: {rule.event.__name__}"
    for rule in RULES:
        if rule.beside is not None and rule.beside in states:
            for target in _others(rule):
                yield f"    {rule.beside.__name__} --> {target.__name__}: {rule.event.__name__}"
    yield "```"
    yield ""
    yield "| in | comes | then | the other machine | does | because |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for rule in rules:
        cells = (_names(_targets(rule) or (rule.state,)), _names(_others(rule)), _names(rule.actions))
        yield f"| {rule.state.__name__} | {rule.event.__name__} | {' | '.join(cells)} | {rule.why} |"
    yield ""


def _targets(rule: Rule) -> tuple[type[Any], ...]:
    return rule.tail if rule.event in TAIL_EVENTS else rule.head


def _others(rule: Rule) -> tuple[type[Any], ...]:
    return rule.head if rule.event in TAIL_EVENTS else rule.tail


def _names(types: Sequence[type[Any]]) -> str:
    return " or ".join(each.__name__ for each in types)


if __name__ == "__main__":
    sys.stdout.write(page())
