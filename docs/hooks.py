"""What the site takes from the rest of the repository: pages, sections of pages, files, and tables of names.

In a page, `<!-- section FILE ## Heading -->` is a section of a file, and `<!-- table NAME WORD -->` is what
`TABLES[NAME](WORD)` returns. Links are written as they hold between files of the repository.
"""

import ast
import inspect
import posixpath
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LAB = ROOT / "agent" / "lab"
sys.path.insert(0, str(ROOT))
PAGES = {
    "agent/lab/RESULTS.md": "results/index.md",
    "agent/lab/HISTORY.md": "results/history.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "runs/README.md": "reference/runs.md",
    "agent/instances/README.md": "reference/instances.md",
    **{f"agent/lab/results/{file.name}": f"results/{file.name}" for file in (LAB / "results").iterdir()},
}
"""Where files of the repository stand in the site."""


def on_config(config: Any) -> None:
    """Lists the pages of results as their index does."""
    _, *parts = re.split(r"^## (.+)$", (LAB / "RESULTS.md").read_text(encoding="utf-8"), flags=re.M)
    lists = [re.findall(r"\]\((results/\w+\.md)\)", text) for text in parts[1::2]]
    sections = [{heading: pages} for heading, pages in zip(parts[::2], lists, strict=True)]
    config.nav.insert(-1, {"Results": ["results/index.md", *sections, "results/history.md"]})


def on_files(files: Files, config: Any) -> None:
    """Adds the files that stand elsewhere in the repository."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Puts in sections and tables, leads links to where their files stand, and checks docstrings."""

    def section(found: re.Match[str]) -> str:
        content, (marks, _, _) = (ROOT / found[1]).read_text(encoding="utf-8"), found[2].partition(" ")
        wanted = rf"^{re.escape(found[2])}$.*?(?=^#{{2,{len(marks)}}} |\Z)"
        matched = re.search(wanted, content, flags=re.M | re.S)
        if matched is None:
            raise PluginError(f"{page.file.src_uri}: {found[1]} has no section '{found[2]}'")
        return _lead_links(matched[0], found[1], page.file.src_uri)

    text = _lead_links(text, str(Path(page.file.abs_src_path).relative_to(ROOT)), page.file.src_uri)
    text = re.sub(r"^<!-- section (\S+) (.+) -->$", section, text, flags=re.M)
    for name in re.findall(r"^::: (\S+)", text, flags=re.M):
        _check_docstrings(name)
    return re.sub(r"^<!-- table (\S+) (.+) -->$", lambda found: TABLES[found[1]](found[2]), text, flags=re.M)


def _lead_links(text: str, source: str, page: str) -> str:
    def lead(found: re.Match[str]) -> str:
        if found[3] is None:  # a block of code
            return found[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[3]))
        place = PAGES.get(target, target.removeprefix("docs/"))
        if place == target:
            return found[2] if (ROOT / target).exists() else found[0]  # the site does not hold every file
        return f"{found[1]}({posixpath.relpath(place, posixpath.dirname(page))}{found[4] or ''})"

    link = r"^```.*?^```$|(!?\[([^\]]*)\])\(([^)#:\s]+)(#[^)]*)?\)"
    return re.sub(link, lead, text, flags=re.M | re.S)


def _check_docstrings(name: str) -> None:
    module, _, wanted = name.rpartition(".")
    tree = ast.parse(Path(find_spec(module).origin).read_text(encoding="utf-8"))
    *_, found = (node for node in tree.body if getattr(node, "name", "") == wanted)
    for each in (found, *(found.body if isinstance(found, ast.ClassDef) else [])):
        is_public = isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name[0] != "_"
        if is_public and not ast.get_docstring(each):
            raise PluginError(f"{name}: {each.name} is in the reference and has no docstring")


def _table(*rows: Sequence[str]) -> str:
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(' '.join((cell or '').split()) for cell in row)} |\n" for row in rows)


def _find(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _flags(place: str) -> str:
    text = ""
    for group in _find(place)()._action_groups[2:]:  # the first two hold --help
        rows = [["flag", "value", "meaning"]]
        for flag in group._group_actions:
            if not flag.help.partition("(default")[0].strip():
                raise PluginError(f"{place}: {flag.option_strings} has no help")
            value = f"`{flag.metavar}`{' ...' * (flag.nargs == '+')}" if flag.metavar else ""
            rows.append([f"`{flag.option_strings[0]}`", value, flag.help.replace("%%", "%")])
        text += f"### {group.title}\n\n{_table(*rows)}\n"
    return text


def _registry(words: str) -> str:
    """The entries of a registry, those of one beginning, with what docstrings say of them."""
    place, _, beginning = words.partition(" ")
    rows = []
    for name, entry in _find(place).items():
        if name.startswith(beginning):
            made = getattr(entry, "guided", None) or getattr(entry, "strategy", entry)
            made = _find(entry.entry_point) if hasattr(entry, "entry_point") else made
            wrapped = inspect.getclosurevars(made).nonlocals if inspect.isfunction(made) else {}
            text = inspect.getdoc(wrapped.get("strategy", wrapped.get("visit", made)))
            rows.append([f"`{name}`", re.split(r"\n\n(?:Raises|Observation)", text)[0]])
    return _table(["name", "what it is"], *rows)


def _columns(words: str) -> str:
    """The fields of the class of a table's rows, or those listed, with what docstrings say of them."""
    row, *listed = map(_find, words.split())
    types = {name: getattr(kind, "__forward_arg__", kind) for name, kind in row.__annotations__.items()}
    names = listed[0] if listed else types
    section = (inspect.getdoc(row) or "").partition("Attributes:")[2]
    others = vars(sys.modules[row.__module__]) | vars(row)
    said = {name: others[name].__doc__ for name in names if name not in types}
    for group, text in re.findall(r"^    ([\w, ]+): ((?:.|\n      )*)", section, flags=re.M):
        said |= dict.fromkeys(group.split(", "), text)
    cells = [[f"`{name}`", f"`{types[name]}`" if name in types else "", said.get(name, "")] for name in names]
    return _table(["column", "type", "meaning"], *cells)


def _kinds(place: str) -> str:
    """The rows of a function, and what a module says of them."""
    rows, module = place.split()
    table = _table(["name", "memory for tensors", "op times", "links", "between nodes"], *_find(rows)())
    return f"{inspect.getdoc(import_module(module))}\n\n{table}"


TABLES = {"flags": _flags, "registry": _registry, "columns": _columns, "kinds": _kinds}
