"""The report: what it says, its structure and size; in Chromium it fits, follows the theme and sorts."""

import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from agent.evaluation.report.details import detail_section, pairs
from agent.evaluation.report.figures import lines_of
from agent.evaluation.report.headline import advice_of, headline, learned_line
from agent.evaluation.report.page import write_report
from agent.evaluation.run import evaluate
from agent.placers.improvements import Improvement
from agent.placing.request import DATA_PARALLEL
from graphs import build_graph
from tests.agent.evaluation_cases import make_trial, quiet, small_spec
from tests.agent.placement_cases import make_cluster, training_graph

VOID = {"meta", "link", "br", "path", "rect", "line"}


PLACERS = (("policy", "topo"), ("policy", "dfs"), ("heft", ""), ("annealing", ""), ("single", ""))


def synthetic_trials(n_graphs, *, placers=PLACERS, seeds=1, n_improvements=64):
    """Trials with step times that are drawn; families of 25 graphs."""
    rng = np.random.default_rng(0)
    return [
        make_trial(
            graph=f"family{graph // 25}-{graph:04}",
            family=f"family{graph // 25}",
            cluster="4xv100",
            placer=placer,
            order=order,
            seed=seed,
            step_time_s=(times := 1e-2 * np.sort(rng.uniform(1.0, 2.0, n_improvements))[::-1])[-1],
            lower_bound_s=8e-3,
            single_s=2.5e-2,
            evaluations=10_000,
            wall_s=1.0,
            improvements=tuple(
                Improvement(int(at), at * 1e-4, float(time))
                for at, time in zip(np.arange(n_improvements) * 100 + 1, times, strict=True)
            ),
        )
        for graph in range(n_graphs)
        for placer, order in placers
        for seed in range(seeds)
    ]


class Page(HTMLParser):
    """Checks that elements are closed in order; collects elements and links."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.links, self.fetched = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.seen.append(tag)
        self.links += [attributes["href"]] if tag == "a" else []
        self.fetched += [value for name, value in attributes.items() if name in ("src", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def report_on(folder, **changes):
    """Makes a small evaluation with its report; returns what was found, and the page."""
    found = evaluate(small_spec(**changes), folder, report=quiet)
    command = "python evaluate.py " + 20 * "--flag "
    write_report(folder / "report.html", found.trials, command, answers=found.answers)
    return found, (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """Folder of a small evaluation with its report."""
    folder = tmp_path_factory.mktemp("evaluation")
    report_on(folder, placers=("single", "heft", "annealing", DATA_PARALLEL))
    return folder


def test_structure(reported):
    text = (reported / "report.html").read_text()
    page = Page(text)
    assert page.seen.count("select") == 1
    assert page.seen.count("option") == 2
    assert text.count(" data-graph=") == 2
    # two curves; for each graph, two placers with a step and a placed graph
    assert text.count("<svg viewBox") == 2 + 2 * 2 * 2
    for heading in ("Placers", "Quality against effort", "Single graphs", "Graphs", "How to read this"):
        assert f"<h2>{heading}</h2>" in text
    assert len(set(page.links)) == 2 * 3  # graphs x placers; data parallelism is no placement
    assert all((reported / link).is_file() for link in page.links)


def test_nothing_is_fetched_and_colours_follow_the_theme(reported):
    text = (reported / "report.html").read_text()
    page = Page(text)
    assert page.fetched == []
    assert not {"link", "img", "image", "iframe"} & set(page.seen)
    assert "url(http" not in text
    assert "@import" not in text
    charts = text[text.index("Quality against effort") : text.index("How to read this")]
    assert "var(--ink)" in charts
    assert "var(--s0)" in charts
    assert "#0" not in charts  # no placeholder is left
    assert "#ffffff" not in charts
    assert "prefers-color-scheme: dark" in text


def test_a_report_of_a_part_or_of_nothing_says_so(tmp_path):
    path = tmp_path / "report.html"
    trials = synthetic_trials(2)
    write_report(path, trials, "command", n_failed=1, n_trials=40)
    assert f"{len(trials) + 1} of 40 trials so far." in path.read_text()
    write_report(path, trials, "command", n_trials=len(trials))
    assert "so far." not in path.read_text()
    write_report(path, [], "command", n_trials=5)
    assert "No placement is feasible so far" in path.read_text()
    write_report(path, [make_trial(feasible=False), make_trial(graph="h", feasible=False)], "command")
    assert "memory" in path.read_text()


def test_1000_graphs_take_at_most_5_mb(tmp_path):
    placers = [(name, "") for name in (*(f"placer{index}" for index in range(9)), DATA_PARALLEL)]
    trials = synthetic_trials(1000, placers=[("policy", "topo"), *placers], n_improvements=4)
    write_report(tmp_path / "report.html", trials, "command")
    assert (tmp_path / "report.html").stat().st_size < 3.5e6  # without single graphs


@pytest.mark.parametrize(("n_graphs", "n_layers", "n_shown"), [(2, 60, 2), (7, 1, 6)])
def test_single_graphs_take_at_most_3_5_mb(tmp_path, n_graphs, n_layers, n_shown):
    graphs = tuple(training_graph(n_layers, 6, name=f"g{index}") for index in range(n_graphs))
    spec = small_spec(graphs=graphs, clusters=(make_cluster(4, 1e13),), placers=("heft", "random"), seeds=1)
    found = evaluate(spec, tmp_path, report=quiet)
    section = detail_section(found.answers, pairs(found.trials))
    assert section.count("<option") == n_shown
    assert len(section) < 3.5e6 * n_shown / 6


def times(**by_placer):
    return [
        make_trial(graph=f"g{index}", placer=placer, step_time_s=step_s, improvements=())
        for placer, all_s in by_placer.items()
        for index, step_s in enumerate(all_s)
    ]


def test_headline_compares_the_best():
    trials = times(heft=[1.0, 1.0], annealing=[2.0, 2.0], single=[4.0, 4.0])
    trials += [make_trial(graph=f"g{i}", placer=DATA_PARALLEL, step_time_s=0.5) for i in range(2)]
    said = headline(trials)
    best = "the placement of heft (1,000 ms, a geometric mean over 2 graphs)"
    assert f"<b>Use data parallelism</b>: 2.00 times as fast per batch as {best}." in said
    assert "takes 0.500 of the time of annealing, the next best (95 % interval: 0.500 to 0.500)" in said
    assert "of the time of data parallelism" not in said  # said already
    trials[-2:] = [make_trial(graph=f"g{i}", placer=DATA_PARALLEL, step_time_s=2.0) for i in range(2)]
    assert "takes 0.500 of the time of data parallelism per batch" in headline(trials)
    trials[0] = make_trial(graph="g0", placer="heft", feasible=False)
    assert "the placement of annealing (2,000 ms" in headline(trials), "it places all graphs"


@pytest.mark.parametrize(
    ("bound_s", "said"), [(0.8, "takes less than 0.800 of the time of heft"), (1.0, "is faster than heft's")]
)
def test_headline_ends_with_the_lower_bound(bound_s, said):
    (trial,) = times(heft=[1.0])
    told = unescape(headline([replace(trial, lower_bound_s=bound_s)]))
    assert told.endswith(f"By the lower bound, no placement {said}.</p>")


def test_a_report_advises_data_parallelism_that_was_not_asked_for(tmp_path):
    wide = {"graphs": (training_graph(60, 6),), "clusters": (make_cluster(4, 1e13),)}
    found, text = report_on(tmp_path, **wide, placers=("heft",))
    (advice,) = re.findall(r"<b>Use data parallelism</b>(: .*alone)\.", text)
    assert advice.endswith("; its step averages 4 such batches; losses across samples see one alone")
    assert advice_of(found.trials, found.answers) == f"use data parallelism{advice}"
    assert text.count("data-parallel") == 1  # where it is explained; in no table


@pytest.mark.parametrize("issue_s", [0.0, 1e-4])
def test_steps_that_their_host_bounds_are_said_first(tmp_path, issue_s):
    ops = [{"name": str(op), "flops": 1e6, "bytes_moved": 1e3} for op in range(8)]
    short = build_graph("short", "", ops, [(0, 4.0, [1])])
    cluster = make_cluster(2, 1e13, issue_s=issue_s)
    graphs = (short, training_graph())
    found, text = report_on(tmp_path, graphs=graphs, clusters=(cluster,), placers=("heft",))
    line = found.answers.host_line(found.trials)
    assert (
        "longer to issue 1 of 2 steps than the devices to run them: capture the step as a CUDA graph" in line
    )
    assert ("not counted" in line) == (issue_s == 0)
    assert advice_of(found.trials, found.answers).startswith("as a CUDA graph, use") == (issue_s == 0)
    assert text.count(line[1:]) == 1
    assert text.index(line[1:]) < text.index("<b>Use" if issue_s else "<b>As a CUDA graph, use")
    one = found.answers.host_line([trial for trial in found.trials if trial.graph == "short"])
    assert one.endswith("until then no placement makes it shorter than that")
    assert found.answers.host_line([trial for trial in found.trials if trial.graph != "short"]) == ""


def test_headline_says_what_to_do():
    placement = times(heft=[1.0], single=[4.0])
    said = headline(placement)
    assert "<b>Use the placement of heft (1,000 ms on g0)</b>: 4.00 times as fast as one device." in said
    assert "interval" not in said
    said = headline(times(heft=[3.95], single=[4.0]))
    assert "<b>Use one device</b>: 4,000 ms; the placement of heft (3,950 ms on g0) saves 1.2%." in said
    said = headline([replace(trial, feasible=False) for trial in times(heft=[4.0])])
    assert "<b>Use one device</b>: 4,000 ms; the best placement saves nothing." in said
    said = headline([replace(trial, single_fits=False) for trial in placement])
    assert "no single device has the memory" in said
    slower = make_trial(graph="g0", placer=DATA_PARALLEL, step_time_s=2.0)
    assert "<b>Use the placement of heft" in headline([*placement, slower])


OTHER = "refine, the best placer that learned nothing"
LEARNED = f"policy, the best learned placer, takes 2.000 of the time of {OTHER}."


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ({"policy": 2.0, "heft": 3.0}, LEARNED),
        ({"heft": 3.0}, ""),
        ({"auto": 0.5}, f"auto, the best hybrid of a policy and search, takes 0.500 of the time of {OTHER}."),
        (
            {"policy-refine": 0.5, "policy": 2.0},
            f"{LEARNED} policy-refine, the best hybrid of a policy and search, takes 0.500 of the time of "
            f"{OTHER}.",
        ),
    ],
)
def test_learned_placers_and_hybrids_are_compared_with_the_best_search(steps, said):
    trials = times(**{name: [step_s] for name, step_s in {"single": 4.0, "refine": 1.0, **steps}.items()})
    assert learned_line(trials) == said
    assert said in headline(trials)


def test_pairs_begin_with_the_largest_difference():
    found = pairs(times(policy=[2.0, 1.0, 3.0], heft=[1.0, 4.0, 2.0], single=[9.0, 9.0, 9.0]))
    assert [(pair.left.graph, pair.left.placer, pair.right.placer) for pair in found] == [
        (graph, "policy", "heft") for graph in ("g1", "g0", "g2")
    ]
    (alone,) = pairs(times(heft=[1.0], annealing=[2.0], single=[9.0]))
    assert (alone.left.placer, alone.right.placer) == ("heft", "single")


def test_a_curve_is_the_mean_of_the_best_so_far():
    steps = (Improvement(1, 0.1, 4.0), Improvement(100, 0.2, 1.0)), (Improvement(2, 0.1, 4.0),)
    trials = [
        make_trial(graph=f"g{index}", step_time_s=each[-1].step_time_s, evaluations=1000, improvements=each)
        for index, each in enumerate(steps)
    ]
    spent, ratio = lines_of(trials, "evaluations")["p", ""]
    assert (spent[0], spent[-1]) == (pytest.approx(2), pytest.approx(1000))
    assert ratio[spent < 99] == pytest.approx(1.0)
    assert ratio[spent > 101] == pytest.approx(0.5)  # the mean of 1/4 and 1


CHROMIUM = shutil.which("chromium")
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
def page(reported):
    """The report, where there is a browser."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    return reported / "report.html"


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


def test_a_screenshot_is_not_blank_and_has_the_right_paper(page, tmp_path):
    shot = tmp_path / "shot.png"
    flags = "--window-size=1280,2600", f"--blink-settings=preferredColorScheme={DARK}"
    browse(tmp_path, *flags, f"--screenshot={shot}", page.as_uri())
    with Image.open(shot) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    paper = pixels[2, 2]
    assert paper.mean() < 60
    is_drawn = (abs(pixels - paper).sum(axis=2) > 60).mean(axis=1) > 0
    assert is_drawn.mean() > 0.25
    is_coloured = np.ptp(pixels, axis=2) > 60
    assert is_coloured.sum() > 500  # bars and lines
