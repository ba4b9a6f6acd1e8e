"""What is said where torch is missing or too old, and what needs no torch."""

import subprocess
import sys

import pytest

from bubbleproof.runtime.version import INSTALLED, LEAST, require_backend, require_version

NO_TORCH = "import sys; sys.modules['torch'] = None; "


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_all_but_the_runtime_works_without_torch() -> None:
    """Solving and verifying import none."""
    code = (
        "import bubbleproof as bp; "
        "p = bp.Problem(devices=2, microbatches=2, cost={'F': 1, 'I': 1, 'W': 1}); "
        "print(bp.verify(bp.solve(p, time_limit_s=5).schedule).valid)"
    )
    ended = run(NO_TORCH + code)
    assert (ended.stdout, ended.stderr) == ("True\n", "")


@pytest.mark.parametrize(
    "code", ["import bubbleproof.runtime", "from bubbleproof.runtime.stage import Stage"]
)
def test_without_torch_the_runtime_names_the_extra(code: str) -> None:
    """Whichever of its modules is imported first."""
    ended = run(NO_TORCH + code)
    assert ended.stderr.splitlines()[-1] == (
        'ImportError: bubbleproof.runtime needs torch; pip install "bubbleproof[torch]" installs it'
    )


@pytest.mark.parametrize("old", ["2.9.1", "1.13.0+cpu", "2.9.0a0+git1234", "unknown"])
def test_an_older_torch_is_refused_with_the_first_version_that_works(old: str) -> None:
    """Before anything of it is imported that it does not have."""
    with pytest.raises(ImportError, match=f"needs torch 2.10 or newer, and {old[:5]}"):
        require_version(old)


def test_newer_ones_are_taken() -> None:
    """A version is compared by its numbers, not by its text."""
    assert require_version("2.10.0+cpu") == (2, 10)
    assert require_version("2.14.0.dev20261101") == (2, 14)
    assert require_version("3.0.0") == (3, 0)
    assert INSTALLED >= LEAST


def test_several_stages_on_gloo_need_a_newer_torch() -> None:
    """One stage each, or NCCL, do not."""
    with pytest.raises(ValueError, match=r"device 0 has 2 stages, which needs torch 2\.12"):
        require_backend((2, 11), "gloo", [(0, 3), (1, 2)])
    require_backend((2, 11), "gloo", [(0,), (1,)])
    require_backend((2, 11), "nccl", [(0, 3), (1, 2)])
    require_backend((2, 12), "gloo", [(0, 3), (1, 2)])
