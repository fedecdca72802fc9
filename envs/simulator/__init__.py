"""The step-time simulator: numba kernels and the functions that call them."""
