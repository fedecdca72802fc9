"""A policy in arrays, that acts without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from agent.policy.compiled.encoder import EncoderArrays, contexts_of, encoder_arrays
from agent.policy.compiled.head import Contexts, HeadArrays, head_arrays, join_contexts
from agent.policy.compiled.layers import Floats
from agent.policy.mdp_config import MdpConfig
from agent.policy.node_features import graph_arrays
from agent.policy.shape import NetworkShape
from envs.problem import Problem
from graphs.system.array_types import IntArray

Encoded = tuple[Floats, IntArray]
"""Contexts of a problem's nodes, float32 (n_nodes, hidden), and the node of each op, int (n_ops,)."""

COMPILED_ENCODER = "sage"
"""The encoder that is compiled; policies with another one encode by torch."""


@dataclass(frozen=True, eq=False)
class CompiledPolicy:
    """The actor of a policy, with the weights of one moment.

    Attributes:
        weights: float32, by their names in `PlacementNetwork`.
        mdp_config: the decision process that the policy acts in where nothing else is said.
        encode: encodes a problem, where the encoder is not compiled.
    """

    shape: NetworkShape
    weights: Mapping[str, Floats]
    mdp_config: MdpConfig
    encode: Callable[[Problem], Encoded] | None = None

    def compiled(self) -> CompiledPolicy:
        """Returns the policy itself."""
        return self

    def head_arrays(self, problems: Sequence[Problem]) -> HeadArrays:
        """Encodes problems, and lays out what a walk reads of them and of the weights."""
        return self.head_over(join_contexts([(self.encode or self._encode)(each) for each in problems]))

    def head_over(self, contexts: Contexts) -> HeadArrays:
        """Lays out what a walk reads of problems that are encoded, and of the weights."""
        return head_arrays(self.shape, self.weights, contexts)

    def _encode(self, problem: Problem) -> Encoded:
        graph = graph_arrays(problem)
        return contexts_of(graph, self._encoder), graph.node_of

    @cached_property
    def _encoder(self) -> EncoderArrays:
        return encoder_arrays(self.shape, self.weights)


def weight_shapes(shape: NetworkShape) -> dict[str, tuple[int, ...]]:
    """Lists the weights of a network whose encoder is compiled, by their names in `PlacementNetwork`."""
    hidden, rounds = shape.hidden, range(shape.rounds)
    square, vector = (hidden, hidden), (hidden,)
    linear = {"weight": square, "bias": vector}
    of_round = {"norm.weight": vector, "norm.bias": vector, "own.weight": square, "own.bias": vector}
    of_round |= {"from_producers.weight": square, "from_consumers.weight": square}
    return {
        "encoder.input_proj.weight": (hidden, shape.node_features),
        "encoder.input_proj.bias": vector,
        **{f"encoder.rounds.{at}.{name}": size for at in rounds for name, size in of_round.items()},
        "encoder.norm.weight": vector,
        "encoder.norm.bias": vector,
        "of_graph.0.weight": (hidden, hidden + shape.graph_features),
        "of_graph.0.bias": vector,
        "of_graph.2.weight": (2 * hidden, hidden),
        "of_graph.2.bias": (2 * hidden,),
        "of_op.weight": (2 * hidden, hidden),
        "of_pool.weight": (2 * hidden, 3 * shape.device_features),
        "of_device.weight": (hidden, shape.device_features),
        **{f"{head}.1.{name}": size for head in ("actor", "critic") for name, size in linear.items()},
        **{f"{head}.3.weight": (1, hidden) for head in ("actor", "critic")},
        **{f"{head}.3.bias": (1,) for head in ("actor", "critic")},
    }
