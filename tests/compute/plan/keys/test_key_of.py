"""A name that means something else to Spark than it seems to makes no key."""

from __future__ import annotations

from typing import Final

import pytest

from strandline.algebra.nodes import Get, Key, Opaque
from strandline.compute.plan.keys import key_of

T: Final = Get("t", tuple((name, name) for name in ("k", "j", "col", "arr")))
U: Final = Get("u", tuple((name, name) for name in ("k", "x", "arr", "t")))

FALSE: Final = {
    "a column that a function makes and names itself": "SELECT t.col, l.n FROM t, "
    "LATERAL (SELECT count(*) AS n FROM u LATERAL VIEW explode(u.arr) e WHERE u.k = col) l",
    "an output that Spark names": "SELECT t.col, l.n FROM t, LATERAL (SELECT count(*) AS n "
    "FROM (SELECT explode(u.arr), u.k AS uk FROM u) s WHERE s.uk = col) l",
    "a field of a column that is called like a relation around": "SELECT t.k, l.n FROM t, "
    "LATERAL (SELECT count(*) AS n FROM u WHERE u.k = t.k) l",
    "an output that is called like a column": "SELECT t.k AS a, max(t.j) AS k FROM t GROUP BY t.k "
    "HAVING (SELECT count(*) FROM u WHERE u.x = k) > 0",
    "one name for two columns": "SELECT s.k FROM (SELECT k, j AS k FROM t) s JOIN u ON s.k = u.x",
}


def asked(sql: str) -> Opaque:
    """Return a query over `t` and `u` as a node that shows its first output."""
    return Opaque((T, U), ("t", "u"), sql, ("a", "b"), "")


@pytest.mark.parametrize("sql", FALSE.values(), ids=FALSE.keys())
def test_a_name_of_two_meanings_makes_no_key(sql: str) -> None:
    """Damage: the rows of one key are computed again, and those of others, which changed as well, are not."""
    assert key_of(asked(sql)) is None


def test_a_name_that_has_one_meaning_makes_a_key() -> None:
    """Damage: what falls into parts is computed as a whole."""
    inner = "SELECT count(*) AS n FROM u LATERAL VIEW explode(u.arr) e AS w WHERE u.x = j"
    assert key_of(asked(f"SELECT t.j, l.n FROM t, LATERAL ({inner}) l")) == Key((("j",), ("x",)), ("a",))


def test_what_is_among_the_rows_of_a_query_in_from_has_a_key() -> None:
    """Damage: a SELECT around another, as a program writes it, is computed as a whole."""
    among = "SELECT t.k, t.j FROM t WHERE t.k IN (SELECT s.x FROM (SELECT u.x FROM u) s)"
    query = Opaque((T, U), ("t", "u"), among, ("k", "j"), "")
    assert key_of(query) == Key((("k",), ("x",)), ("k",))


def test_the_star_of_a_relation_is_its_columns_alone() -> None:
    """Damage: an output is taken for the column beside it, and the rows of other keys are computed again."""
    inner = "SELECT count(*) AS n FROM u LATERAL VIEW explode(u.arr) e AS w WHERE u.x = j"
    query = Opaque((T, U), ("t", "u"), f"SELECT l.*, t.j FROM t, LATERAL ({inner}) l", ("n", "j"), "")
    assert key_of(query) == Key((("j",), ("x",)), ("j",))
