"""Steps that others measured on several GPUs, and their predictions."""

from __future__ import annotations

from agent.lab.pivot import Row, Rows

BROKEN = 0.5
"""Share of the tokens a second of a comparable run below which a run counts as broken."""


def is_broken(run: Row, runs: Rows) -> bool:
    """Says whether a run of the sweep is left out; the rule was stated before any prediction was looked at.

    All runs of a model have the same batch. So a run is broken if it has less than half of the tokens a second
    of each GPU of another run of the same model and number of stages on as many nodes or more, or less than
    half of all tokens a second of such a run on fewer nodes: more nodes may gain little, but do not halve.

    Args:
        runs: all that ran, with those columns of the sweep.
    """
    for other in runs:
        if (other["model"], other["pp"]) == (run["model"], run["pp"]):
            rate = "tokens_s_gpu" if other["nodes"] >= run["nodes"] else "tokens_s"
            if run[rate] < BROKEN * other[rate]:
                return True
    return False
