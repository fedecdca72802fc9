"""What the site takes from elsewhere in the repository: pages, sections of pages, files, and tables of names.

In a page, `<!-- section FILE ## Heading -->` is that section of a file, and `<!-- table NAME WORD -->` is what
`TABLES[NAME](WORD)` returns. Links are those of the files in the repository.
"""

from __future__ import annotations

import ast
import inspect
import posixpath
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
LAB = "agent/lab/"
PAGES = {
    f"{LAB}RESULTS.md": "results/index.md",
    f"{LAB}HISTORY.md": "results/history.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "runs/README.md": "reference/runs.md",
    "agent/instances/README.md": "reference/instances.md",
    **{f"{LAB}results/{file.name}": f"results/{file.name}" for file in (ROOT / LAB / "results").iterdir()},
}
"""Where files of the repository stand in the site."""
REGISTRIES = {
    "placers": "agent.placers.base:PLACERS",
    "orders": "graphs.orders:ORDERS",
    "clusters": "envs.cluster.presets:PRESETS",
    "encoders": "agent.policy.encoders.base:ENCODERS",
    "families": "graphs.families:DRAWERS",
}


def on_config(config: Any) -> None:
    """Lists the pages of results as their index does."""
    index = (ROOT / LAB / "RESULTS.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", index, flags=re.M)[1:]
    pages = [re.findall(r"\]\((results/\w+\.md)\)", part) for part in parts[1::2]]
    config.nav.append({"Results": ["results/index.md", *map(dict, zip(zip(parts[::2], pages)))]})


def on_files(files: Files, config: Any) -> None:
    """Adds the files that stand elsewhere in the repository."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Puts in sections and tables, leads links to where their files stand, and checks docstrings."""
    here = page.file.src_uri

    def section(found: re.Match[str]) -> str:
        content = (ROOT / found[1]).read_text(encoding="utf-8")
        if found[2]:
            level = found[2].partition(" ")[0]
            begin = re.search(rf"^{re.escape(found[2])}$", content, flags=re.M)
            if begin is None:
                raise PluginError(f"{here}: {found[1]} has no section '{found[2]}'")
            rest = content[begin.end() :]
            end = re.search(rf"^#{{1,{len(level)}}} ", rest, flags=re.M)
            content = found[2] + rest[: end and end.start()]
        return _lead_links(content, Path(found[1]).parent, here)

    text = _lead_links(text, Path(page.file.abs_src_path).relative_to(ROOT).parent, here)
    text = re.sub(r"^<!-- section (\S+) ?(.*?) ?-->$", section, text, flags=re.M)
    for name in re.findall(r"^::: (\S+)", text, flags=re.M):
        _check_docstrings(name)
    return re.sub(r"^<!-- table (\S+) (.+) -->$", lambda found: TABLES[found[1]](found[2]), text, flags=re.M)


def _lead_links(text: str, folder: Path, page: str) -> str:
    """Rewrites links between files of the repository; those to files that are not in the site are text."""

    def lead(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder.as_posix(), found[3]))
        place = PAGES.get(target, target.removeprefix("docs/") if target.startswith("docs/") else "")
        if place:
            return f"{found[1]}({posixpath.relpath(place, posixpath.dirname(page))}{found[4] or ''})"
        return found[2] if (ROOT / target).exists() else found[0]

    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    link = re.compile(r"(!?\[([^\]]*)\])\(([^)#:\s]+)(#[^)]*)?\)")
    return "".join(part if part.startswith("```") else link.sub(lead, part) for part in parts)


def _check_docstrings(name: str) -> None:
    """Checks that an object of the reference, and the public functions of a class, have docstrings."""
    module, _, kept = name.rpartition(".")
    source = find_spec(module)
    tree = ast.parse(Path(source.origin).read_text(encoding="utf-8"))
    kinds = (ast.ClassDef, ast.FunctionDef)
    for shown in (node for node in tree.body if isinstance(node, kinds) and node.name == kept):
        members = [each for each in shown.body if isinstance(each, kinds) and each.name[0] != "_"]
        for each in [shown, *members] if isinstance(shown, ast.ClassDef) else [shown]:
            if not ast.get_docstring(each) and "overload" not in map(ast.unparse, each.decorator_list):
                raise PluginError(f"{name}: {each.name} is in the reference and has no docstring")


def _table(head: tuple[str, ...], rows: Any) -> str:
    cells = [[f"{cell}".replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)) + "\n"


def _flags(command: str) -> str:
    """The flags of a command by the headings of its help."""
    parser = import_module(f"agent.commands.{command}_flags").make_parser()
    texts = []
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.option_strings]
        for action in actions:
            if not action.help:
                raise PluginError(f"{parser.prog} {action.option_strings[-1]} has no help")
        rows = [(f"`{a.option_strings[-1]}`", f"`{a.metavar}`" if a.metavar else "", a.help.replace("%%", "%")) for a in actions]
        texts += [f"### {group.title}\n\n{_table(('flag', 'value', 'meaning'), rows)}"] if rows else []
    return "\n".join(texts)


def _registry(words: str) -> str:
    """The entries of a registry, of placers those of one kind, with what their docstrings say."""
    name, _, kind = words.partition(" ")
    rows = []
    for entry, value in _find(REGISTRIES[name]).items():
        if kind and kind not in value.strategies:
            continue
        function = value if not kind else value.guided or value.strategies[kind]
        wrapped = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
        documented = wrapped.get("strategy", wrapped.get("visit", function))
        rows.append((f"`{entry}`", inspect.getdoc(documented).partition("Raises:")[0].strip()))
    return _table(("name", "what it is"), rows)


def _columns(words: str) -> str:
    """The columns of a table: fields of the class of its rows, or those listed, with what docstrings say."""
    row, *listed = map(_find, words.split())
    section = inspect.getdoc(row).partition("Attributes:")[2]
    said = re.findall(r"^    ([\w, ]+): ((?:.|\n      )*)", section, flags=re.M)
    meaning = {each: text for names, text in said for each in names.split(", ")}
    types = row.__annotations__
    names = listed[0] if listed else types
    properties = {each: inspect.getdoc(getattr(row, each)) for each in names if each not in types and hasattr(row, each)}
    rows = [(f"`{each}`", types.get(each, "float | None"), (meaning | properties).get(each, "")) for each in names]
    return _table(("column", "type", "meaning"), rows)


def _components(words: str) -> str:
    components = _find("agent.studies.study_trials:COMPONENTS")
    rows = [(f"`{name}`", text, f"`{settings}`") for name, (text, settings) in components.items()]
    return _table(("name", "leaves out", "settings of a training without it"), rows)


def _environments(words: str) -> str:
    _find("envs:PRESETS")
    known = [spec for name, spec in _find("gymnasium:registry").items() if name.startswith(words)]
    return _table(("id", "class"), [(f"`{spec.id}`", f"`{spec.entry_point}`") for spec in known])


def _find(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


TABLES = {
    "flags": _flags,
    "registry": _registry,
    "columns": _columns,
    "components": _components,
    "environments": _environments,
}
