"""Declares the comparisons with the methods of others."""

from agent.lab.experiment import EXPERIMENTS, Experiment

PLACERS = ("heft", "m-etf", "metis", "local-search", "refine", "auto", "policy", "policy-sample")
EXPERIMENTS.register(
    "doppler_methods",
    Experiment(
        "Are published agents ahead on the graphs of their authors?",
        rows=("doppler_methods.csv.gz", "doppler_methods_placers.csv"),
        run="doppler_methods:method_rows",
        tables="doppler_methods:method_tables",
        settings={"placers": PLACERS, "seconds": (1.0, 10.0)},
    ),
)
question, tables = "Does the best order depend on the learner?", "recorded.orders:learner_tables"
EXPERIMENTS.register("orders_across_methods", Experiment(question, ("orders.csv.gz",), tables))
