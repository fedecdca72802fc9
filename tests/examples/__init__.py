"""Models that users bring, each as a function for `--model`: `tests.examples.gpt2:make`."""
