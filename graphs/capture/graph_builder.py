"""Builds an op graph from a traced step: views vanish, sources become ops, optimizer updates are added."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from graphs.capture.captured_step import Storage, find_storages, live_nodes, storages_in
from graphs.capture.checkpoints import RUN
from graphs.capture.module_calls import call_of, source_of
from graphs.capture.op_arithmetic import op_dtype, op_gemm, op_image, tensor_dtype
from graphs.capture.op_costs import op_bytes, op_flops
from graphs.capture.tracing import Trace
from graphs.capture.values import is_sparse, node_value, op_packet, size_bytes, sparse_sizes, tensors_of
from graphs.op_graph import OpGraph, build_graph
from graphs.optimizers import Updates
from graphs.system.errors import printable


class GraphBuilder:
    """Builds the op graph of one trace, op by op in program order.

    Args:
        state: parameters and buffers by path, tied ones once.
        updates: work and state of the optimizers.

    Attributes:
        op_of_source: index of the op of each source by its name in `Trace.sources`.
        op_of_node: index of the op that each computing node is; views have none.
        op_of_update: index of the update of each parameter by its path.
    """

    def __init__(self, trace: Trace, state: Mapping[str, Tensor], updates: Updates) -> None:
        self.trace, self.state, self.updates = trace, state, updates
        self.storages = find_storages(trace)
        self.ops: list[dict[str, Any]] = []
        self.op_of: dict[Storage, int] = {}
        self.readers: dict[Storage, list[int]] = {}
        self.op_of_source: dict[str, int] = {}
        self.op_of_node: dict[fx.Node, int] = {}
        self.op_of_update: dict[str, int] = {}
        self.cast_gradients: dict[Storage, float] = {}
        self.n_groups = 0
        self.times_named: dict[str, int] = {}

    def build(self, name: str) -> OpGraph:
        """Builds the op graph of the trace; what cannot be printed in a name is escaped."""
        live = live_nodes(self.trace)
        for node in self.trace.nodes:
            is_source = node.op in ("placeholder", "get_attr")
            if (
                node in live
                and not is_source
                and any(made.node is node for made in self._storages_of([node]))
            ):
                self._add_compute(node)
        self._add_unread()
        for path in self.state:
            if path in self.trace.gradients and path in self.updates.rules:
                self._add_update(path)
        live_storages = {self.storages[node] for node in live if isinstance(self.storages[node], Storage)}
        tensors = [
            (op, self.cast_gradients.get(storage, storage.bytes), self.readers.get(storage, []))
            for storage, op in self.op_of.items()
            if storage in live_storages
        ]
        return build_graph(name, "", self.ops, tensors)

    def _add_compute(self, node: fx.Node) -> None:
        reads = self._storages_of(node.all_input_nodes)
        backward = node in self.trace.backward
        path, scope = "", ""
        if call := call_of(node):
            path, scope = call.path, f"{call.path}@{call.number}" if call.number else call.path
        kind = str(op_packet(node))
        prefix = "recompute" if RUN in node.meta else "gradients"
        op_name = "/".join([prefix] * backward + [scope] * bool(scope) + [kind.rpartition(".")[2]])
        group = self._add_sources(reads)
        self.op_of_node[node] = self._add_op(
            op_name,
            reads,
            self._storages_of([node]),
            type=kind,
            module=path,
            phase="backward" if backward else "forward",
            flops=op_flops(node),
            bytes_moved=op_bytes(node, self._sole_storage),
            colocate=group,
            dtype=op_dtype(node),
            **({"gemm": gemm} if (gemm := op_gemm(node)) else {}),
            **({"image": image} if (image := op_image(node)) else {}),
            **({"source": line} if (line := printable(source_of(node))) else {}),
            **self._shape(tensors_of(node_value(node))),
        )

    def _shape(self, made: Sequence[Tensor]) -> dict[str, object]:
        """The shape of the first tensor that an op makes, where it makes one."""
        return {"shape": [int(extent) for extent in made[0].shape]} if len(made) else {}

    def _sole_storage(self, node: fx.Node) -> tuple[object, float]:
        storage = next(iter(self._storages_of([node])), None)
        return storage, storage.bytes if storage else 0.0

    def _add_sources(self, reads: Iterable[Storage]) -> int | None:
        """Adds the sources that are read here first.

        Returns:
            The colocation group of the sources and the op that reads them first; None if no source is new.
        """
        self._add_loss_gradient(reads)
        new = [storage for storage in reads if storage not in self.op_of]
        if not new:
            return None
        group = self._new_group()
        for storage in new:
            self._add_source(self.trace.sources[storage.node], storage, group)
        return group

    def _add_source(self, name: str, storage: Storage | None, group: int | None) -> None:
        tensor = self.state.get(name)
        values = [tensor] if tensor is not None else tensors_of(storage and node_value(storage.node))
        self.op_of_source[name] = self._add_op(
            name,
            [],
            [storage] if storage else [],
            type="input" if tensor is None else "parameter",
            module=name.rpartition(".")[0] if tensor is not None else "",
            resident_bytes=0 if tensor is None else self._resident_bytes(name, tensor, storage),
            colocate=group,
            dtype=tensor_dtype(values),
            **self._shape(values),
        )

    def _resident_bytes(self, path: str, tensor: Tensor, storage: Storage | None) -> float:
        if path not in self.trace.gradients:
            return storage.bytes if storage else size_bytes(tensor)
        _, gradient_bytes = self._gradient_size(path, tensor)
        if path not in self.updates.rules:
            return size_bytes(tensor) + gradient_bytes
        kept_bytes = self.updates.state_bytes(path, tensor) + self.updates.master_bytes(tensor)
        return size_bytes(tensor) + gradient_bytes + kept_bytes

    def _gradient_size(self, path: str, tensor: Tensor) -> tuple[float, float]:
        """The share of a parameter's elements that its gradient holds, and the bytes of the gradient."""
        gradient = self.trace.gradients[path]
        if not is_sparse(gradient):
            return 1.0, self.updates.gradient_bytes(tensor)
        count, gradient_bytes = sparse_sizes(gradient)
        return min(1.0, count / max(1, tensor.numel())), gradient_bytes

    def _add_unread(self) -> None:
        """Adds the parameters and buffers that no op reads, those of a module together; they take memory.

        A single number, such as a counter of batches, goes with what its module reads.
        """
        storage_of = {name: self.storages[node] for node, name in self.trace.sources.items()}
        read = {path.rpartition(".")[0]: self.ops[op]["colocate"] for path, op in self.op_of_source.items()}
        group_of = defaultdict[str, int](self._new_group)
        for path, tensor in self.state.items():
            if path not in self.op_of_source:
                module = path.rpartition(".")[0]
                is_counter = tensor.numel() == 1 and module in read and path not in self.trace.gradients
                self._add_source(path, storage_of.get(path), read[module] if is_counter else group_of[module])

    def _add_loss_gradient(self, reads: Iterable[Storage]) -> None:
        """Adds the gradient of the loss by itself, which starts the backward pass, if first read here."""
        for storage in reads:
            if storage.node in self.trace.tangents and storage not in self.op_of:
                loss = self._storages_of([self.trace.tangents[storage.node]])
                group = self._add_sources(loss)
                self.op_of_node[storage.node] = self._add_op(
                    "gradients/ones_like",
                    loss,
                    [storage],
                    type="aten.ones_like",
                    phase="backward",
                    bytes_moved=storage.bytes,
                    colocate=group,
                    dtype=tensor_dtype(tensors_of(node_value(storage.node))),
                )

    def _storages_of(self, nodes: Iterable[fx.Node]) -> list[Storage]:
        """Returns the distinct storages behind some nodes, in order."""
        return list(dict.fromkeys(leaf for node in nodes for leaf in storages_in(self.storages[node])))

    def _add_update(self, path: str) -> None:
        tensor, gradients = self.state[path], self._storages_of([self.trace.gradients[path]])
        share, gradient_bytes = self._gradient_size(path, tensor)
        if self.updates.gradient_dtype and not is_sparse(self.trace.gradients[path]):
            self.cast_gradients |= dict.fromkeys(gradients, gradient_bytes)
        self._add_loss_gradient(gradients)
        name = self.updates.rules[path].name
        self.op_of_update[path] = self._add_op(
            f"{name}/{path}",
            gradients,
            [],
            type=f"optim.{name}",
            module=path.rpartition(".")[0],
            phase="optimizer",
            colocate=self.ops[self.op_of_source[path]]["colocate"],
            **{"dtype": tensor_dtype([tensor])} | self.updates.cost(path, tensor, share),
        )

    def _new_group(self) -> int:
        self.n_groups += 1
        return self.n_groups - 1

    def _add_op(
        self,
        name: str,
        reads: Iterable[Storage],
        makes: Iterable[Storage],
        *,
        module: str = "",
        **fields: object,
    ) -> int:
        index = len(self.ops)
        # Names of modules and inputs may hold anything; those of a graph can be printed.
        self.ops.append({"name": self._unique(printable(name)), "module": printable(module), **fields})
        for storage in reads:
            self.readers.setdefault(storage, []).append(index)
        for storage in makes:
            self.op_of[storage] = index
        return index

    def _unique(self, name: str) -> str:
        """Returns the name, with a running number if it is taken."""
        unique = name
        while unique in self.times_named:
            self.times_named[name] += 1
            unique = f"{name}_{self.times_named[name]}"
        self.times_named[unique] = 0
        return unique
