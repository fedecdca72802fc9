"""From a PyTorch module to the op graph of its training step."""
