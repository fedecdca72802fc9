"""What a compiled step saves under a budget: exact knapsacks, the budget kept, more budget never slower."""

from __future__ import annotations

import math
import pickle
from itertools import chain, combinations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch._functorch import config
from torch._functorch._activation_checkpointing.knapsack import (
    dp_knapsack,
    dp_knapsack_sliding_hirschberg,
    ilp_knapsack,
)
from torch._functorch.partitioners import NodeInfo, _size_of, estimate_runtime

from envs.runtime.activation_budget import (
    UNITS,
    BudgetSolver,
    SavedCuts,
    best_sets,
    op_types,
    use_activation_budget,
)
from graphs.system.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
ITEMS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=8)


def largest(items: list[tuple[int, int]], budget: float) -> int:
    """Returns the largest value of all sets within a budget."""
    every = chain.from_iterable(combinations(items, length) for length in range(len(items) + 1))
    return max(sum(v for _, v in chosen) for chosen in every if sum(s for s, _ in chosen) <= budget)


@given(ITEMS, st.lists(st.floats(0, 200), min_size=1, max_size=4))
def test_sets_are_the_best_of_all(items: list[tuple[int, int]], budgets: list[float]) -> None:
    sizes, values = zip(*items, strict=True)
    for budget, chosen in zip(budgets, best_sets(sizes, values, budgets), strict=True):
        assert len(set(chosen)) == len(chosen)
        assert sum(sizes[item] for item in chosen) <= budget
        assert sum(values[item] for item in chosen) == largest(items, budget)


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 9)), min_size=1, max_size=6), st.floats(0, 1))
def test_large_sizes_are_rounded_up(items: list[tuple[int, int]], share: float) -> None:
    sizes, values = zip(*items, strict=True)
    budget = share * sum(sizes)
    (chosen,) = best_sets(sizes, values, [budget])
    unit = max(math.gcd(*sizes), math.ceil(budget / UNITS), 1)
    assert sum(sizes[item] for item in chosen) <= budget
    rounded = [(-(-size // unit) * unit, value) for size, value in items]
    assert sum(values[item] for item in chosen) == largest(rounded, budget)


def test_torchs_solvers_exceed_budgets_that_ours_keeps() -> None:
    memory = [0.00004] * 10
    assert len(dp_knapsack(memory, [1.0] * 10, 0.0002)[1]) == 10
    assert dp_knapsack_sliding_hirschberg([1e-4] * 3, [1.0] * 3, 1e-4)[1] == [0, 1]
    assert len(best_sets([4] * 10, [1.0] * 10, [20])[0]) == 5


def test_torchs_ilp_misses_optima_of_short_times() -> None:
    sizes, seconds = [3, 2, 2], [4e-8, 3e-8, 3e-8]
    assert best_sets(sizes, seconds, [4]) == [(1, 2)]
    assert ilp_knapsack([0.3, 0.2, 0.2], seconds, 0.4)[1] != [1, 2]


class BudgetedBlock(nn.Module):
    """A transformer layer with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(64, 32), nn.LayerNorm(32)
        self.mix, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down, self.head = nn.Linear(32, 128), nn.Linear(128, 32), nn.Linear(32, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        x = x + self.out(torch.softmax(q @ k.transpose(1, 2) / 6, -1) @ v)
        x = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


@pytest.fixture(scope="module")
def block() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return BudgetedBlock(), torch.randint(0, 64, (4, 24))


def compiled_step(module: nn.Module, tokens: Tensor) -> tuple[list[Tensor], int]:
    """Returns the loss and gradients of a compiled step, and the bytes that it keeps beyond its inputs."""
    torch._dynamo.reset()
    module.zero_grad()
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = torch.compile(module, backend="aot_eager_decomp_partition")(tokens)
    loss.backward()
    given_ = {tensor.untyped_storage().data_ptr() for tensor in (tokens, *module.parameters())}
    size = sum(tensor.untyped_storage().nbytes() for at, tensor in kept.items() if at not in given_)
    return [loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)], size


def test_compiled_steps_equal_eager_ones_and_save_at_most_the_budget(block: tuple[nn.Module, Tensor]) -> None:
    module, tokens = block
    module.zero_grad()
    loss = module(tokens)
    loss.backward()
    expected = [loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
    sizes = {}
    for share in (0.0, 0.1, 0.5, 1.0):
        with use_activation_budget(share):
            got, sizes[share] = compiled_step(module, tokens)
        torch.testing.assert_close(got, expected)
    assert sorted(sizes.values()) == list(sizes.values())
    assert 0 == sizes[0.0] < sizes[0.1] < sizes[0.5] < sizes[1.0]
    assert all(size <= share * sizes[1.0] for share, size in sizes.items())


def test_cuts_of_torch_that_share_storages_are_within_the_budget_too() -> None:
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True) for _ in range(2)]
    module, inputs, sizes = nn.Sequential(*layers, SquareMean()), torch.randn(8, 32, 64), {}
    for share in (0.5, 0.6, 0.65, 0.7, 0.9, 1.0):
        with use_activation_budget(share):
            sizes[share] = compiled_step(module, inputs)[1]
    assert all(size <= share * sizes[1.0] for share, size in sizes.items())
    assert sizes[0.5] < sizes[0.9] <= sizes[1.0]


class SquareMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean()


class AllBudgets(BudgetSolver):
    """Solves many budgets in one compilation; keeps the seconds that run again and the bytes left."""

    def __init__(self) -> None:
        super().__init__()
        self.ours: list[tuple[float, float]] = []
        self.torchs: list[tuple[float, float]] = []

    def uuid(self) -> None:
        return None

    def __call__(
        self,
        memory: list[float],
        joint_graph: fx.Graph,
        max_memory: float,
        node_info: NodeInfo,
        all_recomputable_banned_nodes: list[fx.Node],
    ) -> tuple[list[int], list[int]]:
        nodes = all_recomputable_banned_nodes
        cuts = SavedCuts(joint_graph, node_info, nodes)
        flops = [estimate_runtime(node) for node in nodes]
        for share in (0.01, 0.11, 0.12, 0.46, 0.47, 0.63):
            answer = super().__call__(memory, joint_graph, share, node_info, nodes)
            assert sorted(answer[0] + answer[1]) == list(range(len(nodes)))
            for told, saved in (
                (self.ours, answer[0]),
                (self.torchs, dp_knapsack(memory, flops, share)[1]),
            ):
                seconds, size = cuts.outcome(saved)
                told.append((seconds, share * _size_of(nodes[0]) / memory[0] - size))
        assert answer == super().__call__(memory, joint_graph, share, node_info, nodes)
        return answer


def test_more_budget_is_never_slower_and_no_budget_is_exceeded(block: tuple[nn.Module, Tensor]) -> None:
    solver = AllBudgets()
    with config.patch(activation_memory_budget=0.1, activation_memory_budget_solver=solver):
        compiled_step(*block)
    ours, torchs = ([seconds for seconds, _ in told] for told in (solver.ours, solver.torchs))
    assert ours == sorted(ours, reverse=True)
    assert torchs != sorted(torchs, reverse=True)
    assert min(left for _, left in solver.ours) >= 0 > min(left for _, left in solver.torchs)
    assert ours[-1] < ours[0]
    pairs = zip(ours, solver.torchs, strict=True)
    assert all(own <= theirs for own, (theirs, left) in pairs if left >= 0)


def test_nodes_without_bytes_are_no_error() -> None:
    assert best_sets([0, 0], [1.0, 2.0], [0.0]) == [(0, 1)]


class DropoutStack(nn.Module):
    """Two linear layers with dropout between them and after them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.dropout(torch.relu(self.first(x)), 0.5)
        return nn.functional.dropout(self.second(hidden).sin(), 0.5).square().sum()


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_random_numbers_are_never_drawn_again(share: float) -> None:
    module, inputs = DropoutStack(), torch.ones(16, 8)

    def step() -> list[Tensor]:
        torch.manual_seed(1)
        return compiled_step(module, inputs)[0]

    expected = step()
    with use_activation_budget(share):
        torch.testing.assert_close(step(), expected)
    with config.patch(activation_memory_budget=share):
        loss, *gradients = step()
    assert loss == expected[0]
    assert not torch.allclose(gradients[0], expected[1])


@pytest.mark.parametrize(("dropout", "random"), [(0.0, False), (0.1, True)])
def test_attention_is_random_with_dropout_only(dropout: float, random: bool) -> None:
    attend = torch.ops.aten._scaled_dot_product_flash_attention.default
    graph = fx.Graph()
    inputs = [graph.placeholder(name) for name in "qkv"]
    assert op_types().is_random(graph.call_function(attend, (*inputs, dropout))) is random
    assert op_types().is_random(graph.call_function(attend, (*inputs,), {"dropout_p": dropout})) is random
    assert not op_types().is_random(graph.call_function(torch.ops.aten.mm.default, (*inputs[:2],)))
    assert op_types().is_random(graph.call_function(torch.ops.aten.rand.default, ([2],)))


def test_the_solver_is_pickled_and_named_in_caches() -> None:
    assert pickle.loads(pickle.dumps(BudgetSolver())).uuid() == BudgetSolver().uuid()


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), "0.3", None])
def test_shares_outside_0_and_1_are_refused(share: Any) -> None:
    with pytest.raises(InputError, match=r"^activation budget \S+: is a share .* from 0 to 1$"):
        use_activation_budget(share).__enter__()
