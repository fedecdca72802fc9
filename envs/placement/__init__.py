"""Two Markov decision processes over a graph: state, transition, observation, and the environments."""
