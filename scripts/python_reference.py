"""Write docs/reference/python.md: the public names with their signatures and docstrings.

    python scripts/python_reference.py > docs/reference/python.md

In: the source, which is parsed and not imported. Out: Markdown. tests/docs/test_python_reference.py keeps the
page true.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
HEAD = """# The Python library

Every public name, from its docstring, by `python scripts/python_reference.py > docs/reference/python.md`.
The keys of a recipe stand in [recipe.md](recipe.md).
"""


def page() -> str:
    """Return the page."""
    sections = [HEAD, "## outlast\n", as_markdown(documented("outlast"))]
    names = (SOURCE / "outlast" / "__init__.pyi").read_text(encoding="utf-8")
    for module, name in re.findall(r"^from (\S+) import (\w+) as \2$", names, re.MULTILINE):
        if name != "__version__":
            sections += section(module, name)
    sections += ["## outlast.pytorch\n", as_markdown(documented("outlast.pytorch"))]
    for node in tree("outlast.pytorch").body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            sections += section("outlast.pytorch", node.name)
    return "\n".join(sections)


def section(module: str, name: str) -> Iterator[str]:
    """Yield the parts of a name: heading, signature, docstring, then those of a class's public methods."""
    node = definition(module, name)
    yield f"### {name}\n"
    yield f"```python\n{signature(node)}\n```\n"
    yield as_markdown(ast.get_docstring(node) or "")
    for part in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(part, ast.FunctionDef) and shows(part):
            yield f"```python\n{name}.{signature(part).removeprefix('def ').replace('__call__', '')}\n```\n"
            yield as_markdown(ast.get_docstring(part) or "")


def shows(method: ast.FunctionDef) -> bool:
    """Whether a method is for users: public or a call, and no accessor."""
    return (not method.name.startswith("_") or method.name == "__call__") and not any(
        isinstance(decorator, ast.Attribute) for decorator in method.decorator_list
    )


def signature(node: ast.ClassDef | ast.FunctionDef) -> str:
    """Return a definition's first line, cut at its arguments where it is long."""
    if isinstance(node, ast.ClassDef):
        made = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
        fields = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)]
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        head = f"class {node.name}" + (f"({bases})" if bases else "")
        if made:
            return f"{head}\n{signature(made[0])}"
        return "\n    ".join([head + (":" if fields else ""), *fields])
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if any(ast.unparse(decorator) == "property" for decorator in node.decorator_list):  # a property
        return node.name + result.replace(" ->", ":")
    arguments = [one.replace("=", " = ", 1) for one in split_arguments(ast.unparse(node.args))]
    line = f"def {node.name}({', '.join(arguments)}){result}"
    return (
        line if len(line) <= 100 else f"def {node.name}(\n    " + ",\n    ".join(arguments) + f",\n){result}"
    )


def split_arguments(text: str) -> list[str]:
    """Cut a list of arguments at its own commas, not at those inside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def as_markdown(text: str) -> str:
    """Return a docstring as Markdown: sections as lists, ``code`` as `code`, indented code fenced."""
    lines: list[str] = []
    in_section = in_code = is_list = False
    for line in inspect.cleandoc(text).replace("``", "`").splitlines():
        indent = len(line) - len(line.lstrip())
        title = re.fullmatch(r"(Args|Returns|Raises|Attributes|Yields):", line)
        if title:
            in_section, is_list = True, False
            lines += [f"**{title[1]}**", ""]
            continue
        in_section = in_section and (indent > 0 or not line)
        if in_section and line:
            item = re.match(r" {4}(\S[^:]*): ", line) if indent == 4 else None
            is_list = is_list or item is not None
            text = line.strip() if not is_list else f"  {line.strip()}"
            lines.append(f"* `{item[1]}`: {line[item.end() :]}" if item else text)
            continue
        if line and indent >= 4 and not in_code:
            lines.append("```python")
            in_code = True
        elif in_code and line and indent < 4:
            lines[-1:] = ["```", ""] if not lines[-1] else [lines[-1], "```"]
            in_code = False
        lines.append(line[4:] if in_code else line)
    return "\n".join([*lines, *(["```"] if in_code else [])]).rstrip() + "\n"


def documented(module: str) -> str:
    """Return the docstring of a module."""
    return ast.get_docstring(tree(module)) or ""


def definition(module: str, name: str) -> ast.ClassDef | ast.FunctionDef:
    """Return the definition of a name in a module, or in the one that the module has it from."""
    for node in tree(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module and name in {alias.name for alias in node.names}:
            return definition(node.module, name)
    raise LookupError(f"{module} defines no {name}")


def tree(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    path = SOURCE / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    print(page(), end="")
