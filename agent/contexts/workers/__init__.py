"""Several workers that train one policy, under torchrun or on a Ray cluster."""
