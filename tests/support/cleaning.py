"""The cleaning stage by itself, without a tokenizer: scan, merge and what is left of the documents."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.documents import DocumentCleaning
from outlast.cleaning.merge import find_duplicates
from outlast.cleaning.scan import ScanJob
from outlast.cleaning.tally import CleaningTally, add_tallies
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.extent import TextPortion
from outlast.corpus.plan import list_corpus, plan_portions
from outlast.corpus.read import read_documents
from outlast.storage import open_store


def write_corpus(path: Path, texts: Sequence[str]) -> Path:
    """Write texts as JSON lines."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def cut(corpus: CorpusConfig, num_portions: int) -> list[TextPortion]:
    """Cut a corpus into portions as ``prepare`` does."""
    held_out = list_corpus(corpus, held_out=True) if corpus.validation_path is not None else ()
    cuts = zip(
        plan_portions(list_corpus(corpus), num_portions), plan_portions(held_out, num_portions), strict=True
    )
    return [
        TextPortion(number=number, extents=some, held_out=held) for number, (some, held) in enumerate(cuts)
    ]


def scan(corpus: CorpusConfig, cleaning: CleaningConfig, out: Path, portions: Sequence[TextPortion]) -> None:
    """Scan portions."""
    scanner = ScanJob(corpus=corpus, cleaning=cleaning, out=str(out)).open()
    for portion in portions:
        scanner.build(portion, lambda *_: None)


def clean(
    corpus: CorpusConfig, cleaning: CleaningConfig, out: Path, num_portions: int
) -> tuple[list[str], CleaningTally]:
    """Run the whole stage; return the documents that stay, held-out ones last, and the tally."""
    portions = cut(corpus, num_portions)
    store = open_store(str(out))
    if cleaning.needs_scan:
        scan(corpus, cleaning, out, portions)
        find_duplicates(store, cleaning, num_portions)
    stage = DocumentCleaning(cleaning, store)
    kept: list[str] = []
    tallies: list[CleaningTally] = []
    for section in ("corpus", "held_out"):
        for portion in portions:
            tally = CleaningTally()
            extents = portion.extents if section == "corpus" else portion.held_out
            kept += stage.clean(read_documents(corpus, extents, Tally()), portion.number, section, tally)
            tallies.append(tally)
    return kept, add_tallies(tallies)


def windows(text: str) -> set[bytes]:
    """The set whose Jaccard similarity makes documents near duplicates."""
    content = "".join(text.lower().split()).encode()
    starts = [i for i in range(max(len(content) - 23, 1)) if content[i] & 0xC0 != 0x80]
    return {content[i : i + 24] for i in starts}


def jaccard(one: str, other: str) -> float:
    """The true similarity of two documents."""
    a, b = windows(one), windows(other)
    return len(a & b) / len(a | b)


def edit(text: str, num_edits: int, rng: random.Random) -> str:
    """Replace characters here and there by others, by two or by none."""
    characters = list(text)
    for _ in range(num_edits):
        place = rng.randrange(len(characters))
        characters[place] = rng.choice(["鬱", "Q", "", "々々"])
    return "".join(characters)
