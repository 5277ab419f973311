"""After the warm-up, a training step loads no code any more."""

from __future__ import annotations

import subprocess
import sys

STEP = """
import sys
import torch
from potluck.device.host.warm_up import warm_up
warm_up(torch.device("cpu"))
known = set(sys.modules)
model = torch.nn.Linear(4, 4)
y = model(torch.ones(2, 4))
torch.autograd.backward([y], [torch.ones_like(y)])
print(sorted(set(sys.modules) - known))
"""


def test_a_backward_pass_with_a_given_gradient_imports_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
