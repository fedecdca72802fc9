"""Op graphs: their files, how they are captured, and the orders in which episodes visit their ops."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphs.graph_columns import Csr, GraphError
    from graphs.io.graph_files import read_graphs, write_graphs
    from graphs.op_graph import OpGraph, build_graph
    from graphs.orders import ORDERS, Order, OrderError, VisitOrder, order
    from graphs.system.json_files import FileFormatError

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

_MODULES = (
    "graphs.io.graph_files",
    "graphs.system.json_files",
    "graphs.graph_columns",
    "graphs.op_graph",
    "graphs.orders",
)


def __getattr__(name: str) -> object:
    """Loads a name at its first use, so that a module that needs none of them starts fast."""
    if name in __all__:
        for module in map(import_module, _MODULES):
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module 'graphs' has no attribute '{name}'; it has {', '.join(__all__)}")
