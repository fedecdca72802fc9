"""The report in headless Chromium: it fits narrow screens, follows the theme, and sorts by click."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from agent.evaluation.report.page import write_report
from agent.evaluation.run import evaluate
from tests.agent.evaluation_cases import quiet, small_spec

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
DARK, LIGHT = 0, 1
PROBE = """
<script>
const first = document.querySelector(".sortable");
const column = at => [...first.tBodies[0].rows].map(row => row.cells[at].textContent).join("|");
const found = {width: document.documentElement.scrollWidth, window: window.innerWidth, was: column(3)};
first.rows[0].cells[3].click(); found.up = column(3);
first.rows[0].cells[3].click(); found.down = column(3);
first.rows[0].cells[0].click(); found.names = column(0);
const shown = () => [...document.querySelectorAll("[data-graph]")]
  .map(part => part.offsetHeight > 0 ? 1 : 0).join("");
found.first = shown();
const choice = document.querySelector("select");
choice.value = "1"; choice.dispatchEvent(new Event("change")); found.second = shown();
const cut = part => part.scrollWidth > part.clientWidth ? 1 : 0;
found.cut = [...document.querySelectorAll(".curves .chart")].map(cut).join("") + cut(first.parentNode);
found.ratio = Math.ceil(first.rows[0].cells[1].getBoundingClientRect().right);
const ink = document.querySelector(".chart svg text");
found.ink = getComputedStyle(ink).fill;
for (const [key, value] of Object.entries(found)) document.body.setAttribute("data-" + key, value);
</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report of a small evaluation."""
    folder = tmp_path_factory.mktemp("browser")
    spec = small_spec(placers=("single", "heft", "annealing", "data-parallel"))
    found = evaluate(spec, folder, report=quiet)
    command = "python evaluate.py " + 20 * "--flag "
    write_report(folder / "report.html", found.trials, command, answers=found.answers)
    return folder / "report.html"


def browse(folder, *flags):
    command = [
        *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
        *("--disable-background-networking", f"--user-data-dir={folder / 'profile'}", *flags),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def probed(page, folder, width, theme):
    """What a script in a copy of the page finds, by name."""
    copy = folder / "probe.html"
    copy.write_text(page.read_text().replace("</body>", f"{PROBE}</body>"))
    flags = f"--window-size={width},900", f"--blink-settings=preferredColorScheme={theme}", "--dump-dom"
    body = re.search(r"<body[^>]*>", browse(folder, *flags, copy.as_uri()))
    assert body, "no page"
    return dict(re.findall(r'data-(\w+)="([^"]*)"', body[0]))


@pytest.mark.parametrize(("width", "theme"), [(400, DARK), (1280, LIGHT)])
def test_the_page_fits_the_window_and_works(page, tmp_path, width, theme):
    found = probed(page, tmp_path, width, theme)
    assert int(found["width"]) <= int(found["window"])
    assert abs(int(found["window"]) - width) <= 120  # a headless window has a least width
    assert found["cut"] == ("001" if width == 400 else "000")
    assert int(found["ratio"]) <= int(found["window"])
    up, down = ([float(cell) for cell in found[key].split("|")] for key in ("up", "down"))
    assert up == sorted(up)
    assert down == up[::-1]
    assert len(up) == 4
    assert found["names"] == "annealing|data-parallel|heft|single"
    assert (found["first"], found["second"]) == ("10", "01")
    assert found["ink"] == ("rgb(230, 230, 230)" if theme == DARK else "rgb(34, 34, 34)")


@pytest.mark.parametrize(("width", "theme"), [(400, LIGHT), (1280, DARK)])
def test_a_screenshot_is_not_blank_and_has_the_right_paper(page, tmp_path, width, theme):
    shot = tmp_path / "shot.png"
    flags = f"--window-size={width},2600", f"--blink-settings=preferredColorScheme={theme}"
    browse(tmp_path, *flags, f"--screenshot={shot}", page.as_uri())
    with Image.open(shot) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    paper = pixels[2, 2]
    assert (paper.mean() < 60) == (theme == DARK)
    is_drawn = (abs(pixels - paper).sum(axis=2) > 60).mean(axis=1) > 0
    assert is_drawn.mean() > 0.25
    is_coloured = np.ptp(pixels, axis=2) > 60
    assert is_coloured.sum() > 500  # bars and lines
