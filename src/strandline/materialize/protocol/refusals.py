"""Why an endpoint does not go on, whatever system it is: the problems that several drivers have.

What is wrong with one table is in `materialize/driver.py`.  A connection knows the system and not the materialization,
so the ways out of its problems have no command.
"""

from __future__ import annotations

from typing import Final

from strandline.errors import WAITS
from strandline.problem import Problem, Stopped, Way

REFILL: Final = Way("fill it again", "strandline backfill {item:shell} {collection:shell} --apply")
"""What ends a problem of a table of an endpoint that is not what this location has written there."""
REFILL_ALL: Final = Way("fill its tables again", "strandline backfill {item:shell} --apply")
"""The same for all tables of a materialization."""
OTHER_PLACE: Final = Way("drop the materialization, and create it at another place")
OTHER_TABLE: Final = Way("drop the materialization, and create it with another name for the table")
OTHER_OPTIONS: Final = Way("drop the materialization, and create it with other options")

DENIED: Final = Problem(
    "endpoint-denies",
    "{endpoint} does not allow it: {why}",
    Stopped.ENDPOINT,
    (
        Way("allow it there to the user that Strandline logs in as"),
        Way("correct the value that the option refers to (env:NAME, file:PATH), and start the process again"),
        OTHER_OPTIONS,
    ),
)
REFUSED: Final = Problem(
    "endpoint-refuses",
    "{endpoint} refused what it was given: {why}",
    Stopped.ENDPOINT,
    (
        Way("remove there what refuses it, as a constraint or a limit"),
        Way("remove or change the rows that it refuses, in the collection"),
    ),
)
OPTION_REFUSED: Final = Problem(
    "endpoint-refuses-option", "{endpoint} does not take an option: {why}", Stopped.ENDPOINT, (OTHER_OPTIONS,)
)
UNOPENED: Final = Problem(
    "endpoint-unopened",
    "{endpoint} cannot be opened: {why}",
    Stopped.ENDPOINT,
    (Way("put back there what Strandline can read and write"), OTHER_PLACE),
)
DAMAGED: Final = Problem(
    "endpoint-damaged",
    "{what} is damaged: {why}",
    Stopped.ENDPOINT,
    (Way("restore it from a backup"), OTHER_PLACE),
)
OTHER_VERSION: Final = Problem(
    "endpoint-of-another-version",
    "{what} has format {found}, which another version of Strandline wrote; this one reads format {known}",
    Stopped.ENDPOINT,
    (Way("start the version that wrote it"), OTHER_PLACE),
)
UNSUITED: Final = Problem(
    "endpoint-unsuited",
    "{endpoint} {has}, so {so}",
    Stopped.ENDPOINT,
    (Way("change it there: {to}"), OTHER_OPTIONS),
)
UNWRITABLE: Final = Problem(
    "table-not-writable",
    "{table} has {what}, which Strandline does not write",
    Stopped.ENDPOINT,
    (OTHER_TABLE, Way("drop the table there")),
)
FILLED_THERE: Final = Problem(
    "filled-by-another",
    "{whom} fills {what}",
    Stopped.ENDPOINT,
    (OTHER_TABLE, Way("remove {rest} there")),
)
OTHER_KIND: Final = Problem(
    "key-of-another-kind",
    "{endpoint}: a key of this materialization holds something else, which another program wrote ({why})",
    Stopped.ENDPOINT,
    (Way("delete the key there, and fill the materialization again (strandline backfill)"), OTHER_TABLE),
)
LOST: Final = Problem(
    "endpoint-lost-rows",
    "{endpoint} has lost what it had acknowledged of {what}{more}",
    Stopped.ENDPOINT,
    (REFILL_ALL,),
)
OTHER_CHECKPOINT: Final = Problem(
    "endpoint-restored",
    WAITS + "another session, which the next tick opens: the database has another checkpoint than this one left, for "
    "it was emptied, or restored from a backup",
    Stopped.ENDPOINT,
)
RUN_AS_ONE: Final = Way("run the materialization as one", "ALTER MATERIALIZATION {item:sql} SET (splits '1')")
SPLIT_ALONE: Final = Problem(
    "split-fills-alone",
    "{table} cannot be filled from the start by the split [{begin}, {end}] alone: it may hold rows of others",
    Stopped.ENDPOINT,
    (Way("empty the table there"), RUN_AS_ONE),
)
IRREDUCIBLE: Final = Problem(
    "rows-not-reducible",
    "the documents with the key ({key}): {why}",
    Stopped.ENDPOINT,
    (
        Way("remove from the collection what does not fit, and fill again", REFILL_ALL.command),
        OTHER_OPTIONS,
    ),
)
REDUCED_WENT: Final = Problem(
    "reduced-row-went",
    "a row with the key ({key}) was removed or changed, and only rows of an append-only collection can be reduced",
    Stopped.ENDPOINT,
    (Way("begin anew with the rows that are left", REFILL_ALL.command),),
)
PARTED: Final = Problem(
    "key-range-parted",
    "the key range [{wanted}] has no single checkpoint ({of})",
    Stopped.ENDPOINT,
    (REFILL_ALL,),
)
