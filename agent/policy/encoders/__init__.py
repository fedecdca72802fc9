"""Graph encoders: op features in, one embedding per op out; `base.ENCODERS` has them by name."""
