"""The commands: their names, options and help.  A module of its own, or a few lines here, implement each command.

A command imports its module when it is run, so that none waits for what only others need.
Exit statuses are `exits.Exit`; an error is one sentence on standard error, and with ``--debug`` a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import benching
from strandline.cli.terminal.exits import (
    TRACEBACK_VARIABLE,
    Exit,
    ended_by_interrupts,
    exit_of,
    sentence,
    wants_traceback,
)
from strandline.cli.terminal.opening import WAIT_S, Opener, moment_option
from strandline.cli.terminal.output import Output, printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(name="strandline", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)

inspect_app = typer.Typer(help="Look inside.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(inspect_app, name="inspect")

driver_app = typer.Typer(help="What endpoints take.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(driver_app, name="driver")

source_app = typer.Typer(
    help="Sources that stand still, and what they could not decode.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(source_app, name="source")

app.add_typer(benching.app, name="bench")

ProjectOption = Annotated[Path, typer.Option("--project", metavar="DIR", help="The project's directory.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document per result.")]
AsOfOption = Annotated[
    int | None,
    typer.Option("--as-of", metavar="T", parser=moment_option, help="The time to read at; default: the latest."),
]
DropOption = Annotated[
    list[str] | None,
    typer.Option(
        "--drop",
        metavar="NAME",
        help="Drop this item, and what reads it (may be given several times); all: whatever the project defines "
        "otherwise, or no longer.",
    ),
]
ApplyOption = Annotated[bool, typer.Option("--apply", help="Do it; without this the command only reports.")]
HERE = Path()


def main(arguments: Sequence[str] | None = None, *, spark: SparkSession | None = None) -> int:
    """Run the command in ``arguments`` (default: those of this process), without the program's name; return its status.

    ``spark``: a session to share, instead of building and stopping one.
    """
    command = typer.main.get_command(app)
    before = os.environ.get(TRACEBACK_VARIABLE)
    try:
        with ended_by_interrupts():
            command(args=None if arguments is None else list(arguments), prog_name="strandline", obj=Opener(spark))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.OK if end.code is None else Exit.FAILED
    except Exception as error:  # the last place that can report it in one sentence
        if wants_traceback():
            raise
        sys.stderr.write(f"strandline: {printable(sentence(error))}\n")
        return exit_of(error)
    finally:
        if before is None:
            os.environ.pop(TRACEBACK_VARIABLE, None)
        else:
            os.environ[TRACEBACK_VARIABLE] = before
    return Exit.OK


@app.callback(invoke_without_command=True)
def with_debug(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error came from, and what Spark prints.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show which Strandline, Python, PySpark and Java are here.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="With --version: print it as a JSON document.")] = False,
    wait: Annotated[float, typer.Option(metavar="S", min=0, help="How long a change waits for a writer.")] = WAIT_S,
) -> None:
    """Keep SQL views exactly right on Spark, and push them exactly once into the systems people read from."""
    if debug:
        os.environ[TRACEBACK_VARIABLE] = "1"
    context.obj = replace(_opener(context), wait_s=wait)
    if version:
        from strandline.cli.doctor import machine

        machine.version(Output(json))
        raise typer.Exit
    if json or context.invoked_subcommand is None:
        context.fail("Missing command." if not json else "--json goes behind the command, or with --version.")


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="An empty or new directory.")] = HERE, json: JsonOption = False
) -> None:
    """Create a small project that runs."""
    from strandline.cli.template import create_project

    files = create_project(directory)
    text = "\n".join([f"made {file}" for file in files] + [f"try: strandline run --once --project {directory}"])
    Output(json).result({"project": str(directory.absolute()), "files": files}, text)


@app.command()
def run(
    context: typer.Context,
    project: ProjectOption = HERE,
    json: JsonOption = False,
    once: Annotated[
        bool, typer.Option("--once", help="Do one tick and end; status 1 if anything has a problem.")
    ] = False,
    until: Annotated[
        int | None, typer.Option(metavar="T", parser=moment_option, help="End once the time T is complete.")
    ] = None,
    take_over: Annotated[bool, typer.Option("--take-over", help="Fence the current writer of the location.")] = False,
    tick_ms: Annotated[
        int | None, typer.Option(metavar="MS", min=1, help="From tick to tick; default: the project's.")
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Prepare the project's changed views beside the writer, until promoted.")
    ] = False,
) -> None:
    """Keep the project's views and endpoints up to date, until a signal says stop."""
    from strandline.cli import promoting, running

    opener = _opener(context)
    found = opener.project(project)
    wanted = running.Wanted(once=once, until=until, take_over=take_over, tick_ms=tick_ms or found.tick_ms)
    begin = promoting.prepare if read_only else running.run
    raise typer.Exit(begin(opener, found, wanted, Output(json)))


@app.command()
def plan(
    context: typer.Context, project: ProjectOption = HERE, json: JsonOption = False, drop: DropOption = None
) -> None:
    """Show what the project says otherwise than its location has it, what is wrong, and what changing that costs."""
    from strandline.cli import promoting

    raise typer.Exit(promoting.plan(_opener(context), project, drop=drop or (), output=Output(json)))


@app.command()
def apply(
    context: typer.Context, project: ProjectOption = HERE, json: JsonOption = False, drop: DropOption = None
) -> None:
    """Have the location be what the project says, or change nothing; only what is named is dropped."""
    from strandline.cli import promoting

    ask = typer.confirm if sys.stdin.isatty() and sys.stderr.isatty() and not json else None
    raise typer.Exit(promoting.apply(_opener(context), project, drop=drop or (), ask=ask, output=Output(json)))


@app.command()
def promote(
    context: typer.Context,
    project: ProjectOption = HERE,
    json: JsonOption = False,
    force: Annotated[bool, typer.Option("--force", help="Also if a view has not caught up.")] = False,
    timeout: Annotated[float, typer.Option(metavar="S", min=0, help="Within so many seconds, or not at all.")] = 60.0,
) -> None:
    """Have the version that `run --read-only` prepares take over from the writer."""
    from strandline.cli import promoting

    promoting.promote(_opener(context), project, force=force, timeout=timeout, output=Output(json))


@app.command()
def replica(
    context: typer.Context,
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where controllers connect.")],
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Run a replica of an instance: what `strandline run` has it run, until a signal says stop."""
    from strandline.cli import running

    opener = _opener(context)
    raise typer.Exit(running.serve(opener, opener.project(project), listen, Output(json)))


@app.command()
def status(
    context: typer.Context,
    seconds: Annotated[
        float, typer.Argument(metavar="[SECONDS]", min=0.1, help="With --watch: how often; default: 2.")
    ] = 2.0,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Show collections, errors, materializations and the writer; status 5 if anything stands still."""
    from strandline.cli import asking

    if watch:
        raise typer.Exit(asking.watch(_opener(context), project, Output(json), seconds))
    raise typer.Exit(asking.status(_opener(context), project, Output(json)))


@app.command()
def discover(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A connection of the project, or a connector, such as files.")],
    options: Annotated[list[str] | None, typer.Argument(metavar="[OPTION=VALUE]...", help="What it takes.")] = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="NAME", help="How to call a source of many tables.")
    ] = None,
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Print the statements that would read what an upstream has; nothing is changed."""
    from strandline.cli import sources

    wanted = sources.Wanted(name, options or (), source)
    sources.run(_opener(context), project, wanted, Output(json))


@app.command()
def query(
    context: typer.Context,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A SELECT over tables, sources and views.")],
    as_of: AsOfOption = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="S", min=0, help="Cancel it after so many seconds; default: the project's query_limit_s."),
    ] = None,
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Answer a query, all its collections read at one time."""
    from strandline.cli import asking

    asking.query(_opener(context), project, sql, as_of, Output(json), timeout)


@app.command()
def queries(context: typer.Context, project: ProjectOption = HERE, json: JsonOption = False) -> None:
    """List the queries that the running environment answers now: number, who, for how long, stage and text."""
    from strandline.cli import asking

    asking.queries(_opener(context), project, Output(json))


@app.command()
def cancel(
    context: typer.Context,
    number: Annotated[int, typer.Argument(min=1, help="The query's number, as `strandline queries` lists it.")],
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Cancel a query of the running environment, and what Spark computes for it."""
    from strandline.cli import asking

    asking.cancel(_opener(context), project, number, Output(json))


@app.command()
def subscribe(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A table, source or view.")],
    as_of: AsOfOption = None,
    until: Annotated[
        int | None,
        typer.Option(metavar="T", parser=moment_option, help="End when all changes before this time have come."),
    ] = None,
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Print a collection's contents, and then its changes as they become complete, until a signal."""
    from strandline.cli import asking

    asking.subscribe(_opener(context), project, name, as_of, until, Output(json))


@app.command()
def verify(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A view, or a materialization.")],
    as_of: AsOfOption = None,
    repair: Annotated[bool, typer.Option("--repair", help="Repair a difference.")] = False,
    wait: Annotated[
        float, typer.Option(metavar="S", min=0, help="How long to wait for the repair by a running writer.")
    ] = 60.0,
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Compute a view from scratch and compare, both ways; status 3 if there is a difference."""
    from strandline.cli import verifying

    wanted = verifying.Wanted(name, as_of, repair=repair, wait_s=wait)
    raise typer.Exit(verifying.verify(_opener(context), project, wanted, Output(json)))


@app.command()
def explain(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A view.")],
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Show how a view is maintained, and why any part of it is recomputed."""
    from strandline.cli import asking

    asking.explain(_opener(context), project, name, Output(json))


@app.command()
def sql(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="The statements; - is standard input.  Default, at a terminal: a shell.",
        ),
    ] = None,
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Run statements, separated by semicolons; or, at a terminal without -f, a shell for them."""
    if file is None and not json and sys.stdin.isatty() and sys.stdout.isatty():
        from strandline.cli.shell import prompting  # no other command needs a line editor

        raise typer.Exit(prompting.shell(_opener(context), project))
    from strandline.cli import asking

    asking.script(_opener(context), project, Path("-") if file is None else file, Output(json))


@inspect_app.command("shard")
def inspect_shard(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A collection, or a shard's id.")],
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Show a shard's state, its batches, its holds, and where its bytes are."""
    from strandline.cli import keeping

    keeping.inspect_shard(_opener(context), project, name, Output(json))


@app.command()
def fsck(
    context: typer.Context,
    apply: Annotated[bool, typer.Option("--apply", help="Remove what is leaked.")] = False,
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Read all stored data, and list damaged, missing or leaked objects; status 3 if a read can fail because of one."""
    from strandline.cli import keeping

    raise typer.Exit(keeping.fsck(_opener(context), project, Output(json), apply=apply))


@app.command()
def compact(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="A collection or a shard; default: all.")] = None,
    apply: ApplyOption = False,
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """List the shards that a merge of all their batches would change, and merge them."""
    from strandline.cli import keeping

    raise typer.Exit(keeping.compact(_opener(context), project, name, Output(json), apply=apply))


@app.command()
def gc(
    context: typer.Context, apply: ApplyOption = False, project: ProjectOption = HERE, json: JsonOption = False
) -> None:
    """List the garbage, objects that no living version names, and delete it."""
    from strandline.cli import keeping

    keeping.gc(_opener(context), project, Output(json), apply=apply)


@app.command()
def backfill(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A materialization.")],
    collection: Annotated[
        str | None, typer.Argument(help="Fill only the table that is bound to this collection; default: all.")
    ] = None,
    apply: ApplyOption = False,
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Show what refilling an endpoint's tables from the start would do to them, and do it."""
    from strandline.cli import endpoints

    endpoints.backfill(_opener(context), project, name, collection, Output(json), apply=apply)


@app.command()
def sync(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A materialization.")],
    timeout: Annotated[float, typer.Option(metavar="S", min=0, help="How long to wait for it.")] = 60.0,
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Bring an endpoint to where its collections are now, whatever its schedule says."""
    from strandline.cli import endpoints

    endpoints.sync(_opener(context), project, name, timeout, Output(json))


@app.command("anew")
def anew(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A source, a table of one, a view, an index or a materialization.")],
    apply: ApplyOption = False,
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Define an item again, with all that reads it, and make it from the start: a source that has lost its place."""
    from strandline.cli import sources

    sources.anew(_opener(context), project, name, Output(json), apply=apply)


@app.command()
def acknowledge(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="An item of which a notice is said.")] = None,
    every: Annotated[bool, typer.Option("--all", help="The notices of all items.")] = False,
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Acknowledge notices, so that status says them no longer, until the same kind of thing happens anew."""
    from strandline.cli import asking

    asking.acknowledge(_opener(context), project, name, Output(json), every=every)


@source_app.command("skip")
def source_skip(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A source.")],
    as_of: Annotated[
        int | None, typer.Option(metavar="T", parser=moment_option, help="Only what was there at T; default: now.")
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option("--file", metavar="NAME", help="Go on without this file, which is gone or changed for good."),
    ] = None,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="With --file: withdraw its rows, too; all other files are read again.")
    ] = False,
    apply: ApplyOption = False,
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """List the undecodable records of a source, and dismiss them, so that they are no longer errors."""
    from strandline.cli import sources

    sources.skip(_opener(context), project, name, as_of, file or [], Output(json), apply=apply, withdraw=withdraw)


@source_app.command("retry")
def source_retry(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A source, or a table of one.")],
    project: ProjectOption = HERE,
    json: JsonOption = False,
) -> None:
    """Open a source that stands still anew, and ask its upstream at once; status 1 if it still has a problem."""
    from strandline.cli import sources

    raise typer.Exit(sources.retry(_opener(context), project, name, Output(json)))


@driver_app.command("spec")
def driver_spec(
    endpoint: Annotated[str, typer.Argument(help="An endpoint, as in CREATE MATERIALIZATION … INTO.")],
    json: JsonOption = False,
) -> None:
    """Show which options an endpoint and its tables take, as JSON Schemas."""
    from strandline.cli import endpoints

    endpoints.driver_spec(endpoint, Output(json))


@driver_app.command("serve")
def driver_serve(
    endpoint: Annotated[
        str, typer.Argument(help="An endpoint, as in CREATE MATERIALIZATION … INTO; or package.module:KIND.")
    ],
) -> None:
    """Be a Flow connector: materialize into an endpoint for the runtime at the other end of stdin and stdout."""
    from strandline.cli import endpoints

    raise typer.Exit(endpoints.driver_serve(endpoint))


@driver_app.command("check")
def driver_check(
    endpoint: Annotated[
        str, typer.Argument(help="An endpoint, as in CREATE MATERIALIZATION … INTO; or package.module:KIND.")
    ],
    config: Annotated[
        str, typer.Option(metavar="JSON", help="Its options; {n} in one stands for the number of an empty endpoint.")
    ],
    json: JsonOption = False,
) -> None:
    """Hold a driver against the contract: each scenario must pass, and fail with a defect."""
    from strandline.cli import endpoints

    if not endpoints.driver_check(endpoint, config, Output(json)):
        raise typer.Exit(1)


@app.command()
def options(json: JsonOption = False) -> None:
    """Show every option of every source, endpoint and store, as Markdown."""
    from strandline.cli import endpoints

    endpoints.options(Output(json))


@app.command()
def doctor(
    project: Annotated[
        Path | None,
        typer.Option("--project", metavar="DIR", help="The project's directory; default: here, if there is one."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Say what this machine, or the project, lacks: Java, jars, libraries, secrets, servers; status 1 if anything."""
    from strandline.cli.doctor import command as doctoring

    raise typer.Exit(doctoring.doctor(project, Output(json)))


@app.command()
def release(context: typer.Context, project: ProjectOption = HERE, json: JsonOption = False) -> None:
    """Release a location whose holder died, if its deployment is not `reentrant`."""
    from strandline.cli import keeping

    keeping.release(_opener(context), project, Output(json))


@app.command()
def demo(
    json: JsonOption = False,
    directory: Annotated[Path | None, typer.Option("--dir", metavar="DIR", help="Default: a temporary one.")] = None,
    days: Annotated[int, typer.Option(metavar="N", min=1, max=31, help="How many days of December arrive.")] = 31,
    months: Annotated[
        int, typer.Option(metavar="N", min=1, max=11, help="How many months arrive before, at once.")
    ] = 11,
) -> None:
    """Run the main job on real data: three views, DuckDB, a kill in the middle, a proof at the end."""
    from strandline.cli.demo import story

    wanted = story.Wanted(directory, days, months)
    raise typer.Exit(story.demo(wanted, Output(json)))


@app.command()
def warm(
    again: Annotated[bool, typer.Option("--again", help="Create it even if it exists.")] = False,
    json: JsonOption = False,
) -> None:
    """Record what Spark loads when it starts: from then on it starts in about half the time."""
    from strandline.cli import template

    template.warm(Output(json), again=again)


def _opener(context: typer.Context) -> Opener:
    assert isinstance(context.obj, Opener), "main passes the opener to every command"
    return context.obj
