"""A console over figures that a test writes, served as `strandline run` serves it, on a clock that a test moves."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from strandline.console import service
from strandline.console.service import listening
from strandline.console.watch import Watch
from strandline.problem import told
from strandline.serving import Door
from strandline.serving.traffic import Traffic
from strandline.store.clock import SystemIds

BEGUN_MS = 1_790_000_000_000


@dataclass
class Hands:
    """A clock whose hands a test moves."""

    ms: int = BEGUN_MS

    def now_ms(self) -> int:
        return self.ms

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def item(kind: str, *reads: str, **figures: Any) -> dict[str, Any]:
    """Return the figures of an item that is fresh, but for ``figures``."""
    found: dict[str, Any] = {"kind": kind, "instance": "", "reads": list(reads), "notices": [], "problem": None}
    found["waiting"] = None
    if kind in {"table", "source", "source table", "view"}:
        found |= {
            "phase": "following",
            "first": None,
            "unit": "rows",
            "lag": {"ms": 900, "rows": 0},
            "since": BEGUN_MS - 3_600_000,
            "upper": BEGUN_MS - 899,
            "rows": 1_200,
            "updates": 1_900,
            "parts": 7,
            "bytes": 48_300,
            "seen": None,
            "holders": 2,
            "done": {},
            "step": None,
        }
    if kind == "materialization":
        found |= {
            "upper": BEGUN_MS - 1_399,
            "lag": {"ms": 1_400},
            "phase": "Idle",
            "transactions": 41,
            "rows_stored": 9_000,
            "rows_deleted": 120,
            "moving": {"read": 0, "about": 0, "sent": 0},
            "splits": 0,
        }
    return found | figures


@dataclass
class Shown:
    """An environment of which only figures exist: what a console asks."""

    clock: Hands
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    tallies: dict[str, dict[str, Any]] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    plans: dict[str, dict[str, Any]] = field(default_factory=dict)
    counted: list[str] = field(default_factory=list)
    """Whose errors were asked for."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """The queries that are answered."""

    def figures(self) -> dict[str, Any]:
        return {
            "now_ms": self.clock.ms,
            "tick_ms": 1000,
            "generation": 7,
            "complete": self.clock.ms - 1000,
            "items": json.loads(json.dumps(self.items)),
            "others": {name: told(problem) for name, problem in self.others.items()},
            "store": {"retries": 3, "gc_runs": 5},
            "steps": {},
        }

    def queries(self) -> list[dict[str, Any]]:
        return list(self.asked)

    def errors(self, name: str) -> dict[str, Any]:
        self.counted.append(name)
        return self.tallies[name]

    def described(self, name: str) -> dict[str, Any] | None:
        if name not in self.items:
            return None
        return {
            "name": name,
            "definition": f"CREATE MATERIALIZED VIEW `{name}` AS\nSELECT city, sum(n) AS n FROM sales GROUP BY city",
            "columns": [["city", "string"], ["n", "bigint"]],
            "read_by": [other for other, each in self.items.items() if name in each["reads"]],
            "holders": [{"name": "controller", "since": BEGUN_MS - 3_600_000, "beat_ms": None}],
            "plan": self.plans.get(name),
        }


def figures_of(clock: Hands) -> Shown:
    """Return a pipeline of two sources, a table, views over them, an endpoint, an index and an instance."""
    wide = {"a": {"address": "10.0.0.1:7071", "obeys": True, "reused": 3}}
    lost = {"b": {"address": "10.0.0.2:7071", "obeys": False, "problem": "it does not answer"}}
    bad = {"place": "clicks[0]@17", "reason": "it is no JSON", "raw": "{oops"}
    read = {"read_records": 52_000, "reread_records": 0, "durable_records": 51_900, "error_records": 3}
    step = {"updates": 310, "ms": 84}
    shown = Shown(
        clock,
        {
            "broker": item("connection"),
            "clicks": item(
                "source",
                "broker",
                unit="messages",
                lag={"ms": 700, "rows": None, "messages": 12},
                rows=51_903,
                bytes=6_300_000,
                seen="0/[3]",
                done=read,
                notices=["upstream has columns that are not read: `wide` INT"],
            ),
            "bank": item("shared source"),
            "accounts": item("source table", "bank", rows=8_000, done=read),
            "payments": item(
                "source table", "bank", rows=412_000, bytes=31_000_000, done=read, lag={"ms": 48_000, "rows": 900}
            ),
            "customers": item("table", rows=1_204),
            "sessions": item("view", "clicks", "customers", rows=18_400, step=step, done={"rows": 5_100}),
            "balances": item(
                "view", "accounts", "payments", rows=8_000, step=step, done={"rows": 9_300}, instance="wide"
            ),
            "revenue by city": item(
                "view",
                "sessions",
                "balances",
                "customers",
                rows=64,
                step=step,
                done={"rows": 400},
                lag={"ms": 1_900, "rows": 4},
            ),
            "cohorts": item(
                "view",
                "sessions",
                phase="hydrating",
                upper=0,
                since=0,
                rows=0,
                lag={"ms": None, "rows": 18_400},
                first={"rows": 9_000, "about": 18_400, "ms": 65_000},
            ),
            "daily": item("view", "revenue by city", refresh="EVERY '1 day'", lag={"ms": 30_000_000, "rows": 90}),
            "dashboard": item(
                "materialization",
                "revenue by city",
                "balances",
                phase="StoreSent",
                moving={"read": 410, "about": 900, "sent": 200},
            ),
            "warehouse": item(
                "materialization",
                "balances",
                phase="Failed",
                problem="the endpoint does not answer: connection refused at db:5432",
                lag={"ms": 140_000},
            ),
            "balances_by_account": item("index", "balances", index={"in_memory": 1, "memory": 96_000, "scanned": 12}),
            "wide": item("instance", replicas=wide | lost),
        },
        {"clicks": {"rows": 3, "first": [bad], "since": BEGUN_MS - 600_000, "told": ["clicks[0]@17: it is no JSON"]}},
    )
    stage = {"name": "sessions", "rule": "join", "last_step": {"rows_read": 310, "ms": 84}}
    told = {"who": "ada at 10.0.0.9:51514", "since": BEGUN_MS - 65_000, "ms": 65_000, "stage": "computes"}
    text = "SELECT city, count(*) AS n\nFROM sessions JOIN customers USING (customer)\nGROUP BY city ORDER BY n DESC"
    shown.asked = [{"number": 12, **told, "text": text}]
    shown.plans["sessions"] = {
        "incremental": True,
        "reasons": [],
        "text": "imports: clicks, customers\n\nsessions: a join",
        "stages": [stage],
    }
    return shown


def items_of(count: int) -> dict[str, dict[str, Any]]:
    """Return ``count`` items, as many of each kind as real environments have, some of them late or broken."""
    found: dict[str, dict[str, Any]] = {}
    kinds = [*["source"] * 3, "table", *["view"] * 4, "materialization", "index"] if count > 5 else ["source"] * 2
    kinds = kinds * (count // len(kinds)) if count > 5 else [*kinds, "view", "view", "materialization"]
    of_kind: dict[str, list[str]] = {}
    for number, kind in enumerate(sorted(kinds, key=("source", "table", "view", "materialization", "index").index)):
        read = [*of_kind.get("source", []), *of_kind.get("table", [])] if kind == "view" else of_kind.get("view", [])
        words = {"source": "orders_of_region", "table": "rates", "view": "revenue_by_customer", "index": "by_id"}
        name = f"{words.get(kind, 'warehouse')}_{number}"
        reads = [read[number % len(read)], read[number * 7 % len(read)]] if read else []
        if kind == "view" and number % 3 == 0 and "view" in of_kind:
            reads.append(of_kind["view"][number * 5 % len(of_kind["view"])])
        of_kind.setdefault(kind, []).append(name)
        found[name] = item(kind, *dict.fromkeys(reads[: 1 if kind == "index" else 3]))
        if kind == "view":
            found[name] |= {"rows": 1 + number * number, "lag": {"ms": 17_000 if number % 9 == 0 else 800, "rows": 1}}
        if number % 17 == 3:
            found[name]["problem"] = f"this {kind} cannot go on: connection refused at db:5432"
    return found


@dataclass
class Console:
    """A console that is served, and what it shows."""

    url: str
    env: Shown
    watch: Watch
    clock: Hands

    def ask(
        self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET", body: str | None = None
    ) -> tuple[int, dict[str, str], str]:
        """Make a request; return the status, the headers and the body of the answer."""
        connection = http.client.HTTPConnection(self.url.partition("://")[2], timeout=120)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, named, answer.read().decode()
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        """Return a document."""
        status, _, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)


@contextmanager
def shown(env: Shown, door: Door | None = None) -> Iterator[Console]:
    """Serve a console over figures; it looks when the test says so."""
    watch = Watch(env, env.clock, Traffic(env.clock))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watch, "follow", lambda *_: None)
        with listening(watch, door or Door(service.ANYWHERE), env.clock, SystemIds()) as url:
            yield Console(url, env, watch, env.clock)


def an_hour(console: Console) -> None:
    """Let an hour pass in which figures move, and look all the while."""
    env, clock = console.env, console.clock
    for minute in range(-3_600, 1, 10):
        clock.ms = BEGUN_MS + minute * 1000
        wave = abs((minute // 10) % 60 - 30)
        for name, each in env.items.items():
            if each.get("rows"):
                each["rows"] += 1 + wave // 6
                each["bytes"] += 900
            for done in ("durable_records", "rows"):
                if done in each.get("done", {}):
                    each["done"][done] += 20 + wave * 3 + len(name)
            if each.get("step"):
                each["step"]["ms"] = 60 + wave * 2
            if name == "dashboard":
                each["rows_stored"] += wave
        console.watch.ticks.note(0.08 + wave / 400)
        console.watch.look()
