"""The registry of exports, and what an export is made of: a placement as a sequence of modules on devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np

from agent.exports.module_tree import MTP, ModuleTree, above
from envs.pipeline.module_cuts import cut_at_modules
from envs.pipeline.pipeline import INTERLEAVED, Pipeline, PipelineError
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import Stages
from envs.placement.placement import Placement
from envs.problem import Problem
from graphs.system.array_types import IntArray
from graphs.system.errors import InputError, shortened
from graphs.system.registry import Registry

BY_LAYER = "place with granularity layer"


class ExportError(InputError):
    """An unknown target, or a placement that it cannot run; the message says what would be right."""


def comments(lines: Sequence[str]) -> str:
    """Makes comments of lines, but of empty ones, for texts in which `#` begins them."""
    return "".join(f"# {line}\n" for line in lines if line)


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


class Ranks(NamedTuple):
    """The ranks of a target that counts the layers of one list.

    Attributes:
        places: stage or device of each rank.
        counts: layers of each.
        notes: lines on what the target runs elsewhere than placed.
    """

    places: list[int]
    counts: list[int]
    notes: list[str]


@dataclass(frozen=True, eq=False)
class PlacedModules:
    """A placement for an export.

    Attributes:
        pipeline: schedule and microbatches; None for one batch at a time.
        stages: of the pipeline; None without one.
        layers: paths of the lists whose layers a target counts, separated by commas; "" finds the one.
        note: what differs from the placement, where stages were made to begin with modules.
    """

    problem: Problem
    placement: Placement
    pipeline: Pipeline | None = None
    stages: Stages | None = None
    layers: str = ""
    note: str = ""

    @property
    def place_of(self) -> IntArray:
        """Stage of each op, or device of each op without a pipeline; int64 (n_ops,)."""
        return self.placement.device_of if self.stages is None else self.stages.stage_of

    @cached_property
    def tree(self) -> ModuleTree:
        """The modules of the model."""
        return ModuleTree(self.problem.graph)

    def cut_at(self, begins: Callable[[str], bool]) -> tuple[PlacedModules, tuple[str, ...]]:
        """Makes the stages of a pipeline begin with given modules, the nearest ones; returns these too.

        Raises:
            PipelineError: there are too few.
        """
        assert self.pipeline is not None
        assert self.stages is not None
        cuts = cut_at_modules(PipelinedProblem(self.problem, self.pipeline), self.stages, begins)
        note = str(cuts) if cuts.n_moved else ""
        placement = Placement(cuts.stages.device_of)
        return replace(self, placement=placement, stages=cuts.stages, note=note), cuts.modules

    def whole(self, modules: Sequence[str]) -> tuple[PlacedModules, dict[str, list[int]]]:
        """Moves the cuts of a pipeline out of modules, where that is possible.

        Returns:
            The placement, and the forward ops of each module, as `ModuleTree.ops`.
        """
        ops = self.tree.ops(modules)
        if self.stages is None or all(len(np.unique(self.place_of[own])) < 2 for own in ops.values()):
            return self, ops
        try:
            return self.cut_at(ops.__contains__)[0], ops
        except PipelineError:
            return self, ops

    def places(self, ops: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """The place of each module; one that does nothing is where the module before it is, or the first.

        Raises:
            ExportError: a module is in several places, or a place has modules apart.
        """
        found = {}
        for path, own in ops.items():
            several = np.unique(self.place_of[own]).tolist()
            if len(several) > 1:
                names = " and ".join(self.place_name(place) for place in several[:2])
                raise ExportError(
                    f"module '{shortened(path)}' is on {names}, and this target splits between layers; "
                    f"{BY_LAYER}"
                )
            found |= {path: several[0]} if several else {}
        place = next(iter(found.values()), 0)
        places = {path: (place := found.get(path, place)) for path in ops}
        runs = [place for place, _ in groupby(places.values())]
        for place in runs:
            if runs.count(place) > 1:
                raise ExportError(
                    f"{self.place_name(place)} has layers that are not next to each other, and this target "
                    f"gives each device one range; place with --pipeline, or {BY_LAYER}"
                )
        return places

    def parts(self, modules: Sequence[str]) -> tuple[PlacedModules, list[tuple[int, list[str]]]]:
        """The modules of each stage, or of each device that has some, with its place, in program order.

        Raises:
            ExportError: as `places`, or the ops have no module paths.
        """
        if not modules:
            raise ExportError(f"graph '{shortened(self.problem.graph.name)}': its ops have no module paths")
        placed, ops = self.whole(modules)
        places = placed.places(ops)
        return placed, [(place, list(run)) for place, run in groupby(places, key=places.__getitem__)]

    def layer_list(self, target: str) -> list[str]:
        """The layers that a target counts: of the lists that are named, or of the language model's.

        Raises:
            ExportError: a name is that of no list, or none is named, and there are none or several.
        """
        if self.layers:
            found = {name: self.tree.members(name) for name in self.layers.split(",")}
            if unknown := [name for name, layers in found.items() if not layers]:
                known = ", ".join(self.tree.lists()) or "none"
                raise ExportError(f"'{shortened(unknown[0])}' is no list of layers; those found: {known}")
            return [layer for layers in found.values() for layer in layers]
        lists = {name: layers for name, layers in self.tree.lists().items() if MTP not in name.lower()}
        if not lists:
            raise ExportError(
                f"graph '{shortened(self.problem.graph.name)}' has no numbered modules that repeat, so no "
                "layers to split; use the placement itself, or name a list: layers=, or --export-layers"
            )
        if len(lists) > 1:
            known = " and ".join(sorted(lists))
            lists = {name: lists[name] for name in lists if self.tree.after_tokens(lists[name])}
            if len(lists) != 1:
                raise ExportError(
                    f"{target} splits one list of layers, and this model has {known}; name one: layers=, or "
                    "--export-layers"
                )
        return next(iter(lists.values()))

    def ranks(self, target: str) -> tuple[PlacedModules, Ranks]:
        """Counts the layers of each rank; what is before them is on the first rank, all else on the last.

        Raises:
            ExportError: as `layer_list` and `places`.
        """
        layers = dict.fromkeys(self.layer_list(target))
        opened = {path for layer in layers for path in above(layer)} - layers.keys()
        placed, ops = self.whole(self.tree.modules(opened.__contains__))
        places = list(placed.places({path: own for path, own in ops.items() if path in layers}).values())
        begin = min((own[0] for path, own in ops.items() if own and path in layers), default=0)
        others = {path: own for path, own in ops.items() if own and path not in layers}
        before = [int(placed.place_of[own[0]]) for own in others.values() if own[0] < begin][:1]
        after = [int(placed.place_of[own[0]]) for own in others.values() if own[0] >= begin][-1:]
        ranks = list(dict.fromkeys([*(each for each in before if each not in places), *places, *after]))
        if placed.stages is not None:
            ranks = list(range(len(placed.stages.devices)))
        ends = {True: (ranks[0], "first"), False: (ranks[-1], "last")}
        notes = [placed.note] if placed.note else []
        for path, own in others.items():
            rank, name = ends[own[0] < begin]
            if (placed.place_of[own] != rank).any():
                notes.append(f"{target} runs '{path}' on the {name} rank, where it was not placed as a whole")
        return placed, Ranks(ranks, list(map(places.count, ranks)), notes)

    def devices(self, places: Sequence[int]) -> list[int]:
        """Device of each place."""
        return list(places) if self.stages is None else [int(self.stages.devices[each]) for each in places]

    def place_name(self, place: int) -> str:
        """Names a stage, or a device without a pipeline."""
        return f"stage {place}" if self.stages is not None else shortened(self.device_names[place])

    @property
    def device_names(self) -> Sequence[str]:
        """Names of the cluster's devices."""
        return [device.name for device in self.problem.cluster.devices]

    def check_ranges(self, target: str) -> None:
        """Refuses several stages on a device for a target that gives each device one range of layers.

        Raises:
            ExportError: several stages on a device.
        """
        if self.pipeline is not None and self.pipeline.name == INTERLEAVED:
            raise ExportError(
                f"{target} gives each device one range of layers, and '{self.pipeline.schedule}' has "
                f"{self.pipeline.stages_per_device}; place with --pipeline 1f1b"
            )
