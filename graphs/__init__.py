"""What is placed: op graphs, their files, how they are captured, and the orders to walk them in."""

from graphs.op_graph import Csr, GraphError, OpGraph, build_graph

__all__ = ["Csr", "GraphError", "OpGraph", "build_graph"]
