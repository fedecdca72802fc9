"""Declares the settled questions about placers in equal time."""

from agent.lab.experiment import EXPERIMENTS, Experiment

SEARCHES = ("local-search", "annealing", "rollout-refine", "policy-refine")
LARGE = ("local-search", "rollout-refine", "policy-refine", "policy")
STOPPING = ("heft", "m-etf", "rollout", "policy", "rollout-beam", "policy-beam")
OTHERS = ("single", "contiguous", "memory-fill", "metis", "m-topo", "m-sct", "policy-sample")
for name, question, searches, stopping in (
    ("equal_time", "Does learning beat search in equal time?", SEARCHES, STOPPING),
    ("equal_time_other_placers", "Is another placer ahead of `refine`?", ("exact", "cross-entropy"), OTHERS),
    ("equal_time_slow_links", "Does learning gain more on slow links?", SEARCHES, STOPPING),
    ("equal_time_recurrent", "Does learning gain on recurrent graphs?", (*SEARCHES, "policy"), ()),
    ("equal_time_large", "Does learning gain on large graphs?", LARGE, ()),
):
    placers = {"searches": searches, "stopping": stopping}
    tables = "recorded.equal_time:equal_time_tables"
    EXPERIMENTS.register(name, Experiment(question, (f"{name}.csv",), tables, fixed=placers))
