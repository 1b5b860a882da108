"""`strandline backfill`, `strandline driver` and `strandline options`: endpoints, and what options there are."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from strandline.cli.terminal.lasting import changing
from strandline.cli.terminal.opening import Opener
from strandline.cli.terminal.output import Output
from strandline.errors import ConfigError, InvalidUsage
from strandline.extras import FLOW, require
from strandline.materialize.driver import Driver, DriverKind
from strandline.materialize.wire.options import CODEC_VARIABLE, codec
from strandline.store.clock import SystemClock
from strandline.wiring.loop import RunningTask
from strandline.wiring.registry import DRIVERS, described, named, opened, page

NUMBER: Final = "{n}"
"""In an option: another number for each endpoint of `driver_check`."""


def backfill(opener: Opener, root: Path, name: str, collection: str | None, output: Output, *, apply: bool) -> None:
    """Print what refilling tables would do; with ``apply`` do it."""
    project = opener.project(root)
    with changing(opener, project, output) if apply else opener.looking(project) as env:
        done = env.backfill(name, collection, apply=apply)
    lines = [
        f"{each['table']}: filled again from the start of {each['collection']} (backfill {each['backfill']})"
        for each in done["tables"]
    ]
    lines += [f"endpoint: {action}" for action in done["actions"]]
    lines.append("done: the next tick fills them" if apply else "nothing is changed; --apply does it")
    output.result(done, "\n".join(lines))


def sync(opener: Opener, root: Path, name: str, timeout: float, output: Output) -> None:
    """Have an endpoint come to where its collections are, by the process that writes or else here; print the time."""
    project = opener.project(root)
    with opener.reading(project, output.note) as env:
        position = env.sync_now(name, timeout) if env.written_by() is not None else None
    if position is None:
        output.note("no process is running this environment: the endpoint is brought there by this one")
        with changing(opener, project, output) as env:
            position = env.sync_now(name, timeout)
    output.result({"name": name, "position": position}, f"{name}: all before {position} is there")


def driver_spec(endpoint: str, output: Output) -> None:
    """Print the options that an endpoint's driver takes."""
    kind = described(endpoint)
    spec = kind.spec
    document = {
        "endpoint": kind.name,
        "options": spec.config_schema,
        "resource": spec.resource_schema,
        "documentation_url": spec.documentation_url,
    }
    output.result(document, json.dumps(document, indent=2))


def driver_check(endpoint: str, config: str, output: Output) -> bool:
    """Hold a driver against the contract, and the contract against defects; return whether all is as it should be."""
    try:
        from strandline.testing.checking import check, described
    except ModuleNotFoundError as error:
        raise ConfigError(f"driver check needs {error.name}: pip install 'strandline[testing]'") from error
    kind, texts = _kind(endpoint), _texts(config)
    if not any(NUMBER in text for text in texts.values()):
        raise InvalidUsage(
            f"driver check makes many endpoints, each empty at first: put {NUMBER} into the option that says where one "
            f"is, as in 'path': '/tmp/check-{NUMBER}.duckdb'"
        )

    def opening(number: int) -> Callable[[], Driver]:
        own = {name: text.replace(NUMBER, str(number)) for name, text in texts.items()}
        return lambda: opened(kind, own, SystemClock())

    good = True
    for result in check(opening):
        good = good and result.good
        document = {
            "scenario": result.scenario,
            "defect": result.defect,
            "outcome": result.outcome.value,
            "why": result.why,
            "good": result.good,
        }
        what = f"with a defect: {result.defect}" if result.defect else described(result.scenario)
        why = f" ({result.why})" if result.why and not (result.defect and result.good) else ""
        mark = "ok " if result.good else "BAD"
        output.result(document, f"{mark} {result.scenario}: {what}: {result.outcome.value}{why}")
    return good


def driver_serve(endpoint: str) -> int:
    """Serve a driver as a Flow connector over standard input and output; return the status of this process."""
    require("driver serve", (FLOW,))
    from strandline.materialize.wire.serve import run

    clock = SystemClock()
    return run(_kind(endpoint), codec(os.environ.get(CODEC_VARIABLE, "proto")), clock, partial(RunningTask, clock))


def _kind(name: str) -> DriverKind[Any]:
    """Return the driver of an endpoint's name, or that of ``package.module:ATTRIBUTE``.

    The module may be in the current directory, where a console script does not look by itself.
    """
    module, _, attribute = name.partition(":")
    if not attribute:
        return named(DRIVERS, "endpoint", name)
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidUsage(f"driver {name!r} cannot be imported: {error}") from error
    if not isinstance(found, DriverKind):
        raise InvalidUsage(f"{name!r} is no strandline.materialize.driver.DriverKind, but a {type(found).__name__}")
    return found


def _texts(config: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(config, type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise InvalidUsage(f"--config is no JSON object of texts: {error}") from error


def options(output: Output) -> None:
    """Print every option of every source, endpoint and store."""
    text = page()
    output.result({"page": text}, text)
