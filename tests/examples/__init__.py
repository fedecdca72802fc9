"""Models that users bring, each as a function for `--model`: `tests.examples.models:make_gpt2`."""
