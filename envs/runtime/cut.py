"""Cuts a captured step by device: what each device runs, sends and receives."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, fx

from envs.runtime.device_program import (
    Call,
    DeviceProgram,
    ExecutionError,
    Instruction,
    Receive,
    Send,
    Slot,
    TensorSpec,
    Transfer,
    function_name,
    slots_in,
    with_replaced,
)
from graphs.capture.captured_step import CapturedStep, Storage
from graphs.capture.module_calls import source_of
from graphs.capture.tracing import is_mutable
from graphs.capture.values import node_value, op_packet, sparse_sizes
from graphs.system.array_types import IntArray

K = TypeVar("K", str, int)


def cut(captured: CapturedStep, device_of: IntArray, n_devices: int) -> list[DeviceProgram]:
    """Cuts a step by device.

    An op runs on its device, in program order. What it makes is sent, right after it, once to each device
    that needs it, in the order in which they need it; parameters and inputs are sent when the step begins.
    Views are no ops and are never sent: a device that needs one receives the tensor behind it.

    Args:
        device_of: device of each op of `captured.graph`, int (n_ops,).

    Returns:
        One device program per device.

    Raises:
        ExecutionError: an op of the trace cannot be run on its own.
    """
    for node in captured.trace.nodes:
        if is_mutable(node):
            raise ExecutionError(
                f"op '{node.target}' changes a tensor in place, and the trace that would mend that failed "
                f"with {captured.trace.why_no_calls}"
            )
    return _Cutter(captured, [int(device) for device in device_of], n_devices).cut()


@dataclass
class _Entry:
    """A call, and what is sent right after it."""

    call: Call | Receive
    sends: list[tuple[int, Storage]] = field(default_factory=list)


@dataclass
class _Draft:
    """The device program of one device while it grows."""

    entries: list[_Entry] = field(default_factory=list)
    first_sends: list[tuple[int, Storage]] = field(default_factory=list)
    n_slots: int = 0
    sources: dict[str, Slot] = field(default_factory=dict)

    def new_slot(self) -> Slot:
        self.n_slots += 1
        return Slot(self.n_slots - 1)


class _Cutter:
    def __init__(self, captured: CapturedStep, device_of: Sequence[int], n_devices: int) -> None:
        self.captured, self.trace = captured, captured.trace
        self.device_of = device_of
        self.input_names = {f"input.{index}" for index in range(len(captured.step.tensors))}
        self.drafts = [_Draft() for _ in range(n_devices)]
        self.slot_of: dict[tuple[fx.Node, int], Slot] = {}
        self.received: dict[tuple[Storage, int], Slot] = {}
        self.receives: dict[tuple[Storage, int], _Entry] = {}
        self.made_by: dict[Storage, tuple[_Entry | None, Slot]] = {}

    def cut(self) -> list[DeviceProgram]:
        homes = {path: self._home(path) for path in self.captured.step.state}
        for path, home in homes.items():
            self._source(path, home)
        for node in self.trace.nodes:
            if node in self.captured.op_of_node and node not in self.trace.tangents:
                op = self.captured.op_of_node[node]
                self._call(node, self.device_of[op], op, function_name(node.target))
                self._take_apart(node, self.device_of[op])
            elif node in self.trace.held:
                self._call(node, self._device(node), -1, function_name(node.target))
        trained = self._ends(self.trace.gradients, homes)
        changed = {path: node for path, node in self.trace.new_values.items() if path in homes}
        new_values = self._ends(changed, homes)
        outputs = dict(enumerate(self.trace.outputs))
        returned = self._ends(outputs, {index: self._device(node) for index, node in outputs.items()})
        transfers = self._number_transfers()
        return [
            self._device_program(
                device,
                transfers,
                trained=trained[device],
                new_values=new_values[device],
                outputs=returned[device],
            )
            for device in range(len(self.drafts))
        ]

    def _ends(self, nodes: Mapping[K, fx.Node], homes: Mapping[K, int]) -> list[tuple[tuple[K, Slot], ...]]:
        """Brings the nodes that a step ends with to their devices; returns names and slots by device."""
        slots_of: list[list[tuple[K, Slot]]] = [[] for _ in self.drafts]
        for name, node in nodes.items():
            slots_of[homes[name]].append((name, self._require(node, homes[name])))
        return [tuple(slots) for slots in slots_of]

    def _home(self, name: str) -> int:
        op = self.captured.op_of_source.get(name)
        return 0 if op is None else self.device_of[op]  # an input may be read for its value alone

    def _device(self, node: fx.Node) -> int:
        """Device on which a node is made: that of the op behind it."""
        while node not in self.captured.op_of_node and node not in self.trace.sources:
            if not node.all_input_nodes:
                raise ExecutionError(f"op '{node.target}' cannot be run on its own")
            node = node.all_input_nodes[0]
        if node in self.trace.sources:
            return self._home(self.trace.sources[node])
        return self.device_of[self.captured.op_of_node[node]]

    def _take_apart(self, node: fx.Node, device: int) -> None:
        """Names the results of an op with several of them, right after it."""
        for user in node.users:
            if user.target is operator.getitem and user not in self.captured.op_of_node:
                self._call(user, device, -1, "getitem")
                self._take_apart(user, device)

    def _call(self, node: fx.Node, device: int, op: int, function: str) -> Slot:
        def require(source: fx.Node) -> Slot:
            return self._require(source, device)

        arguments = with_replaced(node.args, fx.Node, require)
        keywords = with_replaced(node.kwargs, fx.Node, require)
        held = self.trace.held.get(node)
        line = source_of(node) if held is not None else ""
        return self._add_call(node, device, Call(op, function, arguments, keywords, Slot(-1), held, line))

    def _add_call(self, node: fx.Node, device: int, call: Call) -> Slot:
        draft = self.drafts[device]
        slot = self.slot_of[node, device] = draft.new_slot()
        entry = _Entry(replace(call, out=slot))
        draft.entries.append(entry)
        storage = self.captured.storages[node]
        if isinstance(storage, Storage) and self._is_made(node):
            self.made_by.setdefault(storage, (entry, slot))
        return slot

    def _require(self, node: fx.Node, device: int) -> Slot:
        """Ensures that a device has the value of a node before its next instruction; returns the slot."""
        if (node, device) in self.slot_of:
            return self.slot_of[node, device]
        if node in self.trace.sources:
            name = self.trace.sources[node]
            slot = self._source(name, self._home(name))
            return slot if self._home(name) == device else self._receive(node, device)
        if node in self.trace.tangents:
            return self._loss_gradient(node, device)
        if self._is_made(node):
            return self._receive(node, device)
        function = "identity" if op_packet(node) is torch.ops.aten.clone else function_name(node.target)
        return self._call(node, device, -1, function)

    def _is_made(self, node: fx.Node) -> bool:
        """Says whether a node is the result, or one of the results, of an op; a view is neither."""
        while node.target is operator.getitem:
            node = node.all_input_nodes[0]
        return node in self.captured.op_of_node

    def _source(self, name: str, device: int) -> Slot:
        sources = self.drafts[device].sources
        if name not in sources:
            sources[name] = self.drafts[device].new_slot()
        return sources[name]

    def _loss_gradient(self, tangent: fx.Node, device: int) -> Slot:
        """Starts the backward pass: the gradient of the loss by itself, made on the device of its op."""
        op = self.captured.op_of_node[tangent]
        home = self.device_of[op]
        if (tangent, home) not in self.slot_of:
            made = self.trace.tangents[tangent]
            # What forward leaves in a parameter that it changes has no gradient of its own.
            function = "ones_like" if made in self.trace.outputs else "zeros_like"
            self._add_call(tangent, home, Call(op, function, (self._require(made, home),), {}, Slot(-1)))
        return self.slot_of[tangent, home] if home == device else self._receive(tangent, device)

    def _receive(self, node: fx.Node, device: int) -> Slot:
        storage = self.captured.storages[node]
        if not isinstance(storage, Storage):
            raise ExecutionError(f"op '{node.target}' yields several tensors at once, which cannot be sent")
        if (storage, device) not in self.received:
            draft = self.drafts[device]
            slot = self.received[storage, device] = draft.new_slot()
            entry = self.receives[storage, device] = _Entry(Receive(_UNNUMBERED, slot))
            draft.entries.append(entry)
            self._sends_of(node, storage).append((device, storage))
        return self.slot_of.setdefault((node, device), self.received[storage, device])

    def _sends_of(self, node: fx.Node, storage: Storage) -> list[tuple[int, Storage]]:
        if storage in self.made_by and (entry := self.made_by[storage][0]) is not None:
            return entry.sends
        name = self.trace.sources[node]
        home = self._home(name)
        self.made_by[storage] = None, self._source(name, home)
        return self.drafts[home].first_sends

    def _number_transfers(self) -> dict[tuple[Storage, int], Transfer]:
        """Numbers transfers by sender, in the order in which it sends them."""
        transfers: dict[tuple[Storage, int], Transfer] = {}
        storages = self.captured.storages
        for source, draft in enumerate(self.drafts):
            ranks = defaultdict[int, int](int)
            for sends in (draft.first_sends, *(entry.sends for entry in draft.entries)):
                for target, storage in sends:
                    # The node whose value is the tensor: the storage's, or one that takes it out of several.
                    nodes = (made for made in (storage.node, *storages) if storages[made] is storage)
                    spec, rank = _spec(storage.node, next(nodes)), ranks[target]
                    transfers[storage, target] = Transfer(len(transfers), source, target, rank, spec)
                    ranks[target] += 1
        return transfers

    def _device_program(
        self,
        device: int,
        transfers: dict[tuple[Storage, int], Transfer],
        **ends: tuple[tuple[Any, Slot], ...],
    ) -> DeviceProgram:
        draft = self.drafts[device]
        transfer_of = {id(self.receives[key]): transfer for key, transfer in transfers.items()}
        instructions: list[Instruction] = []

        def add_sends(sends: Iterable[tuple[int, Storage]]) -> None:
            for target, storage in sends:
                instructions.append(Send(transfers[storage, target], self.made_by[storage][1]))

        add_sends(draft.first_sends)
        for entry in draft.entries:
            if isinstance(entry.call, Receive):
                instructions.append(replace(entry.call, transfer=transfer_of[id(entry)]))
            else:
                instructions.append(entry.call)
            add_sends(entry.sends)
        state, inputs, constants = dict[str, Slot](), dict[str, Slot](), dict[str, Slot]()
        for name, slot in draft.sources.items():
            is_state, is_input = name in self.captured.step.state, name in self.input_names
            (state if is_state else inputs if is_input else constants)[name] = slot
        kept_slots = [*draft.sources.values(), *(slot for end in ends.values() for _, slot in end)]
        return DeviceProgram(
            device=device,
            n_slots=draft.n_slots,
            instructions=tuple(instructions),
            frees=frees_of(instructions, {slot.index for slot in kept_slots}),
            state=tuple(state.items()),
            constants=tuple(constants.items()),
            inputs=tuple((int(name.partition(".")[2]), slot) for name, slot in inputs.items()),
            **ends,
        )


def frees_of(instructions: Sequence[Instruction], kept_slots: set[int]) -> tuple[tuple[int, ...], ...]:
    """Finds the slots that each instruction is the last to name, but for those that are kept."""
    seen, frees = set(kept_slots), list[tuple[int, ...]]()
    for instruction in reversed(instructions):
        named = {slot.index for slot in _named(instruction)} - seen
        frees.append(tuple(sorted(named)))
        seen |= named
    return tuple(reversed(frees))


def _named(instruction: Instruction) -> Iterable[Slot]:
    if isinstance(instruction, Call):
        yield from slots_in([instruction.arguments, *instruction.keywords.values()])
        yield instruction.out
    else:
        yield instruction.value if isinstance(instruction, Send) else instruction.out


def _spec(made_by: fx.Node, node: fx.Node) -> TensorSpec:
    tensor: Tensor = node_value(node)
    if tensor.layout is torch.sparse_coo:
        return TensorSpec(tuple(tensor.shape), (), tensor.dtype, sparse_sizes(made_by)[1], sparse=True)
    return TensorSpec.of(tensor)


_UNNUMBERED = Transfer(-1, -1, -1, -1, TensorSpec((), (), torch.float32, 0))
