"""Marks in raw text, such as titles of articles: they divide it into documents and lines, and are left out.

In: the text of a record or a file. Out: the documents in it, one for each article; a document's titles,
paragraphs and lines are its lines. No article is joined to another (docs/design/markup.md).
"""

import re
from collections.abc import Callable

from outlast.corpus.aozora import read_aozora
from outlast.corpus.config import CorpusConfig

MarkupReader = Callable[[str], list[str]]

ARTICLE = "_START_ARTICLE_"
_WIKI40B = re.compile("_START_(ARTICLE|SECTION|PARAGRAPH)_")
_NEWLINE = "_NEWLINE_"


def markup_reader(config: CorpusConfig) -> MarkupReader | None:
    """Return what reads the documents out of a marked text, None where the text has no marks."""
    if config.markup == "wiki40b":
        return lambda text: read_wiki40b(text, keep_titles=config.keep_titles)
    if config.markup == "aozora":
        return lambda text: [read_aozora(text, keep_titles=config.keep_titles, ruby=config.ruby)]
    return None


def read_wiki40b(text: str, *, keep_titles: bool) -> list[str]:
    """Return the articles of a text with wiki40b's marks: one line for each title and line of a paragraph.

    Every ``_START_ARTICLE_`` begins a document. What stands before the first mark is a paragraph of the first
    one. White space around titles and lines is dropped, and nothing else. (Guo et al. 2020, "Wiki-40B:
    Multilingual Language Model Dataset"; the marks as in the data set of that name.)

    Args:
        keep_titles: whether the titles of articles and sections are lines of the document.
    """
    articles: list[list[str]] = [[]]
    first, *marked = _WIKI40B.split(text)
    for kind, content in [("PARAGRAPH", first), *zip(marked[::2], marked[1::2], strict=True)]:
        if kind == "ARTICLE" and (articles[-1] or len(articles) > 1):
            articles.append([])
        if kind == "PARAGRAPH" or keep_titles:
            lines = content.replace(_NEWLINE, "\n").split("\n")
            articles[-1] += [line.strip() for line in lines if line.strip()]
    return ["\n".join(lines) for lines in articles]
