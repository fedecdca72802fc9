"""Imports modules of the user's and of other packages that register placers, orders and other entries."""

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
PACKAGES = ("agent", "envs", "graphs")
_loading = RLock()
_loaded: set[str] = set()


class PluginError(InputError):
    """A plugin that cannot be imported or takes a name that is taken; the message says why."""


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


def look_in(folder: str) -> None:
    """Makes the modules of a user's folder importable, after all others; says which ones ours hide."""
    if folder in sys.path:
        return
    sys.path.append(folder)
    root = Path(__file__).parents[2]
    for name in PACKAGES if Path(folder).resolve() != root else ():
        for file in (Path(folder, f"{name}.py"), Path(folder, name, "__init__.py")):
            if file.is_file():
                print(f"{file}: hidden by Placewalk's package; rename it to import it", file=sys.stderr)


def load_entry_points(group: str) -> None:
    """Loads the entry points of a group that are not loaded yet, in the order of their names.

    Args:
        group: e.g. `placewalk.placers`. The value of an entry point names a module, or a thing in one.

    Raises:
        PluginError: one of them fails; the message names its package.
    """
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=group)):
        known = f"{group}:{point.name}={point.value}"
        if known in _loaded:
            continue
        _loaded.add(known)  # first, as it may look something up while it is loaded
        try:
            with users_code(PluginError):
                point.load()
        except BaseException as error:
            _loaded.discard(known)
            if not isinstance(error, InputError):
                raise
            package = point.dist.name if point.dist else "a package"
            raise PluginError(f"{package}: {group}: {point.name} = {point.value}: {error}") from error


def _absolute(name: str) -> str:
    return str(Path(name).resolve()) if name.endswith(".py") else name


def _import(name: str) -> None:
    file = Path(name) if name.endswith(".py") else None
    if file is not None and not file.is_file():
        raise PluginError(f"--plugin {name}: no such file")
    look_in(os.getcwd() if file is None else str(file.parent))
    try:
        with users_code(PluginError):
            module = importlib.import_module(name if file is None else file.stem)
    except InputError as error:
        raise PluginError(f"--plugin {name}: {error}") from error
    if file is not None and Path(module.__file__ or "").resolve() != file:
        raise PluginError(f"--plugin {name}: another module is called '{file.stem}'; rename the file")
