"""One class for all that is chosen by name: orders, families, cluster presets, placers and encoders.

Modules of the user's and of other packages, the plugins, register entries too.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from threading import RLock
from types import MappingProxyType, ModuleType
from typing import TypeVar

from graphs.system.errors import InputError
from graphs.system.user_code import users_code

T = TypeVar("T")
VARIABLE = "PLACEWALK_PLUGINS"
"""Environment variable that names the plugins, separated by `os.pathsep`; child processes inherit it."""
LINE_END = "\n"
"""Separates the plugins in the variable where one of their paths contains `os.pathsep`."""
PACKAGES = ("agent", "envs", "graphs")
_loading = RLock()
_loaded: set[str] = set()


class Registry(Mapping[str, T]):
    """Entries of one kind by name: in the order of `modules`, and within one in that of their registration.

    Args:
        kind: noun for an entry in messages, e.g. `order`.
        error: raised for a name that is unknown or taken.
        modules: imported at the first look-up; importing one registers its entries. A registry that nobody
            looks into loads nothing.
        entries: known from the start.
        group: entry points of installed packages that are loaded after `modules`; loading one registers its
            entries.
    """

    def __init__(
        self,
        kind: str,
        error: type[InputError],
        modules: Sequence[str] = (),
        entries: Mapping[str, T] = MappingProxyType({}),
        group: str = "",
    ) -> None:
        self.kind = kind
        self._error = error
        self._modules = tuple(modules)
        self._waiting = list(modules)
        self._group = group
        self._is_loaded = not modules and not group
        self._loading = RLock()
        self._entries = dict(entries)
        self._module_of = dict.fromkeys(entries, "")

    def register(self, name: str, entry: T, module: str = "") -> T:
        """Adds an entry and returns it.

        Args:
            module: the one of `modules` that registers it, so that entries stand in the same order whichever
                module is imported first.

        Raises:
            InputError: the name is taken; of the registry's own class of error.
        """
        if name in self._entries:
            raise self._error(f"{self.kind} '{name}' is registered twice; choose another name")
        self._entries[name] = entry
        self._module_of[name] = module
        return entry

    def __getitem__(self, name: str) -> T:
        """Returns the entry of a name.

        Raises:
            InputError: an unknown name, with those that are known; of the registry's own class of error.
        """
        return self._entries[self.check(name)]

    def check(self, name: str) -> str:
        """Returns the name itself, if there is an entry of it.

        Raises:
            InputError: as a look-up does.
        """
        if name not in self:
            raise self._error(f"unknown {self.kind} '{name}'; use one of {', '.join(self._entries)}")
        return name

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._entries)

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def _load(self) -> None:
        load_plugins()
        if self._is_loaded:
            return
        with (
            self._loading
        ):  # other threads wait; a module that looks something up while it is imported does not
            while self._waiting:
                importlib.import_module(self._waiting.pop(0))
            if self._group:
                load_entry_points(self._group)
            self._entries = dict(sorted(self._entries.items(), key=lambda item: self._rank(item[0])))
            self._is_loaded = True

    def _rank(self, name: str) -> int:
        module = self._module_of[name]
        return self._modules.index(module) if module in self._modules else len(self._modules)


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
        listed = [name for name in variable.split(LINE_END if LINE_END in variable else os.pathsep) if name]
        names = (str(Path(name).resolve()) if name.endswith(".py") else name for name in [*listed, *named])
        plugins = list(dict.fromkeys(names))
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
        entry = f"{group}:{point.name}={point.value}"
        if entry in _loaded:
            continue
        _loaded.add(entry)  # first, as it may look something up while it is loaded
        try:
            with users_code(PluginError):
                point.load()
        except BaseException as error:
            _loaded.discard(entry)
            if not isinstance(error, InputError):
                raise
            package = point.dist.name if point.dist else "a package"
            raise PluginError(f"{package}: {group}: {point.name} = {point.value}: {error}") from error


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
    installed = find_spec(name) if name.isidentifier() else None
    look_in(str(file.parent))
    if installed is not None and Path(installed.origin or "").resolve() != file:
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
