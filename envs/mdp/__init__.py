"""The Markov decision processes over a graph: state, transition, observation, and the environments."""

MDPS = ("construct", "improve")
"""Names of the decision processes: every unit is placed once; a complete placement is improved."""
