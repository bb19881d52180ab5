"""One portion of the corpus becomes its shards: the unit of work, of failure and of resuming.

In: the number of a portion and its extents. Out: at most one shard for each split, then the record that marks
the portion as finished. Memory is bounded: documents stream to the tokenizer in batches, tokens to disk.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from outlast.build.plan import write_record
from outlast.build.processes import Count
from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.documents import DocumentCleaning
from outlast.cleaning.tally import CleaningTally
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.extent import Extent, TextPortion
from outlast.corpus.read import read_encoded, split_chooser
from outlast.corpus.sentences import sentence_splitter
from outlast.errors import ShardError
from outlast.prepare.encode import encode_documents
from outlast.shards.record import PortionRecord, shard_name
from outlast.shards.write import TokenShardWriter
from outlast.storage import open_store
from outlast.tokenizer.encode import load_tokenizer
from outlast.tokenizer.unknown import UnknownCounter, UnknownTally
from outlast.tokenizer.words import Segmenter, make_word_marker

TOKENIZER_FOLDER = "tokenizer"
_BATCH_CHARACTERS = 2**19
_BATCH_DOCUMENTS = 1024


@dataclass(frozen=True, kw_only=True)
class BuildJob:
    """What all portions of a build have in common."""

    corpus: CorpusConfig
    out: str
    num_shards: int
    tokenizer_fingerprint: str
    cleaning: CleaningConfig
    words: Literal["pieces"] | Segmenter | None = None
    """What finds words; None: the shards do not tell them."""

    def open(self) -> "PortionBuilder":
        """Return what builds portions."""
        return PortionBuilder(self)


@dataclass(frozen=True, kw_only=True)
class TextRecord(PortionRecord):
    """What became of a portion of text.

    Attributes:
        cleaning: what cleaning did to its documents, None where there was none.
        unknown: what the vocabulary does not know of them, None where an older version did not count it.
        members: of tars, by what became of them: read, left_out, folders, links, devices.
        encodings: of members whose encoding was detected.
    """

    cleaning: CleaningTally | None = None
    unknown: UnknownTally | None = None
    members: dict[str, int] = field(default_factory=dict[str, int])
    encodings: dict[str, int] = field(default_factory=dict[str, int])


class _Document(NamedTuple):
    split: str
    text: str
    content: bytes
    """The text in UTF-8."""


class PortionBuilder:
    """Builds portions, one after another, with one tokenizer.

    Raises:
        TokenizerError: no tokenizer in the output folder, or a damaged one, or one that marks no words.
        ShardError: it is not the tokenizer that the build began with.
    """

    def __init__(self, job: BuildJob) -> None:
        self.job = job
        self.store = open_store(job.out)
        self.split = sentence_splitter(job.corpus.sentences)
        self.tokenizer = load_tokenizer(self.store, TOKENIZER_FOLDER)
        self.words = None if job.words is None else make_word_marker(self.tokenizer, job.words)
        self.cleaning = DocumentCleaning(job.cleaning, self.store)
        found = self.tokenizer.manifest.fingerprint
        if found != job.tokenizer_fingerprint:
            raise ShardError(
                f"The tokenizer was exchanged in the middle of a build: {found}.",
                expected=job.tokenizer_fingerprint,
                where=f"{self.store.url}/{TOKENIZER_FOLDER}",
            )

    def build(self, portion: TextPortion, count: Count) -> TextRecord:
        """Write a portion's shards and its record.

        Raises:
            CorpusError: text that cannot be read.
            StorageError: a shard that cannot be written.
        """
        tally = Tally()
        cleaned = CleaningTally()
        splits = _Splits(self)
        with splits.files:
            batch: list[_Document] = []
            num_characters = 0
            for document in self._documents(portion, tally, cleaned):
                batch.append(document)
                num_characters += len(document.text)
                if num_characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS:
                    splits.add(batch, count)
                    batch, num_characters = [], 0
            splits.add(batch, count)
            names = {
                split: shard_name(split, portion.number, self.job.num_shards) for split in splits.writers
            }
            record = TextRecord(
                number=portion.number,
                tokenizer_fingerprint=self.job.tokenizer_fingerprint,
                shards={
                    split: splits.writers[split].write(self.store, names[split]) for split in sorted(names)
                },
                text_bytes=dict(sorted(splits.text_bytes.items())),
                skipped={"empty": tally.empty_documents, "without_tokens": splits.num_without_tokens},
                undecodable_bytes=tally.undecodable_bytes,
                undecodable=[(place.file, place.offset, place.num_bytes) for place in tally.undecodable],
                cleaning=cleaned if self.job.cleaning.is_on else None,
                unknown=splits.unknown.tally(),
                members=dict(sorted(tally.members.items())),
                encodings=dict(sorted(tally.encodings.items())),
            )
        write_record(self.store, record)
        return record

    def _documents(self, portion: TextPortion, tally: Tally, cleaned: CleaningTally) -> Iterator[_Document]:
        choose = split_chooser(self.job.corpus)
        for document, content in self._cleaned(portion.extents, portion.number, "corpus", tally, cleaned):
            yield _Document(choose(content), document, content)
        for document, content in self._cleaned(portion.held_out, portion.number, "held_out", tally, cleaned):
            yield _Document("validation", document, content)

    def _cleaned(
        self, extents: Sequence[Extent], portion: int, section: str, tally: Tally, cleaned: CleaningTally
    ) -> Iterator[tuple[str, bytes]]:
        """Yield the documents of extents that stay, each with its UTF-8."""
        found = read_encoded(self.job.corpus, extents, tally)
        if not self.job.cleaning.is_on:
            return found
        documents = (document for document, _ in found)
        stay = self.cleaning.clean(documents, portion, section, cleaned)
        return ((document, document.encode()) for document in stay)


class _Splits:
    """The shards of a portion in the making, one for each split that has got a document."""

    def __init__(self, builder: PortionBuilder) -> None:
        self.files = ExitStack()
        self.writers: dict[str, TokenShardWriter] = {}
        self.text_bytes: dict[str, int] = {}
        self.num_without_tokens = 0
        self.unknown = UnknownCounter(builder.tokenizer)
        self._builder = builder

    def add(self, batch: list[_Document], count: Count) -> None:
        before = self._totals()
        builder = self._builder
        texts, contents = [document.text for document in batch], [document.content for document in batch]
        encoded = encode_documents(builder.tokenizer, texts, builder.split, builder.words, contents=contents)
        self.unknown.add(texts, contents, [document.ids for document in encoded])
        for (split, _, content), (ids, sentence_lengths, word_starts) in zip(batch, encoded, strict=True):
            if not len(ids):
                self.num_without_tokens += 1
                continue
            self.text_bytes[split] = self.text_bytes.get(split, 0) + len(content)
            self._writer(split).add(ids, sentence_lengths, word_starts)
        documents, text_bytes, tokens = (now - then for now, then in zip(self._totals(), before, strict=True))
        count(documents, text_bytes, tokens)

    def _totals(self) -> tuple[int, int, int]:
        writers = self.writers.values()
        return (
            sum(writer.num_documents for writer in writers),
            sum(self.text_bytes.values()),
            sum(writer.num_tokens for writer in writers),
        )

    def _writer(self, split: str) -> TokenShardWriter:
        if split not in self.writers:
            manifest = self._builder.tokenizer.manifest
            writer = TokenShardWriter(
                vocab_size=manifest.vocab_size,
                separator_id=manifest.special_ids["sep"],
                tokenizer_fingerprint=manifest.fingerprint,
                has_sentences=self._builder.split is not None,
                has_words=self._builder.words is not None,
                spool_folder=self._builder.store.local_path("."),
            )
            self.writers[split] = self.files.enter_context(writer)
        return self.writers[split]
