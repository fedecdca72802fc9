"""Solver for torch's partitioner: what a compiled step saves for its backward pass under a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, fx
from torch._functorch import config, partitioners
from torch._functorch.partitioners import MinCutOptions, NodeInfo, OpTypes, _size_of
from torch._inductor.custom_graph_pass import CustomKnapsackSolver, get_hash_for_files
from torch._inductor.fx_utils import get_node_storage
from torch.fx.experimental import symbolic_shapes
from torch.utils._ordered_set import OrderedSet
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry

from graphs.system.array_types import BoolArray
from graphs.system.errors import InputError

# Older torch has it by another name.
optimization_hint: Any = getattr(
    symbolic_shapes, "optimization_hint", getattr(symbolic_shapes, "hint_int", None)
)
Items = tuple[int, ...]
FLOPS_PER_S, BYTES_PER_S = 1.5e14, 1.5e12
"""Speed of the device that times the ops, about an A100. Only the ratio affects what is saved."""
SHARES = (*(part / 200 for part in range(5)), *(part / 40 for part in range(1, 41)))
"""Budgets whose best sets are compared. They do not depend on the user's, so more budget is never slower."""
LEAST_SHARE = 1e-12
"""Budget in place of 0, for which torch asks no solver and draws random numbers again (its issue 190758)."""
UNITS = 65536
"""Most units of memory in a knapsack. Sizes that are not multiples of a unit are rounded up."""


@contextmanager
def use_activation_budget(share: float) -> Iterator[None]:
    """Limits what modules save for the backward pass, if `torch.compile` compiles them inside the `with`.

    Args:
        share: bytes to save beyond the inputs, as a share of what torch saves by default, from 0 to 1.

    Raises:
        InputError: `share` is not between 0 and 1.
    """
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise InputError(f"activation budget {share}: is a share of what torch saves; give one from 0 to 1")
    asked = max(float(share), LEAST_SHARE)
    with (
        config.patch(activation_memory_budget=asked, activation_memory_budget_solver=BudgetSolver()),
        patch.object(partitioners, "get_default_op_list", op_types),
        patch.object(partitioners, "choose_saved_values_set", saved_values),
    ):
        yield


def saved_values(
    graph: fx.Graph,
    info: NodeInfo,
    memory_budget: float = 1.0,
    choose: Callable[..., list[fx.Node]] = partitioners.choose_saved_values_set,
) -> list[fx.Node]:
    """Chooses the nodes to save within a share of the bytes that torch saves by default.

    Torch counts the bytes of nodes, several of which may share a storage. Where its own cut is within the
    budget by that count, but not by storages, it is asked for so little that it asks the solver instead.
    """
    if memory_budget >= 1.0:
        return choose(graph, info, memory_budget)
    limit_bytes, found = memory_budget * saved_bytes(choose(graph, info, 1.0), info), []
    for asked in (memory_budget, LEAST_SHARE):
        with config.patch(activation_memory_budget_solver=BudgetSolver(limit_bytes)):
            found = choose(graph, info, asked)
        if saved_bytes(found, info) <= limit_bytes:
            break
    return found


def saved_bytes(values: Iterable[fx.Node], info: NodeInfo) -> int:
    """Returns the bytes of the storages of some nodes, without those of the inputs."""
    kept = {get_node_storage(node) or node: storage_bytes(node) for node in values}
    inputs = {get_node_storage(node) for node in info.inputs}
    return sum(size for key, size in kept.items() if key not in inputs)


class SeededOpTypes(OpTypes):
    """Torch's table of ops, with all that draw random numbers, such as attention with dropout."""

    def is_random(self, node: fx.Node) -> bool:
        """Tells whether the node would draw other numbers if it ran again."""
        op = node.target
        if not isinstance(op, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in op.tags:
            return False
        names = [argument.name for argument in op._schema.arguments]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        return "dropout_p" not in names or bool(given.get("dropout_p", 0.0))


def op_types(torchs: Callable[[], OpTypes] = partitioners.get_default_op_list) -> OpTypes:
    """Returns the table for torch's cuts. Torch's own lacks most random ops, so it would run these again."""
    return SeededOpTypes(**vars(torchs()))


class BudgetSolver(CustomKnapsackSolver):
    """Solver that torch calls for budgets below its own cuts (`config.activation_memory_budget_solver`).

    Knapsacks choose what to save for each budget in `SHARES`. Torch's minimum cut says what each choice
    really saves and computes again; the fastest that fits is taken. So the saved bytes exceed the budget only
    by what torch cannot compute again, and the estimated time never grows with the budget.

    Args:
        limit_bytes: the budget; None = the one that torch asks for.
    """

    def __init__(self, limit_bytes: float | None = None) -> None:
        self._limit_bytes = limit_bytes

    def uuid(self) -> object:
        """Returns what names this solver, and the table of ops, in torch's caches of compiled graphs."""
        return get_hash_for_files((__file__,), partitioners.get_default_op_list.__name__)

    def __call__(
        self,
        memory: list[float],
        joint_graph: fx.Graph,
        max_memory: float,
        node_info: NodeInfo,
        all_recomputable_banned_nodes: list[fx.Node],
    ) -> tuple[list[int], list[int]]:
        """Chooses the nodes to save.

        Args:
            memory: bytes of each node, largest first, as a share of what torch saves beyond the inputs.
            max_memory: the budget in the same unit.
            all_recomputable_banned_nodes: what may be saved. Returns the indices of what is, and of the rest.
        """
        nodes = all_recomputable_banned_nodes
        sizes = [_size_of(node) for node in nodes]
        full_bytes = sizes[0] / memory[0] if memory[0] else 0.0
        limit_bytes = max_memory * full_bytes if self._limit_bytes is None else self._limit_bytes
        cuts, ops = SavedCuts(joint_graph, node_info, nodes), op_types()
        kept = tuple(index for index, node in enumerate(nodes) if ops.is_random(node))
        _, kept_bytes = cuts.outcome(kept)
        sizes = [0 if index in kept else size for index, size in enumerate(sizes)]
        budgets = [max(share * full_bytes - kept_bytes, 0) for share in SHARES]
        sets = best_sets(sizes, cuts.chain_seconds(), budgets)
        smaller = (
            chosen for share, chosen in zip(SHARES, sets, strict=True) if share * full_bytes <= limit_bytes
        )
        choices = {tuple(sorted({*chosen, *kept})) for chosen in ((), range(len(nodes)), *smaller)}
        outcomes = [(*cuts.outcome(choice), choice) for choice in choices]
        fitting = [outcome for outcome in outcomes if outcome[1] <= limit_bytes]
        saved = set(min(fitting)[2] if fitting else kept)
        return sorted(saved), [index for index in range(len(nodes)) if index not in saved]


class SavedCuts:
    """Bytes that torch saves and seconds that it computes again, by the nodes that it must save."""

    def __init__(self, graph: fx.Graph, info: NodeInfo, nodes: Sequence[fx.Node]) -> None:
        self._graph, self._info, self._nodes = graph, info, nodes
        self._options = MinCutOptions(False, False, False, False, config.ban_recompute_reductions)
        ops = op_types()
        self._seconds = {node: 0.0 if ops.is_view(node) else node_seconds(node) for node in graph.nodes}
        backward = info.tangents_closure
        self._read = [n for node in backward for n in node.all_input_nodes if n not in backward]

    def chain_seconds(self) -> list[float]:
        """Returns how many seconds more the backward pass takes without each node, with all others saved."""
        every = set(self._nodes)
        least = self._again_s(every)
        return [self._again_s(every - {node}) - least for node in self._nodes]

    def outcome(self, choice: Iterable[int]) -> tuple[float, int]:
        """Returns the seconds of the ops that run again, and the bytes saved beyond the inputs."""
        saved = set(choice)
        free = OrderedSet(node for index, node in enumerate(self._nodes) if index not in saved)
        values, _ = partitioners.solve_min_cut(self._graph, self._info, self._options, free)
        return self._again_s(set(values)), saved_bytes(values, self._info)

    def _again_s(self, saved: set[fx.Node]) -> float:
        again: set[fx.Node] = set()
        waiting = list(self._read)
        while waiting:
            node = waiting.pop()
            if node.op == "call_function" and node not in saved and node not in again:
                again.add(node)
                waiting.extend(node.all_input_nodes)
        return math.fsum(self._seconds[node] for node in again)


def node_seconds(node: fx.Node) -> float:
    """Estimates the seconds of a node: its FLOPs or its bytes, whichever takes longer."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return 0.0
    count = flop_registry.get(target.overloadpacket)
    args, kwargs, out = tree_map(_shape, (node.args, node.kwargs, node.meta.get("val")))
    flops = count(*args, **kwargs, out_val=out) if count else 0
    return max(flops / FLOPS_PER_S, sum(map(_size_of, [node, *node.all_input_nodes])) / BYTES_PER_S)


def storage_bytes(node: fx.Node) -> int:
    """Returns the bytes of the storage that holds the output of a node."""
    size = _size_of(node)
    if get_node_storage(node) is None:
        return size
    return int(optimization_hint(node.meta["val"].untyped_storage().nbytes(), fallback=size))


def _shape(value: Any) -> Any:
    value = value.meta.get("val") if isinstance(value, fx.Node) else value
    if isinstance(value, Tensor):
        return torch.Size([optimization_hint(length, fallback=4096) for length in value.shape])
    return value


def best_sets(sizes: Sequence[int], values: Sequence[float], budgets: Iterable[float]) -> list[Items]:
    """Returns for each budget the items of the largest total value whose sizes sum to at most the budget.

    The optimum is exact if the sizes have a common divisor of at least 1/65536 of the largest budget.
    Otherwise it is that of sizes rounded up to such multiples. Sizes and values are at least 0.

    Source: Bellman's recurrence, as in Kellerer, Pferschy and Pisinger 2004, section 2.3.
    """
    budgets = [min(budget, sum(sizes)) for budget in budgets]
    unit = max(math.gcd(*sizes), math.ceil(max(budgets) / UNITS), 1)
    weights = [-(-size // unit) for size in sizes]
    best = np.zeros(int(max(budgets) // unit) + 1)
    taken: list[BoolArray] = []
    for weight, value in zip(weights, values, strict=True):
        taking = np.full_like(best, -1.0)
        taking[weight:] = best[: max(len(best) - weight, 0)] + value
        taken.append(taking > best)
        best = np.maximum(best, taking)
    return [_items(taken, weights, int(budget // unit)) for budget in budgets]


def _items(taken: Sequence[BoolArray], weights: Sequence[int], room: int) -> Items:
    items = []
    for item in reversed(range(len(weights))):
        if taken[item][room]:
            items.append(item)
            room -= weights[item]
    return tuple(reversed(items))
