"""What Spark has answered once, it is not asked again; what follows from another authority is asked anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from strandline.algebra.scalar import Doubt, DoubtKind
from strandline.algebra.schema import Column, Schema
from strandline.compute.plan.scalars.remembered import SIZE_MAX, Answers, RememberedAnalyst
from strandline.errors import DefinitionError, Position, RepeatedColumn
from strandline.testing.lists.list_assembly import ListAnalyst

ORDERS = {"orders": Schema((Column("id", "bigint"), Column("price", "double")))}
SQL = "SELECT id FROM orders"


class Counting(ListAnalyst):
    """Counts what it is asked; ``refusal`` is what it raises instead of a schema."""

    def __init__(self, refusal: Exception | None = None, doubts: tuple[Doubt, ...] = ()) -> None:
        self.asked: Counter[str] = Counter()
        self.refusal = refusal
        self.found = doubts

    def schema_of(self, sql: str, relations: Mapping[str, Schema], *, ours: bool = False) -> Schema:
        self.asked["schema"] += 1
        if self.refusal is not None:
            raise self.refusal
        return super().schema_of(sql, relations, ours=ours)

    def doubts(self, sql: str, relations: Mapping[str, Schema], *, ordering: bool) -> tuple[Doubt, ...]:
        self.asked["doubts"] += 1
        return self.found

    def same(self, sql: str, other: str, relations: Mapping[str, Schema]) -> bool:
        self.asked["same"] += 1
        return super().same(sql, other, relations)

    def compared(self, left: str, right: str) -> str | None:
        self.asked["compared"] += 1
        return super().compared(left, right)


def ask(analyst: RememberedAnalyst) -> tuple[Any, ...]:
    """Ask everything once; an error counts as the answer that it is."""
    try:
        schema: Any = analyst.schema_of(SQL, ORDERS)
    except DefinitionError as error:
        schema = type(error), str(error), error.position
    return (
        schema,
        analyst.doubts(SQL, ORDERS, ordering=False),
        analyst.same(SQL, "SELECT  id FROM orders", ORDERS),
        analyst.same(SQL, "SELECT price FROM orders", ORDERS),
        analyst.compared("bigint", "bigint"),
        analyst.compared("bigint", "string"),
    )


def carried(answers: Answers, authority: str = "spark 4") -> Answers:
    """Return what another process knows that recalls what was encoded."""
    found, encoded = Answers(authority), answers.encode()
    assert encoded is not None
    found.recall(encoded)
    return found


def test_another_process_gives_the_same_answers_and_asks_nothing() -> None:
    """Damage: each restart waits for Spark to analyse every view, or gets another answer than Spark gave."""
    first, second, answers = Counting(), Counting(), Answers("spark 4")
    said = ask(RememberedAnalyst(first, answers))
    assert answers.learned
    assert first.asked == {"schema": 1, "doubts": 1, "same": 2, "compared": 2}
    again = carried(answers)
    assert ask(RememberedAnalyst(second, again)) == said
    assert not second.asked
    assert not again.learned, "nothing is written where nothing was learned"


@pytest.mark.parametrize("at", [None, Position(3, 7)])
def test_a_refusal_is_an_answer_with_its_place(at: Position | None) -> None:
    """Damage: a text that Spark refuses is asked about at every restart, or loses where it is wrong."""
    answers = Answers("spark 4")
    said = ask(RememberedAnalyst(Counting(DefinitionError("unknown column x", at)), answers))
    second = Counting()
    assert ask(RememberedAnalyst(second, carried(answers))) == said
    assert said[0] == (DefinitionError, str(DefinitionError("unknown column x", at)), at)
    assert not second.asked


def test_a_refusal_that_says_more_and_a_doubt_are_asked_anew() -> None:
    """Damage: the planner cannot say which output is called twice, or a query without one answer is accepted."""
    doubt = Doubt("user", DoubtKind.CALL)
    answers = Answers("spark 4")
    ask(RememberedAnalyst(Counting(RepeatedColumn("a", 1), (doubt,)), answers))
    second = Counting(RepeatedColumn("a", 1), (doubt,))
    remembered = RememberedAnalyst(second, carried(answers))
    with pytest.raises(RepeatedColumn):
        remembered.schema_of(SQL, ORDERS)
    assert remembered.doubts(SQL, ORDERS, ordering=False) == (doubt,)
    assert second.asked == {"schema": 1, "doubts": 1}


def test_other_columns_and_another_authority_are_other_questions() -> None:
    """Damage: a view keeps the type that a column had, or what an earlier Spark said."""
    answers, second = Answers("spark 4"), Counting()
    ask(RememberedAnalyst(Counting(), answers))
    analyst = RememberedAnalyst(second, carried(answers))
    changed = {"orders": Schema((Column("id", "string"), Column("price", "double")))}
    assert [c.type for c in analyst.schema_of(SQL, changed)] == ["string"]
    assert second.asked == {"schema": 1}
    other = Counting()
    ask(RememberedAnalyst(other, carried(answers, "spark 5")))
    assert other.asked == {"schema": 1, "doubts": 1, "same": 2, "compared": 2}


def test_only_what_was_asked_here_is_kept() -> None:
    """Damage: what is kept of views that are dropped long since grows for ever."""
    answers = Answers("spark 4")
    ask(RememberedAnalyst(Counting(), answers))
    later = carried(answers)
    RememberedAnalyst(Counting(), later).schema_of(SQL, ORDERS)
    last = Counting()
    ask(RememberedAnalyst(last, carried(later)))
    assert last.asked == {"doubts": 1, "same": 2, "compared": 2}


def test_what_cannot_be_read_or_is_too_large_is_not_remembered() -> None:
    """Damage: a register that another version wrote keeps an environment from opening."""
    answers = Answers("spark 4")
    for encoded in (b"", b"no answers", bytes(40)):
        answers.recall(encoded)
    analyst = Counting()
    ask(RememberedAnalyst(analyst, answers))
    assert analyst.asked.total() == 6
    assert not Answers().learned
    many, names = RememberedAnalyst(Counting(), large := Answers("spark 4")), range(SIZE_MAX // 16)
    for n in names:
        many.compared(f"type{n}", f"type{n}")
    assert large.encode() is None
