"""Declares the benchmark of the field's instances."""

from agent.experiments.experiment import EXPERIMENTS, Experiment

OTHERS = ("heft", "m-topo", "m-etf", "m-sct", "metis", "cross-entropy")
PROGRAMMES = ("equal-time", "pipedream")
EXPERIMENTS.register(
    "benchmark",
    Experiment(
        "Who is ahead on the instances of the field?",
        rows=("benchmark.csv.gz",),
        run="benchmark:benchmark_rows",
        tables="benchmark:benchmark_tables",
        settings={
            "graphs": ("*",),
            "placers": ("auto", "refine", *OTHERS, *PROGRAMMES),
            "seconds": 1.0,
        },
        quick={"graphs": ("doppler:*",), "placers": ("refine", "heft"), "seconds": 0.1},
    ),
)
