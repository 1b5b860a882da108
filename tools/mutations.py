"""Small mistakes that a person could make in a module: where each would stand, and what would stand there.

`mutations` lists them.  A mistake is a change of one place of the text, so that all else
(lines, comments) stays as it is and the difference is short.  What no test can notice, or none should, is left out:
annotations, decorators, docstrings, assertions, messages of errors, log lines, representations, long constants.

`blocks` names the statement lists of a module's functions.  A name holds when lines above it move.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Final

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
UNSWAPPED: Final = frozenset({"isinstance", "max", "min"})
"""Functions whose arguments stay in their order: it means nothing, or the call always fails."""
CALLED: Final = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "reversed": "list"}
_PAIRS: Final = (("lower", "upper"), ("left", "right"), ("old", "new"), ("before", "after"), ("first", "last"))
TWINS: Final = dict(_PAIRS) | {right: left for left, right in _PAIRS}
"""Members that are written for each other."""
CONSTANT_MAX: Final = 2
"""A larger number is a limit or a size: one more or less changes no behaviour that is promised."""
UNSEEN: Final = frozenset({"__repr__", "__str__", "__all__", "__format__"})
LOGGERS: Final = frozenset({"log", "_log", "logger", "_logger", "logging", "warnings"})
SIMPLE: Final = (ast.Name, ast.Attribute, ast.Subscript)
BARE: Final = (*SIMPLE, ast.Call, ast.Constant, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Tuple)
"""What needs no brackets, or has some of its own."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mistake: ``text`` in place of the bytes from ``start`` to ``end``, at ``line``, in a block (see `blocks`)."""

    kind: str
    line: int
    block: str | None
    start: int
    end: int
    text: str

    def planted(self, source: str) -> str:
        """Return ``source`` with the mistake in it."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


def mutations(source: str) -> list[Mutation]:
    r"""Return every mistake that can be planted in a module, in the order of the text.

    >>> [(m.kind, m.text) for m in mutations("def f(a, b):\n    return a < b\n")]
    [('comparison', '(a <= b)')]
    """
    tree = ast.parse(source)
    finder = _Finder(source)
    finder.visit(tree)
    spans = [(key, body[0].lineno, body[-1].end_lineno or 0) for key, body in blocks(tree)]
    found = []
    for kind, node, text in finder.found:
        around = [(last - first, key) for key, first, last in spans if first <= node.lineno <= last]
        block = min(around)[1] if around else None
        found.append(Mutation(kind, node.lineno, block, *finder.span(node), text))
    return sorted(found, key=lambda each: (each.start, each.end, each.text))


def changes_nothing(source: str, mutation: Mutation) -> bool:
    """Return whether the module with the mistake is compiled into the same code."""
    before, after = (compile(text, "module", "exec") for text in (source, mutation.planted(source)))
    return _without_places(before) == _without_places(after)


def blocks(tree: ast.AST, name: str = "") -> Iterator[tuple[str, list[ast.stmt]]]:
    r"""Name each list of statements of each function: by the function, and its number there.

    >>> [key for key, _ in blocks(ast.parse("class A:\n  def f(s):\n    if s:\n      return 1\n    return 2"))]
    ['A.f#0', 'A.f#1']
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = f"{name}{node.name}"
            yield from ((f"{own}#{number}", body) for number, body in enumerate(_bodies(node)))
            yield from blocks(node, f"{own}.")
        else:
            yield from blocks(node, f"{name}{node.name}." if isinstance(node, ast.ClassDef) else name)


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Return the lists of statements in ``node``, not those of functions and classes in it."""
    for _, held in ast.iter_fields(node):
        if not isinstance(held, list):
            continue
        if held and isinstance(held[0], ast.stmt):
            yield held
        for each in held:
            if isinstance(each, ast.stmt | ast.excepthandler | ast.match_case) and not isinstance(
                each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
            ):
                yield from _bodies(each)


def _without_places(code: CodeType) -> CodeType:
    consts = tuple(_without_places(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_consts=consts, co_linetable=b"", co_firstlineno=1)


class _Finder(ast.NodeVisitor):
    """Collect what could be wrong: a kind, the node that would be replaced, and the text in its place."""

    def __init__(self, source: str) -> None:
        self.found: list[tuple[str, ast.expr | ast.stmt, str]] = []
        self._starts = [0, *itertools.accumulate(len(line.encode()) for line in source.splitlines(keepends=True))]
        self._function: str | None = None

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return the bytes of ``node``."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _put(self, kind: str, node: ast.expr | ast.stmt, wrong: ast.expr | str) -> None:
        text = wrong if isinstance(wrong, str) else ast.unparse(wrong)
        if isinstance(wrong, ast.expr) and not isinstance(wrong, BARE):
            text = f"({text})"
        self.found.append((kind, node, text))

    # --- what is left as it is ----------------------------------------------------------------------------------------
    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in UNSEEN:
            return
        outer, self._function = self._function, node.name
        for part in [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body]:
            self.visit(part)
        self._function = outer

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        """An assertion checks; what it checks is tested elsewhere."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """Its message is prose."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Prose or SQL; the places of what it holds are not known before Python 3.12."""

    # --- statements ---------------------------------------------------------------------------------------------------
    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if not isinstance(call, ast.Call) or _root(call.func) in LOGGERS:
            return
        if self._function:
            self._put("statement removed", node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Name) and target.id in UNSEEN for target in node.targets):
            return
        if self._function not in {None, "__init__", "__post_init__"} and all(
            isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets
        ):
            self._put("statement removed", node, "pass")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._put("statement removed", node, "pass")
        if other := OPERATORS.get(type(node.op)):
            self._put("operator", node, ast.unparse(ast.AugAssign(node.target, other(), node.value)))
        self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._put("statement removed", node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._put("jump removed", node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._put("jump removed", node, "pass")

    def visit_If(self, node: ast.If) -> None:
        if _root(node.test) == "TYPE_CHECKING":
            return
        if node.orelse or not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            self._put("branches swapped", node.test, ast.UnaryOp(ast.Not(), node.test))
        self.generic_visit(node)

    def visit_match_case(self, node: ast.match_case) -> None:
        if node.guard is not None:
            self._put("guard dropped", node.guard, "True")
            self.visit(node.guard)
        for part in node.body:
            self.visit(part)

    # --- expressions --------------------------------------------------------------------------------------------------
    def visit_Compare(self, node: ast.Compare) -> None:
        for at, op in enumerate(node.ops):
            if other := COMPARISONS.get(type(op)):
                ops = [*node.ops[:at], other(), *node.ops[at + 1 :]]
                self._put("comparison", node, ast.Compare(node.left, ops, node.comparators))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._put("connective", node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
        for at in range(len(node.values)):
            left = [*node.values[:at], *node.values[at + 1 :]]
            self._put("condition dropped", node, left[0] if len(left) == 1 else ast.BoolOp(node.op, left))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._put("not dropped" if isinstance(node.op, ast.Not) else "sign", node, node.operand)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = any(isinstance(side, ast.JoinedStr | ast.List | ast.Tuple) or _text(side) for side in _sides(node))
        types = all(isinstance(side, ast.Name) and side.id[0].isupper() for side in _sides(node))
        if not texts and not types and (other := OPERATORS.get(type(node.op))):
            self._put("operator", node, ast.BinOp(node.left, other(), node.right))
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._put("branches swapped", node, ast.IfExp(node.test, node.orelse, node.body))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._put("switch flipped", node, ast.Constant(not node.value))
        elif isinstance(node.value, int) and abs(node.value) <= CONSTANT_MAX:
            self._put("constant", node, ast.Constant(node.value + 1))
            if node.value > 0:
                self._put("constant", node, ast.Constant(node.value - 1))

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.slice, ast.Constant) and node.slice.value == 0:
            self._put("end swapped", node.slice, "-1")
        if isinstance(node.slice, ast.Slice):
            for bound in filter(None, (node.slice.lower, node.slice.upper)):
                if isinstance(bound, SIMPLE):
                    self._put("bound", bound, ast.BinOp(bound, ast.Add(), ast.Constant(1)))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in CALLED and node.args:
            keywords = [] if CALLED[name] == "list" else node.keywords
            self._put("call", node, ast.Call(ast.Name(CALLED[name], ast.Load()), node.args, keywords))
        if len(node.args) > 1 and all(isinstance(each, SIMPLE) for each in node.args[:2]) and name not in UNSWAPPED:
            swapped = [node.args[1], node.args[0], *node.args[2:]]
            self._put("arguments swapped", node, ast.Call(node.func, swapped, node.keywords))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load) and node.attr in TWINS:
            self._put("twin", node, ast.Attribute(node.value, TWINS[node.attr], ast.Load()))
        self.generic_visit(node)

    def visit_Tuple(self, node: ast.Tuple) -> None:
        if isinstance(node.ctx, ast.Load) and len(node.elts) > 1 and all(isinstance(e, SIMPLE) for e in node.elts[:2]):
            self._put("order", node, ast.Tuple([node.elts[1], node.elts[0], *node.elts[2:]], ast.Load()))
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        for at, clause in enumerate(node.generators):
            for dropped in clause.ifs:
                ifs = [each for each in clause.ifs if each is not dropped]
                other = ast.comprehension(clause.target, clause.iter, ifs, clause.is_async)
                generators = [*node.generators[:at], other, *node.generators[at + 1 :]]
                fields = {name: held for name, held in ast.iter_fields(node) if name != "generators"}
                self._put("filter dropped", node, type(node)(**fields, generators=generators))
        self.generic_visit(node)

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp  # noqa: N815


def _sides(node: ast.BinOp) -> tuple[ast.expr, ast.expr]:
    return node.left, node.right


def _text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _root(node: ast.expr) -> str:
    """Return the name that a dotted name begins with, or nothing."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
