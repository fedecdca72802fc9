"""One step as an fx graph: its ops in program order, and what each placeholder and result stands for.

`trace_joint` keeps the module path of every op but rests on a private function of torch; it is tested on the
versions in `TESTED_TORCH`. `trace_plainly` rests on `make_fx` alone and knows no module paths.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx import config as fx_config
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from graphs.step import CaptureError, Step, one_line

TESTED_TORCH = ("2.13",)
"""Versions of torch that the private function behind `trace_joint` is tested on."""


@dataclass
class Trace:
    """A traced step.

    Attributes:
        nodes: all nodes but the output, in program order.
        sources: what each placeholder is: the path of a parameter or buffer, or `input.<index>`.
        tangents: placeholder of the gradient of the loss by itself -> the loss.
        results: nodes whose values leave the step: the loss or the outputs, and the new values of buffers.
        gradients: path of a parameter -> its gradients (several, if a tied weight is traced as several).
        backward: nodes of the backward pass.
    """

    nodes: list[fx.Node]
    sources: dict[fx.Node, str] = field(default_factory=dict)
    tangents: dict[fx.Node, fx.Node] = field(default_factory=dict)
    results: list[fx.Node] = field(default_factory=list)
    gradients: dict[str, list[fx.Node]] = field(default_factory=dict)
    backward: set[fx.Node] = field(default_factory=set)


def trace(step: Step) -> Trace:
    """Trace the step with module paths if torch can, else without.

    Raises:
        CaptureError: neither way works; the message is the reason in one line.
    """
    # With mkldnn an LSTM layer is one op in inference.
    with _quiet(), torch.backends.mkldnn.flags(enabled=False):
        try:
            return trace_joint(step)
        except CaptureError:
            raise
        except Exception as error:
            try:
                return trace_plainly(step)
            except Exception as again:
                raise CaptureError(_reason(error, again)) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold back torch's warnings and its reports of failed traces, which would bury the one line of ours."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Hold back the garbage collector: a capture keeps nearly all it makes; searching it adds a quarter."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _without_stack_traces() -> Iterator[None]:
    """Let torch not note with every node which line of Python made it; nobody reads that."""
    before = fx_config.do_not_emit_stack_traces
    fx_config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        fx_config.do_not_emit_stack_traces = before


def _reason(*errors: Exception) -> str:
    """One line: the op whose values are needed if that is the trouble, else what the first error says."""
    for error in errors:
        if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
            return (
                f"it needs the values that {error.func} yields, and a trace has shapes only; "
                "avoid .item(), nonzero, masks as indices and branches on tensors"
            )
    return one_line(errors[0])


def trace_joint(step: Step) -> Trace:
    """Export the step, then trace forward and backward together.

    Source: `torch._functorch.aot_autograd.aot_export_joint_with_descriptors` of torch 2.13.
    """
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    # Else torch writes each graph that it makes as Python, and compiles that; nobody runs it.
    with _use_lazy_graph_module(True), _without_stack_traces():
        exported = torch.export.export(step, step.tensors, strict=False).module(check_guards=False)
        with contextlib.ExitStack() as stack, fx.traceback.preserve_node_meta():
            joint = aot_export_joint_with_descriptors(stack, exported, step.tensors)
    return _read_joint(joint.graph_module.graph, step)


def _read_joint(graph: fx.Graph, step: Step) -> Trace:
    """Tell what the nodes of a joint graph are from the descriptors that torch leaves on them."""
    from torch._functorch._aot_autograd import descriptors

    *nodes, output = graph.nodes
    trace = Trace(nodes)
    trace.backward = {node for node in nodes if node.meta.get("partitioner_tag") == "is_backward"}
    made_as: dict[Any, fx.Node] = {}
    for node, meaning in zip(output.args[0], output.meta["desc"], strict=True):
        if node is None:
            continue
        made_as[meaning] = node
        if isinstance(meaning, descriptors.GradAOTOutput):
            assert isinstance(meaning.grad_of, descriptors.ParamAOTInput)
            path = step.path_of[meaning.grad_of.target]
            trace.gradients.setdefault(path, []).append(node)
        else:
            trace.results.append(node)
    for node in nodes:
        meaning = node.meta.get("desc")
        if node.op == "get_attr":
            trace.sources[node] = str(node.target)
        elif isinstance(meaning, descriptors.TangentAOTInput):
            trace.tangents[node] = made_as[meaning.output]
        elif isinstance(meaning, descriptors.PlainAOTInput):
            trace.sources[node] = f"input.{meaning.idx}"
        elif node.op == "placeholder":
            trace.sources[node] = step.path_of.get(meaning.target, meaning.target)
    return trace


def trace_plainly(step: Step) -> Trace:
    """Trace forward and `torch.autograd.grad` with `make_fx`; ops carry no module path."""
    held = step.held
    trained = [path for path, tensor in held.items() if tensor.requires_grad] if step.has_loss else []

    def run(state: list[Tensor], tensors: list[Tensor]) -> tuple[Any, ...]:
        by_path = dict(zip(held, state, strict=True))
        given = {f"model.{path}": tensor for path, tensor in by_path.items()}
        result = torch.func.functional_call(step, given, tuple(tensors))
        if not trained:
            return tuple(tree_leaves(result))
        return result, *torch.autograd.grad(result, [by_path[path] for path in trained], allow_unused=True)

    with step.fake_mode:
        graph = make_fx(run, tracing_mode="fake")(list(held.values()), list(step.tensors)).graph
    *nodes, output = graph.nodes
    returned = list(output.args[0])
    results, found = returned[: len(returned) - len(trained)], returned[len(returned) - len(trained) :]
    trace = Trace(nodes, results=[node for node in results if isinstance(node, fx.Node)])
    names = [*held, *(f"input.{index}" for index in range(len(step.tensors)))]
    trace.sources = dict(zip(graph.find_nodes(op="placeholder"), names, strict=True))
    trace.sources |= {node: str(node.target) for node in graph.find_nodes(op="get_attr")}
    trace.gradients = {
        path: [node] for path, node in zip(trained, found, strict=True) if isinstance(node, fx.Node)
    }
    if trained:
        trace.backward = set(nodes[nodes.index(trace.results[0]) + 1 :])
    return trace
