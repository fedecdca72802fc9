"""Hands over the best placements of an evaluation: files beside each, exports, explanations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from agent.evaluation.answers import Answers, BestPlacement
from agent.evaluation.results import Trial
from agent.placing.exports.export import EXPORTS, export_text, placed_modules
from agent.placing.handover.trace import write_trace
from envs.objective import PIPELINE
from graphs.capture.user_model import MODEL
from graphs.system.errors import InputError
from graphs.system.json_files import write_bytes_atomic


def write_handovers(answers: Answers, trials: Sequence[Trial], *, trace: bool) -> list[str]:
    """Writes files beside the placements of a model, and the traces of all placements if they are asked for.

    Returns:
        Lines: what bounds the best placement of the model on each cluster, or that one device does.
    """
    lines: list[str] = []
    for _, group in groupby(answers.best(trials), key=lambda each: (each.trial.graph, each.trial.cluster)):
        lines_of = {answer: told for answer in group if (told := _hand_over(answer, trace=trace))}
        if lines_of:
            best = min(lines_of, key=lambda answer: answer.trial.rank)
            lines += ["", f"{best.trial.graph} on {best.trial.cluster}, by {best.name}:", *lines_of[best]]
    return lines


def _hand_over(answer: BestPlacement, *, trace: bool) -> list[str]:
    """Writes the files of a placement; returns lines on what bounds it, none of a step of the benchmark."""
    folder, name = answer.path.parent, answer.path.stem
    if answer.problem.graph.family == MODEL or answer.objective.kind == PIPELINE:
        return answer.view.hand_over(folder, name)
    if trace:
        write_trace(folder / f"{name}.trace.json", answer.view.trace())
    return []


def write_exports(
    answers: Answers, trials: Sequence[Trial], names: Sequence[str], layers: str = ""
) -> tuple[list[str], list[str]]:
    """Writes each export of each placement, where the target can run it; `layers` as in `PlacedModules`.

    Returns:
        Lines: how many files of an export were written, and why others were not; exports without a file.
    """
    placed = [
        (answer, placed_modules(answer.objective, answer.placement, layers))
        for answer in answers.best(trials)
    ]
    lines, without = [], []
    for name in names:
        target, refused = EXPORTS[name], Counter[str]()
        for answer, modules in placed:
            try:
                text = export_text(name, modules)
            except InputError as error:
                refused[str(error)] += 1
            else:
                write_bytes_atomic(answer.path.with_suffix(target.ending), text.encode())
        written = len(placed) - refused.total()
        lines.append(f"export {name}: {written} of {len(placed)} placements have a file *{target.ending}")
        lines += (f"export {name}: not for {count}: {reason}" for reason, count in refused.items())
        without += [] if written else [name]
    return lines, without
