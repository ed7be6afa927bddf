"""Tests of programs as expressions: what the program computes is asked of the sandbox, all else is decided here.

A program could make its objects equal to everything, or replace what ``all`` and ``bool`` mean. So only calls of the program's own
names run beside it, and come back as plain values; comparisons, ``not``, ``all``, ``math.isclose`` and their like are worked out in
this process, on those values.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlvlm.errors import RewardError
from rlvlm.rewards.code_values import Iterated, NoValueError, same_value

MAX_SIZE = 1_000_000
"""Most items of a range, and most bits of a product, that are worked out here."""

_TYPES = {kind.__name__: kind for kind in (bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple)}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_TYPES,
    **{f.__name__: f for f in (abs, all, any, chr, divmod, enumerate, isinstance, len, max, min, ord, reversed)},
    **{f.__name__: f for f in (round, sorted, sum, type, zip)},
    "range": lambda *bounds: _checked(range(*bounds)),
}
_MATH = {name: value for name, value in vars(math).items() if not name.startswith("_")}
_JUDGEMENTS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__", "__contains__")
_MATH_TOO_COSTLY = {"factorial", "comb", "perm", "prod", "ldexp"}
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: lambda a, b: _product(a, b),
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: lambda a, b: _remainder(a, b),
    ast.Pow: lambda a, b: _power(a, b),
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: same_value,
    ast.NotEq: lambda a, b: not same_value(a, b),
    ast.Is: same_value,
    ast.IsNot: lambda a, b: not same_value(a, b),
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: _is_in(a, b),
    ast.NotIn: lambda a, b: not _is_in(a, b),
}


class _Unknown:
    """Stands for a value that is not there yet, while the calls are being collected."""


_UNKNOWN = _Unknown()


class Check:
    """One test: an expression that must be true, or that must have a value.

    Args:
        source: a Python expression, such as ``abs(f(2) - 1.5) < 1e-6``.
        expected: values of which it must have one; without any the expression must be true.

    Attributes:
        calls: what the program must be asked, in order: its own part of the expression.
        function: the function under test, where the test is of one by name.

    Raises ``RewardError`` for what is no expression, or one that only the program itself could judge.
    """

    def __init__(self, source: str, *expected: Any) -> None:
        try:
            self._tree = ast.parse(source.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise RewardError(f"the test {source[:80]!r} is not Python ({error}); mend the record.") from error
        self._expected = expected
        self.function: str | None = None
        self._asked = _asked_as_a_whole(self._tree)
        collector = _Evaluation(self._asked, None)
        try:
            collector.value(self._tree, {})
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, NoValueError) as error:
            raise RewardError(f"the test {source[:80]!r} can't hold ({error}); mend the record.") from error
        if not collector.calls:
            raise RewardError(f"the test {source[:80]!r} asks the program nothing; mend the record.")
        self.calls = tuple(collector.calls)

    @classmethod
    def of_function(cls, name: str, given: Sequence[Any], *expected: Any) -> Check:
        """A test of a function by name: what it gives for these arguments."""
        if not name.isidentifier():
            raise RewardError(f"{name[:80]!r} is no name of a function; mend the record.")
        check = cls(f"{name}({', '.join(map(repr, given))})", *expected)
        check.function = name
        return check

    def passes(self, values: Sequence[Any]) -> bool:
        """Whether the test holds for what the calls gave, in the order of ``calls``."""
        try:
            found = _Evaluation(self._asked, iter(values)).value(self._tree, {})
            return any(same_value(found, value) for value in self._expected) if self._expected else bool(found)
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
            return False
        except (RecursionError, MemoryError, StopIteration, NoValueError):
            return False


class _Evaluation:
    """Works out an expression; without answers it only collects what the program is to be asked."""

    def __init__(self, asked: ast.expr | None, answers: Iterator[Any] | None) -> None:
        self.asked, self.answers = asked, answers
        self.calls: list[str] = []

    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        """The value of a node, where ``names`` are the variables of comprehensions around it."""
        if node is self.asked or (self.asked is None and _is_the_programs(node, names)):
            return self._ask(node, names)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return names[node.id] if node.id in names else _TYPES[node.id]
        inner = getattr(self, f"_{type(node).__name__.lower()}", None)
        if inner is None:
            raise _unsupported(node)
        return inner(node, names)

    def _ask(self, node: ast.expr, names: dict[str, Any]) -> Any:
        if self.answers is not None:
            return next(self.answers)
        _refuse_judgements(node)
        self.calls.append(ast.unparse(_WithValues(names).visit(ast.parse(ast.unparse(node), mode="eval"))))
        return _UNKNOWN

    def _apply(self, function: Callable[..., Any], *values: Any, **options: Any) -> Any:
        if any(_has_unknown(value) for value in (*values, *options.values())):
            return _UNKNOWN
        return function(*values, **options)

    def _each(self, nodes: Sequence[ast.expr], names: dict[str, Any]) -> list[Any]:
        return [self.value(node, names) for node in nodes]

    def _list(self, node: ast.List, names: dict[str, Any]) -> Any:
        return self._each(node.elts, names)

    def _tuple(self, node: ast.Tuple, names: dict[str, Any]) -> Any:
        return tuple(self._each(node.elts, names))

    def _set(self, node: ast.Set, names: dict[str, Any]) -> Any:
        return self._apply(lambda *parts: set(parts), *self._each(node.elts, names))

    def _dict(self, node: ast.Dict, names: dict[str, Any]) -> Any:
        if None in node.keys:
            raise _unsupported(node)
        keys = self._each([key for key in node.keys if key is not None], names)
        values = self._each(node.values, names)
        return self._apply(
            lambda *parts: dict(zip(parts[: len(keys)], parts[len(keys) :], strict=True)), *keys, *values
        )

    def _unaryop(self, node: ast.UnaryOp, names: dict[str, Any]) -> Any:
        return self._apply(_UNARY[type(node.op)], self.value(node.operand, names))

    def _binop(self, node: ast.BinOp, names: dict[str, Any]) -> Any:
        if type(node.op) not in _BINARY:
            raise _unsupported(node)
        return self._apply(_BINARY[type(node.op)], self.value(node.left, names), self.value(node.right, names))

    def _boolop(self, node: ast.BoolOp, names: dict[str, Any]) -> Any:
        """All sides are worked out, so that the same calls are asked for whatever the program gives."""
        values = self._each(node.values, names)
        return self._apply(all if isinstance(node.op, ast.And) else any, values)

    def _ifexp(self, node: ast.IfExp, names: dict[str, Any]) -> Any:
        test, then, other = self._each([node.test, node.body, node.orelse], names)
        return self._apply(lambda test, then, other: then if test else other, test, then, other)

    def _compare(self, node: ast.Compare, names: dict[str, Any]) -> Any:
        values = self._each([node.left, *node.comparators], names)
        pairs = zip(node.ops, values, values[1:], strict=False)
        return self._apply(all, [self._apply(_COMPARISONS[type(op)], left, right) for op, left, right in pairs])

    def _subscript(self, node: ast.Subscript, names: dict[str, Any]) -> Any:
        index = node.slice
        if isinstance(index, ast.Slice):
            bounds = [
                None if bound is None else self.value(bound, names) for bound in (index.lower, index.upper, index.step)
            ]
            return self._apply(lambda value, *bounds: value[slice(*bounds)], self.value(node.value, names), *bounds)
        return self._apply(operator.getitem, self.value(node.value, names), self.value(index, names))

    def _attribute(self, node: ast.Attribute, names: dict[str, Any]) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id == "math" and isinstance(_MATH.get(node.attr), float):
            return _MATH[node.attr]
        raise _unsupported(node)

    def _call(self, node: ast.Call, names: dict[str, Any]) -> Any:
        function = _function(node)
        if function is isinstance and any(_is_the_programs(n, names) for n in ast.walk(node.args[-1])):
            raise _unsupported(node)
        given = self._each(node.args, names)
        options = {word.arg: self.value(word.value, names) for word in node.keywords if word.arg is not None}
        known = function is dict or options.keys() <= {"reverse", "rel_tol", "abs_tol", "start", "default"}
        if len(options) < len(node.keywords) or not known:
            raise _unsupported(node)
        return self._apply(function, *given, **options)

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, names: dict[str, Any]) -> Any:
        found: list[Any] = []
        self._go_through(node.generators, node.elt, names, found)
        return found

    _generatorexp = _listcomp

    def _setcomp(self, node: ast.SetComp, names: dict[str, Any]) -> Any:
        return self._apply(set, self._listcomp(node, names))

    def _go_through(
        self, loops: Sequence[ast.comprehension], element: ast.expr, names: dict[str, Any], found: list[Any]
    ) -> None:
        if not loops:
            found.append(self.value(element, names))
            return
        items = self.value(loops[0].iter, names)
        if _has_unknown(items):  # nothing to go through yet, so what is inside must not need the program
            self._without_program(loops, element, names)
            found.append(_UNKNOWN)
            return
        for item in items:
            inner = {**names, **_bound(loops[0].target, item)}
            conditions = self._each(loops[0].ifs, inner)
            if any(map(_has_unknown, conditions)):
                raise _unsupported(element)
            if all(conditions):
                self._go_through(loops[1:], element, inner, found)

    def _without_program(self, loops: Sequence[ast.comprehension], element: ast.expr, names: dict[str, Any]) -> None:
        own = {name.id for loop in loops for name in ast.walk(loop.target) if isinstance(name, ast.Name)}
        parts = [element, *(part for loop in loops for part in loop.ifs), *(loop.iter for loop in loops[1:])]
        inner = {**names, **dict.fromkeys(own)}
        if any(_is_the_programs(n, inner) for part in parts for n in ast.walk(part) if isinstance(n, ast.expr)):
            raise _unsupported(element)


def _is_the_programs(node: ast.AST, names: dict[str, Any]) -> bool:
    """Whether a node is a name of the program, or a call, an attribute or an item of one."""
    root: Any = node
    while isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)):
        root = root.func if isinstance(root, ast.Call) else root.value
    return isinstance(root, ast.Name) and not (root.id in names or root.id in _FUNCTIONS or root.id == "math")


def _asked_as_a_whole(tree: ast.expr) -> ast.expr | None:
    """The part that the program is asked where the test names nothing of its own: it was to write a function like ``sum``."""
    bound = dict.fromkeys(_bound_inside(tree))
    if any(_is_the_programs(node, bound) for node in ast.walk(tree)):
        return None
    sides = [tree.left, *tree.comparators] if isinstance(tree, ast.Compare) else [tree]
    called = [side for side in sides if isinstance(side, ast.Call)]
    return called[0] if called else None


def _refuse_judgements(node: ast.expr) -> None:
    """A comparison of what the program gave must not be made by the program."""
    root: Any = node
    while isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)):
        root = root.func if isinstance(root, ast.Call) else root.value
    is_builtin = hasattr(builtins, root.id)  # such as map: what it is given is done to the program's values
    bound = dict.fromkeys(_bound_inside(node))
    for inner in ast.walk(node):
        compares = isinstance(inner, ast.Compare) and any(_is_the_programs(n, bound) for n in ast.walk(inner))
        hidden = is_builtin and (isinstance(inner, (ast.Compare, ast.Lambda)) or root.id in ("eval", "exec"))
        named = isinstance(inner, ast.Attribute) and inner.attr in _JUDGEMENTS
        if compares or hidden or named:
            raise RewardError(
                f"the test {ast.unparse(node)[:80]!r} lets the program compare its own values, which could be faked; "
                "write the comparison around the call, as in 'assert f(1) == 2'."
            )


def _bound_inside(node: ast.expr) -> set[str]:
    """Variables of the lambdas and comprehensions in a node."""
    walked = list(ast.walk(node))
    stored = {n.id for n in walked if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {n.arg for n in walked if isinstance(n, ast.arg)}


class _WithValues(ast.NodeTransformer):
    """Puts values in the place of the variables of comprehensions."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.names:
            return node
        return ast.parse(repr(self.names[node.id]), mode="eval").body


def _function(node: ast.Call) -> Callable[..., Any]:
    if isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _FUNCTIONS[node.func.id]
    if isinstance(node.func, ast.Attribute):
        owner, name = node.func.value, node.func.attr
        if isinstance(owner, ast.Name) and owner.id == "math" and name in _MATH and name not in _MATH_TOO_COSTLY:
            return _MATH[name]  # type: ignore[no-any-return]
        if isinstance(owner, ast.Constant) and isinstance(owner.value, str) and name == "join":
            return owner.value.join
    raise _unsupported(node)


def _bound(target: ast.expr, item: Any) -> dict[str, Any]:
    if isinstance(target, ast.Name):
        return {target.id: item}
    if isinstance(target, (ast.Tuple, ast.List)):
        pairs = zip(target.elts, item, strict=True)
        return {name: value for part, value_of_part in pairs for name, value in _bound(part, value_of_part).items()}
    raise _unsupported(target)


def _has_unknown(value: Any) -> bool:
    return value is _UNKNOWN or (
        isinstance(value, (list, tuple)) and not isinstance(value, Iterated) and any(map(_has_unknown, value))
    )


def _is_in(item: Any, container: Any) -> bool:
    if isinstance(container, str):
        return isinstance(item, str) and item in container
    return any(same_value(item, other) for other in container)


def _checked(items: range) -> range:
    if len(items) > MAX_SIZE:
        raise ValueError("too long")
    return items


def _product(a: Any, b: Any) -> Any:
    sizes = [len(part) if hasattr(part, "__len__") else abs(part) for part in (a, b)]
    if any(hasattr(part, "__len__") for part in (a, b)) and sizes[0] * sizes[1] > MAX_SIZE:
        raise ValueError("too long")
    _check_bits(sum(part.bit_length() for part in (a, b) if isinstance(part, int)))
    return a * b


def _power(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and b > 0:
        _check_bits(a.bit_length() * b)
    return a**b


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, (str, bytes)):  # formatting, which can be asked to fill any width
        raise TypeError("text has no remainder")
    return a % b


def _check_bits(bits: int) -> None:
    if bits > MAX_SIZE:
        raise ValueError("too large")


def _unsupported(node: ast.expr) -> RewardError:
    return RewardError(
        f"the test {ast.unparse(node)[:80]!r} can't be worked out outside the program, where it could not be faked; "
        "write it with plain values, as in 'assert f(1) == 2'."
    )
