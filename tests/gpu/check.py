"""Checks everything that needs a GPU, in at most eight minutes and without a network.

`python -m tests.gpu.check --out FOLDER` runs each part in a process of its own with a time limit, goes on
after one that fails, prints one table, and writes `check.json` and `check.md` into the folder. It exits
with 1 if anything failed. The machine needs torch and what else the product imports, but neither gymnasium,
stable-baselines3, ortools nor pymetis; what is missing can be given as wheels in a folder (`--wheels`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.gpu.parts import ROOT
from tests.gpu.rows import FAILED, OK, SKIPPED, Row

TOTAL_S = 470.0
"""Seconds for all parts. A part whose own limit is more than what is left of them gets what is left."""
LIMITS_S = {"tests": 100.0, "calibration": 80.0, "models": 110.0, "placements": 80.0, "policy": 100.0}
"""Seconds that each part may take."""
COLUMNS = ("part", "what", "state", "time, predicted / measured", "peak, predicted / measured", "note")
WIDE = 120
"""Columns of a terminal that has room for the notes in the table; elsewhere they follow it."""


@dataclass(frozen=True)
class Settings:
    """What the parts are run with.

    Attributes:
        device: torch device; None if there is no GPU.
        environment: of the processes of the parts.
    """

    folder: Path
    device: str | None
    environment: Mapping[str, str]


def command_of(part: str, settings: Settings, limit_s: float) -> list[str]:
    """Returns the command that runs a part."""
    rows = settings.folder / f"{part}.jsonl"
    flags = ["--device", str(settings.device), "--rows", str(rows), "--seconds", str(limit_s)]
    return [sys.executable, "-m", "tests.gpu.parts", part, *flags]


def run_part(part: str, settings: Settings, limit_s: float) -> list[Row]:
    """Runs a part; if it dies or takes too long, a row says so after those that it found."""
    rows = settings.folder / f"{part}.jsonl"
    rows.unlink(missing_ok=True)
    log = settings.folder / f"{part}.log"
    began_s = time.monotonic()
    failure = ""
    with log.open("w") as output:
        process = subprocess.Popen(
            command_of(part, settings, limit_s),
            cwd=ROOT,
            env=dict(settings.environment),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            failure = f"stopped after {limit_s:.0f} s"
        finally:
            end(process)
    found = [Row(**json.loads(line)) for line in rows.read_text().splitlines()] if rows.exists() else []
    if not failure and code and not any(row.state == FAILED for row in found):
        said = log.read_text(errors="replace").strip().splitlines()
        failure = f"ended with {code}: {said[-1] if said else 'it said nothing'}"
    if failure:
        found.append(Row(part, part, FAILED, note=f"{failure}; see {log.name}"))
    found.append(Row(part, f"seconds of {part}", note=f"{time.monotonic() - began_s:.0f}"))
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_all(settings: Settings, limits_s: Mapping[str, float], total_s: float) -> list[Row]:
    """Runs all parts, one after the other; beside the first, kernels are compiled for later ones."""
    if settings.device is None:
        note = "torch finds no CUDA device; --device cpu tries the parts without one"
        return [Row(part, part, SKIPPED, note=note) for part in limits_s]
    ends_s = time.monotonic() + total_s
    own = {"PLACEWALK_HOME": str(settings.folder / "compile")}
    compiling = subprocess.Popen(
        command_of("compile", settings, total_s),
        cwd=ROOT,
        env={**settings.environment, **own},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    rows: list[Row] = []
    try:
        for part, limit_s in limits_s.items():
            left_s = min(limit_s, ends_s - time.monotonic())
            found = run_part(part, settings, left_s) if left_s > 1 else []
            rows += found or [Row(part, part, FAILED, note="no time was left")]
            if part == "calibration":
                end(compiling)  # what is measured from now on has the machine for itself
            print(f"{part}: {worst(rows, part)}", flush=True)
    finally:
        end(compiling)
    return rows


def worst(rows: Sequence[Row], part: str) -> str:
    """Returns `failed` if a row of a part failed, else `ok`, or `skipped` if all were."""
    states = {row.state for row in rows if row.part == part}
    return next(state for state in (FAILED, OK, SKIPPED) if state in states)


def cells(row: Row) -> tuple[str, ...]:
    """Returns a row as text."""
    time_ = _pair(row.predicted_s, row.measured_s, 1e-3, "ms")
    peak = _pair(row.predicted_bytes, row.measured_bytes, 2.0**20, "MiB")
    return (row.part, row.name, row.state, time_, peak, row.note)


def _pair(predicted: float | None, measured: float | None, unit: float, name: str) -> str:
    """Writes two numbers, and how far the first is off."""
    if measured is None:
        return "" if predicted is None else f"{predicted / unit:.4g} {name} / -"
    if predicted is None:
        return f"{measured / unit:.4g} {name}"
    return f"{predicted / unit:.4g} / {measured / unit:.4g} {name} ({predicted / measured - 1:+.0%})"


def about(device: str | None) -> dict[str, str]:
    """Says what machine and software this is."""
    import torch

    found = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
    found["date"] = time.strftime("%Y-%m-%d %H:%M:%S %z")
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    found["commit"] = git.stdout.strip() or "unknown"
    found["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return found | {"cuda": str(torch.version.cuda), "device": str(device)}


def write(folder: Path, facts: Mapping[str, str], rows: Sequence[Row]) -> None:
    """Writes `check.json` and `check.md`."""
    record = {"about": dict(facts), "rows": [asdict(row) for row in rows]}
    (folder / "check.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    lines = [", ".join(f"{key} {value}" for key, value in facts.items()), "", _markdown(COLUMNS)]
    lines += [_markdown(["---"] * len(COLUMNS)), *(_markdown(cells(row)) for row in rows)]
    (folder / "check.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _markdown(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def show(rows: Sequence[Row]) -> None:
    """Prints the table, and what failed."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    has_room = console.width >= WIDE
    table = Table(box=box.SIMPLE)
    for name in COLUMNS if has_room else COLUMNS[1:-1]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, cells(row) if has_room else cells(row)[1:-1]))
    console.print(table)
    for row in rows:
        if (row.note and not has_room) or row.state == FAILED:
            print(f"{row.state}: {row.part}, {row.name}: {row.note}")


def install_wheels(wheels: Path, target: Path) -> None:
    """Unpacks the wheels of a folder, without a network and without their needs."""
    files = sorted(map(str, wheels.glob("*.whl")))
    if not files:
        raise SystemExit(f"{wheels}: holds no wheels")
    flags = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *flags, *files], check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the check; 1 if a part failed."""
    began_s = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.check", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables and logs")
    parser.add_argument("--wheels", type=Path, help="folder of wheels of packages that are missing here")
    parser.add_argument("--device", choices=("cpu",), help="try the parts without a GPU")
    parser.add_argument("--parts", nargs="+", choices=LIMITS_S, default=list(LIMITS_S), help="all by default")
    options = parser.parse_args(arguments)
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    if options.wheels:
        install_wheels(options.wheels, folder / "site")
        paths.insert(0, str(folder / "site"))
    import torch

    device = options.device or ("cuda:0" if torch.cuda.is_available() else None)
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PLACEWALK_HOME": str(folder / "home")}
    settings = Settings(folder, device, os.environ | own)
    facts = about(device)
    print(", ".join(f"{key} {value}" for key, value in facts.items()), flush=True)
    limits_s = {part: LIMITS_S[part] for part in options.parts}
    rows = run_all(settings, limits_s, TOTAL_S - (time.monotonic() - began_s))
    write(folder, facts, rows)
    show(rows)
    print(f"{folder / 'check.md'}, {folder / 'check.json'}: {time.monotonic() - began_s:.0f} s")
    return int(any(row.state == FAILED for row in rows))


if __name__ == "__main__":
    sys.exit(main())
