"""What the README says is what happens."""

import pathlib
import re
import subprocess
import sys

from fcjax import commands

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_example_prints_what_the_readme_says():
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", README, re.S) if "certify" in c]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"prints `{result.stdout.strip()}`" in README


def test_the_table_of_who_is_handed_what_is_what_the_example_prints():
    code, table = re.search(
        r"```python\n((?:(?!```).)*audit\.handed.*?)```\n+```text\n(.*?)```", README, re.S
    ).groups()
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout == table


def test_programs_that_the_readme_names_exist():
    named = set(re.findall(r"python -m ((?:experiments|weights)\.\w+)", README))
    programs = {
        f"{folder}.{path.stem}"
        for folder in ("experiments", "weights")
        for path in (ROOT / folder).glob("*.py")
        if '__name__ == "__main__"' in path.read_text()
    }
    assert named == programs


def test_the_command_has_the_programs_that_the_readme_names():
    rows = re.findall(r"^\| `python -m experiments\.\w+`, `fcjax ([\w-]+)` \|", README, re.M)
    assert rows == list(commands.NAMES)
