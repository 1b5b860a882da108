"""`strandline status` and `strandline source skip`, on a source with records that cannot be decoded."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.spark


def test_the_operator_sees_what_could_not_be_decoded_and_what_to_do_and_does_it(place):
    """Damage: a bad record blocks readers, and the operator can neither find nor dismiss it."""
    path = place.root / "in" / "b.csv"
    place.write({"in/b.csv": "id,n\n2,20\nx,30\n"})
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert place.sql(
        f"CREATE SOURCE s (id INT, n INT) USING files OPTIONS (path '{path}', settle '0');"
        "CREATE MATERIALIZED VIEW v AS SELECT sum(n) AS n FROM s;"
    ).status == 0  # fmt: skip
    assert place.run("run", "--once").status == 0
    shown = place.run("status").out
    record = "b.csv, line 3: column `id`: 'x' is not a valid int"
    for name in ("s", "v"):
        assert f"{name}: {record}\n" in shown
        assert f"{name}: dismiss these records with `strandline source skip`, or take them back upstream if " in shown
    (status,) = place.run("status", "--json").documents
    errors = status["collections"]["s"]["errors"]
    assert (errors["rows"], errors["first"][0]["file"], errors["first"][0]["line"]) == (1, "b.csv", 3)
    refused = place.run("query", "SELECT * FROM v")
    assert refused.status == 1
    assert "dismiss these records with `strandline source skip`" in refused.err
    said = place.run("source", "skip", "s")
    since = errors["since"]
    assert said.out.splitlines() == [
        f"s has 1 undecodable record at {since}:",
        record,
        f"nothing is changed; `strandline source skip s --as-of {since} --apply` dismisses them",
    ]
    (done,) = place.run("source", "skip", "s", "--as-of", str(since), "--apply", "--json").documents
    assert (done["rows"], done["applied"], done["first"][0]["raw"]) == (1, True, "x,30")
    assert done["dismissed_at"] > since
    assert place.run("run", "--once").status == 0
    assert place.run("query", "SELECT * FROM v", "--json").documents[0]["rows"] == [{"n": 20}]
    assert "there is nothing to dismiss" in place.run("source", "skip", "s", "--apply").out


def test_a_source_that_stands_still_is_tried_again_at_once(place):
    """Damage: an operator who has mended something waits, and does not know whether it was that."""
    path = place.root / "in"
    path.mkdir()
    assert place.sql(f"CREATE SOURCE s (id INT) USING files OPTIONS (path '{path}/*.csv', settle '0')").status == 0
    path.rmdir()
    said = place.run("source", "retry", "s")
    assert (said.status, said.out.partition(":")[0]) == (1, "s was opened anew, and still has a problem")
    assert "does not exist" in said.out
    place.write({"in/a.csv": "id\n1\n"})
    assert place.run("source", "retry", "S", "--json").documents == [{"source": "s", "problem": None}]
    assert place.run("query", "SELECT * FROM s", "--json").documents[0]["rows"] == [{"id": 1}]
    refused = place.run("source", "retry", "t")
    assert (refused.status, refused.err) == (1, "strandline: there is no source 't'\n")
