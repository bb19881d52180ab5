"""No code runs that came from data: no pickle, no eval, no shell.

The syntax trees are searched, so that no comment silences it. tests/support/watch.py looks for the same while
the suite runs, in case a library does it for us.
"""

import ast
from collections.abc import Iterator

UNSAFE_MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "commands",
}
UNSAFE_BUILTINS = {"eval", "exec", "compile", "__import__", "breakpoint"}
UNSAFE_FUNCTIONS = {
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn"),
    *("yaml.load", "yaml.unsafe_load", "torch.load", "runpy.run_path", "runpy.run_module", "pydoc.locate"),
    "asyncio.create_subprocess_shell",
}
UNSAFE_KEYWORDS = {"shell", "allow_pickle", "trust_remote_code", "weights_only"}
"""Keywords whose safe value is the default: only a literal False may be written (weights_only: True)."""


def test_no_code_runs_that_came_from_data(source_trees: dict[str, ast.Module]) -> None:
    found = [
        f"{module}:{line}: {what}" for module, tree in source_trees.items() for line, what in unsafe(tree)
    ]
    assert not found, (
        "Unsafe calls in the package:\n  "
        + "\n  ".join(found)
        + "\ndo: use JSON, safetensors or an argument list; choose among known names with a dict"
    )


def test_only_one_place_prints(source_trees: dict[str, ast.Module]) -> None:
    """What names of files tell a terminal to do is made visible there (``cli/printing.py``, ``logs.py``)."""
    found = [
        f"{module}:{node.lineno}"
        for module, tree in source_trees.items()
        if module not in ("outlast.cli.printing", "outlast.logs")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func)
        in ("print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write")
    ]
    assert not found, "prints past outlast.cli.printing.echo: " + ", ".join(found)


def test_one_reader_reads_every_tar(source_trees: dict[str, ast.Module]) -> None:
    """``corpus/tar.py``, for texts and pictures: the standard library's ends at damage without a word."""
    found = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module, tree in source_trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tarfile"
        if node.attr not in ("TarInfo", "PAX_FORMAT")  # its headers are right, so it writes ours
    ]
    found += [
        f"{module}:{node.lineno}: names imported from tarfile"
        for module, tree in source_trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "tarfile"
    ]
    assert not found, "do: read with outlast.corpus.tar\n  " + "\n  ".join(found)


def test_unsafe_code_would_be_seen() -> None:
    offences = {
        "import pickle": "imports pickle",
        "def f():\n    from cloudpickle import loads": "imports cloudpickle",
        "eval('1')": "calls eval",
        "import os as o\no.system('ls')": "calls os.system",
        "from os import system as s\ns('ls')": "calls os.system",
        "import subprocess\nsubprocess.run('ls', shell=True)": "shell=True",
        "import numpy as np\nnp.load(p, allow_pickle=flag)": "allow_pickle=flag",
    }
    assert {code: [what for _, what in unsafe(ast.parse(code))] for code in offences} == {
        code: [what] for code, what in offences.items()
    }
    harmless = "import re, subprocess\nre.compile('x')\nsubprocess.run(['ls'], shell=False)\nmodel.eval()\n"
    assert list(unsafe(ast.parse(harmless))) == []


def unsafe(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, offence) for each import or call that could run what came from data."""
    full_names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full_names |= {alias.asname or alias.name: alias.name for alias in node.names}
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            full_names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            imported = [node.module]
        else:
            continue
        yield from (
            (node.lineno, f"imports {name}") for name in imported if name.split(".")[0] in UNSAFE_MODULES
        )
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = called_name(node.func, full_names)
            if name in UNSAFE_BUILTINS | UNSAFE_FUNCTIONS:
                yield node.lineno, f"calls {name}"
            for keyword in node.keywords:
                if keyword.arg in UNSAFE_KEYWORDS and not is_safe(keyword.arg, keyword.value):
                    yield node.lineno, f"{keyword.arg}={ast.unparse(keyword.value)}"


def is_safe(keyword: str, value: ast.expr) -> bool:
    """Whether a dangerous keyword is written with its harmless value."""
    return isinstance(value, ast.Constant) and value.value is (keyword == "weights_only")


def called_name(function: ast.expr, full_names: dict[str, str]) -> str:
    """Return the dotted name of what is called: ``o.system`` after ``import os as o`` is ``os.system``."""
    parts: list[str] = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if not isinstance(function, ast.Name):
        return ""
    parts.append(full_names.get(function.id, function.id))
    return ".".join(reversed(parts))
