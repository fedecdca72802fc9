"""What is placed: op graphs, their files, how they are captured, and the orders to walk them in."""

from graphs.io.graph_files import read_graphs, write_graphs
from graphs.io.json_files import FileFormatError
from graphs.op_graph import Csr, GraphError, OpGraph, build_graph
from graphs.orders import ORDERS, Order, OrderError, VisitOrder, get_order

__all__ = [
    "ORDERS",
    "Csr",
    "FileFormatError",
    "GraphError",
    "OpGraph",
    "Order",
    "OrderError",
    "VisitOrder",
    "build_graph",
    "get_order",
    "read_graphs",
    "write_graphs",
]
