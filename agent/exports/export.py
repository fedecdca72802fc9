"""The registry of exports, and what an export is made of: a placement as a sequence of modules on devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np

from envs.pipeline.pipeline import INTERLEAVED, Pipeline
from envs.pipeline.stages import Stages
from envs.placement.placement import Placement
from envs.problem import Problem
from graphs.granularity import blocks
from graphs.system.array_types import IntArray
from graphs.system.errors import InputError, shortened
from graphs.system.registry import Registry

BY_LAYER = "place with granularity layer"


class ExportError(InputError):
    """An unknown target, or a placement that it cannot run; the message says what would be right."""


@dataclass(frozen=True)
class Export:
    """A text that another program reads.

    Attributes:
        make: makes the text from a placement.
        ending: of the names of files that hold it.
    """

    make: Callable[[PlacedModules], str]
    ending: str


EXPORTS = Registry[Export](
    "export", ExportError, [f"{__package__}.{name}" for name in ("pytorch", "trainers", "servers")]
)


def export(name: str, ending: str) -> Callable[[Callable[[PlacedModules], str]], Callable[..., str]]:
    """Registers a function as the export `name`.

    Raises:
        ExportError: the name is taken.
    """

    def register(make: Callable[[PlacedModules], str]) -> Callable[..., str]:
        EXPORTS.register(name, Export(make, ending), make.__module__)
        return make

    return register


def export_text(name: str, placed: PlacedModules) -> str:
    """Makes the text of a placement for a target.

    Raises:
        ExportError: an unknown target, or one that cannot run the placement; it says what would fit.
    """
    made = EXPORTS[name].make
    if placed.stages is not None and any(len(devices) > 1 for devices in placed.stages.replicas):
        raise ExportError(
            "a stage has replicas, which no export can say; place the module, whose stages have none"
        )
    return made(placed)


@dataclass(frozen=True)
class Unit:
    """A module with forward ops that no repeated block contains: a block, or what is before or after them.

    Attributes:
        path: of the module.
        is_layer: whether it is a repeated block.
        place: the stage of a pipeline, or the index of a device.
    """

    path: str
    is_layer: bool
    place: int


@dataclass(frozen=True, eq=False)
class PlacedModules:
    """A placement for an export.

    Attributes:
        pipeline: schedule and microbatches; None for one batch at a time.
        stages: of the pipeline; None without one.
    """

    problem: Problem
    placement: Placement
    pipeline: Pipeline | None = None
    stages: Stages | None = None

    @property
    def place_of(self) -> IntArray:
        """Stage of each op, or device of each op without a pipeline; int64 (n_ops,)."""
        return self.placement.device_of if self.stages is None else self.stages.stage_of

    @cached_property
    def layers(self) -> set[str]:
        """Paths of the repeated blocks."""
        return blocks(self.problem.graph)

    @cached_property
    def paths(self) -> Mapping[str, list[int]]:
        """Forward ops that compute, in program order, by the path of their unit.

        Raises:
            ExportError: no module repeats.
        """
        graph, layers = self.problem.graph, self.layers
        if not layers:
            raise ExportError(
                f"graph '{shortened(graph.name)}' has no numbered modules that repeat, so no layers to "
                "split; use the placement itself"
            )
        above = {path[:at] for path in layers for at in _dots(path)}
        found: dict[str, list[int]] = {}
        for op in range(graph.n_ops):
            if graph.phases[op] == "forward" and not graph.is_source[op]:
                path = graph.modules[op]
                ends = (path[:at] for at in (*_dots(path), len(path)))
                if unit := next((end for end in ends if end in layers or end not in above), ""):
                    found.setdefault(unit, []).append(op)
        return found

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Units in program order, each in one place, the places one after the other.

        Raises:
            ExportError: a module is in several places, or a place has modules apart.
        """
        units = []
        for path, ops in self.paths.items():
            places = np.unique(self.place_of[ops]).tolist()
            if len(places) > 1:
                names = " and ".join(self.place_name(place) for place in places[:2])
                raise ExportError(
                    f"module '{shortened(path)}' is on {names}, and this target splits between layers; "
                    f"{BY_LAYER}"
                )
            units.append(Unit(path, path in self.layers, places[0]))
        runs = [place for place, _ in groupby(unit.place for unit in units)]
        for place in runs:
            if runs.count(place) > 1:
                raise ExportError(
                    f"{self.place_name(place)} has layers that are not next to each other, and this target "
                    f"gives each device one range; place with --pipeline, or {BY_LAYER}"
                )
        return tuple(units)

    @property
    def parts(self) -> list[list[Unit]]:
        """The units of each stage, or of each device that has some, in program order."""
        return [list(units) for _, units in groupby(self.units, key=lambda unit: unit.place)]

    @property
    def counts(self) -> list[int]:
        """Layers of each part."""
        return [sum(unit.is_layer for unit in part) for part in self.parts]

    @property
    def part_devices(self) -> list[int]:
        """Device of each part."""
        places = [part[0].place for part in self.parts]
        return places if self.stages is None else [int(self.stages.devices[place]) for place in places]

    def place_name(self, place: int) -> str:
        """Names a stage, or a device without a pipeline."""
        return f"stage {place}" if self.stages is not None else shortened(self.device_names[place])

    @property
    def device_names(self) -> Sequence[str]:
        """Names of the cluster's devices."""
        return [device.name for device in self.problem.cluster.devices]

    def check_one_list(self, target: str) -> None:
        """Refuses models of several lists of layers for a target that splits one.

        Raises:
            ExportError: several lists of layers.
        """
        lists = sorted({path.rpartition(".")[0] for path in self.paths if path in self.layers})
        if len(lists) > 1:
            raise ExportError(f"{target} splits one list of layers, and this model has {' and '.join(lists)}")

    def check_ranges(self, target: str) -> None:
        """Refuses what a target that gives each device one range of one list of layers cannot run.

        Raises:
            ExportError: several stages on a device, or several lists of layers.
        """
        self.check_one_list(target)
        if self.pipeline is not None and self.pipeline.name == INTERLEAVED:
            raise ExportError(
                f"{target} gives each device one range of layers, and '{self.pipeline.schedule}' has "
                f"{self.pipeline.stages_per_device}; place with --pipeline 1f1b"
            )


def _dots(path: str) -> Iterator[int]:
    """Yields where a path has dots."""
    return (at for at, letter in enumerate(path) if letter == ".")
