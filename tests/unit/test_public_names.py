"""What `import potluck` offers, and that it is quick."""

import subprocess
import sys

import potluck


def test_every_public_name_is_there_and_has_one_home():
    assert set(potluck.__all__) == set(potluck._HOMES)
    assert all(getattr(potluck, name) is not None for name in potluck.__all__)


def test_importing_potluck_and_making_a_schedule_loads_no_torch():
    program = "import sys, potluck; potluck.Cosine(total=9, warmup=1); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
