"""Simulated times against times that were measured on real GPUs: rows and tables of each comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.evaluation.policies import open_policy
from agent.evaluation.spec import EvaluationSpec
from agent.experiments.experiment import ExperimentError
from agent.experiments.fidelity import links, ops, placements, profiles, steps
from agent.experiments.fidelity.models import GraphCache
from agent.experiments.rows import markdown_table, read_rows
from agent.placers.base import Budget
from agent.policy.seen import NOT_SEEN
from envs.cluster.kinds import device_of_name
from envs.cluster.presets import get_cluster
from graphs.dataset import load_graphs
from graphs.families import FAMILIES

STEPS = Path(__file__).parent / "measured" / "steps"
"""The measured steps that come with the project."""
PLACED_BY = ("heft", "refine", "policy", "policy-refine")
"""Placers of placements under old and new costs; those that learned take the shipped policy."""


def step_rows(folder: Path, steps_in: str) -> Iterator[list[steps.StepRow]]:
    """Simulates the measured steps of a folder; none given: of the project's own."""
    measured, left_out = steps.read_steps(Path(steps_in) if steps_in else STEPS)
    yield steps.compare_steps(measured, GraphCache(folder).workload, device_of_name)
    say(left_out)


def step_tables(*files: Path) -> Iterator[str]:
    """Yields simulated against measured steps of one GPU, of each file that there is."""
    for file in files:
        if file.exists():
            yield markdown_table(steps.steps_table(read_rows(file, steps.StepRow)))


def op_rows(folder: Path, files: Sequence[str]) -> Iterator[Sequence[ops.OpErrors | ops.DeviceOrder]]:
    """Compares measured ops with the calibrations."""
    rows = ops.compare_ops(_given(files))
    yield ops.op_errors(rows)
    yield ops.device_orders(rows)


def op_tables(errors_in: Path, ranks_in: Path) -> Iterator[str]:
    """Yields simulated against measured ops: of all devices together, the ranks, and of each device."""
    errors = read_rows(errors_in, ops.OpErrors)
    yield markdown_table(ops.errors_table([row for row in errors if row.device == ops.ALL_DEVICES]))
    yield markdown_table(ops.orders_table(read_rows(ranks_in, ops.DeviceOrder)))
    yield markdown_table(ops.errors_table([row for row in errors if row.device != ops.ALL_DEVICES]))


def link_rows(folder: Path, files: Sequence[str]) -> Iterator[list[links.LinkRow]]:
    """Compares measured transfers between GPUs with the links of the presets."""
    yield links.compare_links(_given(files))


def link_tables(file: Path) -> Iterator[str]:
    """Yields predicted against measured transfers."""
    yield markdown_table(links.links_table(read_rows(file, links.LinkRow)))


def layer_rows(folder: Path, files: Sequence[str]) -> Iterator[list[profiles.ProfileRow]]:
    """Compares measured linear layers of transformers with the calibrations."""
    rows, left_out = profiles.compare_profiles(_given(files))
    yield rows
    say(left_out)


def layer_tables(file: Path) -> Iterator[str]:
    """Yields predicted against measured layers of transformers."""
    yield markdown_table(profiles.profiles_table(read_rows(file, profiles.ProfileRow)))


def placement_rows(
    folder: Path,
    old: Sequence[str],
    to: Sequence[str],
    families: Sequence[str],
    per_family: int,
    evaluations: int,
    jobs: int,
) -> Iterator[list[placements.PlacementRow]]:
    """Places graphs that the shipped policy was not trained on under the costs of two clusters.

    Args:
        folder: keeps the graphs and the placements.
        old, to: presets or files of clusters, in pairs with the old and with the new costs.
    """
    if len(old) != len(to):
        raise ExperimentError(f"{len(old)} clusters with old costs and {len(to)} with others; give pairs")
    pairs = [(get_cluster(before), get_cluster(after)) for before, after in zip(old, to, strict=True)]
    shipped = load_graphs(FAMILIES)
    policy = open_policy("pretrained", shipped)
    seen = {name for name, how in policy.how_seen(shipped).items() if how != NOT_SEEN}
    spec = EvaluationSpec(
        graphs=tuple(placements.held_out_graphs(seen, per_family, GraphCache(folder), families)),
        clusters=tuple({cluster.name: cluster for pair in pairs for cluster in pair}.values()),
        placers=PLACED_BY,
        budget=Budget(evaluations),
        policy=policy,
    )
    yield placements.compare_placements(pairs, spec, folder / "placements", jobs=jobs)


def placement_tables(file: Path) -> Iterator[str]:
    """Yields placements found under old costs and under new ones."""
    yield markdown_table(placements.placements_table(read_rows(file, placements.PlacementRow)))


def say(left_out: Counter[str]) -> None:
    """Prints how many files were left out, by the reason."""
    for reason, count in left_out.items():
        print(f"{count} left out: {reason}")


def _given(files: Sequence[str]) -> list[Path]:
    if not files:
        raise ExperimentError("there are no measurements; give their files to --files")
    return [Path(file) for file in files]
