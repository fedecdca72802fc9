"""CUDA devices of the executor: one process and one host thread for all, two streams for each."""
