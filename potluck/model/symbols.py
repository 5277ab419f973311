"""Symbolic sizes of torch.export → size trees of the one batch size "b"."""

from __future__ import annotations

from typing import Any

from potluck.errors import ModelError
from potluck.model.program import SizeTree

_FUNCTIONS = {
    "FloorDiv": "floordiv",
    "CleanDiv": "floordiv",
    "Mod": "mod",
    "PythonMod": "mod",
    "IntTrueDiv": "truediv",
    "FloatTrueDiv": "truediv",
    "Max": "max",
    "Min": "min",
    "Add": "add",
    "Mul": "mul",
    "Pow": "pow",
    "PowByNatural": "pow",
    "FloatPow": "pow",
}


def size_tree(size: Any, where: str) -> SizeTree:
    """The tree of an int, float or torch symbolic number."""
    if isinstance(size, int | float):
        return size
    return _tree(size.node.expr, where)


def _tree(expression: Any, where: str) -> SizeTree:
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return "b"
    if expression.is_Float:
        return float(expression)
    if expression.is_Rational:
        return ["truediv", int(expression.p), int(expression.q)]
    name = type(expression).__name__
    if name == "ToFloat":
        return ["mul", 1.0, _tree(expression.args[0], where)]
    if name not in _FUNCTIONS:
        raise ModelError(
            f"{where}: the size {expression} depends on the batch size through {name}, which a program cannot say; "
            "compute it from sizes that do not depend on the batch"
        )
    return [_FUNCTIONS[name], *(_tree(a, where) for a in expression.args)]
