"""A module split into stages by `torch.distributed.pipelining`."""

from __future__ import annotations

import operator
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property

import torch
from torch import Tensor, fx, nn
from torch.distributed.pipelining import Pipe, PipelineStage, SplitPoint, pipeline
from torch.utils.checkpoint import checkpoint

from envs.pipeline.pipeline import PipelineError
from graphs.capture.captured_step import CapturedStep
from graphs.capture.step import Step, one_line

MODEL = "model."
"""Beginning of the paths of the module in a captured step."""
LOSS = (torch.empty((), device="meta"),)
PART = f"part.{MODEL}"
"""Beginning of these paths in a stage."""


class StageModule(nn.Module):
    """A part of a split module that also hands on the values which later stages read.

    So several stages may read a value, and it may skip stages. The stages of `Pipe` itself cannot train where
    several stages read a value, and read no inputs of the module but in the first stage (torch 2.13).

    Args:
        part: the part.
        reads: names of its arguments.
        makes: names of its results.
        receives, returns: names of the values that come from the stage before, and go to the next. Copies
            of these are returned, as torch detaches what a stage returns in place.
        recomputes: whether the part runs again before its backward pass, as in torch.utils.checkpoint.
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
        self._recomputes, self._changed = recomputes, changed

    def forward(self, *received: Tensor, **inputs: Tensor) -> tuple[Tensor, ...]:
        """Runs the part; `inputs` are those of the whole module by name."""
        values = inputs | dict(zip(self._receives, map(_with_dense_gradient, received), strict=True))
        made = self._run(*(values[name] for name in self._reads))
        values |= zip(self._makes, made if isinstance(made, tuple | list) else (made,), strict=True)
        return tuple(values[name].clone(memory_format=torch.contiguous_format) for name in self._returns)

    def _run(self, *arguments: Tensor) -> Tensor | tuple[Tensor, ...]:
        if not self._recomputes:
            return self.part(*arguments)  # type: ignore[no-any-return]
        return checkpoint(self.part, *arguments, use_reentrant=False, context_fn=self._contexts)  # type: ignore[no-any-return]

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Returns the contexts of the first and of the second run, which has the buffers of the first."""
        return nullcontext(), self._with_buffers(self._copied_buffers())

    @contextmanager
    def _with_buffers(self, first: dict[str, Tensor]) -> Iterator[None]:
        present = self._copied_buffers()
        try:
            self.part.load_state_dict(first, strict=False)
            yield
        finally:
            self.part.load_state_dict(present, strict=False)

    def _copied_buffers(self) -> dict[str, Tensor]:
        return {path: self.part.get_buffer(path).clone() for path in self._changed}


def _with_dense_gradient(received: Tensor) -> Tensor:
    """Returns a view whose gradient is contiguous, as backends can send no other."""
    view = received.view_as(received)
    if view.requires_grad:
        view.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
    return view


class SplitStep:
    """The loss of a captured step on a module, split into stages.

    Args:
        paths: of the modules that all stages but the first begin with.

    Attributes:
        inputs: names of the step's inputs, in its order.
        shared: parameters that several stages use, with these stages.

    Raises:
        PipelineError: torch cannot split the module there.
    """

    def __init__(self, captured: CapturedStep, module: nn.Module, paths: Sequence[str]) -> None:
        step = captured.step.on(module)
        self._pipe = _split(step, module, paths)
        self._changed = {f"{MODEL}{path}" for path in captured.trace.new_values}
        nodes = self._pipe.info().graph.nodes
        self._parts = [node for node in nodes if node.op == "call_module"]
        self.inputs = [node.name for node in nodes if node.op == "placeholder"]
        if len(self._parts) != len(paths) + 1:
            raise PipelineError(
                f"torch splits the module into {len(self._parts)} stages instead of {len(paths) + 1}: one of "
                f"{', '.join(paths)} is called several times or never; use another number of devices"
            )
        self.shared = self._take_own(step)

    def _take_own(self, step: Step) -> list[tuple[nn.Parameter, list[int]]]:
        """Gives the parts the module's own parameters where `Pipe` has made copies, since parts share them.

        Returns:
            Parameters that several parts have, with the stages of these.
        """
        stages = defaultdict[nn.Parameter, dict[int, None]](dict)
        for stage in range(len(self._parts)):
            part = self._pipe.get_stage_module(stage)
            for path, _ in list(part.named_parameters(remove_duplicate=False)):
                owner, _, name = path.rpartition(".")
                own = step.get_parameter(path)
                setattr(part.get_submodule(owner), name, own)
                stages[own][stage] = None
        shared = (own for own in step.parameters() if len(stages[own]) > 1)  # in one order on all ranks
        return [(own, list(stages[own])) for own in shared]

    def stage(self, index: int, device: torch.device, *, recomputes: bool) -> PipelineStage:
        """Makes a stage, which may recompute, and moves its parameters to a device."""
        node, receives = self._parts[index], self._passing(index)
        makes = [each.name for each in _results(node)]
        part = self._pipe.build_stage(index, device).submod
        module = StageModule(
            part,
            reads=[each.name for each in node.args if isinstance(each, fx.Node)],
            makes=makes,
            receives=receives,
            returns=self._passing(index + 1) or makes,
            recomputes=recomputes,
            changed=[path for path, _ in part.named_buffers() if path in self._changed],
        )
        return PipelineStage(
            module,
            index,
            len(self._parts),
            device,
            input_args=tuple(self._examples[name] for name in receives),
            output_args=tuple(self._examples[name] for name in self._passing(index + 1)) or LOSS,
        )

    @cached_property
    def _examples(self) -> dict[str, Tensor]:
        """Tensors without values like those that parts read, by name; torch sends gradients of all floats."""
        found = {}
        for stage, node in enumerate(self._parts):
            part = self._pipe.get_stage_module(stage)
            assert isinstance(part, fx.GraphModule), "Pipe splits into graphs"
            reads = [each for each in part.graph.nodes if each.op == "placeholder"]
            for read, value in zip(reads, node.args, strict=True):
                like = read.meta["val"]
                found[value.name] = torch.empty(
                    like.shape, dtype=like.dtype, device="meta", requires_grad=like.is_floating_point()
                )
        return found

    def _passing(self, index: int) -> list[str]:
        """Names the values that are made before a stage, and read by it or a later one."""
        later = set(self._parts[index:])
        made = (value for node in self._parts[:index] for value in _results(node))
        return [value.name for value in made if later & set(value.users)]


def _results(node: fx.Node) -> list[fx.Node]:
    """The values that a part makes: itself, or the items of its tuple."""
    items = [user for user in node.users if user.target is operator.getitem]
    return sorted(items, key=lambda item: int(str(item.args[1]))) or [node]


def _split(step: Step, module: nn.Module, paths: Sequence[str]) -> Pipe:
    device = next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
    arguments = tuple(torch.zeros(each.shape, dtype=each.dtype, device=device) for each in step.tensors)
    try:
        with _unpatched(module, paths), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's, about its own code
            spec = {f"{MODEL}{path}": SplitPoint.BEGINNING for path in paths}
            return pipeline(step, arguments, split_spec=spec)
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise PipelineError(
            f"torch.distributed.pipelining cannot split the module: {one_line(cause)}"
        ) from error


@contextmanager
def _unpatched(module: nn.Module, paths: Sequence[str]) -> Iterator[None]:
    """Takes back the `forward` that torch gives to the modules at which it splits."""
    parts = [module.get_submodule(path) for path in paths]
    own = [part.__dict__.get("forward") for part in parts]
    try:
        yield
    finally:
        for part, forward in zip(parts, own, strict=True):
            for name in ("forward", "_orig_forward"):
                part.__dict__.pop(name, None)
            if forward is not None:
                part.__dict__["forward"] = forward
