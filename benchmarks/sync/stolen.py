"""Time that the host of a virtual machine gave to others: nobody inside can use it, and figures suffer from it."""

from __future__ import annotations

from pathlib import Path

_STAT = Path("/proc/stat")
_STOLEN = 7  # column, as in proc(5)


class Stolen:
    """From when it is made."""

    def __init__(self, stat: Path = _STAT) -> None:
        self._stat = stat
        self._before = self._read()

    def part(self) -> float:
        """Of the time of all cores since then; 0 where the system does not say."""
        spent = [now - before for now, before in zip(self._read(), self._before, strict=False)]
        whole = sum(spent)
        return spent[_STOLEN] / whole if len(spent) > _STOLEN and whole else 0.0

    def _read(self) -> list[int]:
        try:
            return [int(word) for word in self._stat.read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return []
