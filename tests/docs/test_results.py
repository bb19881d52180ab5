"""The table of results and the entries behind it agree.

In: docs/results.md, a row for each claim, and docs/results/<subject>.md, the dated entries. A row has the
date and the machine of its entry, which is described, and the row says whether what was wanted was met.
"""

import re
from pathlib import Path

from support.pages import anchor

DOCS = Path(__file__).parents[2] / "docs"
ENTRY = re.compile(r"^## (?P<date>\d{4}-\d\d-\d\d) \S.*\n\nMachine: \[(?P<machine>[^\]]+)\]", re.MULTILINE)


def test_every_entry_has_its_date_and_its_machine_newest_first() -> None:
    for page in sorted((DOCS / "results").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        dates = [entry["date"] for entry in ENTRY.finditer(text)]
        assert len(dates) == len(re.findall("^## ", text, re.MULTILINE)), (
            f"{page.name}: do: open each entry with `## YYYY-MM-DD Subject` and `Machine: [name](...)`"
        )
        assert dates == sorted(dates, reverse=True), f"{page.name}: do: put the newest entry first"


def test_a_row_is_that_of_its_entry() -> None:
    machines = {row[0] for row in rows("## Machines")}
    for row in rows("## The table"):
        *_, wanted, outcome, date, machine, link = row
        verdict = re.match(r"met|missed|open|-$", outcome)
        assert verdict, f"{row}: do: say met, missed, open or -"
        assert (wanted == "-") == (outcome == "-"), f"{row}: an outcome belongs to what was wanted"
        assert machine in machines, f"{row}: do: describe the machine under Machines"
        entry = re.fullmatch(r"\[(\w+)\]\(results/\1\.md#([\w-]+)\)", link)
        assert entry, f"{row}: do: link the entry as [subject](results/subject.md#heading)"
        assert (date, machine) == entries(entry[1])[entry[2]], f"{row}: its entry says otherwise"


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the tables under a heading of the page, to the next one of its level."""
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    part = re.split(r"^## ", text.split(f"{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if "|" in line
    ]
    found = [row for row in cells if set(row[0]) != {"-"} and row[0] not in {"claim", "name"}]
    assert found, f"do: keep the tables under {heading!r} in docs/results.md"
    return found


def entries(subject: str) -> dict[str, tuple[str, str]]:
    """Return date and machine of each entry of a subject, by the name that links to it."""
    text = (DOCS / "results" / f"{subject}.md").read_text(encoding="utf-8")
    headings = [(entry[0].partition("\n")[0].removeprefix("## "), entry) for entry in ENTRY.finditer(text)]
    return {anchor(heading): (entry["date"], entry["machine"]) for heading, entry in headings}
