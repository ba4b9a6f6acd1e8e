"""The dependency DAG of a problem's ops (rules in ``dependencies``), as a networkx DiGraph."""

from collections.abc import Iterable, Iterator

import networkx as nx

from bubbleproof.schedules.cost import Backward
from bubbleproof.schedules.dependencies import inputs, output
from bubbleproof.schedules.ops import Op, OpKind
from bubbleproof.schedules.problem import Problem, require_problem


def ops_of_problem(problem: Problem) -> Iterator[Op]:
    """Yield every op of a problem: F and B where its backward is fused, else F, I and W."""
    kinds = [OpKind.FORWARD]
    kinds += (
        [OpKind.BACKWARD]
        if problem.backward is Backward.FUSED
        else [OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT]
    )
    for stage in range(problem.stages):
        for microbatch in problem.microbatches_of_stage(stage):
            for kind in kinds:
                yield Op(stage, kind, microbatch)


def dependency_graph(problem: Problem, ops: Iterable[Op] | None = None) -> "nx.DiGraph[Op]":
    """Build the DAG of what must wait for what, whatever the order on the devices.

    Parameters
    ----------
    problem
        The problem.
    ops
        The ops to take; all of the problem where None. A backward may be there as I and W or
        as B.

    Returns
    -------
    networkx.DiGraph
        Nodes are ops with ``device`` and ``duration`` (ticks). An edge u -> v has ``lag``, the
        ticks between u's end and v's earliest start, and ``transfer``, whether data moves to
        another device.
    """
    require_problem(problem)
    graph: nx.DiGraph[Op] = nx.DiGraph()
    for op in ops_of_problem(problem) if ops is None else ops:
        graph.add_node(
            op,
            device=problem.placement.device_of_stage[op.stage],
            duration=problem.duration(op),
        )
    producer = {output(op): op for op in graph}
    for op in graph:
        for needed, lag in inputs(problem, op):
            source = producer.get(needed)
            if source is not None:
                transfer = graph.nodes[source]["device"] != graph.nodes[op]["device"]
                graph.add_edge(source, op, lag=lag, transfer=transfer)
    return graph
