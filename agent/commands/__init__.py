"""The command lines: what `train_agent.py` and `evaluate.py` do."""
