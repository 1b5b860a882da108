"""A table with two rows and its endpoint: how it is defined, and what befalls it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any, Final

from tests.controller.ways.site import Site

OUT: Final = "my out"
Do = Callable[[Site], object]


def defined(where: str, to: str = "o") -> Do:
    """Return what defines the materialization, after one of its name was dropped; ``ROOT`` is the site's directory."""

    def define(site: Site) -> None:
        if OUT in site.core.catalog.items:
            site.execute(f"DROP MATERIALIZATION `{OUT}`")
        text = where.replace("ROOT", str(site.root))
        site.execute(f"CREATE MATERIALIZATION `{OUT}` INTO {text} AS w TO {to} KEY (k)")

    return define


def two_rows(site: Site) -> None:
    """Define a table with two rows, and no endpoint yet."""
    site.execute("CREATE TABLE w (k BIGINT, x BIGINT)")
    write(site, 1)
    write(site, 2)


def beginning(define: Do) -> Do:
    """Return what defines a table with two rows, and its endpoint."""
    return lambda site: (two_rows(site), define(site))


def write(site: Site, key: int) -> None:
    """Write a row into the table."""
    site.env.insert("w", [{"k": key, "x": 0}])


def in_turn(*each: Do) -> Do:
    """Return what does one after the other."""
    return lambda site: [do(site) for do in each]


def third(site: Site) -> None:
    """Have a row come."""
    write(site, 3)


def third_goes(site: Site) -> None:
    """Remove the row that came."""
    site.env.delete("w", [{"k": 3, "x": 0}])


def first_goes(site: Site) -> None:
    """Remove a row that the endpoint has."""
    site.env.delete("w", [{"k": 1, "x": 0}])


def saved(name: str) -> Do:
    """Return what keeps a copy of a file or a directory of the endpoint."""

    def save(site: Site) -> None:
        there, copy = site.root / name, site.root / "saved"
        if there.is_dir():
            shutil.copytree(there, copy)
        else:
            shutil.copy(there, copy)

    return save


def restored(name: str) -> Do:
    """Return what puts the copy back."""

    def restore(site: Site) -> None:
        there, copy = site.root / name, site.root / "saved"
        if copy.is_dir():
            shutil.rmtree(there, ignore_errors=True)
            shutil.copytree(copy, there)
        else:
            shutil.rmtree(there) if there.is_dir() else there.unlink(missing_ok=True)
            shutil.copy(copy, there)

    return restore


def equals(read: Callable[[Site], list[Any]]) -> Do:
    """Return what asserts that the endpoint equals its collection, and follows it."""

    def equal(site: Site) -> None:
        write(site, 9)
        site.clean()
        assert read(site) == site.rows("w")

    return equal
