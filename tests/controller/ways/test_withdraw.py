"""The rows of a file that is gone are withdrawn: exactly these, at a new time; or it is refused.  Over lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.controller.ways.site import Site, follow
from tests.controller.ways.test_files import NAME, Lines, define, write

from strandline.errors import DefinitionError, InvalidUsage, Unavailable
from strandline.instance.instance import Instance
from strandline.testing.lists.list_engine import listed, updates

BIDS = (
    "CREATE TABLE bids (id BIGINT, buyer BIGINT, auction BIGINT, amount INT, bid_time TIMESTAMP) "
    "FROM SOURCE shared (REFERENCE 'bids')"
)
A, B, C = "a.csv", "b.csv", "c.csv"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A source of files, and a view over it."""
    made = Site(tmp_path, Lines())
    yield made
    made.env.close()


def filled(site: Site, more: str = "") -> None:
    """Have three files durable, two of which share a row."""
    write(site, A, 1, 2, 2)
    write(site, B, 2, 3)
    write(site, C, 4)
    define(site, more)
    site.clean()
    site.clean()


def remove(site: Site, *names: str) -> None:
    """Delete files, and look."""
    for name in names:
        (site.root / "in" / name).unlink()
    site.tick()


def noted(monkeypatch: pytest.MonkeyPatch, site: Site, then: Callable[[], object] = lambda: None) -> None:
    """Have a file come, which the source takes, once it was noted that it goes on without another; ``then`` more."""
    connectors = site.core.assembly.connectors
    pass_over = type(connectors).pass_over

    async def passed_over(self: Any, *asked: Any, **how: Any) -> str:
        was: str = await pass_over(self, *asked, **how)
        if not how:
            write(site, "d.csv", 8)
            site.clock.now += 1_000
            await site.core.tick(wait=True)
            then()
        return was

    monkeypatch.setattr(type(connectors), "pass_over", passed_over)


def test_the_rows_of_a_file_go_and_those_of_others_stay(site: Site) -> None:
    """Damage: a row that another file has too goes with the file, or one copy of it stays."""
    filled(site)
    before = site.env.status()["collections"][NAME]["upper"] - 1
    remove(site, A)
    told = site.env.withdraw(NAME, [A])
    assert (told["applied"], told["withdrawn"]) == (False, None)
    assert "vanished" in site.tick()["problems"][NAME], "nothing was changed"
    assert site.env.withdraw(NAME, [A], apply=True)["withdrawn"] == 3
    site.clean()
    assert site.rows("v") == [(2,), (3,), (4,)]
    assert site.rows(NAME, before) == [(1,), (2,), (2,), (2,), (3,), (4,)], "earlier times are read as before"
    assert site.env.withdraw(NAME, [A], apply=True)["withdrawn"] == 0, "twice is once"
    site.reopen()
    site.clean()
    assert site.rows("v") == [(2,), (3,), (4,)]


def test_a_file_that_was_skipped_before_is_withdrawn_later(site: Site) -> None:
    """Damage: who kept the rows at first can never let them go."""
    filled(site)
    remove(site, A)
    site.env.skip(NAME, file=A, apply=True)
    site.clean()
    assert site.env.withdraw(NAME, [A], apply=True)["withdrawn"] == 3
    site.clean()
    assert site.rows("v") == [(2,), (3,), (4,)]


def test_rows_of_two_files_that_are_gone_are_withdrawn_together(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the rows of a file that was skipped, which were to stay, go with those of another."""
    filled(site)
    remove(site, A)
    site.env.skip(NAME, file=A, apply=True)
    site.clean()
    remove(site, B)
    with pytest.raises(InvalidUsage, match=f"goes on without '{A}', whose rows it has") as refused:
        site.env.withdraw(NAME, [B], apply=True)
    assert "vanished" in site.tick()["problems"][NAME], "nothing was changed"
    assert len(site.rows("v")) == 6
    text = str(refused.value)
    follow(site.env, text[text.index("strandline source skip") :], monkeypatch)
    site.clean()
    assert site.rows("v") == [(4,)]


def test_a_file_that_another_takes_rows_back_of_is_refused(site: Site) -> None:
    """Damage: the collection is negative, which is an error for every reader."""
    filled(site, ", retract '*.retract.csv'")
    write(site, "x.retract.csv", 1)
    site.clean()
    assert site.rows("v") == [(2,), (2,), (2,), (3,), (4,)]
    remove(site, A)
    with pytest.raises(InvalidUsage, match="other files .* take back rows of these"):
        site.env.withdraw(NAME, [A], apply=True)
    assert "vanished" in site.tick()["problems"][NAME], "it was not passed over"
    assert site.rows("v") == [(2,), (2,), (2,), (3,), (4,)]


def test_where_other_files_are_gone_nothing_is_withdrawn(site: Site) -> None:
    """Damage: the rows of all files that have left their directory are taken for those of the one that is named."""
    filled(site, ", retain 'false'")
    remove(site, A, B)
    site.clean()
    gone = f"rows of '{A}' cannot be told .*: file '{B}' vanished after it was made durable: .*nothing is changed"
    with pytest.raises(InvalidUsage, match=gone):
        site.env.withdraw(NAME, [A], apply=True)
    site.clean()
    assert len(site.rows("v")) == 6
    write(site, A, 1, 2, 2)
    write(site, B, 2, 3)
    site.execute(f"ALTER SOURCE `{NAME}` SET (retain 'true')")
    site.reopen()
    site.clean()
    remove(site, A)
    assert "vanished" in site.tick()["problems"][NAME], "it was not passed over"


def test_a_look_at_other_files_lets_none_of_them_leave(site: Site) -> None:
    """Damage: a withdrawal that is refused deletes files, or one that reads them finds them gone."""
    filled(site)
    (site.root / "in" / B).rename(site.root / B)
    site.execute(f"ALTER SOURCE `{NAME}` SET (on_durable 'delete')")
    with pytest.raises(InvalidUsage, match=f"file '{B}' vanished"):
        site.env.withdraw(NAME, [A], apply=True)
    assert sorted(each.name for each in (site.root / "in").iterdir()) == [A, C]


def test_files_that_do_not_read_as_they_did_are_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a command that withdraws rows inserts others, as of a column that the files had before the source did."""
    filled(site)
    remove(site, A)
    decode = Lines.decode

    async def otherwise(self: Lines, files: Any, schema: Any, form: Any, *, locate: bool) -> Any:
        return await decode(self, [*files, *files], schema, form, locate=locate)

    with monkeypatch.context() as read:
        read.setattr(Lines, "decode", otherwise)
        with pytest.raises(InvalidUsage, match="it does not have 2 row.* nothing is changed"):
            site.env.withdraw(NAME, [A], apply=True)
    assert "vanished" in site.tick()["problems"][NAME], "it was not passed over"
    assert len(site.rows("v")) == 6


@pytest.mark.parametrize(("theirs", "dismissals"), [({1, 2}, 1), ({1}, 2), (set(), 2)], ids=["all", "part", "none"])
def test_a_try_that_lost_looks_anew(
    site: Site, monkeypatch: pytest.MonkeyPatch, theirs: set[int], dismissals: int
) -> None:
    """Damage: what another process did meanwhile is done twice, and the collection is negative; or rows stay."""
    filled(site)
    remove(site, A)
    dismiss, calls = Instance.dismiss, 0

    async def lost(self: Instance, item: str, rows: Any, time: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            return await dismiss(self, item, rows, time)
        found = listed(rows)
        if done := [each for each in found.rows if each["n"] in theirs]:
            await dismiss(self, item, updates(site.core.catalog.collection(NAME).schema, done), time)
        raise Unavailable("another instance was first")

    monkeypatch.setattr(Instance, "dismiss", lost)
    site.env.withdraw(NAME, [A], apply=True)
    site.clean()
    assert (calls, site.rows("v")) == (dismissals, [(2,), (3,), (4,)])


def test_the_other_files_are_read_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a directory of a million files is read twice to withdraw the rows of one."""
    filled(site)
    remove(site, A)
    decode, decoded = Lines.decode, []

    async def counted(self: Lines, files: Any, schema: Any, form: Any, *, locate: bool) -> Any:
        decoded.append([Path(file.path).name for file in files])
        return await decode(self, files, schema, form, locate=locate)

    monkeypatch.setattr(Lines, "decode", counted)
    assert site.env.withdraw(NAME, [A], apply=True)["withdrawn"] == 3
    assert decoded == [[B, C]]


def test_a_file_that_comes_meanwhile_is_read_too(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the rows of a file that came while others were looked at are withdrawn with those of the one named."""
    filled(site)
    remove(site, A)
    with monkeypatch.context() as meanwhile:
        noted(meanwhile, site)
        assert site.env.withdraw(NAME, [A], apply=True)["withdrawn"] == 3
    site.clean()
    assert site.rows("v") == [(2,), (3,), (4,), (8,)]


def test_a_race_after_the_note_says_what_it_left(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: an operator reads that nothing is changed, and the source goes on without the file, with its rows."""
    filled(site)
    remove(site, A)

    with monkeypatch.context() as meanwhile:
        noted(meanwhile, site, (site.root / "in" / B).unlink)
        with pytest.raises(InvalidUsage, match="goes on without the file already, and its rows were not") as refused:
            site.env.withdraw(NAME, [A], apply=True)
    text = str(refused.value)
    assert "nothing is changed" not in text
    write(site, B, 2, 3)
    site.clean()
    assert site.rows("v") == [(1,), (2,), (2,), (2,), (3,), (4,), (8,)]
    follow(site.env, text[text.index("strandline source skip") :], monkeypatch)
    site.clean()
    assert site.rows("v") == [(2,), (3,), (4,), (8,)]


def test_a_source_that_stands_still_after_the_note_says_what_it_left(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: an operator takes a withdrawal that failed for one that changed nothing, or for one that is done."""
    filled(site)
    remove(site, A)

    async def lost(*_: object) -> None:
        raise Unavailable("another instance was first")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Instance, "dismiss", lost)
        with pytest.raises(Unavailable, match="first; the source goes on without the file already") as refused:
            site.env.withdraw(NAME, [A], apply=True)
    text = str(refused.value)
    follow(site.env, text[text.index("strandline source skip") :], monkeypatch)
    site.clean()
    assert site.rows("v") == [(2,), (3,), (4,)]


def test_a_file_that_changed_before_it_was_durable_says_what_is_left(site: Site) -> None:
    """Damage: the command that the problem advises fails with that problem, and has changed something all the same."""
    filled(site)
    write(site, "d.csv", 7)
    reader = site.readers[NAME]
    looked = reader._look

    async def harmed(names: Any, *, listed: bool = False) -> Any:
        if not listed and "d.csv" in names:
            write(site, "d.csv", 7, 8, 9)
            reader._look = looked
        return await looked(names, listed=listed)

    reader._look = harmed
    assert "d.csv" in site.tick()["problems"][NAME]
    with pytest.raises(Unavailable, match="the source goes on without the file already, .* withdraw them later: "):
        site.env.withdraw(NAME, ["d.csv"], apply=True)
    site.tick()
    assert site.env.withdraw(NAME, ["d.csv"], apply=True)["withdrawn"] == 0
    site.clean()


def test_errors_that_were_dismissed_stay_so_and_others_stay(site: Site) -> None:
    """Damage: what an operator dismissed is an error again, or what is still wrong is none."""
    filled(site, ", on_error 'continue'")
    write(site, "bad.csv", "x", 5)
    site.clean()
    site.env.skip(NAME, apply=True)
    write(site, "worse.csv", "y", "z", 6)
    site.clean()
    remove(site, A)
    assert site.env.withdraw(NAME, [A], apply=True)["withdrawn"] == 3
    site.clean()
    assert site.rows("v") == [(2,), (3,), (4,), (5,), (6,)]
    assert site.env.status()["collections"][NAME]["errors"]["rows"] == 2


def test_what_cannot_be_withdrawn_is_refused(site: Site) -> None:
    """Damage: a typing mistake reads all files, and says nothing."""
    filled(site)
    with pytest.raises(DefinitionError, match=r"has taken no file 'd\.csv'"):
        site.env.withdraw(NAME, ["d.csv"], apply=True)
    with pytest.raises(DefinitionError, match="there is no source 'v'"):
        site.env.withdraw("v", [A])
    with pytest.raises(InvalidUsage, match="name the files"):
        site.env.withdraw(NAME, [], apply=True)


@pytest.mark.parametrize("apply", [False, True])
def test_a_file_that_was_never_taken_is_refused_before_anything_is_noted(site: Site, *, apply: bool) -> None:
    """Damage: a look promises what `--apply` refuses; or of two files one is skipped, and the command fails."""
    filled(site)
    remove(site, A)
    for refused in (site.env.skip, site.env.withdraw):
        for files in ([A, "typo.csv"], ["typo.csv"]):
            with pytest.raises(DefinitionError, match=r"has taken no file 'typo\.csv'"):
                refused(NAME, **{"file" if refused == site.env.skip else "files": files}, apply=apply)
    assert "vanished" in site.tick()["problems"][NAME], "nothing was noted"
    assert "bytes, modified" in site.env.skip(NAME, file=A)["was"][0], "a look tells what the file was"
    assert "vanished" in site.tick()["problems"][NAME]


def test_files_of_what_reads_none_are_refused(site: Site) -> None:
    """Damage: the command fails by an assertion, and says nothing."""
    filled(site)
    site.execute("CREATE SOURCE shared FROM auction", "CREATE SOURCE c (counter BIGINT) FROM counter (every = '1s')")
    for defined in ((), (BIDS,)):
        site.execute(*defined)
        for name in ("shared", "c"):
            for apply in (False, True):
                with pytest.raises(DefinitionError, match=f"source '{name}' reads no files"):
                    site.env.skip(name, file=A, apply=apply)
                with pytest.raises(DefinitionError, match=f"source '{name}' reads no files"):
                    site.env.withdraw(name, [A], apply=apply)


def test_a_time_beside_files_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a person believes that a file is left out from a time on."""
    filled(site)
    with pytest.raises(InvalidUsage, match="as_of"):
        site.env.skip(NAME, 5, file=A)
    with pytest.raises(AssertionError, match="--as-of is of records"):
        follow(site.env, f'strandline source skip "{NAME}" --file {A} --as-of 5', monkeypatch)
    with pytest.raises(AssertionError, match="--as-of is of records"):
        follow(site.env, f'strandline source skip "{NAME}" --file {A} --withdraw --as-of 5', monkeypatch)


def test_the_command_skips_all_files_or_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a typing mistake in the second name leaves the first file out for good."""
    filled(site)
    remove(site, A, B)
    with pytest.raises(AssertionError, match="has taken no file"):
        follow(site.env, f'strandline source skip "{NAME}" --file {A} --file typo.csv --apply', monkeypatch)
    assert "vanished" in site.tick()["problems"][NAME]
    follow(site.env, f'strandline source skip "{NAME}" --file {A} --file {B} --apply', monkeypatch)
    site.clean()
