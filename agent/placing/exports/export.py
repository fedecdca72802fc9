"""The registry of exports, and what an export is made of: a placement as a sequence of modules on devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pkgutil import resolve_name

import numpy as np

from agent.placing.exports.module_tree import ModuleTree, above
from envs.objective import PIPELINE, STEP, Objective
from envs.placements.placement import Placement
from envs.problem import Problem
from graphs.system.array_types import IntArray
from graphs.system.errors import InputError, print_notice, shortened
from graphs.system.registry import Registry

BY_LAYER = "place with granularity layer"
PLACED = {
    STEP: "agent.placing.exports.export:PlacedModules",
    PIPELINE: "agent.pipeline.exports:StagedModules",
}
"""Class of what an export takes, of each kind of objective."""


class ExportError(InputError):
    """An unknown target, or a placement that it cannot run; the message says what would be right."""


def comments(lines: Iterable[str]) -> str:
    """Makes comments of lines, as texts have them in which `#` begins one."""
    return "".join(f"# {line}\n" for line in lines)


@dataclass(frozen=True)
class Export:
    """A text that another program reads.

    Attributes:
        make: makes the text from a placement.
        ending: of the names of files that hold it.
        has_replicas: whether the text tells the target of replicas.
    """

    make: Callable[[PlacedModules], str]
    ending: str
    has_replicas: bool


EXPORTS = Registry[Export](
    "export", ExportError, [f"{__package__}.{name}" for name in ("trainers", "servers")]
)


def export(
    name: str, ending: str, *, has_replicas: bool = False
) -> Callable[[Callable[[PlacedModules], str]], Callable[..., str]]:
    """Registers a function as the export `name`.

    Raises:
        ExportError: the name is taken.
    """

    def register(make: Callable[[PlacedModules], str]) -> Callable[..., str]:
        EXPORTS.register(name, Export(make, ending, has_replicas), make.__module__)
        return make

    return register


def export_text(name: str, placed: PlacedModules) -> str:
    """Makes the text of a placement for a target; says on stderr if it leaves replicas out.

    Raises:
        ExportError: an unknown target, or one that cannot run the placement; it says what would fit.
    """
    text = EXPORTS[name].make(placed)
    if not EXPORTS[name].has_replicas and (n_replicas := len(placed.replicas)) > 1:
        print_notice(f"export {name} describes the first of {n_replicas} replicas; run the others alike")
    return text


def placed_modules(objective: Objective, placement: Placement, layers: str = "") -> PlacedModules:
    """Makes what an export takes; `layers` as in `PlacedModules`."""
    return resolve_name(PLACED[objective.kind]).of(objective, placement, layers)


@dataclass(frozen=True, eq=False)
class PlacedModules:
    """A placement for an export; places of ops are devices, or stages of a pipeline.

    Attributes:
        layers: paths of the lists whose layers a target counts, separated by commas; "" finds the one.
        notes: lines on what differs from the placement.
    """

    problem: Problem
    placement: Placement
    layers: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, objective: Objective, placement: Placement, layers: str) -> PlacedModules:
        """Makes that of a placement of an objective."""
        return cls(objective.problem, placement, layers)

    @property
    def place_of(self) -> IntArray:
        """Place of each op, int64 (n_ops,)."""
        return self.placement.device_of

    @property
    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each replica of a pipeline; none without a pipeline."""
        return ()

    @property
    def is_sharded(self) -> bool:
        """Says whether replicas divide the optimizer's states."""
        return False

    @property
    def torch_schedule(self) -> str:
        """The name that torch gives the schedule of a pipeline; empty without one."""
        return ""

    @cached_property
    def tree(self) -> ModuleTree:
        """The modules of the model."""
        return ModuleTree(self.problem.graph)

    def whole(self, modules: Sequence[str]) -> PlacedModules:
        """Moves the cuts of a pipeline out of modules."""
        return self

    def split_points(self) -> Sequence[str]:
        """Names the modules that places but the first begin with.

        Raises:
            ExportError: a place has modules apart, or a module to split at is called several times.
        """
        _, parts = self.parts(self.tree.modules(self.tree.opens))
        names = [modules[0] for _, modules in parts[1:]]
        again = {name.partition("@")[0] for name in self.problem.graph.op_names if "@" in name}
        if called := again.intersection(names):
            raise ExportError(f"torch splits at each call of '{min(called)}', which is called several times")
        return names

    def schedule_table(self) -> str:
        """Makes the table of the actions of each rank.

        Raises:
            ExportError: no pipeline was placed.
        """
        raise ExportError("one batch at a time has no schedule; place with --pipeline")

    def places(self, ops: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """The place of each module.

        Raises:
            ExportError: a module is in several places, or a place has modules apart.
        """
        places_of = {path: np.unique(self.place_of[of_module]).tolist() for path, of_module in ops.items()}
        for path, several in places_of.items():
            if len(several) > 1:
                names = " and ".join(map(self.place_name, several[:2]))
                raise ExportError(
                    f"module '{shortened(path)}' is on {names}, and this target splits between layers; "
                    f"{BY_LAYER}"
                )
        places = {path: place for path, (place,) in places_of.items()}
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
            ExportError: as `places`, or there are no modules.
        """
        if not modules:
            raise ExportError(f"graph '{shortened(self.problem.graph.name)}': its ops have no module paths")
        placed = self.whole(modules)
        places = placed.places(placed.tree.ops(modules))
        placed = replace(placed, notes=(*placed.notes, *self._tied_apart(places)))
        return placed, [(place, list(run)) for place, run in groupby(places, key=places.__getitem__)]

    def _tied_apart(self, places: Mapping[str, int]) -> Iterator[str]:
        """Names tensors that modules in several places hold."""
        names = set(self.problem.graph.op_names)
        for paths in self.problem.graph.tied:
            shared = {places[module] for path in paths for module in above(path) if module in places}
            if paths[0] in names and len(shared) > 1:
                yield f"one tensor in several places, which the target must tie: {', '.join(paths)}"

    def layer_list(self, target: str) -> list[str]:
        """The layers that a target counts: of the lists that are named, or of the language model's.

        Raises:
            ExportError: there are none or several.
        """
        lists = self.tree.lists(self.layers)
        names, name_it = " and ".join(sorted(lists)), "name a list: layers=, or --export-layers"
        empty = [name for name, layers in lists.items() if not layers]
        if empty or not lists:
            kind = f"modules in '{shortened(empty[0])}'" if empty else "numbered modules that repeat"
            raise ExportError(
                f"graph '{shortened(self.problem.graph.name)}' has no {kind}, so no layers to split; use the "
                f"placement itself, or {name_it}"
            )
        if not self.layers and len(lists) > 1 and len(lists := self.tree.of_language(lists)) != 1:
            raise ExportError(f"{target} splits one list of layers, and this model has {names}; {name_it}")
        return [layer for layers in lists.values() for layer in layers]

    def ranks(self, target: str, more: Sequence[str] = ()) -> tuple[PlacedModules, dict[int, list[str]]]:
        """The layers of each place, in the order of ranks; what is not in the list is on the first or last.

        Args:
            more: modules beside the list that the target also gives a rank.

        Raises:
            ExportError: as `layer_list` and `places`.
        """
        layers = self.tree.ops([*self.layer_list(target), *more])
        opened = {path for layer in layers for path in above(layer)} - layers.keys()
        modules = self.tree.modules(opened.__contains__)
        placed, begin = self.whole(modules), min(ops[0] for ops in layers.values())
        places = list((place_of := placed.places(layers)).values())
        others = self.tree.ops([path for path in modules if path not in layers])
        first = placed.place_of[[ops[0] for ops in others.values() if ops[0] < begin][:1]].tolist()
        last = placed.place_of[[ops[0] for ops in others.values() if ops[0] > begin][-1:]].tolist()
        order = list(dict.fromkeys([*(rank for rank in first if rank not in places), *places, *last]))
        order = placed.in_order(order)
        ends = {path: order[-1 if ops[0] > begin else 0] for path, ops in others.items()}
        if moved := [path for path, ops in others.items() if (placed.place_of[ops] != ends[path]).any()]:
            note = f"{target} runs on the first or last rank, unlike the placement: {', '.join(moved)}"
            placed = replace(placed, notes=(*placed.notes, note))
        return placed, {rank: [path for path, place in place_of.items() if place == rank] for rank in order}

    def in_order(self, places: list[int]) -> list[int]:
        """Lists places in the order of ranks."""
        return places

    def devices(self, places: Iterable[int]) -> list[int]:
        """Device of each place."""
        return list(places)

    def place_name(self, place: int) -> str:
        """Names a place."""
        return shortened(self.device_names[place])

    @property
    def device_names(self) -> Sequence[str]:
        """Names of the cluster's devices."""
        return [device.name for device in self.problem.cluster.devices]

    def batch_notes(self, target: str, microbatches: str, *, by_stage: bool = True) -> list[str]:
        """Says which devices the ranks of replicas are, and what sets the number of microbatches.

        Args:
            microbatches: what is to be set, in words, with `{all}` and `{share}` for their numbers.
            by_stage: whether ranks of one stage follow each other, rather than those of one replica.
        """
        return []

    def check_ranges(self, target: str) -> None:
        """Refuses several stages on a device for a target that gives each device one range of layers.

        Raises:
            ExportError: several stages on a device.
        """
