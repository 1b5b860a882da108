"""What a replica answers, word for word: each script is a conversation, and names the damage if it went otherwise."""

from __future__ import annotations

from typing import Final

from tests.instance.replica.scripts import play

RUNNING: Final = """
* items 1: +a,5 +b,3
a> Hello 1
a> CreateInstance
a> UpdateConfiguration heavy_lanes=2
a> Create large: SELECT grp, amount FROM items WHERE amount > 3
a> Begin large
a> InitializationComplete
a> Advance 1 turn=1
a< Welcome r1
a< Reconciled created=1
a< Frontiers large=2; needs items=1 large=1; advanced 1
? large at 1: a,5
"""


def test_a_changed_plan_replaces_the_view() -> None:
    """Damage: a view that was changed goes on as it was, or leaves rows of its old query behind."""
    play(
        RUNNING,
        """
        * a is cut
        b> Hello 2
        b> CreateInstance
        b> Create large: SELECT grp, amount FROM items WHERE amount > 2
        b> Begin large
        b> InitializationComplete
        b< Welcome r1
        b< Reconciled replaced=plan:1
        b< Frontiers large=2; needs items=1 large=1
        * items 2: +c,4
        b> Advance 2 turn=1
        b< Frontiers large=3; needs items=2 large=2; advanced 1
        ? large at 2: a,5; b,3; c,4
        """,
    )


def test_changed_imports_replace_the_view() -> None:
    """Damage: a view goes on with the collection that had its input's name before."""
    play(
        RUNNING,
        """
        * others 1: +x,9
        * a is cut
        b> Hello 2
        b> CreateInstance
        b> Create large: SELECT grp, amount FROM others WHERE amount > 3
        b> Begin large
        b> InitializationComplete
        b< Welcome r1
        b< Reconciled replaced=imports:1
        b< Frontiers large=2; needs large=1 others=1
        * others 2:
        b> Advance 2 turn=1
        b< Frontiers large=3; needs large=2 others=2; advanced 1
        ? large at 2: x,9
        """,
    )


def test_an_index_is_replaced_whose_as_of_is_ahead() -> None:
    """Damage: an index is kept that knows nothing of times that are asked for; or one is made anew for nothing."""
    play(
        """
        * items 7: +a,5
        a> Hello 1
        a> CreateInstance
        a> Create by_grp: INDEX ON items as_of=5
        a> Begin by_grp
        a> InitializationComplete
        a> Advance 7 turn=1
        a< Welcome r1
        a< Reconciled created=1
        a< Frontiers by_grp=8; needs items=7; advanced 1
        * a is cut
        b> Hello 2
        b> CreateInstance
        b> Create by_grp: INDEX ON items as_of=7
        b> Begin by_grp
        b> InitializationComplete
        b< Welcome r1
        b< Reconciled reused=1
        b< Frontiers by_grp=8; needs items=7

        b> Peek p by_grp grp=a at 7
        b< PeekResponse p [["a", 5]]
        * b is cut
        c> Hello 3
        c> CreateInstance
        c> Create by_grp: INDEX ON items as_of=5
        c> Begin by_grp
        c> InitializationComplete
        c< Welcome r1
        c< Reconciled replaced=as_of:1
        c< Frontiers by_grp=0; needs items=[]

        c> Advance 7 turn=1
        c< Frontiers by_grp=8; needs items=7; advanced 1

        c> Peek q by_grp grp=a at 7
        c< PeekResponse q [["a", 5]]
        """,
    )


def test_what_has_several_exports_ends_with_the_last_of_them() -> None:
    """Damage: a source of several tables ends with the first of them, or goes on for none."""
    play(
        """
        a> Hello 1
        a> CreateInstance
        a> Create s: SOURCE OF s1, s2
        a> Begin s
        a> InitializationComplete
        a< Welcome r1
        a< Reconciled created=1
        a< Frontiers s1=0 s2=0; needs s-remap=0

        a> Advance 1 turn=1
        a< Frontiers s1=2 s2=2; needs s-remap=1; advanced 1

        a> AllowCompaction s1 []
        a> Advance 2 turn=2
        a< Frontiers s1=3 s2=3; needs s-remap=2; advanced 2
        ? s1 at 2: 0,0; 1,1
        a> AllowCompaction s2 []
        a< Frontiers needs s-remap=[]; gone s1 s2

        a> Advance 3 turn=3
        a< Frontiers advanced 3
        """,
    )


def test_an_index_that_is_gone_answers_nothing() -> None:
    """Damage: an index that was dropped answers, or takes the view along."""
    play(
        RUNNING,
        """
        a> Create by_grp: INDEX ON large as_of=1
        a> Begin by_grp
        a< Frontiers by_grp=2

        a> Advance 1 turn=2
        a< Frontiers advanced 2

        a> Peek p by_grp grp=a at 1
        a< PeekResponse p [["a", 5]]

        a> AllowCompaction by_grp []
        a< Frontiers gone by_grp

        a> Peek q by_grp grp=a at 1
        a< PeekResponse q the index does not run here yet
        * items 2:
        a> Advance 2 turn=3
        a< Frontiers large=3; advanced 3
        """,
    )


def test_compaction_to_empty_ends_a_view_and_says_that_it_is_gone() -> None:
    """Damage: a view that was dropped goes on, is said to be complete for ever, or keeps its inputs' past."""
    play(
        RUNNING,
        """
        * items 2: +c,9
        a> AllowCompaction large []
        a> Advance 2 turn=2
        a< Frontiers needs items=[] large=[]; advanced 2; gone large
        """,
    )


def test_a_double_create_changes_nothing_and_another_one_begins_anew() -> None:
    """Damage: saying it twice computes a view anew; or a changed view begins before it is scheduled."""
    play(
        RUNNING,
        """
        a> Create large
        a> Begin large
        * items 2: +c,9
        a> Advance 2 turn=2
        a< Frontiers large=3; needs items=2 large=2; advanced 2

        a> Create large: SELECT grp, amount FROM items WHERE amount > 2
        a< Frontiers needs items=[] large=[]; gone large
        * items 3: +d,9
        a> Advance 3 turn=3
        a< Frontiers advanced 3

        a> Begin large
        a> Advance 3 turn=4
        a< Frontiers large=4; needs items=3 large=3; advanced 4
        ? large at 3: a,5; b,3; c,9; d,9
        """,
    )


def test_what_is_stopped_and_started_again_is_opened_anew_even_if_both_are_heard_at_once() -> None:
    """Damage: a source that is retried, or has a new password, goes on with the reader that is stuck."""
    play(
        """
        * items 1: +a,5
        a> Hello 1
        a> CreateInstance
        a> Create by_grp: INDEX ON items as_of=1
        a> Begin by_grp
        a> InitializationComplete
        a> Advance 1 turn=1
        a< Welcome r1
        a< Reconciled created=1
        a< Frontiers by_grp=2; needs items=1; advanced 1
        * a is cut
        b> Hello 1
        b> CreateInstance
        b> Create by_grp
        b> Begin by_grp
        b> InitializationComplete
        b< Welcome r1
        b< Reconciled reused=1
        b< Frontiers by_grp=2; needs items=1

        # Nothing is brought to a time before the next Advance: so it shows that the index holds nothing yet.
        b> AllowCompaction by_grp []
        b> Create by_grp
        b> Begin by_grp
        b< Frontiers by_grp=0; needs items=[]

        b> Advance 1 turn=1
        b< Frontiers by_grp=2; needs items=1; advanced 1

        b> Peek p by_grp grp=a at 1
        b< PeekResponse p [["a", 5]]
        """,
    )


def test_an_unknown_id_costs_nothing() -> None:
    """Damage: a command that came late ends the replica; or it counts for what is created later."""
    play(
        RUNNING,
        """
        a> Begin nothing
        a> AllowCompaction nothing []
        a> AllowCompaction nothing 7
        a> CancelPeeks nothing
        a> Peek p nothing grp=a at 1
        a> Create nothing: SELECT grp FROM items
        a< PeekResponse p the index does not run here yet
        * items 2:
        a> Advance 2 turn=2
        a< Frontiers large=3; advanced 2
        """,
    )


def test_a_cancelled_peek_is_answered_once() -> None:
    """Damage: a peek is answered twice, or never."""
    play(
        RUNNING,
        """
        a> Create by_grp: INDEX ON items as_of=1
        a> Begin by_grp
        a> Advance 1 turn=2
        a< Frontiers by_grp=2; advanced 2
        * peeks wait
        a> Peek p by_grp grp=a at 1
        a> Peek q by_grp grp=b at 1
        a> CancelPeeks p
        a< PeekResponse p cancelled
        * peeks go on
        a< PeekResponse q [["b", 3]]
        a> CancelPeeks p q
        a> Peek late by_grp grp=a at 99
        a> CancelPeeks late
        a< PeekResponse late cancelled
        """,
    )


def test_an_unknown_command_is_refused_by_its_name() -> None:
    """Damage: a newer controller cannot use an older replica at all."""
    play(
        RUNNING,
        """
        a> Dance steps=3
        a> Welcome r9
        a< Refused Dance: this version of the replica does not know this command
        a< Refused Welcome: this version of the replica does not know this command
        * items 2: +c,9
        a> Advance 2 turn=2
        a< Frontiers large=3; needs items=2 large=2; advanced 2
        ? large at 2: a,5; c,9
        """,
    )


def test_unknown_fields_are_skipped() -> None:
    """Damage: an older replica refuses commands for a field that a newer controller has added."""
    play(
        """
        a> Hello 1 +colour=red
        a> CreateInstance +colour=red
        a> Create large: SELECT grp, amount FROM items WHERE amount > 3 +colour=red
        a> Schedule large +colour=red
        a> AllowWrites large +colour=red
        a> InitializationComplete +colour=red
        a< Welcome r1
        a< Reconciled created=1
        a< Frontiers large=0; needs items=0 large=0
        * items 1: +a,5
        a> Advance 1 turn=1 +colour=red
        a< Frontiers large=2; needs items=1 large=1; advanced 1
        """,
    )


def test_another_format_ends_the_connection_and_says_why() -> None:
    """Damage: a command that means something else by now is obeyed; or it stays unknown why a connection ended."""
    play(
        RUNNING,
        """
        a> format=3 Schedule large
        b> format=3 Hello 2
        c> format=0 Hello 2
        d> noise
        e> Hello 1
        a< Refused Hello: the other end of the connection speaks format 3 of the protocol, this end format
           2: this process runs an older version of strandline, upgrade it
        a< (closed)
        b< Refused Hello: the other end of the connection speaks format 3 of the protocol, this end format
           2: this process runs an older version of strandline, upgrade it
        b< (closed)
        c< Refused Hello: the other end of the connection speaks format 0 of the protocol, this end format
           2: the other process runs an older version of strandline, upgrade it
        c< (closed)
        d< Refused Hello: a frame of 5 bytes is no message: DecodeError: MessagePack data is malformed:
           trailing characters (byte 1)
        d< (closed)
        e< Welcome r1
        """,
    )


def test_a_stale_controller_is_not_obeyed() -> None:
    """Damage: a controller that was succeeded drops what its successor runs."""
    play(
        RUNNING,
        """
        b> Hello 2
        c> Hello 1
        a> AllowCompaction large []
        b> CreateInstance
        b> Create large
        b> Begin large
        b> InitializationComplete
        a< (closed)
        b< Welcome r1
        b< Reconciled reused=1
        b< Frontiers large=2; needs items=1 large=1
        c< Refused Hello: controller generation 1 was succeeded by generation 2
        c< (closed)
        * items 2:
        b> Advance 2 turn=1
        b< Frontiers large=3; advanced 1
        """,
    )


def test_writes_of_a_lower_epoch_are_over() -> None:
    """Damage: after a promotion a replica writes under the epoch that is over; or the old controller gets it back."""
    play(
        RUNNING,
        """
        b> Hello 2 writes=3
        b> CreateInstance
        b> Create large
        b> Begin large
        b> InitializationComplete
        b< Welcome r1
        b< Reconciled replaced=epoch:1
        b< Frontiers large=2; needs items=1 large=1
        * items 2: +c,9
        b> Advance 2 turn=1
        c> Hello 3 writes=2
        b< Frontiers large=3; needs items=2 large=2; advanced 1
        c< Refused Hello: writes of epoch 2 are over: epoch 3 has begun
        c< (closed)
        ? large at 2: a,5; c,9
        b> Advance 2 turn=2
        b< Frontiers advanced 2
        """,
    )


def test_a_controller_of_another_location_is_refused() -> None:
    """Damage: a controller of other data commands the replica, or its generation counts here."""
    play(
        RUNNING,
        """
        b> Hello 9 location=there
        c> Hello 1
        b< Refused Hello: this replica is of location here, and the controller of there
        b< (closed)
        c< Welcome r1
        """,
    )


def test_a_second_connection_of_one_controller_takes_the_place_of_the_first() -> None:
    """Damage: a connection that is not known to be cut keeps the next one out; or both are obeyed."""
    play(
        RUNNING,
        """
        b> Hello 1
        b> CreateInstance
        b> Create large
        b> Begin large
        b> InitializationComplete
        b< Welcome r1
        b< Reconciled reused=1
        b< Frontiers large=2; needs items=1 large=1
        * a controller is silent
        a< (closed)
        * items 2: +c,9
        b> Advance 2 turn=1
        b< Frontiers large=3; needs items=2 large=2; advanced 1

        b> AllowCompaction large []
        c> Hello 1
        c> CreateInstance
        c> Create large
        c> Begin large
        c> InitializationComplete
        b< (closed)
        c< Welcome r1
        c< Reconciled reused=1
        c< Frontiers large=3; needs items=2 large=2
        """,
    )


def test_a_connection_begins_with_hello() -> None:
    """Damage: the replica obeys before it knows whom; or a second Hello changes that."""
    play(
        """
        a> CreateInstance
        b> Peek p by_grp grp=a at 1
        c> Hello 1
        c> Hello 2
        a< Refused Hello: a connection begins with Hello, and this one with CreateInstance
        a< (closed)
        b< Refused Hello: a connection begins with Hello, and this one with Peek
        b< (closed)
        c< Welcome r1
        c< Refused Hello: this connection was greeted already
        """,
    )


def test_everything_is_said_from_create_instance_on() -> None:
    """Damage: all that runs is dropped because it was not mentioned."""
    play(
        RUNNING,
        """
        a> InitializationComplete
        a< Refused InitializationComplete: CreateInstance comes before it
        * a is cut
        b> Hello 2
        b> InitializationComplete
        b> CreateInstance
        b> Create large
        b> Begin large
        b> InitializationComplete
        b< Welcome r1
        b< Refused InitializationComplete: CreateInstance comes before it
        b< Reconciled reused=1
        b< Frontiers large=2; needs items=1 large=1
        """,
    )


def test_a_cut_before_everything_is_said_drops_nothing() -> None:
    """Damage: what was not mentioned yet is dropped."""
    play(
        RUNNING,
        """
        * a is cut
        b> Hello 2
        b> CreateInstance
        b> Create other: SELECT grp FROM items
        b> Schedule other
        b> AllowCompaction large []
        b< Welcome r1
        * b is cut
        * items 2: +c,9
        c> Hello 3
        c> CreateInstance
        c> Create large
        c> Begin large
        c> InitializationComplete
        c> Advance 2 turn=1
        c< Welcome r1
        c< Reconciled reused=1
        c< Frontiers large=3; needs items=2 large=2; advanced 1
        ? large at 2: a,5; c,9
        """,
    )


def test_compaction_to_empty_before_everything_is_said_drops_the_view() -> None:
    """Damage: what was dropped meanwhile is kept, or is said to be complete for ever."""
    play(
        RUNNING,
        """
        * a is cut
        b> Hello 2
        b> CreateInstance
        b> Create large
        b> Create other: SELECT grp FROM items
        b> Schedule large
        b> Schedule other
        b> AllowCompaction large []
        b> AllowCompaction other []
        b< Welcome r1
        * items 2: +c,9
        b> InitializationComplete
        b> Advance 2 turn=1
        b< Reconciled dropped=1
        b< Frontiers advanced 1
        """,
    )


def test_what_one_replica_runs_alone_stops_when_no_controller_comes_back() -> None:
    """Damage: two replicas read an upstream that allows one reader; or one that was cut off shortly stops."""
    play(
        """
        a> Hello 1
        a> CreateInstance
        a> Create s: SOURCE OF s1 ALONE
        a> Begin s
        a> InitializationComplete
        a> Advance 1 turn=1
        a< Welcome r1
        a< Reconciled created=1
        a< Frontiers s1=2; needs s-remap=1; advanced 1
        * a is cut
        * 4 s pass
        b> Hello 1
        b> CreateInstance
        b> Create s
        b> Begin s
        b> InitializationComplete
        b< Welcome r1
        b< Reconciled reused=1
        b< Frontiers s1=2; needs s-remap=1
        * b is cut
        * 4 s pass
        c> Hello 1
        c> CreateInstance
        c> Create s
        c> Begin s
        c> InitializationComplete
        c< Welcome r1
        c< Reconciled reused=1
        c< Frontiers s1=2; needs s-remap=1
        * c is cut
        * 5 s pass
        d> Hello 1
        d> CreateInstance
        d> Create s
        d> AllowWrites s
        d> InitializationComplete
        d< Welcome r1
        d< Reconciled created=1

        d> Schedule s
        d< Frontiers s1=2; needs s-remap=1
        """,
    )


def test_a_replica_that_restarts_goes_on_from_what_is_durable() -> None:
    """Damage: it begins from nothing, or goes on where nothing is."""
    play(
        RUNNING,
        """
        * the replica restarts
        b> Hello 1
        b> CreateInstance
        b> Create large
        b> Begin large
        b> InitializationComplete
        b< Welcome r2
        b< Reconciled created=1
        b< Frontiers large=2; needs items=1 large=1
        * items 2: +c,9
        b> Advance 2 turn=1
        b< Frontiers large=3; needs items=2 large=2; advanced 1
        ? large at 2: a,5; c,9
        """,
    )
