"""A webhook that is refused stops its materialization until a way out is taken.  Over lists, over real HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from tests.controller.ways.site import Case, Site, take, ways_of
from tests.materialize.drivers.webhook.receiving import TAKEN, Answer, Receiver, receiving

from strandline.materialize.drivers.webhook.driver import NO_PLACE, NOT_A_RECEIVER, REFUSED
from strandline.materialize.transfer import WENT
from strandline.problem import Way

pytestmark = pytest.mark.server
OUT: Final = "hooks"


def receiver(site: Site) -> Receiver:
    """Return what receives."""
    found: Receiver = site.upstream
    return found


def into(more: str = "", key: str = " KEY (k)") -> Callable[[Site], None]:
    """Return what defines the materialization."""

    def define(site: Site) -> None:
        options = f"url '{receiver(site).url}', delta 'true', max_retries '0'{more}"
        site.execute(f"CREATE MATERIALIZATION {OUT} INTO webhook OPTIONS ({options}) AS w TO o{key}")

    return define


def beginning(more: str = "") -> Callable[[Site], None]:
    """Return what defines a table, and the materialization."""

    def begin(site: Site) -> None:
        (site.root / "file").write_text("")
        site.execute("CREATE TABLE w (k BIGINT)")
        into(more.replace("ROOT", str(site.root)))(site)

    return begin


def answering(status: int) -> Callable[[Site], None]:
    """Return what has each request refused, and one come."""

    def harm(site: Site) -> None:
        receiver(site).answer = lambda _: Answer(status, text="no", taken=False)
        site.env.insert("w", [{"k": 1}])

    return harm


def keyless(site: Site) -> None:
    """Define a table with a row, and the materialization without a key."""
    site.execute("CREATE TABLE w (k BIGINT)")
    site.env.insert("w", [{"k": 1}])
    into(key="")(site)


def mend(site: Site) -> None:
    """Have each request taken."""
    receiver(site).answer = lambda _: TAKEN


def redefined(more: str = "") -> Callable[[Site], None]:
    """Return what drops the materialization, and defines it with other options."""

    def again(site: Site) -> None:
        site.execute(f"DROP MATERIALIZATION {OUT}")
        into(more.replace("ROOT", str(site.root)))(site)

    return again


def other_address(site: Site) -> None:
    """Define it with an address that takes requests."""
    mend(site)
    redefined()(site)


def make_room(site: Site) -> None:
    """Let dead letters be kept."""
    (site.root / "file").unlink()


CASES: Final = [
    Case(
        WENT,
        OUT,
        keyless,
        lambda site: site.env.delete("w", [{"k": 1}]),
        {WENT.ways[0].what: redefined()},
    ),
    Case(
        REFUSED,
        OUT,
        beginning(),
        answering(422),
        {REFUSED.ways[0].what: mend, REFUSED.ways[1].what: redefined(", dead_letters 'ROOT/dead'")},
    ),
    Case(
        NOT_A_RECEIVER,
        OUT,
        beginning(),
        answering(404),
        {NOT_A_RECEIVER.ways[0].what: mend, NOT_A_RECEIVER.ways[1].what: other_address},
    ),
    Case(
        NO_PLACE,
        OUT,
        beginning(", dead_letters 'ROOT/file'"),
        answering(422),
        {NO_PLACE.ways[0].what: make_room},
    ),
]


@pytest.mark.parametrize(("case", "way"), ways_of(CASES))
def test_a_webhook_goes_on_by_what_its_problem_advises(
    case: Case, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: one request that is refused stops a materialization for ever; or neighbours stand, too."""
    with receiving() as there:
        site = Site(tmp_path, upstream=there)
        take(case, way, site, monkeypatch)
        site.env.close()
