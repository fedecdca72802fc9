"""Regions under `torch.utils.checkpoint`: their ops run again in the backward pass, as ops of the trace.

A trace runs a region once. Then those of its ops that the region's backward pass reads, directly or through
others, are copied to right before the first op that reads one, where torch runs them again, and the copies
are read instead. So of the forward pass only what the region reads is kept until then.

Ops that draw random numbers do not run again, as no device keeps the state of its generator: what they made
is kept, of dropout the mask. What a policy of `create_selective_checkpoint_contexts` saves is kept too, on
the device even if the policy moves it to the CPU. Changes of buffers are not repeated.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch.utils import checkpoint

from graphs.capture.tracing import Trace

REGIONS = "placewalk.regions"
"""Key under which torch keeps the regions of a node or, in the backward pass, of the op that caused it: the
number of each, and whether its second run stops after the last op that is needed; outermost first."""
RUN = "placewalk.run"
"""Key under which a copy keeps how many runs of the same op are before it."""
UNTRAINED = "torch.utils.checkpoint with use_reentrant=True gives no gradients where no argument needs one"

aten = torch.ops.aten
Policy = checkpoint.CheckpointPolicy


class _Region:
    """Marks the nodes of a region, in place of the hook by which torch forgets what the region saves."""

    def __init__(self, marked: list[Any], frame: Any) -> None:
        marked.append(frame)
        self.mark = len(marked), bool(frame.early_stop)

    def __enter__(self) -> None:
        self.outer = fx.traceback.current_meta.get("custom", {})
        regions = (*self.outer.get(REGIONS, ()), self.mark)
        fx.traceback.current_meta["custom"] = {**self.outer, REGIONS: regions}

    def __exit__(self, *_: object) -> None:
        if "custom" in fx.traceback.current_meta:  # else a trace failed within
            fx.traceback.current_meta["custom"] = self.outer


@contextmanager
def marked_regions() -> Iterator[list[Any]]:
    """Makes torch record on every node the regions that ran it; yields a list of what was marked.

    A reentrant region, whose function torch hides from a trace, is one whose second run does not stop early.
    """
    marked: list[Any] = []

    def apply(function: Callable[..., Any], _preserve_rng_state: bool, *arguments: Any) -> Any:
        if any(isinstance(x, Tensor) and x.requires_grad for x in arguments) and torch.is_grad_enabled():
            with _Region(marked, SimpleNamespace(early_stop=False)):
                return function(*arguments)
        marked.extend([UNTRAINED] * torch.is_grad_enabled())
        with torch.no_grad():
            return function(*arguments)

    with (
        patch.object(checkpoint, "CheckpointFunction", SimpleNamespace(apply=apply)),
        patch.object(checkpoint, "_checkpoint_hook", partial(_Region, marked)),
    ):
        yield marked


def recompute_regions(trace: Trace, marked: Sequence[Any]) -> Iterator[str]:
    """Adds the second runs of regions to the backward pass of a trace.

    Args:
        marked: what `marked_regions` yields.

    Yields:
        Lines that tell how the step differs from that of torch.
    """
    if trace.backward and UNTRAINED in marked:
        yield UNTRAINED
    if trace.backward and trace.why_no_calls and marked:
        yield "torch.utils.checkpoint is captured as a plain call, as module names are lost"
    marks = {node: (node.meta.get("custom") or {}).get(REGIONS, ()) for node in trace.nodes}
    inside = [node for node in trace.nodes if marks[node] and trace.backward]
    for depth in range(max((len(marks[node]) for node in inside), default=0)):
        nodes_of = defaultdict[Any, list[fx.Node]](list)
        for node in trace.nodes:
            if len(regions := node.meta.get("custom", {}).get(REGIONS, ())) > depth:
                nodes_of[regions[: depth + 1]].append(node)
        for regions, nodes in nodes_of.items():
            _recompute(trace, nodes, depth, to_its_end=not regions[depth][1])
        trace.nodes[:] = [node for node in trace.nodes[0].graph.nodes if node.op != "output"]
    if any(map(_draws, inside)):
        yield "random numbers of layers under torch.utils.checkpoint are kept, where torch draws them again"
    if any(node in trace.new_values.values() for node in inside):
        yield "layers under torch.utils.checkpoint change buffers once a step, where torch changes them twice"


def _recompute(trace: Trace, nodes: Sequence[fx.Node], depth: int, *, to_its_end: bool) -> None:
    """Adds the second run of a region, which is within the second runs of `depth` regions around it.

    Args:
        nodes: those of the region and of its backward pass, in program order.
        to_its_end: whether it runs everything that leads to a result of the region.
    """
    readers = [node for node in nodes if node in trace.backward and RUN not in node.meta]
    run = [node for node in nodes if node.meta.get(RUN, 0) == depth and _runs_again(node)]
    run = [node for node in run if RUN in node.meta or node not in trace.backward]
    needed = {source for reader in readers for source in reader.all_input_nodes}.intersection(run)
    if not needed:
        return
    first = next(reader for reader in readers if not needed.isdisjoint(reader.all_input_nodes))
    results = {node for node in run if to_its_end and not node.users.keys() <= {*nodes}}
    needed |= results
    for node in reversed(run):
        if node in needed:
            needed.update(_masked(node)[:2] or node.all_input_nodes)
    copies: dict[fx.Node, fx.Node] = {}
    with first.graph.inserting_before(first):
        for node in run:
            if node in needed:
                copies[node] = _copied(node, lambda source: copies.get(source, source))
                copies[node].meta[RUN] = depth + 1
    trace.backward.update(copies.values())
    trace.unread += [copies[node] for node in results]
    for reader in readers:
        for source in copies.keys() & {*reader.all_input_nodes}:
            reader.replace_input_with(source, copies[source])


def _copied(node: fx.Node, copy_of: Callable[[fx.Node], fx.Node]) -> fx.Node:
    """Adds a copy of a node that reads copies; that of the output of dropout applies the mask again."""
    if not (masked := _masked(node)):
        return node.graph.node_copy(node, copy_of)
    x, mask, scale = masked
    copy = node.graph.call_function(aten.native_dropout_backward.default, (copy_of(x), mask, scale))
    copy.meta = dict(node.meta)
    return copy


def _runs_again(node: fx.Node) -> bool:
    """Says whether a second run needs to run a node, and cannot take what the first made."""
    if node.target is operator.getitem:
        return bool(_masked(node)) or _runs_again(node.args[0])  # type: ignore[arg-type]
    policy = node.meta.get("recompute")
    saved = policy not in (None, Policy.MUST_RECOMPUTE, Policy.PREFER_RECOMPUTE)
    return node.op == "call_function" and not saved and not _draws(node)


def _masked(node: fx.Node) -> tuple[Any, ...]:
    """Returns input, mask and scale if a node is the output of dropout whose mask is read too."""
    dropout: Any = node.args[0] if node.target is operator.getitem and node.args[1] == 0 else None
    if getattr(dropout, "target", None) is not aten.native_dropout.default:
        return ()
    x, p = dropout.args[:2]
    return next(((x, user, 1 / (1 - p) if p < 1 else 0.0) for user in dropout.users if user is not node), ())


def _draws(node: fx.Node) -> bool:
    """Says whether a node draws random numbers; attention does for dropout alone."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    arguments = dict(zip(names, node.args, strict=False)) | node.kwargs
    return "dropout_p" not in names or arguments.get("dropout_p") not in (None, 0.0)
