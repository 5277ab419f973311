"""One number or list that is measured, and the lines that say what to do about it."""

from __future__ import annotations

from typing import NamedTuple

Value = int | float | list[str] | dict[str, int]


class Measure(NamedTuple):
    """What was measured, and one line for each place that is in the way of its limit."""

    key: str
    value: Value
    offences: list[str]

    @property
    def size(self) -> float:
        """What is compared with the limit: the number, or how many there are."""
        return self.value if isinstance(self.value, int | float) else len(self.value)
