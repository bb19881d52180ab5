"""A fuzzer guided by coverage (atheris), let loose on one parser: ``python guided.py PARSER CORPUS -runs=N``.

In: the name of a parser, a folder of sound inputs, and the current folder for parsers that read files. Out:
exit code 0 where every input was read or refused by a typed error; anything else is a finding, and the input
that caused it is printed.
"""

import io
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["outlast"]):  # pyright: ignore[reportAttributeAccessIssue]
    from outlast.build.plan import read_record_as
    from outlast.checkpoint.format import parse_commit
    from outlast.corpus.config import CorpusConfig
    from outlast.corpus.encoding import Tally
    from outlast.corpus.plan import list_corpus, plan_portions
    from outlast.corpus.read import read_documents
    from outlast.errors import OutlastError
    from outlast.interchange.tf_example import decode_example
    from outlast.interchange.tfrecord import read_records
    from outlast.prepare.portion import TextRecord
    from outlast.recipe import read_recipe
    from outlast.shards.manifest import parse_manifest
    from outlast.shards.read import read_shard_bytes
    from outlast.storage import LocalStore
    from outlast.storage.checksummed_json import unseal
    from outlast.tokenizer.manifest import parse_tokenizer_manifest
    from outlast.tokenizer.sentencepiece_model import parse_model


def read_lines(content: bytes) -> list[str]:
    """Read a corpus of JSON lines."""
    config = CorpusConfig(path=str(written("lines.jsonl", content)), format="jsonl")
    portions = plan_portions(list_corpus(config), 2)
    return [document for portion in portions for document in read_documents(config, portion, Tally())]


def read_portion(content: bytes) -> Any:
    """Read the record of a finished portion of a build."""
    Path("done").mkdir(exist_ok=True)
    written("done/00000.json", content)
    return read_record_as(TextRecord, LocalStore(Path.cwd()), 0)


def written(name: str, content: bytes) -> Path:
    """Write a file in the current folder."""
    path = Path.cwd() / name
    path.write_bytes(content)
    return path


PARSERS: dict[str, Callable[[bytes], Any]] = {
    "manifest": lambda content: parse_manifest(content, where="x"),
    "shard": lambda content: read_shard_bytes(content, where="x"),
    "commit": lambda content: parse_commit(content, name="commits/000000000003-1.json"),
    "tokenizer": lambda content: parse_tokenizer_manifest(content, where="x"),
    "sentencepiece": parse_model,
    "sealed document": lambda content: unseal(content, where="x"),
    "recipe": lambda content: read_recipe(written("recipe.toml", content)),
    "json lines": read_lines,
    "portion record": read_portion,
    "tfrecord": lambda content: list(read_records(io.BytesIO(content), where="x", max_record_bytes=2**20)),
    "example": lambda content: decode_example(content, "x"),
}


def main() -> None:
    """Fuzz the parser that the first argument names."""
    parse = PARSERS[sys.argv[1]]

    def refuse_or_read(content: bytes) -> None:
        with suppress(OutlastError):
            parse(content)

    atheris.Setup([sys.argv[0], *sys.argv[2:]], refuse_or_read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
