"""What keeps the code readable: short files, short functions, telling names, no loose ends."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 70
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "base", "tools", "lib"}
LOOSE_END = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b(?!\(#\d+\))")
CODE_FOLDERS = ("src", "tests", "benchmarks", "examples", "scripts", ".ci")


def test_files_stay_short(checkout: Path) -> None:
    long_files = [
        f"{path.relative_to(checkout)}: {count} lines"
        for path in text_files(checkout, ".py", "")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > MAX_FILE_LINES
    ]
    assert not long_files, f"do: split by subject (at most {MAX_FILE_LINES} lines): {long_files}"


def test_functions_stay_short(checkout: Path) -> None:
    wrong: list[str] = []
    for path in text_files(checkout, ".py"):
        file = path.relative_to(checkout).as_posix()
        for name, count in function_lengths(ast.parse(path.read_text(encoding="utf-8"))):
            if count > MAX_FUNCTION_LINES:
                wrong.append(f"{file}:{name}: {count} lines")
    assert not wrong, f"do: give a part of it a name of its own (at most {MAX_FUNCTION_LINES} lines): {wrong}"


def test_no_vague_module_names(checkout: Path) -> None:
    vague = [
        path.relative_to(checkout).as_posix()
        for path in text_files(checkout, ".py")
        if VAGUE_NAMES & set(path.relative_to(checkout).with_suffix("").parts)
    ]
    assert not vague, f"do: name the module after what it holds: {vague}"


def test_no_loose_end_without_an_issue(checkout: Path) -> None:
    loose = [
        f"{path.relative_to(checkout)}:{number}"
        for path in text_files(checkout, ".py", ".sh", ".toml", "")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if LOOSE_END.search(line)
    ]
    assert not loose, (
        f"do: finish it, or open an issue and write its number behind the word as (#12): {loose}"
    )


def test_the_project_speaks_of_itself_alone(checkout: Path) -> None:
    # The one place that may know where a continuous integration keeps its data is .ci/run.
    outside = "../sha" + "red"
    named = [
        path.relative_to(checkout).as_posix()
        for path in text_files(checkout, ".py", ".sh", ".toml", ".md", "")
        if outside in path.read_text(encoding="utf-8") and path != checkout / ".ci" / "run"
    ]
    assert not named, f"do: find test data by the variable OUTLAST_TEST_DATA alone: {named}"


def test_public_functions_say_what_they_do(source_trees: dict[str, ast.Module]) -> None:
    silent = [
        f"{module}.{node.name}"
        for module, tree in source_trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    silent += [module for module, tree in source_trees.items() if tree.body and not ast.get_docstring(tree)]
    assert not silent, f"do: write a docstring (what comes in, what goes out, errors raised): {silent}"


def test_the_budgets_count_what_they_claim() -> None:
    tree = ast.parse(
        "class A:\n    @property\n    def f(self):\n        def g():\n            pass\n        return g\n"
    )
    assert dict(function_lengths(tree)) == {"f": 4, "g": 2}
    assert LOOSE_END.search("# TO" + "DO: later")
    assert not LOOSE_END.search("# TO" + "DO(#12): later")


def function_lengths(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield (name, lines) for every function, methods and nested ones too; decorators do not count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def text_files(checkout: Path, *suffixes: str) -> Iterator[Path]:
    """Yield our own files of these kinds, scripts without a suffix as ""; nothing generated."""
    own = [path for folder in CODE_FOLDERS for path in (checkout / folder).rglob("*")]
    own += [path for folder in ("docs", "recipes") for path in (checkout / folder).rglob("*")]
    own += [*checkout.glob("*.md"), checkout / "pyproject.toml"]
    for path in sorted(own):
        if path.is_file() and path.suffix in suffixes and "__pycache__" not in path.parts:
            yield path
