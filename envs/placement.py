"""A device for every op."""

from __future__ import annotations

from dataclasses import dataclass

from graphs.op_graph import IntArray


class PlacementError(ValueError):
    """A placement that does not suit its graph or cluster; the message says where."""


@dataclass(frozen=True, eq=False)
class Placement:
    """Device index of each op in program order, int (n_ops,); -1 = not placed yet."""

    device_of: IntArray
