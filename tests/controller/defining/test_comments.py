"""What a definition says of a column is kept, shown and compared; what cannot be kept is refused."""

from __future__ import annotations

from typing import Any

import pytest
from promoted import Location, project

from strandline.controller.defining.apply import apply
from strandline.controller.defining.changing import tables
from strandline.controller.introspection.listed import listed
from strandline.controller.language.statements import parse
from strandline.controller.preparing.planned import planned
from strandline.errors import DefinitionError
from strandline.testing.simulation.kernel import run_sync

TEXT = r"""CREATE TABLE t (id INT COMMENT 'it\'s a \\ "key"', n INT)"""


def described(core: Any) -> list[tuple[str, str, str | None]]:
    """What DESCRIBE says."""
    answer: Any = parse("DESCRIBE t")
    return [tuple(row.values()) for row in listed(answer, core.catalog).to_pylist()]  # type: ignore[misc]


def test_a_comment_is_described_and_comes_back_as_it_was_written() -> None:
    """Damage: what a column means is lost without a word, and so from the next location made of SHOW CREATE."""
    process = Location().run({"t": TEXT})
    assert described(process.core) == [("id", "int", 'it\'s a \\ "key"'), ("n", "int", None)]
    shown: Any = parse("SHOW CREATE t")
    (row,) = listed(shown, process.core.catalog).to_pylist()
    again = Location().run({"t": row["statement"]})
    assert described(again.core) == described(process.core)


def test_a_project_that_says_something_else_changes_the_comment_alone() -> None:
    """Damage: a comment is never the one of the file again; or a table is made anew for it."""
    process = Location().run({"t": TEXT})
    other = project({"t": "CREATE TABLE t (ID INT, n INT COMMENT 'how many')"})
    changes = run_sync(planned(process.core, other, {})).changes
    assert [(each.what, each.why) for each in changes] == [("alter", "it gets no comment on id, n COMMENT 'how many'")]
    run_sync(apply(process.core, other))
    assert described(process.core) == [("id", "int", None), ("n", "int", "how many")]
    assert run_sync(planned(process.core, other, {})).changes == ()


def test_columns_that_come_later_bring_their_comments_and_leave_the_others() -> None:
    """Damage: the comment of an added column is lost, or those that are there."""
    process = Location().run({"t": TEXT})
    before = described(process.core)
    for text in ("ALTER TABLE t ADD COLUMN more INT COMMENT 'later'", "ALTER TABLE t SET KEEP HISTORY FOR '1 hour'"):
        statement: Any = parse(text)
        run_sync((tables.add_columns if "ADD" in text else tables.keep_history)(process.core, statement))
    assert described(process.core) == [*before, ("more", "int", "later")]


def test_a_comment_inside_a_type_is_refused_where_it_stands() -> None:
    """Damage: it is dropped without a word, since a part of a type has nowhere to keep it."""
    with pytest.raises(DefinitionError, match="COMMENT is not supported.*behind the column") as refused:
        parse("CREATE TABLE t (s STRUCT<a: INT COMMENT 'x'>)")
    assert refused.value.position is not None
    assert refused.value.position.column == 33
    assert parse("CREATE TABLE t (s STRUCT<comment: STRING>)")
