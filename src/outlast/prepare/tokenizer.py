"""The tokenizer of a build: found in the output folder, trained, copied, or waited for."""

import time
from collections.abc import Iterator, Sequence

from outlast.build.drive import describe_progress
from outlast.build.failures import FailureWatch
from outlast.build.tasks import Task, wait_for
from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.documents import DocumentCleaning
from outlast.cleaning.tally import CleaningTally
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.extent import TextPortion
from outlast.corpus.read import nothing_to_train_on, read_documents, split_chooser
from outlast.errors import TokenizerError
from outlast.logs import ProgressLine, log
from outlast.prepare.identity import read_existing
from outlast.prepare.portion import TOKENIZER_FOLDER
from outlast.storage import Store
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.manifest import (
    MANIFEST_NAME,
    TokenizerManifest,
    read_tokenizer_manifest,
    write_tokenizer,
)
from outlast.tokenizer.train import train_tokenizer


def ensure_tokenizer(
    corpus: CorpusConfig,
    cleaning: CleaningConfig,
    config: TokenizerConfig,
    store: Store,
    portions: Sequence[TextPortion],
    task: Task | None,
    wait_seconds: float,
) -> TokenizerManifest:
    """Return the tokenizer of the output folder: found there, trained, copied, or waited for."""
    name = f"{TOKENIZER_FOLDER}/{MANIFEST_NAME}"
    if task is not None and task[0] > 0 and not store.exists(name):
        log.info("waiting for task 0/%d, which makes the tokenizer", task[1])
        if not wait_for(lambda: store.exists(name), wait_seconds, FailureWatch(store, 0).check):
            raise TokenizerError(
                f"There is no tokenizer after {wait_seconds:.0f} seconds.",
                where=f"{store.url}/{name}",
                remedy=f"start `--task 0/{task[1]}`, which makes it, then this one again",
            )
    if store.exists(name):
        return read_tokenizer_manifest(store, TOKENIZER_FOLDER)
    if config.path is not None:
        manifest, content = read_existing(config.path)
        write_tokenizer(store, TOKENIZER_FOLDER, manifest, content)
        return manifest

    def documents() -> Iterator[str]:
        return _training_documents(corpus, cleaning, store, portions)

    return train_tokenizer(config, documents, store, TOKENIZER_FOLDER, report=log.info)


def _training_documents(
    corpus: CorpusConfig, cleaning: CleaningConfig, store: Store, portions: Sequence[TextPortion]
) -> Iterator[str]:
    """Yield the documents to train on: held-out text must not shape the vocabulary either."""
    choose = split_chooser(corpus)
    stage = DocumentCleaning(cleaning, store)
    sizes = [sum(extent.size_bytes for extent in portion.extents) for portion in portions]
    began = time.monotonic()
    num_documents = num_bytes = num_chosen = done = 0
    with ProgressLine("text for the tokenizer", sum(sizes)) as line:
        for portion, size in zip(portions, sizes, strict=True):
            tally = Tally()
            read = read_documents(corpus, portion.extents, tally)
            for text in stage.clean(read, portion.number, "corpus", CleaningTally()):
                if choose(text.encode()) == "train":
                    num_chosen += 1
                    yield text
                if line.is_due():
                    counts = num_documents + tally.documents, num_bytes + tally.text_bytes, 0
                    note = describe_progress(counts, time.monotonic() - began)
                    line.update(done + min(tally.text_bytes, size), note)
            num_documents, num_bytes, done = (
                num_documents + tally.documents,
                num_bytes + tally.text_bytes,
                done + size,
            )
    if not num_chosen and not cleaning.is_on:
        raise nothing_to_train_on(num_documents)
