"""Measured times of transfers between two GPUs, read from files of the Vidur and Sailor data sets.

Vidur (`<node>_pairwise_nvlink.send_recv.csv`): the median of the sender's NCCL kernels in milliseconds,
without the host. Rows of two nodes are left out, as a small message counts as sent there once it is in a
buffer of the sender's host. The file for H100 holds the times of the A100 (the same bytes): no link of H100
was measured.

Sailor (`<GPU>/*/p2p_<intra|inter>_node.csv`): sizes in MiB, then bandwidths. Within a node they are GiB/s,
from the host's call of `torch.distributed.send` to the end of the wait for it. Across nodes they are GB/s,
and points of a quadratic in log2(size) that Sailor fitted to its measurements, as their third differences
show.

Sources: Agrawal et al., "Vidur", MLSys 2024; github.com/microsoft/vidur (MIT), `profiling/collectives`.
Strati et al., "Sailor", SOSP 2025; github.com/eth-easl/sailor (MIT), `p2p_band_profiler.py`, `PROFILING.md`.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.calibration.op_tables import MeasuredOpsError, unreadable
from graphs.system.array_types import FloatArray

MIB, GIB, GIGA = 2.0**20, 2.0**30, 1e9
MAX_TRANSFER_BYTES = 1e15
MIN_TRANSFER_S, MAX_TRANSFER_S = 1e-9, 1e9
VIDUR = "Vidur: the sender's NCCL kernel"
SAILOR = "Sailor: call and wait of torch.distributed.send"
SAILOR_FIT = "Sailor: a quadratic fitted to call and wait of torch.distributed.send"


@dataclass(frozen=True)
class LinkKind:
    """The settings of a kind of link besides its times.

    Attributes:
        source: who measured it, and what was timed.
        datasheet_bytes_per_s: bandwidth in one direction; NaN where unknown.
        alike: the link, timed without the host, whose constants in seconds this one is taken to have; empty
            where it has its own.
    """

    source: str
    datasheet_bytes_per_s: float
    alike: str = ""


LINK_KINDS = {
    "a100-nvlink": LinkKind(VIDUR, 300e9),
    "a40-pcie4": LinkKind(VIDUR, 31.5e9),
    "v100-nvlink": LinkKind(SAILOR, 75e9, "a100-nvlink"),
    "a100-nvswitch": LinkKind(SAILOR, 300e9, "a100-nvlink"),
    "gh200-nvlink": LinkKind(SAILOR, 150e9, "a100-nvlink"),
    "rtx3090-nvlink": LinkKind(SAILOR, 56.25e9, "a100-nvlink"),
    "pcie3": LinkKind(SAILOR, 15.75e9, "a40-pcie4"),
    "a100-nodes": LinkKind(SAILOR_FIT, math.nan),
    "gh200-nodes": LinkKind(SAILOR_FIT, 25e9),
}
"""Links by name. By their bandwidth, the V100 have three NVLinks between them, the GH200 six (as in nodes of
four), the RTX 3090 a bridge; the A40 have none and go through the memory of the host. What Sailor calls RTX
2080 multiplies as fast as an RTX 2080 Ti; the bus is the same."""
VIDUR_LINKS = {"a100": "a100-nvlink", "a40": "a40-pcie4"}
"""Links by how the names of Vidur's files begin."""
SAILOR_LINKS = {
    ("V100-16", "intra"): "v100-nvlink",
    ("A100-40", "intra"): "a100-nvswitch",
    ("GH-96", "intra"): "gh200-nvlink",
    ("RTX-3090", "intra"): "rtx3090-nvlink",
    ("RTX-2080", "intra"): "pcie3",
    ("Titan-RTX", "intra"): "pcie3",
    ("A100-40", "inter"): "a100-nodes",
    ("GH-96", "inter"): "gh200-nodes",
}
"""Links by the folder of a GPU, and whether within a node or across nodes."""
SAILOR_NAME = re.compile(r"p2p_(intra|inter)_node\.csv(?:\.gz)?")
VIDUR_TIME = "time_stats.send_recv.median"


@dataclass(frozen=True)
class LinkTimes:
    """Measured transfers over one kind of link.

    Attributes:
        name: one of `LINK_KINDS`.
        n_bytes, seconds: sizes and times, (n,), by size.
    """

    name: str
    n_bytes: FloatArray
    seconds: FloatArray

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """Says whether each row judges the fit instead of making it: every second size, bool (n,)."""
        held_out: NDArray[np.bool_] = np.isin(self.n_bytes, np.unique(self.n_bytes)[1::2])
        return held_out


def read_link_times(paths: Iterable[str | os.PathLike[str]]) -> list[LinkTimes]:
    """Reads files of measured transfers, `.csv` or `.csv.gz`, of the two forms of this module.

    Returns:
        One table for each kind of link, in the order of `LINK_KINDS`.

    Raises:
        MeasurementError: a file cannot be read, is of no known link, or holds an impossible size or time.
    """
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for path in paths:
        name, of_file = _read_file(os.fspath(path))
        rows[name] += of_file
    tables = []
    for name in LINK_KINDS:
        if rows[name]:
            n_bytes, seconds = np.array(sorted(rows[name])).T
            tables.append(LinkTimes(name, n_bytes, seconds))
    return tables


def _read_file(path: str) -> tuple[str, list[tuple[float, float]]]:
    try:
        opened = gzip.open if path.endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, error) from None
    name, rows = (
        _sailor(path, lines) if SAILOR_NAME.fullmatch(os.path.basename(path)) else _vidur(path, lines)
    )
    return name, list(rows)


def _vidur(path: str, lines: Sequence[Sequence[str]]) -> tuple[str, Iterator[tuple[float, float]]]:
    head = lines[0] if lines else []
    if VIDUR_TIME not in head:
        raise MeasuredOpsError(
            f"{path}: holds no measured transfers; expected a column {VIDUR_TIME!r}, "
            "or the name p2p_intra_node.csv or p2p_inter_node.csv"
        )
    name = VIDUR_LINKS.get(os.path.basename(path).partition("_")[0])
    if name is None:
        raise MeasuredOpsError(
            f"{path}: names no node that was measured; names begin with "
            f"{' or '.join(f'{node}_' for node in VIDUR_LINKS)}"
        )
    columns = {}
    for key in ("size", VIDUR_TIME, "devices_per_node"):
        if key not in head:
            raise MeasuredOpsError(f"{path}: column {key!r} is missing")
        columns[key] = head.index(key)

    def rows() -> Iterator[tuple[float, float]]:
        for number, line in enumerate(lines[1:], start=2):
            where = f"{path}: line {number}"
            if len(line) != len(head):
                raise MeasuredOpsError(f"{where}: has {len(line)} values; expected {len(head)}")
            if line[columns["devices_per_node"]] == "2":
                milliseconds = _number(line[columns[VIDUR_TIME]], where)
                yield _row(_number(line[columns["size"]], where), milliseconds * 1e-3, where)

    return name, rows()


def _sailor(path: str, lines: Sequence[Sequence[str]]) -> tuple[str, Iterator[tuple[float, float]]]:
    match = SAILOR_NAME.fullmatch(os.path.basename(path))
    assert match
    within = match[1]
    gpu = os.path.basename(os.path.dirname(os.path.dirname(os.path.abspath(path))))
    name = SAILOR_LINKS.get((gpu, within))
    if name is None:
        known = ", ".join(sorted({gpu for gpu, where in SAILOR_LINKS if where == within}))
        raise MeasuredOpsError(f"{path}: is two folders below '{gpu}', no GPU that was measured; use {known}")
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):
        raise MeasuredOpsError(f"{path}: expected a line of sizes in MiB and a line of as many bandwidths")
    unit = GIB if within == "intra" else GIGA

    def rows() -> Iterator[tuple[float, float]]:
        for size, bandwidth in zip(*lines, strict=True):
            n_bytes, bytes_per_s = _number(size, path) * MIB, _number(bandwidth, path) * unit
            yield _row(n_bytes, n_bytes / bytes_per_s, path)

    return name, rows()


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise MeasuredOpsError(f"{where}: holds {text!r}; expected a number, more than 0")
    return value


def _row(n_bytes: float, seconds: float, where: str) -> tuple[float, float]:
    if not (1 <= n_bytes <= MAX_TRANSFER_BYTES and MIN_TRANSFER_S <= seconds <= MAX_TRANSFER_S):
        raise MeasuredOpsError(
            f"{where}: {n_bytes:g} bytes take {seconds:g} s; expected 1 to {MAX_TRANSFER_BYTES:g} bytes and "
            f"{MIN_TRANSFER_S:g} to {MAX_TRANSFER_S:g} s"
        )
    return n_bytes, seconds
