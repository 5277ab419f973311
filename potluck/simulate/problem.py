"""Something to train that costs nothing: a quadratic loss, whose local steps have a closed form.

Workers see it through their own data: each has its minimum elsewhere, and noise. What many steps of SGD make of the
weights is drawn at once, so that thousands of workers can be simulated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """How steep it is along each axis, how large steps are, how noisy, and how far apart the workers' minima lie."""

    steepness: Vector
    rate: float = 0.1
    noise: float = 1.0
    apart: float = 0.5
    floor: float = 0.1

    @classmethod
    def of(cls, axes: int = 12, **others: float) -> Problem:
        """Steep along some axes, and flat along others, as losses of networks are."""
        return cls(np.geomspace(0.02, 1.0, axes), **others)

    def start(self) -> Vector:
        """Where all begin."""
        return np.full(len(self.steepness), 3.0)

    def loss(self, weights: Vector) -> float:
        """Over everybody's data."""
        return self.floor + 0.5 * float(self.steepness @ weights**2)

    def minimum(self, chance: np.random.Generator) -> Vector:
        """Where one worker's own loss is least."""
        return self.apart * chance.standard_normal(len(self.steepness))

    def trained(self, weights: Vector, minimum: Vector, steps: int, chance: np.random.Generator) -> Vector:
        """The weights after so many steps on one worker's data."""
        if not steps:
            return weights
        left = 1 - self.rate * self.steepness
        still = left**steps
        spread = self.rate * self.noise * np.sqrt((1 - still**2) / (1 - left**2))
        found: Vector = minimum + still * (weights - minimum) + spread * chance.standard_normal(len(weights))
        return found
