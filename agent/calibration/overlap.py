"""A fit of the slowdown of ops beside copies to measurements of the Mist data set.

There a half-precision matrix product ran on each GPU, while GPUs exchanged data in pairs (NCCL) or copied
from or to their host; each was timed alone and together.

Source: Zhu et al., "Mist", EuroSys 2025; github.com/Dazz993/Mist (Apache-2.0), `bandwidth-*.json.gz`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from agent.calibration.op_tables import MeasuredOpsError
from envs.cluster.cluster import MAX_SLOWDOWN
from graphs.limits import MAX_SECONDS, MIN_SECONDS
from graphs.system.json_fields import fields, kind_of, name, text
from graphs.system.json_files import FileFormatError, read_json

PRODUCT = "compute_n"
COPIES = {
    "gpu_to_gpu_mbytes": "between GPUs",
    "cpu_to_gpu_mbytes": "from the host",
    "gpu_to_cpu_mbytes": "to the host",
}
"""The copies, by the key of their size."""
LATENCY = "latency"
SIZES = (PRODUCT, *COPIES)
OTHER_KEYS = frozenset(
    {"compute_m", "compute_k", "std", "std/mean", "world_size", "intra_group_size", "inter_group_size"}
    | {"gflops", "g2g_bandwidth", "c2g_bandwidth", "g2c_bandwidth"}
)


@dataclass(frozen=True)
class OverlapRow:
    """One matrix product and one copy, begun at the same time.

    Attributes:
        kind: of the GPU, as the file names it.
        copies: what is copied, a value of `COPIES`.
        op_s, copy_s: seconds of each alone.
        together_s: seconds until both have ended.
    """

    kind: str
    copies: str
    op_s: float
    copy_s: float
    together_s: float


def read_overlaps(files: Iterable[str | os.PathLike[str]]) -> list[OverlapRow]:
    """Reads files of the Mist data set, in the order of kind, copies and op.

    Raises:
        FileFormatError: a path is no readable JSON file, or a file breaks the format.
        MeasurementError: a time or size is no number, or a product or copy was not timed alone.
    """
    rows = [row for path in files for row in _rows(read_json(path), str(path))]
    return sorted(rows, key=lambda row: (row.kind, row.copies, row.op_s, row.copy_s))


def _rows(value: object, where: str) -> Iterator[OverlapRow]:
    for kind, cases in _object(value, where).items():
        at = f"{where}: {name(kind, where)}"
        seconds: dict[tuple[float, ...], float] = {}
        for key, case in _object(cases, at).items():
            record = fields(case, f"{at}: {key}", frozenset({*SIZES, LATENCY}), OTHER_KEYS)
            sizes = tuple(_number(record[size], f"{at}: {key}: {size}", 0.0) for size in SIZES)
            seconds[sizes] = _seconds(record[LATENCY], f"{at}: {key}: {LATENCY}")
        for sizes, together_s in seconds.items():
            moved = [index for index in range(1, len(SIZES)) if sizes[index]]
            if not sizes[0] or len(moved) != 1:
                continue
            op = (sizes[0], *[0.0] * len(COPIES))
            if op not in seconds or (0.0, *sizes[1:]) not in seconds:
                raise MeasuredOpsError(
                    f"{at}: {PRODUCT} {sizes[0]:g} with {SIZES[moved[0]]} {sizes[moved[0]]:g} was timed "
                    "together, but not each alone; add the two rows"
                )
            copies = COPIES[SIZES[moved[0]]]
            yield OverlapRow(kind, copies, seconds[op], seconds[0.0, *sizes[1:]], together_s)


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise FileFormatError(f"{where}: is {kind_of(value)}; expected an object")
    return value


def _seconds(value: object, where: str) -> float:
    written = text(value, where)
    if not written.endswith(" ms"):
        raise MeasuredOpsError(f"{where} is {written!r}; expected milliseconds, such as '43.68 ms'")
    return _number(written.removesuffix(" ms"), where, MIN_SECONDS) * 1e-3


def _number(value: object, where: str, least: float) -> float:
    try:
        number = float(text(value, where))
    except ValueError:
        number = np.nan
    if not least <= number <= MAX_SECONDS:
        raise MeasuredOpsError(f"{where} is {value!r}; expected a number from {least:g} to {MAX_SECONDS:g}")
    return number


def together_s(op_s: float, copy_s: float, slowdown: float) -> float:
    """Predicts when an op and a copy that begin together have both ended, as the simulator does it.

    Args:
        op_s, copy_s: seconds of each alone.
        slowdown: how many times as long the op takes while the copy runs.
    """
    return max(copy_s, min(slowdown * op_s, op_s + copy_s * (1.0 - 1.0 / slowdown)))


def fit_slowdown(rows: Sequence[OverlapRow]) -> float:
    """Fits the slowdown with the least mean error, of those that explain a row exactly; 1 if none does."""
    lost = [(row.together_s - row.op_s) / row.copy_s for row in rows]
    exact = [1.0 / max(1.0 - max(share, 0.0), 1.0 / MAX_SLOWDOWN) for share in lost]
    return min(sorted([1.0, *exact]), key=lambda slowdown: float(np.mean(errors(rows, slowdown))))


def errors(rows: Sequence[OverlapRow], slowdown: float) -> list[float]:
    """Computes the relative error of each prediction."""
    return [abs(together_s(row.op_s, row.copy_s, slowdown) / row.together_s - 1.0) for row in rows]


def held_out_errors(rows: Sequence[OverlapRow]) -> list[float]:
    """Computes the errors on the rows of each op, with the slowdown fitted to those of all other ops."""
    found = []
    for op_s in sorted({row.op_s for row in rows}):
        others = [row for row in rows if row.op_s != op_s]
        found += errors([row for row in rows if row.op_s == op_s], fit_slowdown(others))
    return found


def overlap_report(rows: Iterable[OverlapRow]) -> Iterator[str]:
    """Yields a line for each kind and what is copied: the slowdown, and the errors with it and without."""
    for (kind, copies), group in groupby(rows, key=lambda row: (row.kind, row.copies)):
        of_group = list(group)
        held_out, without = held_out_errors(of_group), errors(of_group, 1.0)
        yield (
            f"{kind:16} {copies:14} {len(of_group):3} rows, slowdown {fit_slowdown(of_group):7.2f}, held out "
            f"{np.median(held_out):6.1%} median, {max(held_out):6.1%} most; without "
            f"{np.median(without):6.1%} median, {max(without):6.1%} most"
        )
