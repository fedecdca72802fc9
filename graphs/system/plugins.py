"""Imports modules of the user's and of other packages that register placers, orders and other entries."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from threading import RLock
from types import ModuleType

from graphs.system.errors import InputError
from graphs.system.user_code import users_code

VARIABLE = "PLACEWALK_PLUGINS"
"""Environment variable that names the plugins, separated by `os.pathsep`; child processes inherit it."""
LINE_END = "\n"
"""Separates the plugins in the variable where one of their paths contains `os.pathsep`."""
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
        variable = os.environ.get(VARIABLE, "")
        known = [name for name in variable.split(LINE_END if LINE_END in variable else os.pathsep) if name]
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
            os.environ[VARIABLE] = LINE_END.join([*plugins, ""])


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
    try:
        with users_code(PluginError):
            if file is not None:
                _import_file(file)
            else:
                look_in(os.getcwd())
                importlib.import_module(name)
    except InputError as error:
        raise PluginError(f"--plugin {name}: {error}") from error


def _import_file(file: Path) -> ModuleType:
    """Imports a file by its path; its folder comes last on the import path."""
    name = file.stem
    known = find_spec(name) if name.isidentifier() else None
    look_in(str(file.parent))
    if known is not None and Path(known.origin or "").resolve() != file:
        raise PluginError(f"another module is called '{name}'; rename the file")
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, file)
    assert spec is not None, "the name ends in .py"
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
