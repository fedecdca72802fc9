"""Writes exports beside the placements that an evaluation keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent.evaluation.handover.written import WrittenPlacement, kept_placements
from agent.evaluation.results import Trial
from agent.evaluation.spec import EvaluationSpec
from agent.exports.export import EXPORTS, PlacedModules, export_text
from envs.pipeline.stages import stages_of
from graphs.system.errors import InputError
from graphs.system.json_files import write_bytes_atomic


def write_exports(
    spec: EvaluationSpec, folder: Path, trials: Sequence[Trial], names: Sequence[str], layers: str = ""
) -> tuple[list[str], list[str]]:
    """Writes each export of each placement, where the target can run it; `layers` as in `PlacedModules`.

    Returns:
        Lines: how many files of an export were written, and why others were not; exports without a file.
    """
    kept = [(each, _placed(spec, each, layers)) for each in kept_placements(spec, folder, trials)]
    lines, without = [], []
    for name in names:
        written, refused = 0, dict[str, int]()
        for each, placed in kept:
            try:
                text = export_text(name, placed)
            except InputError as error:
                refused[str(error)] = refused.get(str(error), 0) + 1
                continue
            stem = each.path.with_suffix("").name
            write_bytes_atomic(each.path.parent / f"{stem}{EXPORTS[name].ending}", text.encode())
            written += 1
        lines.append(
            f"export {name}: {written} of {len(kept)} placements have a file *{EXPORTS[name].ending}"
        )
        lines += (f"export {name}: not for {count}: {reason}" for reason, count in refused.items())
        without += [] if written else [name]
    return lines, without


def _placed(spec: EvaluationSpec, kept: WrittenPlacement, layers: str) -> PlacedModules:
    stages = None if spec.pipeline is None else stages_of(kept.problem, kept.placement)
    return PlacedModules(kept.problem, kept.placement, spec.pipeline, stages, layers)
