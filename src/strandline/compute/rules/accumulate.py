"""Rule "Accumulate": a Reduce whose aggregates are sums of exact numbers is kept by running sums, then finalised.

The stage's collection holds, for each group, its keys and *accumulators*: how many rows, how many non-null arguments,
exact sums. Each is Σ diff × contribution over the group's updates, so an update changes it without looking at the
group again, and in any order (law D).  What the query asked for is a projection of the accumulators (`finalised`): a
count, a sum that is NULL when nothing was added, an average as Spark rounds it.

What counts as exact, and how Spark values it (held by test against Spark):
    count              bigint
    sum of integers    bigint, overflow is an error; accumulated as bigint (up to 32 bits) or decimal(38,0) (64 bits)
    sum of decimal(p,s)   decimal(p+10,s); accumulated as decimal(38,s), or as a whole number of 10**-s in decimal(38,0)
                       where Spark's product with a diff would lose fraction digits
    avg of integers    double(sum) / count
    avg of decimal(p,s)   decimal(p+4,s+4) of the quotient
Everything else (min, max, DISTINCT, floats, intervals, averages of very wide decimals) is rule "Regroup".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sqlglot import exp

from strandline.algebra.nodes import NOTHING, Accumulate, Accumulator, Aggregate, Get, Node, Project, Reduce
from strandline.algebra.scalar import Scalar, binary, call, case, cast, column, is_null, number
from strandline.algebra.schema import Column
from strandline.algebra.types import decimal_digits
from strandline.compute.rules.linear import at, updates
from strandline.compute.rules.rule import Phase, Rule, Window

ROWS: Final = "rows"
SMALL_INTEGERS: Final = ("tinyint", "smallint", "int")
MULTIPLIER_DIGITS: Final = 10
"""Digits of a diff when it multiplies a decimal."""
DECIMAL_DIGITS: Final = 38
PRODUCT_DIGITS_MAX: Final = 27
"""A decimal wider than this, times a diff, has more than 38 digits; so Spark may drop some of its fraction ..."""
KEPT_FRACTION: Final = 6
"""... but no more than leaves so many."""
AVG_DIGITS_MAX: Final = 15
"""Spark divides with 28 - p digits more than p; with 9 of them to spare, rounding twice is rounding once for 500 M
rows a group."""
PARTED_DIGITS_MAX: Final = 32
PARTED_FRACTION_MAX: Final = 9
"""Averages of wider decimals are a whole quotient and a remainder's; within these bounds no step of that rounds."""
PARTED_COUNT: Final = "decimal(14,0)"
"""A count of rows there: 15 digits more than the remainder's, 11 of them to spare."""
KEPT_REMEMBERED: Final = 1_000
"""Of how many nodes it is remembered how they are kept; those that were asked for last."""
assert PRODUCT_DIGITS_MAX + MULTIPLIER_DIGITS + 1 <= DECIMAL_DIGITS
assert AVG_DIGITS_MAX < PRODUCT_DIGITS_MAX
assert PARTED_DIGITS_MAX + KEPT_FRACTION <= DECIMAL_DIGITS


@dataclass(frozen=True, slots=True)
class Kept:
    """How a Reduce is kept: its accumulators, and the columns of the query as expressions over them."""

    accumulators: tuple[Accumulator, ...]
    finalised: tuple[tuple[str, Scalar], ...]
    rows: str


def invertible(aggregate: Aggregate) -> bool:
    """Tell whether ``aggregate`` is a function of exact sums.

    >>> x = Scalar(column("x"))
    >>> invertible(Aggregate("s", "sum", x, False, "double", "double"))
    False
    >>> invertible(Aggregate("s", "sum", x, False, "decimal(20,2)", "decimal(10,2)"))
    True
    """
    if aggregate.distinct:
        return False
    if aggregate.function == "count":
        return True
    if aggregate.function not in ("sum", "avg"):
        return False
    if aggregate.argument_type in SMALL_INTEGERS or aggregate.argument_type == "bigint":
        return True
    digits = decimal_digits(aggregate.argument_type)
    if digits is None:
        return False
    parted = digits[0] <= PARTED_DIGITS_MAX and digits[1] <= PARTED_FRACTION_MAX
    return aggregate.function == "sum" or digits[0] <= AVG_DIGITS_MAX or parted


@lru_cache(maxsize=KEPT_REMEMBERED)
def kept(node: Reduce) -> Kept:
    """Return the accumulators of ``node`` (all of whose aggregates are invertible) and how to finalise them.

    Every step of a stage asks for this, and it follows from the node alone: it is worked out once for each.
    """
    taken = {name.lower() for name, _ in node.keys}
    accumulators: dict[tuple[Scalar, str], str] = {}

    def accumulator(label: str, contribution: exp.Expr, type_: str) -> exp.Expr:
        name = accumulators.get((Scalar(contribution), type_))
        if name is None:
            name, n = label, 2
            while name.lower() in taken:
                name, n = f"{label}_{n}", n + 1
            taken.add(name.lower())
            accumulators[Scalar(contribution), type_] = name
        return column(name)

    rows = accumulator(ROWS, number(1), "bigint")
    finalised: list[tuple[str, exp.Expr]] = [(name, column(name)) for name, _ in node.keys]
    for aggregate in node.aggregates:
        if aggregate.argument is None:
            finalised.append((aggregate.name, rows))
            continue
        argument = aggregate.argument.tree
        count = accumulator(f"{aggregate.name}_n", case(is_null(argument), number(0), number(1)), "bigint")
        if aggregate.function == "count":
            finalised.append((aggregate.name, count))
            continue
        exact, wide = _exact(aggregate.argument_type)
        whole = _is_whole(aggregate.argument_type)
        term = _shifted(argument, _fraction(aggregate), wide) if whole else argument
        total = accumulator(f"{aggregate.name}_sum", _or_zero(term, exact), wide)
        some = binary(exp.GT, count, number(0))
        finalised.append((aggregate.name, case(some, _value(aggregate, total, count))))
    made = tuple(Accumulator(name, contribution, type_) for (contribution, type_), name in accumulators.items())
    return Kept(made, tuple((name, Scalar(tree)) for name, tree in finalised), rows.name)


def accumulate(node: Reduce, prior: Node, window: Window) -> Node | None:
    """Return the plan of the updates of the accumulators of ``node``; ``prior`` reads them as they were before."""
    keeps = kept(node)
    delta = updates(node.input, window)
    start = window.start if not node.keys else None
    if delta is None and start is None:
        return None
    delta = delta or at(node.input, Phase.NEW, window)
    stored = NOTHING if window.first else prior
    return Accumulate(delta, stored, node.keys, keeps.accumulators, keeps.rows, window.times, start, window.small)


def finalise(node: Reduce, stage: str) -> Node:
    """Return the output of ``node`` as a projection of its accumulators."""
    return Project(Get.of(stage, _names(node)), kept(node).finalised)


def _names(node: Reduce) -> tuple[str, ...]:
    return tuple(name for name, _ in node.keys) + tuple(a.name for a in kept(node).accumulators)


def _columns(node: Reduce, types: Mapping[str, str]) -> tuple[Column, ...]:
    sums = (Column(a.name, a.type) for a in kept(node).accumulators)
    return (*(Column(name, types[name]) for name, _ in node.keys), *sums)


def _exact(argument_type: str) -> tuple[str, str]:
    """Return the type that an argument is added up in, and the accumulator's."""
    if argument_type in SMALL_INTEGERS:
        return "bigint", "bigint"
    if argument_type == "bigint":
        return "decimal(19,0)", f"decimal({DECIMAL_DIGITS},0)"
    digits = decimal_digits(argument_type)
    assert digits is not None, argument_type
    wide = f"decimal({DECIMAL_DIGITS},{0 if _is_whole(argument_type) else digits[1]})"
    return wide if _is_whole(argument_type) else argument_type, wide


def _is_whole(argument_type: str) -> bool:
    """Tell whether values of this type are added up as whole numbers of their last fraction digit."""
    digits = decimal_digits(argument_type)
    return digits is not None and digits[0] > PRODUCT_DIGITS_MAX and digits[1] > KEPT_FRACTION


def _shifted(value: exp.Expr, places: int, type_: str) -> exp.Expr:
    """Return ``value`` times ten to the power of ``places``: as a text, since Spark's products of such have no room."""
    return cast(call("concat", cast(value, "string"), exp.Literal.string(f"E{places}")), type_)


def _or_zero(argument: exp.Expr, exact: str) -> exp.Expr:
    """Return the argument in the type that it is added up in, and zero for NULL."""
    return call("coalesce", cast(argument, exact), cast(number(0), exact))


def _fraction(aggregate: Aggregate) -> int:
    digits = decimal_digits(aggregate.argument_type)
    return 0 if digits is None else digits[1]


def _value(aggregate: Aggregate, total: exp.Expr, count: exp.Expr) -> exp.Expr:
    """Return the value of a sum or average that has at least one term."""
    digits = decimal_digits(aggregate.argument_type)
    if _is_whole(aggregate.argument_type):
        total = _shifted(total, -_fraction(aggregate), f"decimal({DECIMAL_DIGITS},{_fraction(aggregate)})")
    if aggregate.function == "sum":
        return cast(total, aggregate.type)
    if digits is None:
        return binary(exp.Div, cast(total, "double"), cast(count, "double"))
    if digits[0] > AVG_DIGITS_MAX:
        return _parted(total, count, *digits)
    narrow = f"decimal({digits[0] + MULTIPLIER_DIGITS},{digits[1]})"
    return cast(binary(exp.Div, cast(total, narrow), cast(count, "decimal(20,0)")), aggregate.type)


def _parted(total: exp.Expr, count: exp.Expr, digits: int, fraction: int) -> exp.Expr:
    """Return the average of decimals of so many digits: a whole quotient, and the rest's, rounded as Spark does."""
    rows = cast(count, PARTED_COUNT)
    rest = binary(exp.Mod, total, rows)
    multiple = cast(binary(exp.Sub, total, rest), f"decimal({DECIMAL_DIGITS},0)")
    whole = cast(binary(exp.Div, multiple, rows), f"decimal({max(1, digits - fraction)},0)")
    part = cast(binary(exp.Div, rest, rows), f"decimal({fraction + 5},{fraction + 4})")
    return cast(binary(exp.Add, whole, part), f"decimal({digits + 4},{fraction + 4})")


RULE: Final[Rule[Reduce]] = Rule(
    "accumulate",
    "add the changes of each touched group to its stored sums",
    takes=lambda node: isinstance(node, Reduce) and all(map(invertible, node.aggregates)),
    kept=_columns,
    names=_names,
    output=finalise,
    updates=accumulate,
    described=lambda node: node.described,
    key=lambda node: tuple(name for name, _ in node.keys),
)
