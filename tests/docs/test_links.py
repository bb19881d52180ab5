"""The links of the documentation lead somewhere: to a file of the checkout, and to a heading in it.

In: every Markdown page, and the pages that code and recipes name as ``docs/....md``. Addresses outside are
not asked.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from support.pages import anchor

CHECKOUT = Path(__file__).parents[2]
PAGES = sorted([*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")])
NAMING = ("src", "recipes", "benchmarks", "examples", "scripts", "docs")
LINK = re.compile(r"\]\(([^()\s]+)\)")
NAMED = re.compile(r"(?<![\w/])docs/[\w/.-]*\.md")
FENCED = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def test_every_link_leads_somewhere() -> None:
    lost = [f"{page.relative_to(CHECKOUT)}: {link}" for page in PAGES for link in broken_links(page)]
    assert not lost, f"do: correct the link, or the file or heading that it means: {lost}"


def test_every_page_that_is_named_is_there() -> None:
    files = [path for folder in NAMING for path in (CHECKOUT / folder).rglob("*") if path.is_file()]
    texts = [path for path in files if path.suffix in {".py", ".toml", ".md", ".sh", ""}]
    lost = [
        f"{path.relative_to(CHECKOUT)}: {name}"
        for path in texts
        for name in NAMED.findall(path.read_text(encoding="utf-8"))
        if not (CHECKOUT / name).exists()
    ]
    assert not lost, f"do: name the page where it is now: {lost}"


def test_a_broken_link_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page: of `code`\n[here](#a-page-of-code) [there](page.md#a-page-of-code) [out](https://a.b/c)\n"
        "[no file](none.md) [no heading](#nowhere) `[code](none.md)`\n"
    )
    assert list(broken_links(page)) == ["none.md", "#nowhere"]


def broken_links(page: Path) -> Iterator[str]:
    """Yield the links of a page whose file or heading is missing."""
    for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        file, _, heading = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = page.parent / file if file else page
        if not target.exists() or (heading and heading not in anchors(target)):
            yield link


def anchors(page: Path) -> set[str]:
    """Return the names of the headings of a page."""
    return {anchor(heading) for heading in re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), re.M)}
