"""A module split into stages for `torch.distributed.pipelining`, from a flat trace of `torch.export`.

`torch.distributed.pipelining.pipeline` splits a tree of modules instead. It names a module anew at each
further call, and loses tensors that several modules hold.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.distributed.pipelining import PipelineStage
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from envs.pipeline.pipeline import PipelineError
from graphs.capture.captured_step import CapturedStep
from graphs.capture.checkpoints import marked_regions
from graphs.capture.module_calls import call_of, record_calls
from graphs.capture.step import Step, one_line
from graphs.capture.tracing import FlatState, without_generators

MODEL = "model."
"""Beginning of the paths of the module in a part."""
LOSS = (torch.empty((), device="meta"),)
ASSIGNING = tuple(getattr(torch.ops.aten, name).default for name in ("detach", "clone", "copy_"))
PART = f"part.{MODEL}"
"""Beginning of these paths in a stage."""


class StageModule(nn.Module):
    """A part of a split module that also hands on the values which later stages read.

    So several stages may read a value, and it may skip stages. The stages of torch's `Pipe` cannot train
    where several stages read a value, and read no inputs of the module but in the first stage (torch 2.13).

    Args:
        part: the part.
        reads: names of its arguments.
        makes: names of its results.
        receives, returns: names of the values that come from the stage before, and go to the next. Copies
            of these are returned, as torch detaches what a stage returns in place.
        recomputes: true if the part runs again before its backward pass, as in torch.utils.checkpoint.
        changed: paths of the buffers of the part that it changes; the second run leaves them as they are.
    """

    def __init__(
        self,
        part: nn.Module,
        reads: Sequence[str],
        makes: Sequence[str],
        receives: Sequence[str],
        returns: Sequence[str],
        *,
        recomputes: bool = False,
        changed: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.part, self._reads, self._makes = part, reads, makes
        self._receives, self._returns = receives, returns
        self._recomputes, self.changed = recomputes, changed

    def forward(self, *received: Tensor, **inputs: Tensor) -> tuple[Tensor, ...]:
        """Runs the part; `inputs` are those of the whole module by name."""
        values = inputs | dict(zip(self._receives, map(_with_dense_gradient, received), strict=True))
        values |= zip(self._makes, self._run(*(values[name] for name in self._reads)), strict=True)
        return tuple(values[name].clone(memory_format=torch.contiguous_format) for name in self._returns)

    def _run(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        if not self._recomputes:
            return self.part(*arguments)

        # Those of the first and of the second run, which has the buffers of the first.
        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), self._with_buffers(self._copied_buffers())

        return checkpoint(self.part, *arguments, use_reentrant=False, context_fn=contexts)

    @contextmanager
    def _with_buffers(self, first: dict[str, Tensor]) -> Iterator[None]:
        present = self._copied_buffers()
        try:
            self.part.load_state_dict(first, strict=False)
            yield
        finally:
            self.part.load_state_dict(present, strict=False)

    def _copied_buffers(self) -> dict[str, Tensor]:
        return {path: self.part.get_buffer(path).clone() for path in self.changed}


@dataclass(frozen=True, eq=False)
class StagePart:
    """A stage that no process has yet.

    Attributes:
        receives, returns: tensors on the meta device like those that come from the stage before, and go to
            the next.
    """

    module: StageModule
    index: int
    n_stages: int
    device: torch.device
    receives: tuple[Tensor, ...]
    returns: tuple[Tensor, ...]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Parameters, buffers and constants by name; those of the module begin with `PART`."""
        return {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}

    def stage(self, group: dist.ProcessGroup | None) -> PipelineStage:
        """Makes the stage of this process, and moves its parameters to the device."""
        return PipelineStage(
            self.module.to(self.device),
            self.index,
            self.n_stages,
            self.device,
            input_args=self.receives,
            output_args=self.returns,
            group=group,
        )


def _with_dense_gradient(received: Tensor) -> Tensor:
    """Returns a view whose gradient is contiguous, as backends can send no other."""
    view = received.view_as(received)
    if view.requires_grad:
        view.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
    return view


class SplitStep:
    """The loss of a captured step on a module, split into stages.

    Args:
        paths: paths of the modules that all stages but the first begin with, at their first call.

    Attributes:
        inputs: names of the step's inputs, in its order.
        shared: paths of the parameters that several stages use, with these stages.

    Raises:
        PipelineError: torch cannot trace the module, or several stages use a buffer that changes.
    """

    def __init__(self, captured: CapturedStep, module: nn.Module, paths: Sequence[str]) -> None:
        step = captured.step.on(module)
        traced = _traced(step)
        self._n_stages, self._stage_of = len(paths) + 1, _stages(traced.graph, paths)
        self._changed = {f"{MODEL}{path}" for path in captured.trace.new_values}
        self.inputs = [node.name for node in traced.graph.find_nodes(op="placeholder")]
        state = [(f"{MODEL}{path}", tensor) for path, tensor in step.state.items()]
        self._attributes: dict[fx.Node, tuple[str, Any]] = {}
        for node in traced.graph.find_nodes(op="get_attr"):  # those of `FlatState` are numbers
            name, value = str(node.target), operator.attrgetter(node.target)(traced)
            self._attributes[node] = state[int(name)] if name.isdecimal() else (name, value)
        stages = defaultdict[str, dict[int, None]](dict)
        for node, (path, _) in self._attributes.items():
            stages[path] |= dict.fromkeys(self._stage_of[user] for user in node.users)
        for path in (path for path, _ in state if path in self._changed and len(stages[path]) > 1):
            raise PipelineError(
                f"buffer '{path.removeprefix(MODEL)}' changes, and stages "
                f"{' and '.join(map(str, stages[path]))} use it, as its module is called several times; use "
                "another number of devices, or a module for each call"
            )
        self.shared = tuple(  # in one order on all ranks
            (path.removeprefix(MODEL), tuple(stages[path]))
            for path, tensor in state
            if tensor.requires_grad and len(stages[path]) > 1
        )

    def part(self, index: int, device: torch.device, *, recomputes: bool) -> StagePart:
        """Returns the part of a stage for a device, which may recompute; its parameters are the module's."""
        part, reads, makes = self._part(index)
        _call_on(device, part)
        receives, returns = self._passing(index), self._passing(index + 1)
        module = StageModule(
            part,
            reads=[node.name for node in reads],
            makes=[node.name for node in makes],
            receives=[node.name for node in receives],
            returns=[node.name for node in returns or makes],
            recomputes=recomputes,
            changed=[path for path, _ in part.named_buffers() if path in self._changed],
        )
        examples = tuple(map(_example, receives)), tuple(map(_example, returns)) or LOSS
        return StagePart(module, index, self._n_stages, device, *examples)

    def _part(self, stage: int) -> tuple[fx.GraphModule, list[fx.Node], list[fx.Node]]:
        """Makes the part of a stage; returns it, the values that it reads, and those that it makes."""
        stage_of, graph = self._stage_of, fx.Graph()
        nodes = [node for node in stage_of if stage_of[node] == stage]
        read = dict.fromkeys(
            source for node in nodes for source in node.all_input_nodes if source not in nodes
        )
        reads = [node for node in read if node not in self._attributes]
        makes = [node for node in nodes if any(stage_of.get(user) != stage for user in node.users)]
        copies = {node: graph.placeholder(node.name) for node in reads}
        attributes = [(node, *self._attributes[node]) for node in read if node in self._attributes]
        copies |= {node: graph.get_attr(path) for node, path, _ in attributes}
        for node in nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in makes))
        return fx.GraphModule({path: value for _, path, value in attributes}, graph), reads, makes

    def _passing(self, index: int) -> list[fx.Node]:
        """Lists the values that are made before a stage, and read by it or a later one."""
        stage_of = self._stage_of
        made = (node for node in stage_of if stage_of[node] < index)
        return [node for node in made if any(stage_of.get(user, -1) >= index for user in node.users)]


def _call_on(device: torch.device, part: fx.GraphModule) -> None:
    """Makes the calls of a part on a device, which they may name."""
    for module in part.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                node.args, node.kwargs = tree_map_only(
                    torch.device, lambda _: device, (node.args, node.kwargs)
                )
            module.recompile()


def _example(node: fx.Node) -> Tensor:
    """Makes a tensor without values like one that stages hand on; torch sends gradients of all floats."""
    like: Tensor = node.meta["val"]
    has_gradient = like.is_floating_point()
    return torch.empty(like.shape, dtype=like.dtype, device="meta", requires_grad=has_gradient)


def _stages(graph: fx.Graph, paths: Sequence[str]) -> dict[fx.Node, int]:
    """Numbers the stage of each op; a stage begins with the first op of its module."""
    stages: dict[fx.Node, int] = {}
    stage = 0
    for node in (node for node in graph.nodes if node.op == "call_function"):
        results = [] if isinstance(node.target, OpOverload) else node.users  # of code under no_grad
        call = next(filter(None, map(call_of, [node, *results])), None)
        if call is not None and any(
            f"{call.path}.".startswith(f"{path}.") for path in paths[stage : stage + 1]
        ):
            stage += 1
        made_in = [stages[source] for source in node.all_input_nodes if source in stages]
        # What carries an assignment stands around the forward pass, but belongs to what is assigned and read.
        follows = node.target is operator.getitem or (call is None and node.target in ASSIGNING)
        stages[node] = max(made_in) if follows and made_in else stage
    for node in stages:
        if call_of(node) is None and node.target in ASSIGNING and node.users:
            stages[node] = max(stages[node], min(stages.get(user, stage) for user in node.users))
    if stage < len(paths):
        raise PipelineError(
            f"no stage can begin with module '{paths[stage]}', as torch.export makes one op of the code "
            "around it, such as autocast; use another number of devices"
        )
    return stages


def _traced(step: Step) -> fx.GraphModule:
    device = next((tensor.device for tensor in step.state.values()), torch.device("cpu"))
    arguments = tuple(torch.zeros(like.shape, dtype=like.dtype, device=device) for like in step.tensors)
    try:
        with fx.traceback.preserve_node_meta(), record_calls(*step.models), marked_regions():
            traced = torch.export.export(FlatState(step), arguments).module(check_guards=False)
            without_generators(traced.graph)
            return traced
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise PipelineError(f"torch.export cannot trace the module: {one_line(cause)}") from error
