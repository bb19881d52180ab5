"""The ``[corpus]`` table: where the raw text lies and how it becomes documents.

In: the values of a recipe. Out: a frozen ``CorpusConfig`` whose fields fit together.
"""

from typing import Literal

import pydantic

from outlast.config import Location, Operation, table


@table
class CorpusConfig:
    path: Location[Operation[str | tuple[str, ...] | None]] = None
    """A file, a folder or a glob, or a list of them; local, or in a bucket (s3://, gs://, az://); over
    http(s) files alone. For huggingface: a local folder that `save_to_disk` wrote, or a name."""
    format: Literal["auto", "text", "jsonl", "parquet", "huggingface"] = "auto"
    """auto tells it by names and first bytes, for each of the paths. text and jsonl may be plain, .gz,
    .bz2, .xz or .zst, and in tars, plain or compressed. parquet needs the extra `parquet`, huggingface the
    extra `hub`."""
    documents: Literal["auto", "blank_line", "file"] = "auto"
    """For text: what a document is, a block of lines between blank lines, or a whole file. auto: in a tar
    each member is one, elsewhere each block (with markup, what the markup asks for)."""
    text_field: str = "text"
    """The field (jsonl) or column (parquet, huggingface) that holds the text."""
    markup: Literal["none", "wiki40b", "aozora"] = "none"
    """Marks in the text: those of wiki40b (`_START_ARTICLE_` begins a document, in text files too) or of
    Aozora Bunko's books."""
    keep_titles: bool = True
    """With markup: whether titles of articles and sections, or title and author of a book, are text."""
    ruby: Literal["base", "keep"] = "base"
    """With markup = "aozora": drop the readings 《...》, or keep them as they are written."""
    sentences: Literal["none", "lines", "rules"] = "none"
    """What a sentence is: nothing is divided; every line of a document is one; or lines are divided by rules
    for Chinese, Japanese and spaced languages. Each sentence is then encoded by itself, and the shards tell
    where it begins."""
    encoding: str = "utf-8"
    """For text and jsonl: any text encoding that Python knows; auto detects it, file by file (in a tar,
    member by member)."""
    undecodable: Literal["error", "replace"] = "error"
    """What to do with bytes that are no text in the encoding, and with NUL bytes: stop, or put U+FFFD and
    count them."""
    validation_fraction: float = pydantic.Field(default=0.01, ge=0.0, lt=1.0)
    """Share of the documents that is held out, chosen by a hash of their text: equal documents stay
    together."""
    validation_path: Location[str | tuple[str, ...] | None] = None
    """Where the held-out documents lie, if they are apart; validation_fraction is not used then."""
    include: str = "**/*"
    """Which files of a folder are read; * stays within a folder, ** does not. Hidden files are left out. A
    tar counts as a folder of its members."""
    exclude: tuple[str, ...] = ()
    """Patterns of the same kind for what is left out, such as "**/tests/**"."""
    max_document_bytes: int = pydantic.Field(default=64 * 2**20, ge=1)
    """A longer document is an error: it is nearly always a wrong format or a decompression bomb."""
    seed: int = 0
    """Chooses the documents that are held out."""
    dataset_config: str | None = None
    """For huggingface by name: the configuration of the data set."""
    dataset_split: str = "train"
    """For huggingface: the split to read."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "CorpusConfig":
        if self.encoding != "auto":
            try:
                "".encode(self.encoding)
            except (LookupError, UnicodeError):
                raise ValueError(
                    f"encoding = {self.encoding!r} is no text encoding that Python knows; try utf-8 or auto"
                ) from None
        if self.documents == "file" and self.format not in ("auto", "text"):
            raise ValueError(f'documents = "file" goes with format = "text", not with {self.format!r}')
        if self.markup != "none" and self.format in ("auto", "text") and self.documents != "auto":
            wanted = "file" if self.markup == "aozora" else "blank_line"
            if self.documents != wanted:
                raise ValueError(f'markup = "{self.markup}" in text files goes with documents = "{wanted}"')
        if self.markup == "none" and not self.keep_titles:
            raise ValueError("keep_titles = false needs a markup that tells the titles")
        if self.markup != "aozora" and self.ruby != "base":
            raise ValueError(f'ruby = {self.ruby!r} needs markup = "aozora"')
        for key in ("path", "validation_path"):
            value = getattr(self, key)
            paths = (value,) if isinstance(value, str) else value
            if paths is not None and (not paths or not all(paths)):
                raise ValueError(f"{key} is empty")
        return self
