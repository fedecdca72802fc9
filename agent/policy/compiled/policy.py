"""A policy whose head is in arrays, for compiled walks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agent.policy.compiled.head import Contexts, HeadArrays, head_arrays, join_contexts
from agent.policy.compiled.layers import Floats
from agent.policy.mdp_config import MdpConfig
from agent.policy.shape import NetworkShape
from envs.problem import Problem
from graphs.system.array_types import IntArray

Encoded = tuple[Floats, IntArray]
"""Contexts of a problem's nodes, float32 (n_nodes, hidden), and the node of each op, int (n_ops,)."""


@dataclass(frozen=True, eq=False)
class CompiledPolicy:
    """The actor of a policy, with the weights of one moment.

    Attributes:
        weights: float32, by their names in `PlacementNetwork`, without those of the encoder.
        mdp_config: the decision process that the policy acts in where nothing else is said.
        encode: encodes a problem, by the encoder's weights of the moment when it is called.
    """

    shape: NetworkShape
    weights: Mapping[str, Floats]
    mdp_config: MdpConfig
    encode: Callable[[Problem], Encoded]

    def compiled(self) -> CompiledPolicy:
        """Returns the policy itself."""
        return self

    def head_arrays(self, problems: Sequence[Problem]) -> HeadArrays:
        """Encodes problems, and lays out what a walk reads of them and of the weights."""
        return self.head_over(join_contexts([self.encode(problem) for problem in problems]))

    def head_over(self, contexts: Contexts) -> HeadArrays:
        """Lays out what a walk reads of problems that are encoded, and of the weights."""
        return head_arrays(self.shape, self.weights, contexts)
