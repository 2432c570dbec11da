"""The package is laid out as `fcjax.__doc__` says: what there is, and what may import what."""

import ast
import graphlib
import pathlib
import re

import fcjax

ROOT = pathlib.Path(fcjax.__file__).parent
MAP = re.findall(r"^    (\w+) {2,}\S", fcjax.__doc__, re.MULTILINE)
FOLDERS = [name for name in MAP if (ROOT / name).is_dir()]


def _modules() -> dict[str, pathlib.Path]:
    parts = {
        path: path.relative_to(ROOT.parent).with_suffix("").parts for path in ROOT.rglob("*.py")
    }
    return {".".join(p for p in names if p != "__init__"): path for path, names in parts.items()}


MODULES = _modules()


def _imports(path: pathlib.Path) -> set[str]:
    """The package's modules that a file imports, at its top or in a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in MODULES else node.module for name in full}
    return names & MODULES.keys()


IMPORTS = {name: _imports(path) - {name} for name, path in MODULES.items()}


def test_the_map_names_all_that_there_is():
    there = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert sorted(MAP) == sorted(there - {"__init__", "__pycache__"})


def test_no_module_imports_itself_by_way_of_others():
    graphlib.TopologicalSorter(IMPORTS).prepare()


def test_no_folder_imports_one_that_stands_below_it():
    assert len(FOLDERS) == 10
    for name, imported in IMPORTS.items():
        folder = (name.split(".") + [""])[1]
        for other in {i.split(".")[1] for i in imported if "." in i} & set(FOLDERS):
            if folder in FOLDERS:
                assert FOLDERS.index(other) <= FOLDERS.index(folder), f"{name} imports {other}"


def test_modules_are_short():
    longest = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert not {name: lines for name, lines in longest.items() if lines > 300}
