"""A captured step that can still be run: its op graph, and the trace that the graph was built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from graphs.capture.step import Step
from graphs.capture.tracing import Trace
from graphs.op_graph import OpGraph


@dataclass(frozen=True, eq=False)
class CapturedStep:
    """The op graph of a step with the traced nodes behind its ops.

    Attributes:
        step: the model on fake tensors, which knows the shapes of state and inputs.
        trace: the traced nodes; views among them are no ops.
        storages: the memory behind each node, as `graphs.capture.storages.find_storages` finds it.
        optimizer: from `graphs.step_settings.OPTIMIZER_NAMES`; None if no update was captured.
        op_of_node: op of each node that computes.
        op_of_source: op of each parameter, buffer and input by its name in `Trace.sources`.
        op_of_update: op that updates each parameter, by path.
    """

    graph: OpGraph
    step: Step
    trace: Trace
    storages: Mapping[fx.Node, Any]
    optimizer: str | None
    op_of_node: Mapping[fx.Node, int]
    op_of_source: Mapping[str, int]
    op_of_update: Mapping[str, int]
