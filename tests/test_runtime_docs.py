"""The example of docs/runtime.md runs as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs" / "runtime.md"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.mark.slow
def test_the_script_of_the_docs_trains(tmp_path: Path) -> None:
    """On two processes, and the one with the losses prints them."""
    found = re.search(
        r"```python\n(# train\.py.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None
    script = tmp_path / "train.py"
    script.write_text(found[1], encoding="utf-8")
    ended = subprocess.run(
        [*TORCHRUN, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert ended.returncode == 0, ended.stderr
    steps = re.findall(r"^step (\d): (\d\.\d{4})$", ended.stdout, re.MULTILINE)
    assert [step for step, _ in steps] == ["0", "1", "2"]
