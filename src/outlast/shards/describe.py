"""What a data set holds, as plain values and in a few lines for a person.

In: the URL of a manifest. Out: a dict; or, made of it, the lines to show, in order, by name.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from outlast.logs import format_count
from outlast.shards.manifest import Manifest, read_manifest


def describe_manifest(url: str) -> dict[str, Any]:
    """Return what a data set holds: splits, tokenizer, provenance. Raises ShardError."""
    manifest, _ = read_manifest(url)
    splits: dict[str, Any] = {}
    for name, entries in manifest.splits.items():
        num_tokens = sum(entry.num_tokens for entry in entries)
        text_bytes = _text_bytes(manifest, name)
        splits[name] = {
            "shards": len(entries),
            "documents": sum(entry.num_documents for entry in entries),
            "sentences": sum(e.num_sentences or 0 for e in entries) if manifest.has_sentences else None,
            "words": sum(e.num_words or 0 for e in entries) if manifest.has_words else None,
            **({} if manifest.examples is None else {"examples": sum(e.num_examples or 0 for e in entries)}),
            "tokens": num_tokens,
            "size_bytes": sum(entry.size_bytes for entry in entries),
            "text_bytes": text_bytes,
            "text_bytes_per_token": round(text_bytes / num_tokens, 3) if text_bytes and num_tokens else None,
        }
    pairs = [
        {
            "sequence_length": pair_set.sequence_length,
            "num_passes": pair_set.num_passes,
            "short_probability": pair_set.short_probability,
            "seed": pair_set.seed,
            "examples": {
                split: sum(table.num_examples for table in tables)
                for split, tables in pair_set.splits.items()
            },
            "random_share": round(pair_set.random_share, 4),
            "size_bytes": sum(table.size_bytes for tables in pair_set.splits.values() for table in tables),
        }
        for pair_set in manifest.pairs or ()
    ]
    return {
        "fingerprint": manifest.fingerprint,
        "token_dtype": manifest.token_dtype,
        "splits": splits,
        "pairs": pairs,
        **({} if manifest.examples is None else {"examples": asdict(manifest.examples)}),
        "tokenizer": {
            "path": manifest.tokenizer.path,
            "fingerprint": manifest.tokenizer.fingerprint,
            "vocab_size": manifest.tokenizer.vocab_size,
            "special_ids": manifest.tokenizer.special_ids,
        },
        "provenance": manifest.provenance,
    }


def summarize(description: Mapping[str, Any]) -> dict[str, str]:
    """Return what ``shards show`` says of a data set to a person, a line each."""
    lines: dict[str, str] = {}
    for name, split in description["splits"].items():
        ratio = split["text_bytes_per_token"]
        what = "examples" if "examples" in description else "documents"
        lines[name] = (
            f"{format_count(split[what])} {what}, "
            + (f"{format_count(split['sentences'])} sentences, " if split["sentences"] is not None else "")
            + f"{format_count(split['tokens'])} tokens "
            + _words(split)
            + f"in {split['shards']} shards of {_format_size(split['size_bytes'])}"
            + (f", {ratio:.2f} bytes of text per token" if ratio else "")
        )
    for pairs in description["pairs"]:
        examples = ", ".join(f"{format_count(count)} {split}" for split, count in pairs["examples"].items())
        lines[f"pairs of {pairs['sequence_length']}"] = (
            f"{examples}, {pairs['num_passes']} passes, {_format_size(pairs['size_bytes'])}, "
            f"second segment random in {pairs['random_share']:.1%}"
        )
    tokenizer, provenance = description["tokenizer"], description["provenance"]
    lines["tokens"] = description["token_dtype"]
    lines["tokenizer"] = f"{tokenizer['vocab_size']} pieces, fingerprint {tokenizer['fingerprint']}"
    lines["special ids"] = ", ".join(f"{role} {number}" for role, number in tokenizer["special_ids"].items())
    lines["fingerprint"] = description["fingerprint"]
    if "corpus" in provenance:
        corpus = provenance["corpus"]
        lines["corpus"] = (
            f"{corpus['format']}, {corpus['num_files']} files of {_format_size(corpus['size_bytes'])}"
        )
    skipped = provenance.get("skipped_documents", {})
    lines["left out"] = ", ".join(
        f"{count} documents {reason.replace('_', ' ')}" for reason, count in skipped.items() if count
    )
    if "words" in provenance:
        lines["words"] = f"by {provenance['words']}"
    if "cleaning" in provenance:
        lines["cleaning"] = _cleaning(provenance["cleaning"])
    if "unknown_pieces" in provenance:
        lines["unknown pieces"] = describe_unknown(provenance["unknown_pieces"])
    if "control_names" in provenance:
        lines["names of control pieces"] = describe_counts(provenance["control_names"])
    lines["undecodable"] = f"{provenance.get('undecodable_bytes', 0)} bytes"
    lines["made by"] = ", ".join(
        f"{name} {number}" for name, number in provenance.get("versions", {}).items()
    )
    return {name: line for name, line in lines.items() if line}


def describe_unknown(found: Mapping[str, Any]) -> str:
    """Return ``unknown_pieces`` of a manifest's provenance in a line."""
    line = (
        f"{format_count(found['unknown'])}, {found['share']:.2%} of the tokens"
        if found["unknown"]
        else "none"
    )
    if found["characters"]:
        shown = {repr(character): count for character, count in found["characters"].items()}
        line += f"; commonest characters behind them: {describe_counts(shown)}"
    if "pieces_not_counted" in found:
        line += f"; not counted in {found['pieces_not_counted']} portions that an older version built"
    return line


def describe_counts(counts: Mapping[str, int]) -> str:
    """Return how often each thing was found, in a line."""
    return ", ".join(f"{name} {format_count(count)} times" for name, count in counts.items())


def _words(split: Mapping[str, Any]) -> str:
    if not split["words"]:
        return ""
    pieces = split["tokens"] - split["documents"]  # each has a separator
    return f"of {format_count(split['words'])} words ({pieces / split['words']:.2f} pieces each) "


def _cleaning(counts: Mapping[str, Any]) -> str:
    dropped = "".join(
        f", {format_count(entry['documents'])} {reason.replace('_', ' ')}"
        for reason, entry in counts["dropped"].items()
    )
    return (
        f"{format_count(counts['documents_in'])} documents in, {format_count(counts['documents_out'])} kept"
        f"{dropped}"
    )


def _format_size(size_bytes: int) -> str:
    return f"{format_count(size_bytes)}B"


def _text_bytes(manifest: Manifest, split: str) -> int | None:
    """Return the bytes of text that the provenance names, None where it names none: its fields are not
    checked.
    """
    try:
        found = manifest.provenance["counts"][split]["text_bytes"]
    except (KeyError, TypeError, IndexError):
        return None
    return found if isinstance(found, int) else None
