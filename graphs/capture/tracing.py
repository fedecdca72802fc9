"""One step as an fx graph: its ops in program order, and what each placeholder and result stands for.

`trace_joint` keeps the module call behind every op but rests on a private function of torch; it is tested on
the versions in `TESTED_TORCH`. `trace_plainly` rests on `make_fx` alone and knows no module calls.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx import config as fx_config
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from graphs.capture.step import CaptureError, Step, one_line

CALL = "placewalk.call"
"""Key under which torch keeps the `Call` of a node."""
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
        gradients: path of a parameter -> its gradient.
        backward: nodes of the backward pass.
    """

    nodes: list[fx.Node]
    sources: dict[fx.Node, str] = field(default_factory=dict)
    tangents: dict[fx.Node, fx.Node] = field(default_factory=dict)
    results: list[fx.Node] = field(default_factory=list)
    gradients: dict[str, fx.Node] = field(default_factory=dict)
    backward: set[fx.Node] = field(default_factory=set)


def trace(step: Step) -> Trace:
    """Trace the step with module calls if torch can, else without.

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
    """Trace forward and backward together, as torch's ahead-of-time autograd sees them.

    A step that changes a tensor in place is traced again, as one that does not; that takes twice as long, and
    few steps need it.
    """
    graph = _joint_graph(step, functionalize=False)
    if any(is_mutable(node) for node in graph.nodes):
        graph = _joint_graph(step, functionalize=True)
    return _read_joint(graph, list(step.held))


def _joint_graph(step: Step, *, functionalize: bool) -> fx.Graph:
    """The graph that torch makes of a step.

    Source: `torch._functorch.aot_autograd.aot_export_joint_with_descriptors` of torch 2.13.
    """
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    with contextlib.ExitStack() as stack:
        # Else torch writes each graph that it makes as Python, and compiles that; nobody runs it.
        stack.enter_context(_use_lazy_graph_module(True))
        stack.enter_context(_without_stack_traces())
        stack.enter_context(fx.traceback.preserve_node_meta())
        stack.enter_context(noting_calls(step))
        joint = aot_export_joint_with_descriptors(
            stack,
            _OnItsOwn(step),
            step.tensors,
            disable_functionalization=not functionalize,
            _disable_torch_fn_metadata_mode=True,
        )
        return joint.graph_module.graph


def is_mutable(node: fx.Node) -> bool:
    """Whether an op changes one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


class _OnItsOwn(nn.Module):
    """A step whose tensors are all its own, tied ones once; torch would take the tied ones for separate."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._run = step.run
        for index, tensor in enumerate(step.held.values()):
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(str(index), tensor)
            else:
                self.register_buffer(str(index), tensor)

    def forward(self, *tensors: Tensor) -> Any:
        held = dict(self.named_parameters()) | dict(self.named_buffers())
        return self._run([held[str(index)] for index in range(len(held))], tensors)


@dataclass(frozen=True)
class Call:
    """One call of a module of the captured model.

    Attributes:
        path: of the module; "" is the model itself.
        number: of calls before this one.
    """

    path: str
    number: int


@contextlib.contextmanager
def noting_calls(step: Step) -> Iterator[None]:
    """Let torch note with every node, and with what the backward pass does for it, the call that ran it.

    A module that stands in several places of its caller is called at each in turn.
    """
    paths: dict[nn.Module, list[str]] = {}
    for path, module in step.model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    running: list[tuple[Call, contextlib.AbstractContextManager[None]]] = []
    times: Counter[str] = Counter()

    def enter(module: nn.Module, _: object) -> None:
        if not running:
            times.clear()  # torch may run a step more than once
        caller = running[-1][0].path if running else ""
        here = [path for path in paths[module] if path.startswith(caller and f"{caller}.")]
        path = min(here or paths[module], key=times.__getitem__)
        call = Call(path, times[path])
        times[path] += 1
        note = fx.traceback.annotate({CALL: call})
        note.__enter__()
        running.append((call, note))

    def leave(*_: object) -> None:
        running.pop()[1].__exit__(None, None, None)

    hooks = [module.register_forward_pre_hook(enter) for module in paths]
    hooks += [module.register_forward_hook(leave, always_call=True) for module in paths]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def call_of(node: fx.Node) -> Call | None:
    """The call that ran a node or, in the backward pass, the one it is the gradient of; None if unknown."""
    call: Call | None = (node.meta.get("custom") or {}).get(CALL)
    return call


def _read_joint(graph: fx.Graph, held: Sequence[str]) -> Trace:
    """Tell what the nodes of a joint graph are from the descriptors that torch leaves on them.

    Args:
        held: paths of the tensors that `_OnItsOwn` numbers.
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
            assert isinstance(meaning.grad_of, descriptors.ParamAOTInput)
            trace.gradients[held[int(meaning.grad_of.target)]] = node
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
            trace.sources[node] = held[int(meaning.target)]
    return trace


def trace_plainly(step: Step) -> Trace:
    """Trace forward and `torch.autograd.grad` with `make_fx`; ops carry no module call."""
    held = step.held
    trained = [path for path, tensor in held.items() if tensor.requires_grad] if step.has_loss else []

    def run(state: list[Tensor], tensors: list[Tensor]) -> tuple[Any, ...]:
        by_path = dict(zip(held, state, strict=True))
        result = step.run(state, tensors)
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
        path: node for path, node in zip(trained, found, strict=True) if isinstance(node, fx.Node)
    }
    if trained:
        trace.backward = set(nodes[nodes.index(trace.results[0]) + 1 :])
    return trace
