"""Places that a training runs in: this process, or several workers under torchrun or on a Ray cluster."""
