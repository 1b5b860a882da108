"""Endpoints: what CREATE MATERIALIZATION may name, and the drivers behind it.  This version has DuckDB.

Only the `DriverSpec` of a driver says what it takes: it checks the options, and `strandline driver spec` prints it.

Source: design page "materialize" (drivers are products).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from strandline.controller.location.config import resolve_reference
from strandline.errors import ConfigError
from strandline.materialize.driver import Driver, DriverSpec, options_of
from strandline.materialize.drivers import duckdb
from strandline.materialize.drivers.duckdb import DuckDBDriver
from strandline.materialize.drivers.duckdb_file import DuckDBFile
from strandline.store.clock import Clock

SPECS: Final[Mapping[str, DriverSpec]] = {"duckdb": duckdb.SPEC}
"""What each endpoint's driver takes."""


def spec_of(endpoint: str) -> DriverSpec:
    """Return what the driver of ``endpoint`` takes.  Raises `ConfigError` naming the endpoints that there are."""
    if endpoint not in SPECS:
        raise ConfigError(f"there is no driver for endpoint {endpoint!r}; there is one for {', '.join(SPECS)}")
    return SPECS[endpoint]


def driver(clock: Clock, endpoint: str, options: Mapping[str, str]) -> Driver:
    """Return the driver for an endpoint; options that are references are resolved here, and nowhere before.

    Raises `ConfigError` naming the endpoint or the option that is not known.
    """
    options_of(endpoint, spec_of(endpoint), options)
    return DuckDBDriver(DuckDBFile(clock, Path(resolve_reference(options["path"], base=Path()))))
