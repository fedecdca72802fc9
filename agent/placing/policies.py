"""The policy of an evaluation, read once, and the placers made with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agent.placers.base import PLACERS, Placer, PlacerError
from agent.policy.compiled.policy import CompiledPolicy
from agent.policy.serialization import StoredPolicy, read_policy
from graphs.op_graph import OpGraph


@dataclass(frozen=True, eq=False)
class EvaluatedPolicy:
    """A policy that was read; another process gets the same bytes and makes its own policy of them."""

    stored: StoredPolicy

    @property
    def digest(self) -> str:
        """SHA-256 of the policy's files."""
        return self.stored.digest

    @cached_property
    def policy(self) -> CompiledPolicy:
        """The policy itself."""
        return self.stored.compiled()

    def how_seen(self, graphs: Iterable[OpGraph]) -> dict[str, str]:
        """Says what the policy was shown of each graph, by name, as `PolicyCard.how_seen` does."""
        return {graph.name: self.stored.card.how_seen(graph) for graph in graphs}

    def __getstate__(self) -> dict[str, Any]:
        return {"stored": self.stored}


def make_placer(name: str, policy: EvaluatedPolicy | None, order: str) -> Placer:
    """Look a placer up, or make a learned one of a policy and the order in which it visits ops.

    Raises:
        PlacerError: an unknown name, or a learned placer without a policy.
    """
    found = PLACERS[name]
    if not found.is_learned:
        return found
    if policy is None:
        raise PlacerError(f"placer '{name}' needs a policy; open one")
    return found.with_policy(policy.policy, order)


def open_policy(path: str) -> EvaluatedPolicy:
    """Reads a policy.

    Args:
        path: a run's folder, or `pretrained`.

    Raises:
        PolicyFileError: it cannot be loaded.
    """
    opened = EvaluatedPolicy(read_policy(path))
    _ = opened.policy
    return opened
