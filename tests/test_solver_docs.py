"""docs/solver.md is the map of solver/."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_module_of_the_solver_stands_once_on_its_map() -> None:
    """A module that is added, renamed or removed is so in the text, too."""
    modules = {path.name for path in (ROOT / "solver").glob("*.py")} - {"__init__.py"}
    text = (ROOT / "docs" / "solver.md").read_text()
    assert Counter(re.findall(r"`(\w+\.py)`", text)) == Counter(modules)
