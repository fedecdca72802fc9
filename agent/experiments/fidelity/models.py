"""The models whose whole steps were measured, and their captured graphs, kept in a folder.

Source: Lee et al., "Forecasting GPU Performance for Deep Learning Training and Inference", ASPLOS 2025
(NeuSight), `neusight/Tracing/trace.py`, and the shapes in the traces beside its measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import graphs.capture
from graphs.io.graph_files import read_graphs, write_graphs
from graphs.op_graph import OpGraph
from graphs.system.errors import InputError
from graphs.system.registry import Registry

if TYPE_CHECKING:
    from torch import nn


class ModelError(InputError):
    """A measured model that is unknown or cannot be captured; the message says what would be right."""


@dataclass(frozen=True)
class Workload:
    """A measured workload, whatever the device.

    Attributes:
        model: a name in `MODELS` or `LEFT_OUT`.
        mode: "inf": forward pass alone, without gradients; "train": forward and backward pass, no optimizer.
        sequence: tokens of each sequence.
        batch: sequences of a step.
    """

    model: str
    mode: str
    sequence: int
    batch: int

    def __str__(self) -> str:
        return f"{self.model}-{self.mode}-{self.sequence}-{self.batch}"


Builder = Callable[[Any, bool], Any]
"""Builds a model from the module `transformers`; the flag says whether for training."""

MODELS = Registry[Builder]("measured model", ModelError)
"""Builders of the measured models by the name in their files."""
LEFT_OUT = {"switchxl4": "its configuration was not published with it, and its experts read by value"}
"""Measured models that are not captured, and why."""


def _gpt2(name: str, *, hidden: int, heads: int, layers: int, positions: int) -> None:
    def build(transformers: Any, training: bool) -> Any:
        """Builds a GPT-2 with a head over its vocabulary."""
        config = transformers.GPT2Config(
            n_embd=hidden, n_head=heads, n_layer=layers, n_positions=positions, use_cache=False
        )
        return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")

    MODELS.register(name, build)


_gpt2("gpt2_large", hidden=1280, heads=20, layers=36, positions=1024)
_gpt2("gpt3_xl", hidden=3072, heads=24, layers=24, positions=2048)
_gpt2("gpt3_27", hidden=2560, heads=32, layers=32, positions=2048)


def _bert_large(transformers: Any, training: bool) -> Any:
    """Builds BERT-large: both pretraining heads in training, a classifier of two classes in inference."""
    config = transformers.BertConfig(
        hidden_size=1024, num_attention_heads=16, num_hidden_layers=24, intermediate_size=4096
    )
    auto = (
        transformers.AutoModelForPreTraining if training else transformers.AutoModelForSequenceClassification
    )
    return auto.from_config(config, attn_implementation="eager")


def _opt_13(transformers: Any, training: bool) -> Any:
    """Builds OPT-1.3B with a head over its vocabulary."""
    config = transformers.OPTConfig(
        hidden_size=2048,
        num_attention_heads=32,
        num_hidden_layers=24,
        ffn_dim=8192,
        word_embed_proj_dim=2048,
        use_cache=False,
    )
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")


MODELS.register("bert_large", _bert_large)
MODELS.register("opt_13", _opt_13)


class GraphCache:
    """Captured graphs in a folder, each captured once.

    A change of the code of the capture, of torch or of transformers makes another folder.

    Args:
        folder: holds the folder of the graphs.
        notify: what to do with a line about a capture that begins.
    """

    def __init__(self, folder: Path, notify: Callable[[str], None] = print) -> None:
        self.folder = folder / f"graphs-{_capture_hash()}"
        self.notify = notify
        self._graphs: dict[str, OpGraph] = {}

    def workload(self, workload: Workload) -> OpGraph:
        """Returns the graph of a workload; reads or captures it the first time.

        Raises:
            ModelError: an unknown model, or transformers is missing.
            CaptureError: the model cannot be captured.
        """
        return self.graph(str(workload), lambda: capture_workload(workload))

    def graph(self, name: str, capture: Callable[[], OpGraph]) -> OpGraph:
        """Returns a graph by its name; reads or captures it the first time."""
        if name not in self._graphs:
            path = self.folder / f"{name}.json.gz"
            if path.exists():
                (self._graphs[name],) = read_graphs(path)
            else:
                self.notify(f"capturing {name}")
                self._graphs[name] = capture()
                self.folder.mkdir(parents=True, exist_ok=True)
                write_graphs(path, [self._graphs[name]])
        return self._graphs[name]


def capture_workload(workload: Workload) -> OpGraph:
    """Captures the step of a workload with random weights on the meta device.

    Raises:
        ModelError: an unknown model, or transformers is missing.
        CaptureError: the model cannot be captured.
    """
    build = MODELS[workload.model]
    try:
        import transformers
    except ImportError:
        raise ModelError("transformers is not installed; install it with `pip install -e '.[dev]'`") from None
    import torch

    from graphs.capture.capture import capture

    training = workload.mode == "train"
    with torch.device("meta"):
        model = build(transformers, training).train(training)
        tokens = torch.ones(workload.batch, workload.sequence, dtype=torch.int64)
    inputs = {"input_ids": tokens, "attention_mask": tokens}
    step = _with_loss(model) if training else model
    # A gradient was added to that of the step before, which moves as many bytes as plain SGD.
    return capture(step, inputs, training=training, optimizer="sgd", name=str(workload), family="measured")


def _with_loss(model: nn.Module) -> nn.Module:
    """Returns the model with the loss of its logits against its own input, as it was measured."""
    import torch
    from torch import Tensor, nn

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            output = self.model(input_ids=input_ids, attention_mask=attention_mask)
            logits = output["prediction_logits" if "prediction_logits" in output else "logits"]
            return torch.nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), input_ids.view(-1))

    return WithLoss()


def _capture_hash() -> str:
    """Eight hexadecimal digits that change with what makes the graphs."""
    files = [Path(__file__), *sorted(Path(graphs.capture.__path__[0]).glob("*.py"))]
    text = b"".join(path.read_bytes() for path in files)
    return sha256(text + f"{version('torch')} {version('transformers')}".encode()).hexdigest()[:8]
