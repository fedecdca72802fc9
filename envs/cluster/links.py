"""Links between GPUs as they were measured: `links.json`, format `placewalk.links/1`.

The file was made from measurements of Vidur and Sailor (both MIT) by `agent/calibration/links_fit.py`, which
is in git at commit e46ed42. Of each link it also says who measured it, how many transfers made the fit
(`rows`) and judged it, and with which errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from typing import Any, cast

from graphs.system.json_files import read_json


@dataclass(frozen=True)
class Link:
    """A link between two GPUs, fitted to measured transfers.

    A transfer of n bytes occupies the link for (n + `n_half_bytes`) / `bytes_per_s` and arrives `latency_s`
    later.

    Attributes:
        bytes_per_s: bandwidth of an endless transfer, bytes a second.
        latency_s: seconds that do not occupy the link.
        n_half_bytes: size at which a transfer reaches half of the bandwidth.
    """

    bytes_per_s: float
    latency_s: float
    n_half_bytes: float

    def scaled(self, share: float) -> Link:
        """Returns a link of `share` times the bandwidth with the same constants in seconds."""
        return replace(self, bytes_per_s=share * self.bytes_per_s, n_half_bytes=share * self.n_half_bytes)


@cache
def measured_links() -> Mapping[str, Link]:
    """Returns the links that come with the package, by name."""
    file = cast("dict[str, Any]", read_json(str(resources.files("envs.cluster").joinpath("links.json"))))
    names = [field.name for field in fields(Link)]
    return {
        link: Link(**{name: float(values[name]) for name in names}) for link, values in file["links"].items()
    }
