"""What the verifier may know: the data that a schedule is made of, and nothing that makes one."""

import grimp

DATA = {
    "components",
    "cost",
    "memory",
    "ops",
    "periodic",
    "periodic_program",
    "placement",
    "problem",
    "program",
    "quantity",
    "schedule",
    "streams",
    "words",
}


def test_the_verifier_imports_nothing_but_data_types_directly_or_not() -> None:
    """A new module of schedules, solver or the command line is out of its reach unless listed."""
    graph = grimp.build_graph("bubbleproof", cache_dir=None)
    reached = graph.find_upstream_modules("bubbleproof.verify", as_package=True)
    assert reached == {f"bubbleproof.schedules.{name}" for name in DATA}
