"""Declares settled questions on simulated against measured times, whose rows earlier code made."""

from agent.lab.experiment import EXPERIMENTS, Experiment
from agent.lab.pivot import Pivot, Statistic, count, errors, quantile, value
from agent.lab.rows import Rows

SHARES = [
    (head, value(f"{column}{share}", ".1%"))
    for begin, column in (("", ""), ("left out: ", "left_out_"), ("roofline: ", "roofline_"))
    for head, share in ((f"{begin}median", "median"), ("p90", "p90"))
]


def of_ops(is_all: bool) -> Pivot:
    """Makes the table of all devices together, or of each device."""
    return Pivot(
        {"device": "device", "class": "op_class", "n": "n"},
        SHARES,
        where=lambda row: row["file"] == "costs_of_ops" and (row["device"] == "all") is is_all,
    )


RANKS = Pivot(
    {"class": "op_class", "pairs": "pairs"},
    [("ranked right", value("predicted", ".1%")), ("by the roofline", value("roofline", ".1%"))],
    where=lambda row: bool(row["file"] == "costs_of_ops_ranks"),
)
EXPERIMENTS.register(
    "costs_of_ops",
    Experiment(
        "How wrong are the costs of ops?",
        [of_ops(True), RANKS, of_ops(False)],
        ["costs_of_ops.csv", "costs_of_ops_ranks.csv"],
    ),
)


def rank_correlation(predicted: str) -> Statistic:
    """Makes a statistic that formats Kendall's tau-b of the two rankings; that of one step is a dash."""

    def cell(rows: Rows) -> str:
        from scipy.stats import kendalltau

        pair = [row[predicted] for row in rows], [row["measured_s"] for row in rows]
        return f"{kendalltau(*pair).statistic:.3f}" if len(rows) > 1 else "-"

    return cell


def of_steps(file: str) -> Pivot:
    """Makes the table of the steps of a file."""
    cells = [
        ("steps", count),
        *errors("median error", "predicted_s"),
        ("Kendall's tau", rank_correlation("predicted_s")),
        *errors("roofline: median", "roofline_s"),
        ("Kendall's tau", rank_correlation("roofline_s")),
    ]
    return Pivot({"device": "device"}, cells, where=lambda row: bool(row["file"] == file), total="all")


EXPERIMENTS.register(
    "costs_of_steps",
    Experiment(
        "How wrong are simulated steps of one GPU?",
        [of_steps("costs_of_steps"), of_steps("costs_of_steps_held_back")],
        ["costs_of_steps.csv", "costs_of_steps_held_back.csv"],
    ),
)

LINKS = Pivot(
    {"link": "link"},
    [
        ("sizes held out", count),
        *errors("median error", "predicted_s"),
        *errors("datasheet and 10 us: median", "datasheet_s"),
    ],
    where=lambda row: bool(row["held_out"]),
)
EXPERIMENTS.register(
    "costs_of_links", Experiment("How wrong are predicted transfers?", [LINKS], ["costs_of_links.csv.gz"])
)

LAYERS = Pivot(
    {"device": "device", "dtype": "dtype"},
    [
        ("layers", count),
        ("median predicted / measured", quantile(0.5, "predicted_s", "measured_s", ".2f")),
        *errors("median error", "predicted_s"),
        *errors("roofline: median", "roofline_s"),
    ],
)
EXPERIMENTS.register(
    "costs_of_layers",
    Experiment("How wrong are costs on boards without measurements?", [LAYERS], ["costs_of_layers.csv"]),
)
