"""Links between GPUs as they were measured: `links.json`, format `placewalk.links/1`.

The file was made from measurements of Vidur and Sailor (both MIT) by `agent/calibration/links_fit.py`, which
is in git at commit e46ed42.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from envs.cluster.cluster import ClusterError
from graphs.limits import MAX_BYTES, is_speed, is_time
from graphs.system import json_fields
from graphs.system.json_files import FileFormatError, read_json

FORMAT = "placewalk.links/1"
UNKNOWN = ("datasheet_bytes_per_s",)
"""Fields that may be NaN, in files null."""


@dataclass(frozen=True)
class Link:
    """A link between two GPUs, fitted to measured transfers.

    A transfer of n bytes occupies the link for (n + `n_half_bytes`) / `bytes_per_s` and arrives `latency_s`
    later. Timed by a host, from the call to the end of the wait for it, it takes `host_s` more.

    Attributes:
        source: who measured it, and what was timed.
        alike: the link that has the same constants; empty where they are its own.
        datasheet_bytes_per_s: its bandwidth in one direction by datasheets; NaN where none says it.
        bytes_per_s: bandwidth of an endless transfer, bytes a second.
        latency_s: seconds that do not occupy the link.
        n_half_bytes: size at which a transfer reaches half of the bandwidth.
        host_s: seconds of the host's call and wait.
        rows, held_out_rows: numbers of measured transfers that made the fit, and that judged it.
        median, p90: quantiles of |predicted / measured - 1| on those held out.

    Raises:
        ClusterError: on construction, if a number is out of range.
    """

    source: str
    alike: str
    datasheet_bytes_per_s: float
    bytes_per_s: float
    latency_s: float
    n_half_bytes: float
    host_s: float
    rows: int
    held_out_rows: int
    median: float
    p90: float

    def __post_init__(self) -> None:
        datasheet = self.datasheet_bytes_per_s
        for label, good in (
            ("datasheet_bytes_per_s", np.isnan(datasheet) or is_speed(datasheet)),
            ("bytes_per_s", is_speed(self.bytes_per_s)),
            ("latency_s", is_time(self.latency_s)),
            ("n_half_bytes", 0 <= self.n_half_bytes <= MAX_BYTES),
            ("host_s", is_time(self.host_s)),
        ):
            if not good:
                raise ClusterError(
                    f"{label} is {getattr(self, label):g}; expected a bandwidth above 0, or a time or size "
                    "of at least 0"
                )

    def scaled(self, share: float) -> Link:
        """Returns a link of `share` times the bandwidth with the same constants in seconds."""
        return replace(
            self,
            datasheet_bytes_per_s=share * self.datasheet_bytes_per_s,
            bytes_per_s=share * self.bytes_per_s,
            n_half_bytes=share * self.n_half_bytes,
        )


@cache
def measured_links() -> Mapping[str, Link]:
    """Returns the links that come with the package, by name."""
    path = str(resources.files("envs.cluster").joinpath("links.json"))
    return links_from_json(read_json(path), path)


def links_from_json(value: object, where: str) -> dict[str, Link]:
    """Builds links from their parsed JSON; `where` begins the message of any error.

    Raises:
        FileFormatError: the value breaks the format, e.g. that of another version.
        ClusterError: a number is out of range.
    """
    record = json_fields.fields(value, where, frozenset({"format", "licence", "links"}), format=FORMAT)
    json_fields.text(record["licence"], f"{where}: licence")
    links = record["links"]
    if not isinstance(links, Mapping):
        raise FileFormatError(f"{where}: links: is {json_fields.kind_of(links)}; expected an object")
    return {
        json_fields.name(name, f"{where}: links"): _link(links[name], f"{where}: {name}") for name in links
    }


CHECKS = {"str": json_fields.text, "int": json_fields.integer, "float": json_fields.number}
"""Checks of JSON values by the type of a field."""


def _link(value: object, where: str) -> Link:
    checks = {field.name: CHECKS[str(field.type)] for field in fields(Link)}
    record = json_fields.fields(value, where, checks.keys())
    read: dict[str, Any] = {
        key: float("nan") if key in UNKNOWN and record[key] is None else check(record[key], f"{where}: {key}")
        for key, check in checks.items()
    }
    try:
        return Link(**read)
    except ClusterError as error:
        raise ClusterError(f"{where}: {error}") from None
