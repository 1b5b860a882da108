"""A query that says its own time, and `errors(collection)` as a relation."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import strandline
from strandline.errors import AsOfError, DefinitionError, InvalidUsage, Position

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def env(spark, tmp_path_factory):
    """A table at three times, a view of it that fails for a row from the second on, and a view that does not."""
    with strandline.open(tmp_path_factory.mktemp("as_of").as_uri(), spark=spark) as env:
        env.execute("CREATE TABLE t (id INT, n INT) KEEP HISTORY FOR '1 hour'")
        env.execute("CREATE MATERIALIZED VIEW v KEEP HISTORY FOR '1 hour' AS SELECT id, 10 / n AS q FROM t")
        env.execute("CREATE MATERIALIZED VIEW w KEEP HISTORY FOR '1 hour' AS SELECT id FROM t")
        env.tick()
        env.commits, env.times = [], []
        for row in ((1, 5), (2, 0), (3, 0)):
            env.commits.append(env.insert("t", [dict(zip(("id", "n"), row, strict=True))]))
            env.times.append(env.tick())
        yield env


def ids(env, sql, as_of=None):
    """The answer's ids, and the time at which they are true."""
    table, time = env.answer(sql, as_of)
    return sorted(table["id"].to_pylist()), time


def test_a_query_is_answered_at_the_time_that_it_says(env):
    """Damage: what was true then is answered by what is true now."""
    first, second, _ = env.times
    assert ids(env, f"SELECT id FROM t AS OF {first}") == ([1], first)
    assert ids(env, f"SELECT t.id FROM t AS OF {second} t JOIN w ON t.id = w.id WHERE t.id > 0") == ([1, 2], second)
    assert ids(env, f"SELECT id FROM t AS OF {first} UNION ALL SELECT id FROM w AS OF {first}") == ([1, 1], first)
    moment = datetime.fromtimestamp(second / 1000, UTC).isoformat(timespec="milliseconds")
    assert ids(env, f"SELECT id FROM t AS OF TIMESTAMP '{moment}'") == ([1, 2], second)
    assert ids(env, f"SELECT id FROM t TIMESTAMP AS OF '{moment}'") == ([1, 2], second)
    assert [row.id for row in env.query(f"SELECT id FROM t AS OF {first}").collect()] == [1]
    assert env.answer("SELECT count(*) AS of FROM t")[0]["of"].to_pylist() == [3], "a column may be called so"


def test_a_time_that_cannot_be_is_refused_where_it_stands(env):
    """Damage: a statement reads two times that never were one; or an error points beside what is wrong."""
    first, second, third = env.times
    with pytest.raises(DefinitionError, match="another one than") as two:
        env.answer(f"SELECT id FROM t AS OF {first}\nUNION ALL SELECT id FROM w AS OF {second}")
    assert two.value.position == Position(2, 34)
    with pytest.raises(DefinitionError, match="'soon' is no time") as none:
        env.answer("SELECT id FROM t AS OF TIMESTAMP 'soon'")
    assert none.value.position == Position(1, 34)
    with pytest.raises(InvalidUsage, match=f"says AS OF {first}, and is asked for at {second}"):
        env.answer(f"SELECT id FROM t AS OF {first}", second)
    with pytest.raises(AsOfError):
        env.answer(f"SELECT id FROM t AS OF {third + 3_600_000}")
    with pytest.raises(DefinitionError) as behind:
        env.answer(f"SELECT id FROM t AS OF {first} WHERE nothing = 1")
    assert behind.value.position == Position(1, len(f"SELECT id FROM t AS OF {first} WHERE ") + 1)


def test_errors_are_rows(env):
    """Damage: which rows keep a view from its readers is known only from the first few, in a message."""
    found = env.query("SELECT reason, raw, since, count FROM errors(v) e ORDER BY raw").collect()
    assert [(row.raw, row.since, row["count"]) for row in found] == [
        ('{"id": 2, "n": 0}', env.commits[1], 1),
        ('{"id": 3, "n": 0}', env.commits[2], 1),
    ]
    assert all("has no value for the row" in row.reason for row in found)
    assert env.answer(f"SELECT count(*) AS n FROM errors(v) AS OF {env.times[1]}")[0]["n"].to_pylist() == [1]
    assert env.answer("SELECT * FROM w, errors(W)")[0].num_rows == 0
    with pytest.raises(DefinitionError, match="'vv'") as unknown:
        env.answer("SELECT * FROM errors(vv)")
    assert unknown.value.position == Position(1, 22)
