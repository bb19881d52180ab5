"""The report: what cleaning dropped and changed, with examples, for a person to judge the rules by.

In: the tallies of all portions and what the merge found. Out: ``cleaning.json`` beside the manifest
(docs/formats/cleaning.md), its counts for the manifest, and lines of text. A function of the corpus and the
configuration, whatever the processes and tasks.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.drops import DocumentPlace, Merged
from outlast.cleaning.tally import CleaningTally, add_tallies
from outlast.config import to_dict
from outlast.errors import CorpusError, ObjectNotFound
from outlast.logs import log
from outlast.storage import Store
from outlast.storage.checksummed_json import DIGEST_KEY, Kind, encode, parse

REPORT_NAME = "cleaning.json"
_REMEDY = "restore the file, or prepare again into another folder"
_KIND = Kind("outlast-cleaning-report", (1, 2), "cleaning report", _REMEDY, CorpusError)


def make_report(
    config: CleaningConfig, tallies: Iterable[CleaningTally], merged: Merged | None
) -> dict[str, Any]:
    """Return the report as plain data."""
    total = add_tallies(tallies)
    dropped: dict[str, Any] = {}
    for reason, entry in sorted(total.dropped.items(), key=lambda item: (-item[1].documents, item[0])):
        examples: list[dict[str, Any]] = [{"text": text} for _, text in entry.examples]
        if merged and reason in merged.examples:
            examples = [
                {
                    "text": _quote(total, example.dropped),
                    "like": _quote(total, example.like),
                    "similarity": example.similarity,
                }
                for example in merged.examples[reason]
            ]
        dropped[reason] = {"documents": entry.documents, "text_bytes": entry.text_bytes, "examples": examples}
    return {
        "configuration": to_dict(config),
        "documents_in": total.documents_in,
        "documents_out": total.documents_out,
        "text_bytes_in": total.text_bytes_in,
        "text_bytes_out": total.text_bytes_out,
        "text_bytes_removed_within": total.text_bytes_within,
        "dropped": dropped,
        "changed_documents": dict(sorted(total.changed.items())),
        "removed_lines": {
            "lines": total.removed_lines,
            "examples": [{"text": text} for _, text in total.line_examples],
        },
    }


def write_report(store: Store, report: Mapping[str, Any]) -> None:
    """Write the report beside the manifest that is to come."""
    store.replace(REPORT_NAME, [encode(_KIND, report)])


def read_report(store: Store) -> dict[str, Any]:
    """Read a data set's report. Raises CorpusError where there is none or it is damaged."""
    where = f"{store.url}/{REPORT_NAME}"
    try:
        fields = parse(store.read(REPORT_NAME), _KIND, where=where)
    except ObjectNotFound:
        raise CorpusError(
            "There is no report: nothing was cleaned.",
            where=where,
            remedy="see the table [cleaning] of the recipe",
        ) from None
    if fields.pop(DIGEST_KEY, None) is None:
        log.info("%s is of version 1, which carries no digest: an edit of it would not be noticed", where)
    return _KIND.head | fields


def summarize(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of a report without its examples and its configuration, for the manifest."""
    counts = {
        key: value
        for key, value in report.items()
        if key not in (*_KIND.head, "configuration", "dropped", "removed_lines")
    }
    return {
        "report": REPORT_NAME,
        "configuration": report["configuration"],
        **counts,
        "dropped": {
            reason: {"documents": entry["documents"], "text_bytes": entry["text_bytes"]}
            for reason, entry in report["dropped"].items()
        },
        "removed_lines": report["removed_lines"]["lines"],
    }


def describe_report(report: Mapping[str, Any]) -> list[str]:
    """Return the report for a person, line by line."""
    lines = [
        f"{report['documents_in']} documents of {report['text_bytes_in']} bytes read, "
        f"{report['documents_out']} of {report['text_bytes_out']} bytes kept"
    ]
    for reason, entry in report["dropped"].items():
        lines.append(f"{reason}: {entry['documents']} documents, {entry['text_bytes']} bytes dropped")
        lines += [line for example in entry["examples"] for line in _describe_example(example)]
    for step, count in report["changed_documents"].items():
        lines.append(f"{step}: {count} documents changed")
    removed = report["removed_lines"]
    if removed["lines"]:
        lines.append(f"duplicate_lines: {removed['lines']} lines removed from documents that stay")
        lines += [line for example in removed["examples"] for line in _describe_example(example)]
    return lines


def _describe_example(example: Mapping[str, Any]) -> list[str]:
    lines = [f"    {_one_line(example['text'])}"]
    if "like" in example:
        lines.append(f"      like, at {example['similarity']:.2f}: {_one_line(example['like'])}")
    return lines


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _quote(total: CleaningTally, place: DocumentPlace) -> str:
    portion, section, number = place
    return total.quotes.get(f"{portion}/{section}/{number}", "")
