"""One class for all that is chosen by name: orders, families, cluster presets, placers and encoders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from threading import RLock
from types import MappingProxyType
from typing import TypeVar

from graphs.system.errors import InputError
from graphs.system.plugins import load_entry_points, load_plugins

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Entries of one kind by name: in the order of `modules`, and within one in that of their registration.

    Args:
        kind: what an entry is, for messages, e.g. `order`.
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
                import_module(self._waiting.pop(0))
            if self._group:
                load_entry_points(self._group)
            self._entries = dict(sorted(self._entries.items(), key=lambda item: self._rank(item[0])))
            self._is_loaded = True

    def _rank(self, name: str) -> int:
        module = self._module_of[name]
        return self._modules.index(module) if module in self._modules else len(self._modules)
