"""The audit stands alone: it imports JAX, numpy and the standard library, and no model."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]

# Only the standard library and what JAX itself needs can be imported.
ALONE = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

ALLOWED = {"fcjax", "jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "opt_einsum"}

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ALLOWED | sys.stdlib_module_names or top.startswith("_sysconfigdata"):
            return super().find_spec(name, path, target)

sys.meta_path[:] = BuiltinImporter, FrozenImporter, Finder
"""

LOADED = """
import fcjax.audit
ours = sorted(m for m in sys.modules if m.startswith("fcjax."))
print(*(m for m in ours if not m.startswith("fcjax.audit")))
"""

ALL_MODULES = """
import pkgutil, fcjax.audit
for module in pkgutil.walk_packages(fcjax.audit.__path__, "fcjax.audit."):
    __import__(module.name)
"""


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", ALONE + code], cwd=ROOT, capture_output=True, text=True
    )


def test_it_imports_nothing_of_a_model():
    result = run(LOADED)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["fcjax.collectives", "fcjax.table"]


def test_every_module_of_it_imports_alone():
    result = run(ALL_MODULES)
    assert result.returncode == 0, result.stderr


def test_the_program_of_the_readme_is_certified_without_a_model():
    readme = (ROOT / "README.md").read_text()
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", readme, re.S) if "certify" in c]
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("clean: 1 collectives inside the interval")


def test_the_import_of_a_model_is_refused_there():
    """The other tests say something: what needs more than JAX does not come in."""
    for module in ("flax", "transformers", "orbax.checkpoint", "fcjax.model.reference"):
        result = run(f"import {module}")
        assert result.returncode == 1 and "ModuleNotFoundError" in result.stderr
