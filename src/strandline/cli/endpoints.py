"""`strandline backfill`, `strandline driver spec` and `strandline options`: endpoints, and what options there are."""

from __future__ import annotations

import json
from pathlib import Path

from strandline.cli.terminal.opening import Opener
from strandline.cli.terminal.output import Output
from strandline.wiring.registry import DRIVERS, named, page


def backfill(opener: Opener, root: Path, name: str, collection: str | None, output: Output, *, apply: bool) -> None:
    """Print what refilling tables would do; with ``apply`` do it."""
    project = opener.project(root)
    with opener.writing(project) if apply else opener.looking(project) as env:
        done = env.backfill(name, collection, apply=apply)
    lines = [
        f"{each['table']}: filled again from the start of {each['collection']} (backfill {each['backfill']})"
        for each in done["tables"]
    ]
    lines += [f"endpoint: {action}" for action in done["actions"]]
    lines.append("done: the next tick fills them" if apply else "nothing is changed; --apply does it")
    output.result(done, "\n".join(lines))


def driver_spec(endpoint: str, output: Output) -> None:
    """Print the options that an endpoint's driver takes."""
    spec = named(DRIVERS, "endpoint", endpoint).spec
    document = {
        "endpoint": endpoint,
        "options": spec.config_schema,
        "resource": spec.resource_schema,
        "documentation_url": spec.documentation_url,
    }
    output.result(document, json.dumps(document, indent=2))


def options(output: Output) -> None:
    """Print every option of every source, endpoint and store."""
    text = page()
    output.result({"page": text}, text)
