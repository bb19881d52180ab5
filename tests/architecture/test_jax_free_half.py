"""The data half runs on a machine without jax, and the command line answers at once.

The reason is docs/design/jax_free_half.md. The modules are imported in a process of their own, where loading
any heavy library fails and leaves a trace.
"""

import json
import subprocess
import sys
from pathlib import Path

JAX_FREE = {
    *("__main__", "cli", "init", "recipe", "prepare", "pytorch"),
    *("errors", "config", "storage", "prng", "logs", "version"),
    *("build", "corpus", "cleaning", "tokenizer", "shards", "stream", "images", "interchange", "checkpoint"),
}
"""Whole rooms; of every other one the module ``config`` is free of jax as well, and what stands here:"""

JAX_FREE_MODULES = {"outlast.run.directory"}
"""Reads a run directory, for whoever tells of a run and does not train it."""

NEVER_IN_THE_DATA_HALF = ("jax", "jaxlib", "optax", "flax", "torch", "tensorflow", "transformers")
LAZY_IN_THE_DATA_HALF = ("datasets", "pyarrow", "pandas", "py3langid", "rensa", "cv2", "PIL", "simplejpeg")
"""Loaded by the reader that needs them, when it runs."""

NEVER_BEFORE_A_VERB_RUNS = (
    *NEVER_IN_THE_DATA_HALF,
    *LAZY_IN_THE_DATA_HALF,
    *("numpy", "scipy", "tokenizers", "sentencepiece", "obstore", "safetensors", "huggingface_hub"),
)

IMPORTER = """
import importlib, importlib.abc, importlib.machinery, json, sys, traceback

forbidden, modules = json.load(sys.stdin)
found = []

class Refuse(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    # A spec is given, so that asking whether a library is installed is no offence; loading it is one.
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name.split(".")[0] in forbidden else None

    def create_module(self, spec):
        ours = [f"{f.filename}:{f.lineno}" for f in traceback.extract_stack() if "outlast" in f.filename]
        found.append(f"{spec.name} by {ours[-1] if ours else 'a library'}")
        raise ImportError(f"{spec.name} is refused here")

    def exec_module(self, module):
        raise AssertionError("no module was created")

sys.meta_path.insert(0, Refuse())
for module in modules:
    before = len(found)
    try:
        importlib.import_module(module)
    except Exception as error:
        if len(found) == before:
            found.append(f"{module}: {type(error).__name__}: {error}")
print(json.dumps(found))
"""


def test_the_data_half_loads_without_jax(checkout: Path) -> None:
    modules = [name for name in jax_free_modules(checkout) if name != "outlast.pytorch"]
    found = import_refusing(NEVER_IN_THE_DATA_HALF + LAZY_IN_THE_DATA_HALF, modules)
    assert not found, (
        "Modules of the data half load what they must not:\n  "
        + "\n  ".join(found)
        + "\ndo: move the code to the training half, or import the library inside the function that needs it"
    )


def test_torch_is_loaded_by_its_own_module_alone(checkout: Path) -> None:
    """All that ``outlast.pytorch`` builds on is free of jax, and nothing builds on it."""
    modules = [name for name in jax_free_modules(checkout) if name != "outlast.pytorch"]
    assert len(modules) == len(jax_free_modules(checkout)) - 1
    found = import_refusing(("torch", "jax"), [*modules, "outlast.pytorch"])
    assert [line.split()[:2] for line in found] == [["torch", "by"]]
    assert "outlast/pytorch.py" in found[0]


def test_a_heavy_import_would_be_seen(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "outlast_offender.py").write_text(
        "try:\n    import jax.numpy\nexcept ImportError:\n    pass\n"
    )
    found = import_refusing(("jax",), ["outlast_offender", "outlast.errors"], path=tmp_path)
    assert len(found) == 1
    assert found[0].startswith("jax by ")
    assert "outlast_offender.py:2" in found[0]


def test_asking_whether_a_library_is_there_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "outlast_asks.py").write_text("import importlib.util\nimportlib.util.find_spec('jax')\n")
    assert import_refusing(("jax",), ["outlast_asks"], path=tmp_path) == []


def test_the_list_covers_the_data_half(checkout: Path) -> None:
    modules = jax_free_modules(checkout)
    assert {"outlast", "outlast.config", "outlast.prng", "outlast.shards.manifest"} <= set(modules)
    assert not [
        name for name in modules if name.startswith("outlast.training") and not name.endswith(".config")
    ]


def test_the_command_line_answers_without_loading_anything_heavy() -> None:
    program = """
import json, sys
from outlast.__main__ import main
sys.argv = ["outlast", "--help"]
try:
    code = main()
except SystemExit as exit:
    code = exit.code
print(json.dumps([code or 0, sorted({name.split(".")[0] for name in sys.modules})]))
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    code, loaded = json.loads(result.stdout.splitlines()[-1])
    assert code == 0
    heavy = sorted(set(loaded) & set(NEVER_BEFORE_A_VERB_RUNS))
    assert not heavy, (
        f"`outlast --help` loads {heavy}; do: import inside the function of the verb (src/outlast/cli/)"
    )


def jax_free_modules(checkout: Path) -> list[str]:
    """Return the dotted names of all modules that must load without jax."""
    source = checkout / "src"
    names: list[str] = []
    for path in sorted((source / "outlast").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        name = ".".join(parts)
        if parts[1:2] == () or parts[1] in JAX_FREE or parts[-1] == "config" or name in JAX_FREE_MODULES:
            names.append(name)
    return names


def import_refusing(forbidden: tuple[str, ...], modules: list[str], *, path: Path | None = None) -> list[str]:
    """Import modules in a new process that refuses some libraries; return what was refused, and by whom."""
    program = (f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else "") + IMPORTER
    result = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps([forbidden, modules]),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found: list[str] = json.loads(result.stdout.splitlines()[-1])
    return found
