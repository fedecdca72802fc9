"""Traces a step: its ops in program order, and what each placeholder and result stands for.

`trace_joint` knows the module call behind every op but uses private functions of torch, which are tested on
the versions in `TESTED_TORCH`. `trace_plainly` uses `make_fx` alone and knows no module calls.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx, nn
from torch.fx import config as fx_config
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from graphs.capture.known_values import NEEDS_VALUES
from graphs.capture.loss import CaptureError
from graphs.capture.module_calls import record_calls, source_of
from graphs.capture.step import Step, describe_failure
from graphs.capture.two_runs import changed_lines, find_lost
from graphs.capture.values import constant_value, node_value, op_packet, tensors_of

TESTED_TORCH = ("2.11", "2.12", "2.13", "2.14", "2.15")
"""Versions of torch on which the private functions behind `trace_joint` are tested."""


ONE_TYPE = tuple(getattr(torch.ops.aten, name) for name in ("mm", "addmm", "bmm", "baddbmm", "convolution"))
"""Products whose factors have one type."""
OWN_GENERATOR = (
    "forward draws from a torch.Generator; where the step runs, each device draws from its own random numbers"
)


@dataclass
class Trace:
    """A traced step.

    Attributes:
        nodes: all nodes but the output, in program order.
        sources: placeholder -> path of a parameter or buffer, or `input.<index>`.
        tangents: placeholder of the gradient of the loss by itself -> the loss.
        outputs: the loss alone, or what the module returns.
        new_values: path of a buffer, or `input.<index>` -> its value after the step, if the step changes it.
        gradients: path of a parameter -> its gradient.
        backward: nodes of the backward pass.
        held: node -> value that it must yield for the trace to hold, see `KnownValues.held`; most traces hold
            for any values.
        unread: ops that run though nothing reads what they make.
        why_no_calls: reason for which nodes know no module calls, in one line; "" if they do.
        lost: lines on what other steps do that this one does not.
    """

    nodes: list[fx.Node]
    sources: dict[fx.Node, str] = field(default_factory=dict)
    tangents: dict[fx.Node, fx.Node] = field(default_factory=dict)
    outputs: list[fx.Node] = field(default_factory=list)
    new_values: dict[str, fx.Node] = field(default_factory=dict)
    gradients: dict[str, fx.Node] = field(default_factory=dict)
    backward: set[fx.Node] = field(default_factory=set)
    held: dict[fx.Node, Any] = field(default_factory=dict)
    unread: list[fx.Node] = field(default_factory=list)
    why_no_calls: str = ""
    lost: list[str] = field(default_factory=list)

    @property
    def results(self) -> list[fx.Node]:
        """Nodes whose values leave the step, gradients aside."""
        return [*self.new_values.values(), *self.outputs]


def trace(step: Step) -> Trace:
    """Traces the step with module calls if torch can, else without.

    If the first trace fails, the model is traced as under `torch.compile`: `torch.compiler.is_compiling` is
    true, so that libraries such as Hugging Face's transformers skip their checks of values. What the model
    compiles itself is traced as if it did not: torch's compiler may crash on what is being traced.

    Raises:
        CaptureError: no trace works; the message is the reason in one line.
    """
    # With mkldnn an LSTM layer is one op in inference.
    with _quiet(), torch.backends.mkldnn.flags(enabled=False), torch.compiler.set_stance("force_eager"):
        try:
            lost, is_settled = find_lost(step)
            traced = _trace(step)
        finally:
            step.restore()
    _check_types(traced.nodes)
    traced.lost += lost if is_settled else lost + changed_lines(step.changed)
    return traced


def _trace(step: Step) -> Trace:
    try:
        return trace_joint(step)
    except CaptureError:
        raise
    except Exception:
        with patch.object(torch.compiler, "_is_compiling_flag", new=True, create=True):
            return _trace_as_compiled(step)


def _check_types(nodes: Sequence[fx.Node]) -> None:
    """Refuses products of several types, which fake tensors take and torch does not."""
    for node in (node for node in nodes if op_packet(node) in ONE_TYPE):
        factors = [tensor for factor in node.all_input_nodes for tensor in tensors_of(node_value(factor))]
        types = [str(tensor.dtype) for tensor in factors]
        if len(set(types)) > 1:
            where = f"{source_of(node)}: " if source_of(node) else ""
            raise CaptureError(
                f"{where}{op_packet(node)} multiplies {' by '.join(types[-2:])}, which torch refuses; give "
                "inputs of the weights' type, as inputs.float()"
            )


def without_generators(graph: fx.Graph) -> bool:
    """Makes ops draw from the generator of their device, which alone is there; says whether others did."""
    nodes = graph.find_nodes(op="get_attr")
    generators = [node for node in nodes if isinstance(constant_value(node), torch.Generator)]
    for node in generators:
        for user in list(node.users):
            user.kwargs = {name: None if value is node else value for name, value in user.kwargs.items()}
        graph.erase_node(node)
    return bool(generators)


def _trace_as_compiled(step: Step) -> Trace:
    """Traces jointly, else plainly, while `torch.compiler.is_compiling` is true.

    Raises:
        CaptureError: the reason of the joint trace, or of the plain one if only that one needs values.
    """
    try:
        return trace_joint(step)
    except CaptureError:
        raise
    except Exception as error:
        if step.known_values:  # a plain trace would change them in place
            raise CaptureError(describe_failure(error)) from error
        joint = error
    try:
        traced = trace_plainly(step)
    except CaptureError:
        raise
    except Exception as plain:
        is_value = isinstance(plain, NEEDS_VALUES) and not isinstance(joint, NEEDS_VALUES)
        reported = plain if is_value else joint
        raise CaptureError(describe_failure(reported)) from reported
    traced.why_no_calls = describe_failure(joint)
    return traced


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences torch's warnings and reports of failed traces; a failure is reported in one line instead."""
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
    """Pauses the garbage collector: a capture keeps nearly all it makes, and collecting adds 25 % of time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def trace_joint(step: Step) -> Trace:
    """Traces forward and backward together, as torch's ahead-of-time autograd sees them.

    A step that changes a tensor in place is traced once more with torch's functionalization, which doubles
    the time; few steps need it.
    """
    graph = _joint_graph(step, functionalize=step.known_values is not None)
    if any(is_mutable(node) for node in graph.nodes):
        graph = _joint_graph(step, functionalize=True)
    draws_elsewhere = without_generators(graph)
    read = _read_joint(graph, list(step.state))
    read.lost = [OWN_GENERATOR] if draws_elsewhere else []
    if step.known_values:
        read.held = step.known_values.held(read.nodes)
    return read


def _joint_graph(step: Step, *, functionalize: bool) -> fx.Graph:
    """Returns the joint graph that torch makes of a step.

    Source: `torch._functorch.aot_autograd.aot_export_joint_with_descriptors` of torch 2.11 to 2.15.
    """
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    with contextlib.ExitStack() as stack:
        # Else torch writes each graph as Python code and compiles it, though nothing runs it.
        stack.enter_context(_use_lazy_graph_module(True))
        # Nor does anything read the line of Python that made each node.
        stack.enter_context(patch.object(fx_config, "do_not_emit_stack_traces", new=True, create=True))
        stack.enter_context(fx.traceback.preserve_node_meta())
        stack.enter_context(record_calls(*step.models))
        if step.known_values:
            # Else torch drops the ops that yield the values that the trace holds for.
            stack.enter_context(patch.object(fx.Graph, "eliminate_dead_code", lambda *_, **__: False))
        joint = aot_export_joint_with_descriptors(
            stack,
            FlatState(step),
            step.tensors,
            disable_functionalization=not functionalize,
            _disable_torch_fn_metadata_mode=True,
        )
        return joint.graph_module.graph


def is_mutable(node: fx.Node) -> bool:
    """Says whether an op changes one of its arguments in place."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


class FlatState(nn.Module):
    """A step that holds each of its tensors once; torch would take tied tensors for separate ones."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._run = step.run
        for index, tensor in enumerate(step.state.values()):
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(str(index), tensor)
            else:
                self.register_buffer(str(index), tensor)

    def forward(self, *tensors: Tensor) -> Any:
        state = dict(self.named_parameters()) | dict(self.named_buffers())
        return self._run([state[str(index)] for index in range(len(state))], tensors)


def _read_joint(graph: fx.Graph, paths: Sequence[str]) -> Trace:
    """Reads what the nodes of a joint graph stand for from the descriptors that torch leaves on them.

    Args:
        paths: paths of the tensors that `FlatState` numbers.
    """
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
            # An input that the model differentiates by has a gradient too, which no optimizer reads.
            if isinstance(meaning.grad_of, descriptors.ParamAOTInput):
                trace.gradients[paths[int(meaning.grad_of.target)]] = node
        elif isinstance(meaning, descriptors.InputMutationAOTOutput):
            trace.new_values[_source_name(meaning.mutated_input, paths)] = node
        else:
            trace.outputs.append(node)
    for node in nodes:
        meaning = node.meta.get("desc")
        if node.op == "get_attr":
            trace.sources[node] = str(node.target)
        elif isinstance(meaning, descriptors.TangentAOTInput):
            trace.tangents[node] = made_as[meaning.output]
        elif node.op == "placeholder":
            trace.sources[node] = _source_name(meaning, paths)
    return trace


def _source_name(meaning: Any, paths: Sequence[str]) -> str:
    """Returns the path of the parameter or buffer that a descriptor is of, or `input.<index>`."""
    from torch._functorch._aot_autograd import descriptors

    if isinstance(meaning, descriptors.PlainAOTInput):
        return f"input.{meaning.idx}"
    return paths[int(meaning.target)]


def trace_plainly(step: Step) -> Trace:
    """Traces forward and `torch.autograd.grad` with `make_fx`; nodes know no module calls."""
    trained = [path for path, tensor in step.state.items() if tensor.requires_grad] if step.has_loss else []

    def run(state: list[Tensor], tensors: list[Tensor]) -> tuple[Any, ...]:
        by_path = dict(zip(step.state, state, strict=True))
        result = step.run(state, tensors)
        if not trained:
            return tuple(tree_leaves(result))
        return result, *torch.autograd.grad(result, [by_path[path] for path in trained], allow_unused=True)

    with step.fake_mode:
        graph = make_fx(run, tracing_mode="fake")(list(step.state.values()), list(step.tensors)).graph
    draws_elsewhere = without_generators(graph)
    *nodes, output = graph.nodes
    returned = list(output.args[0])
    results, gradients = returned[: len(returned) - len(trained)], returned[len(returned) - len(trained) :]
    trace = Trace(nodes, outputs=[node for node in results if isinstance(node, fx.Node)])
    trace.lost = [OWN_GENERATOR] if draws_elsewhere else []
    names = [*step.state, *(f"input.{index}" for index in range(len(step.tensors)))]
    trace.sources = dict(zip(graph.find_nodes(op="placeholder"), names, strict=True))
    trace.sources |= {node: str(node.target) for node in graph.find_nodes(op="get_attr")}
    trace.gradients = {
        path: node for path, node in zip(trained, gradients, strict=True) if isinstance(node, fx.Node)
    }
    if trained:
        trace.backward = set(nodes[nodes.index(trace.outputs[0]) + 1 :])
    return trace
