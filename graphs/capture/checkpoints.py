"""Regions under `torch.utils.checkpoint`: their ops run again in the backward pass, as ops of the trace.

A trace runs a region once. Then those of its ops that its backward pass reads, directly or through others,
are copied to right before the first op that reads one, where torch runs them again, and the copies are read.
So only what the region reads is kept until then. What draws random numbers does not run again, as no device
keeps the state of its generator: it is kept, of dropout the mask. So is what a policy of
`create_selective_checkpoint_contexts` saves, on the device even if the policy moves it to the CPU.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch.utils import checkpoint

from graphs.capture.tracing import Trace

REGIONS = "placewalk.regions"
"""Key under which torch keeps the regions of a node or, in the backward pass, of the op that caused it: the
number, and whether the second run stops after the last needed op; outermost first."""
RUN = "placewalk.run"
"""Key under which a copy keeps how many runs of its op are before it."""
UNTRAINED = "torch.utils.checkpoint with use_reentrant=True gives no gradients where no argument needs one"


@contextmanager
def marked_regions() -> Iterator[list[Any]]:
    """Makes torch mark nodes by region, in place of forgetting what regions save; yields a list of regions.

    The second run of a reentrant region, whose function torch hides from a trace, does not stop early.
    """
    marked: list[Any] = []

    @contextmanager
    def region(frame: Any) -> Iterator[None]:
        marked.append(frame)
        custom = fx.traceback.current_meta.get("custom", {})
        regions = *custom.get(REGIONS, ()), (len(marked), frame.early_stop)
        if fx.traceback.has_preserved_node_meta():  # which drops the mark after an error
            fx.traceback.current_meta["custom"] = {**custom, REGIONS: regions}
        yield
        if fx.traceback.has_preserved_node_meta():
            fx.traceback.current_meta["custom"] = custom

    def apply(function: Callable[..., Any], _preserve_rng_state: bool, *arguments: Any) -> Any:
        reruns = any(isinstance(argument, Tensor) and argument.requires_grad for argument in arguments)
        marked.extend([UNTRAINED] * (torch.is_grad_enabled() and not reruns))
        reruns &= torch.is_grad_enabled()
        with region(SimpleNamespace(early_stop=False)) if reruns else torch.no_grad():
            return function(*arguments)

    with (
        patch.object(checkpoint, "CheckpointFunction", SimpleNamespace(apply=apply)),
        patch.object(checkpoint, "_checkpoint_hook", region),
        patch.object(
            checkpoint, "TorchDispatchMode", object
        ),  # else a trace takes contexts of policies alone
    ):
        yield marked


def recompute_regions(trace: Trace, marked: Sequence[Any]) -> Iterator[str]:
    """Adds the second runs of the marked regions to a training step; yields what differs from torch's."""
    if not trace.backward:
        return
    if UNTRAINED in marked:
        yield UNTRAINED
    if marked and trace.why_no_calls:
        yield "torch.utils.checkpoint is captured as a plain call, as module names are lost"
    inside = [node for node in trace.nodes if _regions(node)]
    for depth in range(max((len(_regions(node)) for node in inside), default=0)):
        nodes_of = defaultdict[Any, list[fx.Node]](list)
        for node in trace.nodes:
            if len(_regions(node)) > depth:
                nodes_of[_regions(node)[: depth + 1]].append(node)
        for regions, nodes in nodes_of.items():
            _recompute(trace, nodes, depth, to_its_end=not regions[depth][1])
        trace.nodes[:] = [*trace.nodes[0].graph.nodes][:-1]
    if any(map(_draws, inside)):
        yield "random numbers of layers under torch.utils.checkpoint are kept, where torch draws them again"
    if any(map(_regions, trace.new_values.values())):
        yield "layers under torch.utils.checkpoint change buffers once a step, where torch changes them twice"


def _recompute(trace: Trace, nodes: Sequence[fx.Node], depth: int, *, to_its_end: bool) -> None:
    """Adds the second run of a region, given by all its nodes, within the second runs of `depth` others."""
    readers = [node for node in nodes if node in trace.backward and RUN not in node.meta]
    inside = {*nodes}.difference(readers)
    run = [node for node in nodes if node in inside and node.meta.get(RUN, 0) == depth and _runs_again(node)]
    needed = {source for reader in readers for source in reader.all_input_nodes}.intersection(run)
    if not needed:
        return
    first = next(reader for reader in readers if not needed.isdisjoint(reader.all_input_nodes))
    results = {node for node in run if to_its_end and not inside.issuperset(node.users)}
    needed |= results
    for node in reversed(run):
        if node in needed:
            needed.update(_mask_of(node)[:2] or node.all_input_nodes)
    copies: dict[Any, Any] = {}
    for node in filter(needed.__contains__, run):
        with node.graph.inserting_before(first):
            if mask := _mask_of(node):
                arguments = tuple(copies.get(argument, argument) for argument in mask)
                copy = node.graph.call_function(torch.ops.aten.native_dropout_backward.default, arguments)
            else:
                copy = node.graph.node_copy(node, lambda source: copies.get(source, source))
        copy.meta = node.meta | {RUN: depth + 1}
        copies[node] = copy
    trace.backward.update(copies.values())
    trace.unread += [copies[node] for node in results]
    for reader in readers:
        for source in copies.keys() & {*reader.all_input_nodes}:
            reader.replace_input_with(source, copies[source])


def _regions(node: fx.Node) -> tuple[tuple[int, bool], ...]:
    return (node.meta.get("custom") or {}).get(REGIONS, ())


def _runs_again(node: fx.Node) -> bool:
    """Says whether a second run needs to run a node, and cannot take what the first made."""
    if node.target is operator.getitem:
        return bool(_mask_of(node)) or _runs_again(node.args[0])  # type: ignore[arg-type]
    policy, again = node.meta.get("recompute"), ("MUST_RECOMPUTE", "PREFER_RECOMPUTE")
    return node.op == "call_function" and (not policy or policy.name in again) and not _draws(node)


def _mask_of(node: fx.Node) -> tuple[Any, ...]:
    """Returns input, mask and scale if a node is the output of dropout, and its mask is read too."""
    dropout: Any = node.args[0] if node.target is operator.getitem and node.args[1] == 0 else None
    if getattr(dropout, "target", None) is not torch.ops.aten.native_dropout.default:
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
