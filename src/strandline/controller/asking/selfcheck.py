"""The self-check: views are verified while they run, so that a wrong rule is found without an operator.

After each of the first steps of a new plan that changed something (the first computes everything, the next ones are
incremental), and from then on within a small share of the time that passes, plain Spark answers what a view must hold,
at one time, and the answer is compared with what it holds.  Later checks compare one part of the view's rows at a time,
the parts in turn.

A difference is a problem of the view, which `status` shows until the view is defined anew.  It is repaired in the next
tick: the catalog marks it as distrusted, and from then on plain Spark recomputes the whole of it.

What a check costs comes out of an allowance: `SHARE` of the time that passes, at most `ALLOWANCE_MS_MAX`.  A check runs
once the allowance covers what the view's last check took.  So checks slow ticks down by that share at the most.

See `compute/plan/meaning.py`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Final

import msgspec

from strandline.controller.asking.verification import MissingErrorsError, Sample, Verification, verify
from strandline.controller.core import Core
from strandline.controller.location.items import View
from strandline.errors import (
    AsOfError,
    CollectionError,
    EvaluationError,
    FencedError,
    StoreError,
    Unavailable,
    reason,
)
from strandline.instance.reports import ViewStatus
from strandline.problem import Problem, Stopped, Way

SHARE: Final = 0.02
ALLOWANCE_MS_MAX: Final = 60_000
PARTS: Final = 16
"""A check after the first compares one of so many parts of a view's rows."""
FIRST_CHECKS: Final = 3
"""After so many checked steps a plan is trusted, and checked within the allowance alone."""
FIRST_MS_MAX: Final = 5_000
"""First checks go on within one tick until they have taken so long; the others wait for the next tick."""
COST_MS_DEFAULT: Final = 2_000
"""What a check is taken to cost before one was made here."""
assert FIRST_MS_MAX < ALLOWANCE_MS_MAX

DISTRUSTED: Final = Problem(
    "self-check-found",
    "the self-check found {found}; plain Spark recomputes the whole view from then on, where its text has one answer",
    Stopped.NOTHING,
    (Way("report the text as a bug of Strandline, and try its plan again", "strandline anew {item:shell} --apply"),),
    "The view is right again after the next tick; its steps cost more.",
)
FAILED: Final = Problem(
    "self-check-failed",
    "the self-check failed: {why}",
    Stopped.NOTHING,
)


@dataclass(slots=True)
class _Known:
    """What is known of one view: what its last check took, which part comes next, how many first steps were right.

    ``rows`` is how many updates its sink had appended at the last check: without new ones nothing has changed.  Of a
    view that runs in replicas it is a digest of its rows.  All of it is about the plan with the ``fingerprint``.
    """

    cost_ms: int = COST_MS_DEFAULT
    part: int = 0
    passed: int = 0
    rows: int = 0
    fingerprint: str = ""


@dataclass(slots=True)
class SelfCheck:
    """Verifies the views of one environment: `turn` may go on beside ticks, `settle` is called between them."""

    core: Core
    _known: dict[str, _Known] = field(default_factory=dict)
    _allowance_ms: float = 0.0
    _seen_ms: int | None = None
    _found: list[tuple[View, View]] = field(default_factory=list)

    async def turn(self) -> None:
        """Check what is due and can be paid for.

        Raises `FencedError` if another environment has taken over.  A check that cannot be made is made later.
        """
        begun = self.core.assembly.clock.now_ms()
        for view in self._elsewhere():
            with suppress(StoreError, Unavailable):
                await self.core.client.look(view.shard)
        for name in self._unchecked():
            if self.core.assembly.clock.now_ms() - begun > FIRST_MS_MAX:
                break
            await self._check(name, None)
        now = self.core.assembly.clock.now_ms()
        passed = 0 if self._seen_ms is None else max(0, now - self._seen_ms)
        self._seen_ms = now
        self._allowance_ms = min(ALLOWANCE_MS_MAX, self._allowance_ms + SHARE * passed)
        due = self._next()
        if due is not None and self._known[due].cost_ms <= self._allowance_ms:
            known = self._known.pop(due)
            self._known[due] = known  # the last of all, now
            await self._check(due, Sample(PARTS, known.part))
            known.part = (known.part + 1) % PARTS
            self._allowance_ms -= known.cost_ms

    def _unchecked(self) -> list[str]:
        """Return the views that have changed under a plan that is not trusted yet."""
        return [
            name
            for name, status in self._running().items()
            if self._view(name).checked != status.fingerprint and status.rows != self._of(name, status.fingerprint).rows
        ]

    def _of(self, name: str, fingerprint: str) -> _Known:
        """Return what is known of a view's plan; nothing, if it was another plan."""
        known = self._known.get(name)
        if known is None or known.fingerprint != fingerprint:
            known = self._known[name] = _Known(fingerprint=fingerprint)
        return known

    def _next(self) -> str | None:
        """Return the view that was checked the longest ago."""
        running = self._running()
        for name in list(self._known):
            if name not in running:
                del self._known[name]
        for name, status in running.items():
            self._of(name, status.fingerprint)
        return next(iter(self._known), None)

    def _running(self) -> dict[str, ViewStatus]:
        """Return each view that holds something and is trusted, wherever it runs."""
        items = self.core.catalog.items
        views = {**self.core.require_writing().instance.report().views, **self._replicated()}
        known = {name: item for name in views if isinstance(item := items.get(name), View)}  # the rest is dropped now
        return {name: views[name] for name, item in known.items() if not item.distrusted}

    def _elsewhere(self) -> list[View]:
        return [item for item in self.core.catalog.items.values() if isinstance(item, View) and item.instance]

    def _replicated(self) -> dict[str, ViewStatus]:
        """Return the same of the views that run in replicas, by their shards as known here."""
        found = {}
        for view in self._elsewhere():
            state = self.core.client.known(view.shard)
            if state is not None and state.certificate is not None:
                found[view.name.lower()] = ViewStatus(state.certificate.fingerprint, state.digest.low)
        return found

    def _view(self, name: str) -> View:
        found = self.core.catalog.collection(name)
        assert isinstance(found, View), f"{name!r} has a dataflow"
        return found

    async def _check(self, name: str, sample: Sample | None) -> None:
        """Check one view; what keeps it from being checked is a problem of that view alone."""
        try:
            with self.core.problems.waiting(name):
                found = await self._verified(name, sample)
            if found is not None and not found.ok:
                rows = f"{found.missing} row(s) missing and {found.extra} too many at {found.as_of}"
                await self._distrust(name, rows)
            elif found is not None and sample is None:
                await self._passed(name)
        except FencedError:
            raise
        except MissingErrorsError as error:
            await self._distrust(name, f"that {error}")
        except Exception as error:  # noqa: BLE001 - a check never stops what it checks
            if name in self._running():  # else it was dropped meanwhile
                self.core.problems.setdefault(name, FAILED.said(why=reason(error)))

    async def _verified(self, name: str, sample: Sample | None) -> Verification | None:
        """Compare a view with what it must hold; None if it cannot be read, for which it has a problem already."""
        status = self._running()[name]
        known, begun = self._of(name, status.fingerprint), self.core.assembly.clock.now_ms()
        try:
            return await verify(self.core, name, None, sample)
        except EvaluationError:
            raise
        except (AsOfError, CollectionError):
            return None
        finally:
            known.cost_ms = max(1, self.core.assembly.clock.now_ms() - begun)
            known.rows = status.rows

    async def _passed(self, name: str) -> None:
        """Count a first step that was right; after enough of them the plan is trusted."""
        status = self._running()[name]
        known = self._of(name, status.fingerprint)
        known.passed += 1
        if known.passed >= FIRST_CHECKS:
            await self._change(name, checked=status.fingerprint)

    async def _distrust(self, name: str, found: str) -> None:
        """Have the view recomputed whole: the next tick opens it anew, and its step appends what is wrong with it."""
        await self._change(
            name,
            distrusted=str(DISTRUSTED.said(found=found, item=self._view(name).name)),
        )

    async def _change(self, name: str, **fields: str) -> None:
        before = self._view(name)
        self._found.append((before, msgspec.structs.replace(before, **fields)))

    async def settle(self) -> None:
        """Keep what checks have found in the catalog: between ticks, since only one coroutine at a time changes it.

        Raises what stores raise, and `FencedError`; what could not be kept is kept another time.
        """
        while self._found:
            before, after = self._found[0]
            change = methodcaller("with_changed", before, after)
            await self.core.catalogs.change(self.core.require_writing().epoch, change)
            self._found.pop(0)
