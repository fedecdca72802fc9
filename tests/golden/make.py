"""Compares answers with the golden ones, or writes them: see `python -m tests.golden.make --help`."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch

from tests.golden.sections import SECTIONS, SOME, TRAINED

FOLDER = Path(__file__).parent
TOLERANCE, TRAINED_TOLERANCE = 1e-6, 1e-2
"""Relative differences that another processor may make."""
LEAST = 1e-3
"""Differences are relative to numbers of at least this size."""
BY_NAME = {section.__name__: section for section in SECTIONS}
PROCESSOR = "processor"
"""Key of the fingerprint of the processor that the answers are of."""


@cache
def fingerprint() -> str:
    """Names the kind of processor: by how it sums, and by the versions of what sums."""
    rng, hashed = np.random.default_rng(0), hashlib.sha256()
    hashed.update(repr((torch.__version__, torch.backends.cpu.get_cpu_capability(), np.__version__)).encode())
    for n, k, m in ((1, 64, 64), (7, 29, 64), (32, 87, 128), (200, 256, 64), (500, 64, 1)):
        left, right = rng.normal(size=(n, k)).astype("f4"), rng.normal(size=(k, m)).astype("f4")
        product = torch.from_numpy(left) @ torch.from_numpy(right)
        hashed.update((left @ right).tobytes() + product.exp().numpy().tobytes())
    return hashed.hexdigest()[:10]


def differences(name: str, **sample: int) -> list[str]:
    """Lists the answers of a section, or of a sample of its cases, that are not the golden ones."""
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    is_same = golden.pop(PROCESSOR) == fingerprint()
    answers = dict(BY_NAME[name](**sample))
    cases = answers if sample else golden | answers
    pairs = {case: (golden.get(case, ""), answers.get(case, "")) for case in cases}
    return [
        f"{name}: {case}: golden {known or 'none'}, found {found or 'none'}; "
        f"numbers differ by {apart(known, found):.0e}"
        for case, (known, found) in pairs.items()
        if not agrees(known, found, is_same_processor=is_same)
    ]


def agrees(golden: str, found: str, *, is_same_processor: bool) -> bool:
    """Says whether an answer is the golden one, or is near it where another processor may make it differ."""
    if golden == found or is_same_processor or not golden.startswith(SOME):
        return golden == found
    return apart(golden, found) <= (TRAINED_TOLERANCE if golden.startswith(TRAINED) else TOLERANCE)


def apart(golden: str, found: str) -> float:
    """Finds the greatest relative difference of the numbers of two answers; infinite if one has more."""
    known, numbers = ([float.fromhex(word) for word in text.split()[1:]] for text in (golden, found))
    if not (golden and found) or len(known) != len(numbers):
        return math.inf
    return max((abs(a - b) / max(abs(a), LEAST) for a, b in zip(known, numbers, strict=True)), default=0.0)


def write(name: str) -> None:
    """Makes the answers of a section the golden ones."""
    lines = json.dumps({PROCESSOR: fingerprint(), **dict(BY_NAME[name]())}, indent=0)
    (FOLDER / f"{name}.json").write_text(lines + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.make", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(BY_NAME))
    parser.add_argument("--write", action="store_true", help="make the answers of today the golden ones")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: list[str] = []
    for name in options.sections or BY_NAME:
        if options.write:
            write(name)
        else:
            found += differences(name)
    print("\n".join(found) or "done", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
