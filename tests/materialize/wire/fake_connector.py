"""A connector that another author might write, and the ways in which one may fail: ``fake_connector.py HOW DIRECTORY``.

It keeps rows in a file as JSON by key, commits when it acknowledges, and speaks the codec ``json``.  It needs nothing
of ours.  What it was sent is kept in ``DIRECTORY/seen``.
"""

import base64
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

HOW, DIRECTORY = sys.argv[1], Path(sys.argv[2])
ROWS = DIRECTORY / "rows"
#: The ways that are tried once: the next process behaves.
ONCE = DIRECTORY / "failed"


def fails(how: str) -> bool:
    """Tell whether to fail in a way, now for the first time."""
    if how != HOW or ONCE.exists():
        return False
    ONCE.touch()
    return True


def say(**message: object) -> None:
    """Write an answer."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def die(reason: str, status: int = 1) -> None:
    """End, as connectors do."""
    sys.stderr.write(reason + "\n")
    sys.stderr.flush()
    os._exit(status)


def validated(request: dict) -> dict:
    """Answer Validate: every field can be stored, documents must be."""
    bindings = []
    for binding in request["bindings"]:
        constraints = {
            each["field"]: {"type": "FIELD_OPTIONAL" if each.get("ptr") else "LOCATION_REQUIRED"}
            for each in binding["collection"]["projections"]
        }
        bindings.append({"constraints": constraints, "resourcePath": [binding["resourceConfig"]["place"]["table"]]})
    return {"bindings": bindings}


def applied(request: dict, state: dict) -> dict:
    """Answer Apply: say what changed since the last one."""
    if not isinstance(state, dict):
        die("the state is missing")
    last = request.get("lastMaterialization", {}).get("bindings", [])
    was = {tuple(each["resourcePath"]): each.get("backfill", 0) for each in last}
    done = []
    for each in request["materialization"]["bindings"]:
        if was.get(tuple(each["resourcePath"])) != each.get("backfill", 0):
            done.append("created " + each["resourcePath"][0])
            if was:
                ROWS.unlink(missing_ok=True)
    return {"actionDescription": ", ".join(done)}


SCHEMA = {"properties": {"place": {"properties": {"table": {"type": "string", "x-collection-name": True}}}}}


def session(lines: object, request: dict) -> None:
    """Run a session."""
    rows = json.loads(ROWS.read_text()) if ROWS.exists() else {}
    staged = request["state"].get("staged", {})
    if fails("silent when opened"):
        threading.Event().wait()
    if fails("fenced"):
        die('{"level":"fatal","msg":"opening","error":"this instance was Fenced Off by another"}')
    elsewhere = {"sources": {"strandline;t.v0-m-1@l-b": {"readThrough": "5"}}}
    say(opened={"runtimeCheckpoint": elsewhere} if fails("holds rows of elsewhere") else {"later": 1})
    writes: dict = {}
    for line in lines:
        message = json.loads(line)
        seen(message)
        if "acknowledge" in message:
            rows.update(staged)
            rows = {key: row for key, row in rows.items() if row is not None}
            ROWS.write_text(json.dumps(rows))
            staged = {}
            if fails("slow to acknowledge"):
                threading.Event().wait(3.5)
            if fails("flushed unasked"):
                say(flushed={})
            say(acknowledged={"state": {"updated": {"staged": None}, "mergePatch": True}})
        elif "load" in message:
            key = base64.b64decode(message["load"]["keyPacked"]).hex()
            if HOW == "loads much":
                say(loaded={"doc": {"k": message["load"]["key"][0], "v": "x" * 20_000}})
            elif key in rows:
                say(loaded={"binding": message["load"].get("binding", 0), "doc": rows[key]})
        elif "flush" in message:
            if fails("silent when flushed"):
                threading.Event().wait()
            if fails("dies inside a message"):
                sys.stdout.write('{"flushed":{"state"')
                sys.stdout.flush()
                die("disk full")
            if fails("not json"):
                sys.stdout.write("Traceback (most recent call last):\n")
                sys.stdout.flush()
                threading.Event().wait()
            if fails("two messages at once"):
                say(flushed={}, startedCommit={})
            if HOW == "floods stderr":
                for _ in range(200):
                    sys.stderr.write("x" * 100_000 + "\n")
            say(flushed={})
        elif "store" in message:
            if fails("does not read"):
                threading.Event().wait()
            store = message["store"]
            writes[base64.b64decode(store["keyPacked"]).hex()] = None if store.get("delete") else store["doc"]
        elif "startCommit" in message:
            if fails("dies when it commits"):
                sys.stderr.write('{"level":"info","message":"retrying"}\n')
                die('{"level":"fatal","msg":"cannot log in","error":"hunter2 is wrong"}')
            say(startedCommit={"state": {"updated": {"staged": writes}}})
            staged, writes = writes, {}
    if HOW == "stays":
        threading.Event().wait()


def seen(message: object) -> None:
    """Keep what was sent."""
    with (DIRECTORY / "seen").open("a") as file:
        file.write(json.dumps(message) + "\n")


def main() -> None:
    """Answer unary requests, then run one session."""
    (DIRECTORY / "pids").open("a").write(f"{os.getpid()}\n")
    if HOW == "has a child":
        child = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL)
        (DIRECTORY / "pids").open("a").write(f"{child.pid}\n")
    for line in sys.stdin:
        message = json.loads(line)
        seen(message)
        if "spec" in message:
            if fails("another version"):
                say(spec={"protocol": 1})
            if fails("silent when asked"):
                threading.Event().wait()
            say(spec={"protocol": 3032023, "configSchema": {}, "resourceConfigSchema": SCHEMA, "documentationUrl": "u"})
        elif "validate" in message:
            if fails("answers something else"):
                say(applied={})
            say(validated=validated(message["validate"]))
        elif "apply" in message:
            say(applied=applied(message["apply"], message["apply"].get("state")))
        elif "open" in message:
            session(sys.stdin, message["open"])
            return


main()
