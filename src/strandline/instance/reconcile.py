"""Reconciliation: what of a replica runs on when a controller has said everything again.

What runs is kept if it is just what is commanded: it exports the same, reads the same, computes the same, and can still
be read from where the controller wants to read it.  Otherwise it is replaced, and a counter says for which reason.
What is not commanded is dropped.  What goes ends before what comes begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.instance.commands import RunDataflow, RunIndex, RunIngestion, RunMaterialization
from strandline.instance.protocol.messages import Create, Reconciled, Runnable

EXPORTS = "exports"
IMPORTS = "imports"
PLAN = "plan"
AS_OF = "as_of"
EPOCH = "epoch"
"""Why something is replaced; the last: it writes under an epoch that is over."""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What becomes of what runs, by id.  ``replace``: and why."""

    keep: tuple[str, ...] = ()
    replace: Mapping[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    create: tuple[str, ...] = ()

    @property
    def counted(self) -> Reconciled:
        """The same as the controller gets it."""
        reasons = dict(sorted(Counter(self.replace.values()).items()))
        return Reconciled(len(self.keep), reasons, len(self.drop), len(self.create))


def reconcile(running: Mapping[str, Create], wanted: Mapping[str, Create], *, epoch_over: bool) -> Reconciliation:
    """Compare what runs with what is commanded, both by id.

    ``epoch_over``: what runs was opened under an epoch of writes that another one has succeeded.
    """
    replace = {}
    for each in [each for each in running if each in wanted]:
        if why := (EPOCH if epoch_over else difference(running[each], wanted[each])):
            replace[each] = why
    keep = tuple(each for each in running if each in wanted and each not in replace)
    drop = tuple(each for each in running if each not in wanted)
    create = tuple(each for each in wanted if each not in running)
    return Reconciliation(keep, replace, drop, create)


def difference(runs: Create, wanted: Create) -> str:
    """Return why what runs is not what is commanded; empty if it is."""
    if set(runs.exports) != set(wanted.exports) or _outputs(runs.what) != _outputs(wanted.what):
        return EXPORTS
    if _inputs(runs.what) != _inputs(wanted.what):
        return IMPORTS
    if runs.what != wanted.what:
        return PLAN
    if runs.as_of is not None and (wanted.as_of is None or wanted.as_of < runs.as_of):
        return AS_OF
    return ""


def _outputs(what: Runnable) -> object:
    match what:
        case RunDataflow():
            return what.output, dict(what.shards)
        case RunIngestion():
            return frozenset(what.outputs)
        case RunMaterialization():
            return what.log
        case RunIndex():
            return None


def _inputs(what: Runnable) -> object:
    match what:
        case RunDataflow():
            return dict(what.inputs)
        case RunIngestion():
            return what.connector, dict(what.options), what.remap, what.progress
        case RunMaterialization():
            return what.inputs
        case RunIndex():
            return what.of
