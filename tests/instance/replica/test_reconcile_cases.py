"""The cases of `tests/cases/command_history.json` about reconciliation, each as a script of the same name.

One case is none here: ``hydration_times_survive``, since a replica keeps no times of what it has begun.  That it runs
on, or is another process, shows in what was reused and in the incarnation.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.instance.replica.scripts import play

CASES = json.loads((Path(__file__).parents[2] / "cases" / "command_history.json").read_text())["reconcile"]


def test_every_case_has_a_script() -> None:
    """Damage: a known case of reconciliation is held by nothing."""
    scripts = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {case["name"] for case in CASES} - scripts == {"hydration_times_survive"}


def test_same_definition_reused() -> None:
    """Damage: a controller that comes back has every index read from its shard again."""
    play(
        """
        * items 1: +a,1..5000
        a> Hello 1
        a> CreateInstance
        a> Create by_grp: INDEX ON items as_of=0
        a> Begin by_grp
        a> InitializationComplete
        a> Advance 1 turn=1
        a< Welcome r1
        a< Reconciled created=1
        a< Frontiers by_grp=2; needs items=1; advanced 1
        * a is cut
        b> Hello 2
        b> CreateInstance
        b> Create by_grp
        b> Begin by_grp
        b> InitializationComplete
        b< Welcome r1
        b< Reconciled reused=1
        b< Frontiers by_grp=2; needs items=1

        b> Peek p by_grp grp=a at 1
        b< PeekResponse p 5000 rows
        """,
    )


def test_reuse_15() -> None:
    """Damage: a restart of the controller computes some kind of thing anew."""
    play(
        """
        * items 1: +a,5 +a,2 +b,3
        a> Hello 1
        a> CreateInstance
        a> Create v1: SELECT grp, amount FROM items WHERE amount > 1
        a> Create v2: SELECT grp, amount FROM v1 WHERE amount > 2
        a> Create v3: SELECT grp, count(*) AS n FROM v2 GROUP BY grp
        a> Create v4: SELECT grp, max(amount) AS top FROM items GROUP BY grp
        a> Create i1: INDEX ON items as_of=0
        a> Create i2: INDEX ON v1 as_of=0
        a> Create i3: INDEX ON v2 as_of=0
        a> Create r1: SELECT grp, amount FROM items EVERY 10
        a> Create r2: SELECT grp, amount FROM v1 EVERY 10
        a> Create r3: SELECT grp, n FROM v3 EVERY 10
        a> Create r4: SELECT grp, amount FROM r1 EVERY 10
        a> Create r5: SELECT grp, top FROM v4 EVERY 20
        a> Create r6: SELECT grp, amount FROM r4 EVERY 20
        a> Create w: SELECT grp, amount FROM r1
        a> Create i4: INDEX ON r1 as_of=0
        a> Begin v1 v2 v3 v4 i1 i2 i3 r1 r2 r3 r4 r5 r6 w i4
        a> InitializationComplete
        a> Advance 1 turn=1
        a< Welcome r1
        a< Reconciled created=15
        a< Frontiers i1=2 i2=2 i3=2 i4=10 r1=10 r2=10 r3=10 r4=10 r5=20 r6=20 v1=2 v2=2 v3=2 v4=2 w=2; needs
           items=0 r1=0 r2=1 r3=1 r4=0 r5=1 r6=0 v1=1 v2=1 v3=1 v3.0=1 v4=1 w=1; advanced 1
        * items 11: +b,9
        a> Advance 11 turn=2
        a< Frontiers i1=12 i2=12 i3=12 i4=20 r1=20 r2=20 r3=20 r4=20 v1=12 v2=12 v3=12 v4=12 w=12; needs
           items=1 r1=10 r2=10 r3=10 v1=10 v3=10 w=11; advanced 2
        * 10 s pass
        * a is cut
        b> Hello 2
        b> CreateInstance
        b> Create i4
        b> Create w
        b> Create r6
        b> Create r5
        b> Create r4
        b> Create r3
        b> Create r2
        b> Create r1
        b> Create i3
        b> Create i2
        b> Create i1
        b> Create v4
        b> Create v3
        b> Create v2
        b> Create v1
        b> Begin v1 v2 v3 v4 i1 i2 i3 r1 r2 r3 r4 r5 r6 w i4
        b> InitializationComplete
        b< Welcome r1
        b< Reconciled reused=15
        b< Frontiers i1=12 i2=12 i3=12 i4=20 r1=20 r2=20 r3=20 r4=20 r5=20 r6=20 v1=12 v2=12 v3=12 v4=12
           w=12; needs items=1 r1=10 r2=10 r3=10 r4=0 r5=1 r6=0 v1=10 v2=1 v3=10 v3.0=1 v4=1 w=11
        """,
    )


def test_replace_transitively() -> None:
    """Damage: what reads a collection is computed anew whenever anything that it does not read has changed."""
    play(
        """
        * items 1: +a,5
        a> Hello 1
        a> CreateInstance
        a> Create idx: INDEX ON items as_of=0
        a> Create v1: SELECT grp, amount FROM items WHERE amount > 1
        a> Create v2: SELECT grp, amount FROM v1 WHERE amount > 2
        a> Create v3: SELECT grp, amount FROM v2 WHERE amount > 3
        a> Create i1: INDEX ON v1 as_of=0
        a> Create i2: INDEX ON v2 as_of=0
        a> Create m: SELECT grp FROM items
        a> Begin idx v1 v2 v3 i1 i2 m
        a> InitializationComplete
        a> Advance 1 turn=1
        a< Welcome r1
        a< Reconciled created=7
        a< Frontiers i1=2 i2=2 idx=2 m=2 v1=2 v2=2 v3=2; needs items=1 m=1 v1=1 v2=1 v3=1; advanced 1
        * a is cut
        # The index is dropped.  No dataflow reads one.
        b> Hello 2
        b> CreateInstance
        b> Create v1
        b> Create v2
        b> Create v3
        b> Create i1
        b> Create i2
        b> Create m
        b> Begin v1 v2 v3 i1 i2 m
        b> InitializationComplete
        b< Welcome r1
        b< Reconciled dropped=1 reused=6
        b< Frontiers i1=2 i2=2 m=2 v1=2 v2=2 v3=2; needs items=1 m=1 v1=1 v2=1 v3=1
        * b is cut
        # The first view is another one: what reads it is replaced, and what reads that is not.
        c> Hello 3
        c> CreateInstance
        c> Create v1: SELECT grp, amount FROM items WHERE amount > 4 INTO v1-anew
        c> Create v2
        c> Create v3
        c> Create i1
        c> Create i2
        c> Create m
        c> Begin v1 v2 v3 i1 i2 m
        c> InitializationComplete
        c< Welcome r1
        c< Reconciled replaced=exports:2 imports:1 reused=3
        c< Frontiers i1=0 i2=2 m=2 v1-anew=0 v2=2 v3=2; needs items=0 m=1 v1-anew=0 v2=1 v3=1
        * items 2: +b,6
        c> Advance 2 turn=1
        c< Frontiers i1=3 i2=3 m=3 v1-anew=3 v2=3 v3=3; needs items=2 m=2 v1-anew=2 v2=2 v3=2; advanced 1
        ? v3 at 2: a,5; b,6
        """,
    )


def test_drop_while_disconnected() -> None:
    """Damage: what was dropped while the connection was cut runs for ever, or is reported."""
    play(
        """
        * items 1: +a,5
        a> Hello 1
        a> CreateInstance
        a> Create s: SOURCE OF s1, s2
        a> Create seen: SELECT id, value FROM s1
        a> Create large: SELECT grp, amount FROM items WHERE amount > 3
        a> Begin s seen large
        a> InitializationComplete
        a> Advance 1 turn=1
        a< Welcome r1
        a< Reconciled created=3
        a< Frontiers large=2 s1=2 s2=2 seen=2; needs items=1 large=1 s-remap=1 s1=1 seen=1; advanced 1
        * a is cut
        b> Hello 1
        b> CreateInstance
        b> InitializationComplete
        b< Welcome r1
        b< Reconciled dropped=3

        * items 2: +b,6
        b> Advance 2 turn=1
        b< Frontiers advanced 1
        """,
    )


def test_no_false_seal() -> None:
    """Damage: what reads a view that reconciliation dropped takes it for complete for ever."""
    play(
        """
        * items 1: +a,5
        a> Hello 1
        a> CreateInstance
        a> Create large: SELECT grp, amount FROM items WHERE amount > 3
        a> Begin large
        a> InitializationComplete
        a> Advance 1 turn=1
        a< Welcome r1
        a< Reconciled created=1
        a< Frontiers large=2; needs items=1 large=1; advanced 1
        * a is cut
        b> Hello 2
        b> CreateInstance
        b> Create other: SELECT grp FROM items
        b> Begin other
        b> InitializationComplete
        b< Welcome r1
        b< Reconciled created=1 dropped=1
        b< Frontiers other=0; needs items=0 other=0
        * items 2: +b,6
        b> Advance 2 turn=1
        b< Frontiers other=3; needs items=2 other=2; advanced 1
        """,
    )


def test_storage_stale() -> None:
    """Damage: a source that was dropped binds times; or what it had reached is believed of its successor."""
    play(
        """
        * items 1: +a,5
        a> Hello 1
        a> CreateInstance
        a> Create s: SOURCE OF s1, s2
        a> Create t: SOURCE OF t1
        a> Create large: SELECT grp, amount FROM items WHERE amount > 3
        a> Create out: SINK OF large
        a> Begin s t large out
        a> InitializationComplete
        a> Advance 1 turn=1
        a< Welcome r1
        a< Reconciled created=4
        a< Frontiers large=2 out=2 s1=2 s2=2 t1=2; needs items=1 large=1 s-remap=1 t-remap=1; advanced 1
        ? out: a,5
        * a is cut
        b> Hello 1
        b> CreateInstance
        b> Create s: SOURCE OF s1
        b> Create large
        b> Create out
        b> Begin large out
        b> InitializationComplete
        b< Welcome r1
        b< Reconciled dropped=1 replaced=exports:1 reused=2
        b< Frontiers large=2 out=2; needs items=1 large=1
        * items 2: +b,6
        b> Advance 2 turn=1
        b< Frontiers large=3 out=3; needs items=2 large=2; advanced 1

        b> Begin s
        b> Advance 2 turn=2
        b< Frontiers s1=3; needs s-remap=2; advanced 2
        ? out: a,5; b,6
        """,
    )
