"""Imports modules of the user's that register orders, placers, families, encoders or clusters."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import RLock

from graphs.system.errors import InputError
from graphs.system.user_code import users_code

VARIABLE = "PLACEWALK_PLUGINS"
"""Environment variable that names the plugins, joined by `os.pathsep`; child processes inherit it."""
_loading = RLock()
_loaded: set[str] = set()


class PluginError(InputError):
    """A plugin that cannot be imported; the message says why."""


def load_plugins(named: Sequence[str] = ()) -> None:
    """Imports plugins that are not imported yet, here and in every process that this one starts.

    Args:
        named: Python files (`.py`) or names of modules, besides those of the environment variable.

    Raises:
        PluginError: one of them is missing or fails.
    """
    with _loading:
        known = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
        plugins = list(dict.fromkeys(map(_absolute, [*known, *named])))
        for name in plugins:
            if name not in _loaded:
                _loaded.add(name)  # first, as a plugin may look something up while it is imported
                try:
                    _import(name)
                except BaseException:
                    _loaded.discard(name)
                    raise
        if plugins:
            os.environ[VARIABLE] = os.pathsep.join(plugins)


def _absolute(name: str) -> str:
    return str(Path(name).resolve()) if name.endswith(".py") else name


def _import(name: str) -> None:
    file = Path(name) if name.endswith(".py") else None
    if file is not None and not file.is_file():
        raise PluginError(f"--plugin {name}: no such file")
    folder = os.getcwd() if file is None else str(file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        with users_code(PluginError):
            module = importlib.import_module(name if file is None else file.stem)
    except InputError as error:
        raise PluginError(f"--plugin {name}: {error}") from error
    if file is not None and Path(module.__file__ or "").resolve() != file:
        raise PluginError(f"--plugin {name}: another module is called '{file.stem}'; rename the file")
