"""Every word of a module's name has a row in docs/concepts.md, or is one that every reader knows.

In: the names of the modules; the first columns of the tables, and what the second ones set in italics. A word
counts in the plural too.
"""

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SOURCE = CHECKOUT / "src" / "outlast"
NAMES = set(
    re.findall(
        r"\w+",
        """
    aozora bert bpe http huggingface japanese jpeg json mecab mlm modernbert pytorch ray resnet
    sentencepiece tar tf tfrecord tokenizers
""",
    )
)
"""Of models, libraries, formats and languages."""

ENGLISH = set(
    re.findall(
        r"\w+",
        """
    addresses ahead architecture archive arithmetic array assemble bench bit block braces call cancel
    change classify cleaner cleaning cli compilation compressed config corpus decode describe
    description drive elsewhere encode encoding error evaluate evaluation failure family fast feature
    fetched file finish folder form format full grouping held image importing inference init inspect
    interchange interval language layer length library liveness load loader local lock log loop main
    matching measure memory name normal offset on opened opening optimizer out pack picture pixel
    prepare pretrained printing prng processor random randomness range read reader recipe recognize
    regular remote repack sampling save schema set shipped show small sparse stem storage stream system
    text threads to tokenizer train training untrusted verify version walk whole write writer
""",
    )
)
"""Ordinary words of English and of programs. What means something of its own here has a row instead."""


def test_every_word_of_a_module_is_explained_or_ordinary() -> None:
    unknown = sorted(word for word in module_words() if not forms(word) & (explained() | NAMES | ENGLISH))
    assert not unknown, f"do: give each a row in docs/concepts.md, or name the module otherwise: {unknown}"


def test_the_list_of_ordinary_words_holds_what_is_needed() -> None:
    used = {form for word in module_words() for form in forms(word)}
    stale = sorted((NAMES | ENGLISH) - used) + sorted((NAMES | ENGLISH) & explained())
    assert not stale, f"do: take out of this file, no module or a row needs it: {stale}"


@pytest.mark.parametrize("room", ["build", "cleaning", "corpus", "images", "storage"])
def test_what_a_build_makes_is_a_portion_and_a_piece_is_of_a_vocabulary(room: str) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (SOURCE / room).rglob("*.py")}
    kept = re.compile(r'"(outlast-)?piece"')  # what files on disk say
    found = [path.name for path, text in texts.items() if re.search("(?i)(?<!word)piece", kept.sub("", text))]
    assert not found, f"do: say portion, or chunk of bytes: {found}"


def module_words() -> set[str]:
    """Return the words that the names of modules and of their folders are made of."""
    modules = (path for path in SOURCE.rglob("*.py") if not path.stem.startswith("_"))
    return {
        word
        for path in modules
        for part in path.relative_to(SOURCE).with_suffix("").parts
        for word in part.split("_")
    }


def explained() -> set[str]:
    """Return the words of the tables of docs/concepts.md that stand there to be explained."""
    text = (CHECKOUT / "docs" / "concepts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| (.+) \|$", text, re.MULTILINE)
    cells = [cell for term, meaning in rows for cell in (term, *re.findall(r"\*([^*]+)\*", meaning))]
    return {word for cell in cells for word in re.findall(r"[a-z]+", cell.lower())}


def forms(word: str) -> set[str]:
    """Return a word and its singular, as far as its ending tells."""
    return {word, word.removesuffix("s"), word.removesuffix("es"), re.sub("ies$", "y", word)}
