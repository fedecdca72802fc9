"""Turns a device program that was captured on the CPU into one for a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from envs.runtime.device_program import Call, DeviceProgram

FUNCTIONS = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": "attention",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": "attention_backward",
}
"""Replacements of functions that only the CPU has."""


def bound_to(program: DeviceProgram, device: torch.device) -> DeviceProgram:
    """Returns the device program with its calls on a device.

    Calls name the device, where they named the CPU, and functions that only the CPU has are replaced.
    """
    instructions = [_bound(each, device) if isinstance(each, Call) else each for each in program.instructions]
    return replace(program, instructions=tuple(instructions))


def _bound(call: Call, device: torch.device) -> Call:
    return replace(
        call,
        function=FUNCTIONS.get(call.function, call.function),
        arguments=_on(call.arguments, device),
        keywords=_on(call.keywords, device),
    )


def _on(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.device):
        return device
    if isinstance(value, dict):
        return {key: _on(item, device) for key, item in value.items()}
    return type(value)(_on(item, device) for item in value) if isinstance(value, list | tuple) else value
