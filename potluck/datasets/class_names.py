"""What labels stand for must be the same on every device: the number of a label alone does not show that it is not."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 20  # of a list of names: more do not help to find the one that is wrong


class ClassNames:
    """The names of labels, as the first device said them that has any."""

    def __init__(self) -> None:
        self._first, self._names = "", tuple[str, ...]()

    def problem(self, device: str, names: Sequence[str]) -> str:
        """What is wrong with the names of another device, in one line; nothing if they are the same, or it has none."""
        if not names:
            return ""
        if not self._names:
            self._first, self._names = device, tuple(names)
        if tuple(names) == self._names:
            return ""
        return f"{device} {difference(names, self._first, self._names)}"


def difference(names: Sequence[str], other: str, other_names: Sequence[str]) -> str:
    """That some labels are not those of another, and what to do about it."""
    return (
        f"has folders {_words(names, other_names)}, and {other} has {_words(other_names, names)}, so that one number "
        "would be two labels; "
        "make a folder for every label on each, an empty one where there are no pictures, or call folders 0, 1, …"
    )


def _words(names: Sequence[str], others: Sequence[str]) -> str:
    """All names; of very many only how many they are, and some that the others do not have."""
    if len(names) <= _SHOWN:
        return ", ".join(names)
    only = sorted(set(names) - set(others))[:_SHOWN]
    return f"{len(names)} of them" + (f", among them {', '.join(only)}" if only else "")
