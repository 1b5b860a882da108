"""The contract of `Discovery`, as a test suite that every connector runs whose upstream can be made.

What is proposed runs as it is, and reads every row of what was looked at; what cannot be read is named with a reason.

Subclass it in a test module and give it fixtures: ``place``, an upstream with columns of every kind that it has, and
``env``, an environment in which the proposals are run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from strandline.client.environment import Environment
from strandline.controller.defining.proposals import Upstream, proposed
from strandline.controller.language.statements import CreateSource, CreateSourceTable, parse
from strandline.wiring.loop import at_once
from strandline.wiring.registry import READERS, discover

CANARY: Final = "canary-4711"
"""What a place may give as the text of a secret."""


@dataclass(frozen=True, slots=True)
class DiscoveryPlace:
    """An upstream, as the suite uses it.

    ``rows``: how many rows each thing has, by the name that upstream has for it; None: a note says why it is not read.
     ``types``: of each thing the types of some columns; None: the column is left out, and the note names it.
    """

    connector: str
    asked: Mapping[str, str]
    rows: Mapping[str, int | None]
    types: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)


class DiscoveryContract:
    """The tests for every connector that can say what there is to read."""

    def test_what_cannot_be_read_is_left_out_by_name(self, place: DiscoveryPlace) -> None:
        """Damage: a column is proposed as a type that reading refuses, or is missing without a word."""
        found = at_once(discover(place.connector, place.asked))
        assert {each.name for each in found} == set(place.rows)
        for each in found:
            assert bool(each.columns.columns) == (place.rows[each.name] is not None), each
            types = {column.name: column.type for column in each.columns}
            for column, kind in place.types.get(each.name, {}).items():
                assert types.get(column) == kind, (each.name, column)
                assert kind is not None or f"column {column!r}" in each.note

    def test_every_proposal_runs_and_reads_all_rows(self, place: DiscoveryPlace, env: Environment) -> None:
        """Damage: a person pastes a proposal, and it is refused, stops its source, or reads errors in place of rows."""
        found = at_once(discover(place.connector, place.asked))
        upstream = Upstream(place.connector, place.asked, READERS[place.connector].tables)
        texts = proposed(upstream, found, f"from_{place.connector}")
        assert not any(CANARY in text for text in texts)
        of = dict(zip((each.name for each in found), texts[-len(found) :], strict=True))
        for text in texts:
            if "CREATE" in text:
                env.execute(text)
        env.tick()
        assert env.status()["problems"] == {}
        read = {name: _rows(env, of[name]) for name, many in place.rows.items() if many is not None}
        assert read == {name: many for name, many in place.rows.items() if many is not None}


def _rows(env: Environment, text: str) -> int:
    """Return how many rows the collection of a statement has; errors would be raised."""
    statement = parse(text)
    assert isinstance(statement, CreateSource | CreateSourceTable)
    return env.collection(statement.name).snapshot().count()
