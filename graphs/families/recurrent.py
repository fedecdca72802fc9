"""Recurrent models, unrolled over time: language models of random cells, and translators of LSTM cells.

Sources: Pham et al. 2018 (ENAS, arXiv 1802.03268), section 2.1, for ptb; as placement benchmark: Addanki et
al. 2019. Bahdanau et al. 2015 (arXiv 1409.0473) and Luong et al. 2015 (arXiv 1508.04025) for the attention of
nmt, Wu et al. 2016 (arXiv 1609.08144) for its residual connections and bidirectional first layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphs.families import Drawn, family, pick

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


class RecurrentCell(nn.Module):
    """A tree of highway nodes h' = h + c (f(h W) - h), c = sigmoid(h V); their leaves' mean is the state.

    Args:
        parents: parent of nodes 1, 2, ...; node 0 reads the word and the state.
        activations: one per node, names in `ACTIVATIONS`.
    """

    def __init__(self, parents: Sequence[int], activations: Sequence[str], hidden: int) -> None:
        super().__init__()
        self.parents = parents
        self.activations = activations
        self.leaves = [node for node in range(len(activations)) if node not in parents]
        self.word = nn.Linear(hidden, 2 * hidden, bias=False)
        self.state = nn.Linear(hidden, 2 * hidden, bias=False)
        self.edges = nn.ModuleList(nn.Linear(hidden, 2 * hidden, bias=False) for _ in parents)

    def forward(self, word: Tensor, state: Tensor) -> Tensor:
        """Next state (batch, hidden) from a word's embedding and the state, both (batch, hidden)."""
        mixed = self.word(word) + self.state(state)
        nodes = [_highway(state, mixed, self.activations[0])]
        for edge, parent, activation in zip(self.edges, self.parents, self.activations[1:], strict=True):
            nodes.append(_highway(nodes[parent], edge(nodes[parent]), activation))
        total = nodes[self.leaves[0]]
        for leaf in self.leaves[1:]:
            total = total + nodes[leaf]
        return total / len(self.leaves) if len(self.leaves) > 1 else total


def _highway(carry: Tensor, mixed: Tensor, activation: str) -> Tensor:
    gate, value = mixed.chunk(2, dim=1)
    return carry + torch.sigmoid(gate) * (ACTIVATIONS[activation](value) - carry)


def _step_losses(softmax: nn.Module, states: Iterable[Tensor], targets: Tensor) -> Tensor:
    """Mean over time of the cross-entropy at each step; targets are int (time, batch)."""
    pairs = zip(states, targets.unbind(0), strict=True)
    return torch.stack([F.cross_entropy(softmax(state), target) for state, target in pairs]).mean()


class RecurrentModel(nn.Module):
    """Next-word cross-entropy of a recurrent cell unrolled over the whole sequence.

    Args:
        tied: true if the softmax shares the embedding's weights.
        stepwise: true if each time step has its own softmax and loss, instead of one over all steps.
    """

    def __init__(self, cell: RecurrentCell, vocabulary: int, *, tied: bool, stepwise: bool) -> None:
        super().__init__()
        hidden = cell.word.in_features
        self.embedding, self.cell = nn.Embedding(vocabulary, hidden), cell
        self.softmax = nn.Linear(hidden, vocabulary, bias=not tied)
        if tied:
            self.softmax.weight = self.embedding.weight
        self.stepwise = stepwise

    def forward(self, words: Tensor, targets: Tensor, state: Tensor) -> Tensor:
        """Loss of words and targets, int (time, batch), from a state (batch, hidden)."""
        states = []
        for word in self.embedding(words).unbind(0):
            state = self.cell(word, state)
            states.append(state)
        if not self.stepwise:
            return F.cross_entropy(self.softmax(torch.cat(states)), targets.flatten())
        return _step_losses(self.softmax, states, targets)


@family("ptb")
def draw_ptb(rng: np.random.Generator) -> Drawn:
    """Trees of 2 to 8 nodes over 2 to 20 time steps, batch 64 to 512, hidden size 512 to 2048."""
    nodes = int(rng.integers(2, 9))
    steps = int(np.clip(rng.integers(8, 97) // nodes, 2, 20))
    parents = [int(rng.integers(node)) for node in range(1, nodes)]
    activations = [pick(rng, tuple(ACTIVATIONS)) for _ in range(nodes)]
    hidden = pick(rng, [512, 1024, 1536, 2048])
    tied, stepwise = (bool(rng.random() < chance) for chance in (0.5, 0.4))
    cell = RecurrentCell(parents, activations, hidden)
    model = RecurrentModel(cell, 10_000, tied=tied, stepwise=stepwise)
    batch = pick(rng, [64, 128, 256, 512])
    words = torch.zeros(steps, batch, dtype=torch.long)
    return model, (words, torch.zeros_like(words), torch.zeros(batch, hidden))


State = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class TranslatorConfig:
    """One translation model.

    Attributes:
        layers: depth of encoder and decoder.
        attention: `dot` (Luong) or `additive` (Bahdanau).
        input_feeding: true if the attention's result is fed to the decoder's next step, making it serial.
        bidirectional: true if the encoder's first layer also runs backwards.
    """

    layers: int
    hidden: int
    vocabulary: int
    attention: str
    input_feeding: bool
    bidirectional: bool
    residual: bool


class LstmCell(nn.Module):
    """One step of an LSTM; gates in the order of `torch.nn.LSTMCell`: input, forget, cell, output."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.ih = nn.Linear(inputs, 4 * hidden)
        self.hh = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor, state: State) -> State:
        """Next (hidden, cell) from x (batch, inputs) and the state, each (batch, hidden)."""
        hidden, cell = state
        enter, forget, value, leave = (self.ih(x) + self.hh(hidden)).chunk(4, dim=1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(value)
        return torch.sigmoid(leave) * torch.tanh(cell), cell


def run_layer(cell: nn.Module, steps: Sequence[Tensor], state: State) -> list[Tensor]:
    """Runs a cell over a sequence; returns its hidden states, each (batch, hidden)."""
    outputs = []
    for x in steps:
        state = cell(x, state)
        outputs.append(state[0])
    return outputs


class Encoder(nn.Module):
    """A stack of LSTM layers, each run over the whole sequence."""

    def __init__(self, config: TranslatorConfig) -> None:
        super().__init__()
        size = config.hidden
        self.residual = config.residual
        self.backward_cell = LstmCell(size, size) if config.bidirectional else None
        first_outputs = 2 * size if config.bidirectional else size
        sizes = [size, first_outputs] + [size] * config.layers
        self.cells = nn.ModuleList(LstmCell(inputs, size) for inputs in sizes[: config.layers])
        self.join = nn.Linear(first_outputs, size) if config.bidirectional and config.layers == 1 else None

    def forward(self, steps: Sequence[Tensor], state: State) -> Tensor:
        """Memory (batch, time, hidden) of embedded words, each (batch, hidden)."""
        for depth, cell in enumerate(self.cells):
            outputs = run_layer(cell, steps, state)
            if depth == 0 and self.backward_cell is not None:
                backwards = run_layer(self.backward_cell, steps[::-1], state)[::-1]
                outputs = [torch.cat(pair, 1) for pair in zip(outputs, backwards, strict=True)]
            elif self.residual and depth and outputs[0].shape == steps[0].shape:
                outputs = [output + x for output, x in zip(outputs, steps, strict=True)]
            steps = outputs
        memory = torch.stack(list(steps), 1)
        return memory if self.join is None else self.join(memory)


class Attention(nn.Module):
    """Mix of a query and the memory it attends to."""

    def __init__(self, kind: str, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False) if kind == "additive" else None
        self.mix = nn.Linear(2 * hidden, hidden)

    def forward(self, query: Tensor, memory: Tensor, keys: Tensor) -> Tensor:
        """Attentional state (batch, hidden) of a query like it; memory and keys are (batch, time, hidden)."""
        asked = self.query(query).unsqueeze(1)
        if self.score is None:
            scores = torch.bmm(asked, keys.transpose(1, 2))
        else:
            scores = self.score(torch.tanh(asked + keys)).transpose(1, 2)
        context = torch.bmm(torch.softmax(scores, -1), memory).squeeze(1)
        return torch.tanh(self.mix(torch.cat([query, context], 1)))


class Decoder(nn.Module):
    """A stack of LSTM cells with attention on top, run word by word."""

    def __init__(self, config: TranslatorConfig) -> None:
        super().__init__()
        size = config.hidden
        self.residual, self.input_feeding = config.residual, config.input_feeding
        first = 2 * size if config.input_feeding else size
        self.cells = nn.ModuleList(
            LstmCell(first if layer == 0 else size, size) for layer in range(config.layers)
        )
        self.keys = nn.Linear(size, size, bias=False) if config.attention == "additive" else None
        self.attention = Attention(config.attention, size)

    def forward(self, steps: Sequence[Tensor], memory: Tensor, state: State) -> list[Tensor]:
        """Attentional states, each (batch, hidden), of embedded words."""
        keys = memory if self.keys is None else self.keys(memory)
        states, fed, outputs = [state] * len(self.cells), state[0], []
        for word in steps:
            x = torch.cat([word, fed], 1) if self.input_feeding else word
            for depth, cell in enumerate(self.cells):
                states[depth] = cell(x, states[depth])
                x = states[depth][0] + x if self.residual and depth else states[depth][0]
            fed = self.attention(x, memory, keys)
            outputs.append(fed)
        return outputs


class Translator(nn.Module):
    """Word-by-word cross-entropy of a translation, with teacher forcing."""

    def __init__(self, config: TranslatorConfig) -> None:
        super().__init__()
        self.source = nn.Embedding(config.vocabulary, config.hidden)
        self.target = nn.Embedding(config.vocabulary, config.hidden)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.softmax = nn.Linear(config.hidden, config.vocabulary)

    def forward(self, source: Tensor, target: Tensor, labels: Tensor, zeros: Tensor) -> Tensor:
        """Loss of words, int (time, batch), from an all-zero state (batch, hidden)."""
        state = (zeros, zeros)
        memory = self.encoder(self.source(source).unbind(0), state)
        outputs = self.decoder(self.target(target).unbind(0), memory, state)
        return _step_losses(self.softmax, outputs, labels)


@family("nmt")
def draw_nmt(rng: np.random.Generator) -> Drawn:
    """1 to 4 layers over 2 to 16 source and target words, batch 64 to 512, hidden size 512 to 2048."""
    layers = int(rng.integers(1, 5))
    longest = min(16, pick(rng, [24, 36, 48]) // (layers + 1))
    source, target = (int(length) for length in rng.integers(2, longest + 1, size=2))
    config = TranslatorConfig(
        layers=layers,
        hidden=pick(rng, [512, 1024, 1536, 2048]),
        vocabulary=pick(rng, [8_000, 16_000, 32_000]),
        attention=pick(rng, ["dot", "additive"]),
        input_feeding=bool(rng.random() < 0.5),
        bidirectional=bool(rng.random() < 0.5),
        residual=bool(rng.random() < 0.5),
    )
    batch = pick(rng, [64, 128, 256, 512])
    words = torch.zeros(target, batch, dtype=torch.long)
    inputs = (torch.zeros(source, batch, dtype=torch.long), words, torch.zeros_like(words))
    return Translator(config), (*inputs, torch.zeros(batch, config.hidden))
