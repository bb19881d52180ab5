"""A fuzzer guided by coverage (atheris), let loose on one parser: ``python guided.py PARSER CORPUS -runs=N``.

In: the name of a parser and a folder of sound inputs. Out: exit code 0 where every input was read or refused
by a typed error; anything else is a finding, and the input that caused it is printed.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import atheris

with atheris.instrument_imports(include=["outlast"]):  # pyright: ignore[reportAttributeAccessIssue]
    from outlast.checkpoint.format import parse_commit
    from outlast.errors import OutlastError
    from outlast.shards.manifest import parse_manifest
    from outlast.shards.read import read_shard_bytes
    from outlast.tokenizer.manifest import parse_tokenizer_manifest
    from outlast.tokenizer.sentencepiece_model import parse_model

PARSERS: dict[str, Callable[[bytes], Any]] = {
    "manifest": lambda content: parse_manifest(content, where="x"),
    "shard": lambda content: read_shard_bytes(content, where="x"),
    "commit": lambda content: parse_commit(content, name="commits/000000000003-1.json"),
    "tokenizer": lambda content: parse_tokenizer_manifest(content, where="x"),
    "sentencepiece": parse_model,
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
