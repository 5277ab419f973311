"""Symbolic sizes of torch.export → size trees of the one batch size "b"."""

from __future__ import annotations

from typing import Any

from potluck.errors import ModelError
from potluck.program.program import SizeTree

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


class Symbols:
    """The names torch gave the batch size: one per input, all of them "b". Any other symbol comes from the data."""

    def __init__(self) -> None:
        self._batch: set[str] = set()

    def add_batch(self, size: Any) -> bool:
        """Takes the size of an input's first axis; False if it is not free."""
        expression = None if isinstance(size, int) else size.node.expr
        if expression is None or not expression.is_Symbol:
            return False
        self._batch.add(str(expression))
        return True

    def tree(self, size: Any, where: str) -> SizeTree:
        """The tree of an int, float or torch symbolic number."""
        return size if isinstance(size, int | float) else self._tree(size.node.expr, where)

    def _tree(self, expression: Any, where: str) -> SizeTree:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            if str(expression) not in self._batch:
                raise ModelError(
                    f"{where}: a number or a size here depends on the values of the data, which a program cannot say; "
                    "write it with masks (torch.where) and sizes that are fixed or follow from the batch"
                )
            return "b"
        if expression.is_Float:
            return float(expression)
        if expression.is_Rational:
            return ["truediv", int(expression.p), int(expression.q)]
        name = type(expression).__name__
        if name == "ToFloat":
            return ["mul", 1.0, self._tree(expression.args[0], where)]
        if name not in _FUNCTIONS:
            raise ModelError(
                f"{where}: the size {expression} depends on the batch size through {name}, which a program cannot say; "
                "compute it from sizes that do not depend on the batch"
            )
        return [_FUNCTIONS[name], *(self._tree(a, where) for a in expression.args)]
