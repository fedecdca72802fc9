"""Op graphs: their files, how they are captured, and the orders in which episodes visit their ops."""

from graphs.io.graph_files import read_graphs, write_graphs
from graphs.io.json_files import FileFormatError
from graphs.op_graph import Csr, GraphError, OpGraph, build_graph
from graphs.orders import ORDERS, Order, OrderError, VisitOrder, order

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
    "order",
    "read_graphs",
    "write_graphs",
]
