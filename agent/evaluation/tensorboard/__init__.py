"""Evaluations in TensorBoard."""
