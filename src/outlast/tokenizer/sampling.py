"""The text that a vocabulary is trained on: documents chosen by a seed, then lines of bounded length.

In: a stream of documents, read once. Out: the same lines for the same documents and seed, in whatever order
the documents came.
"""

import hashlib
import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from outlast.prng import derive_key


@dataclass(frozen=True, kw_only=True)
class TrainingText:
    """The chosen documents as UTF-8, ordered by their hash under the seed."""

    documents: list[bytes]
    num_documents_seen: int
    bytes_seen: int

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.documents))


def choose_documents(documents: Iterable[str], *, max_bytes: int, seed: int) -> TrainingText:
    """Choose documents of at most ``max_bytes`` UTF-8 bytes in all, every one if they fit.

    Each document's hash under the seed is its rank; the lowest ranks are kept, so a document's chance does
    not depend on where in the stream it stands, nor the choice on the stream's order. A document larger than
    ``max_bytes`` is cut.
    """
    key = derive_key(seed, "tokenizer training text").to_bytes(8, "little")
    heap: list[tuple[int, int, bytes]] = []  # the highest rank on top
    kept_bytes = bytes_seen = seen = 0
    highest_rank = 2**64
    for document in documents:
        content = document.encode("utf-8", errors="replace")
        seen += 1
        bytes_seen += len(content)
        rank = int.from_bytes(hashlib.blake2b(content, digest_size=8, key=key).digest(), "little")
        if rank >= highest_rank or not content:
            continue
        content = content if len(content) <= max_bytes else _cut(content, max_bytes)
        heapq.heappush(heap, (-rank, seen, content))
        kept_bytes += len(content)
        while kept_bytes > max_bytes:
            negative_rank, _, dropped = heapq.heappop(heap)
            kept_bytes -= len(dropped)
            highest_rank = -negative_rank
    chosen = sorted(heap, key=lambda entry: (-entry[0], entry[1]))
    return TrainingText(
        documents=[content for _, _, content in chosen], num_documents_seen=seen, bytes_seen=bytes_seen
    )


def split_lines(documents: Iterable[bytes], *, max_bytes: int) -> Iterator[str]:
    """Yield the lines of the documents without their ends; a line above ``max_bytes`` is cut, and nothing is
    dropped.

    A long line is cut at its last space where it has one, else between two characters.
    """
    for document in documents:
        for line in document.split(b"\n"):
            line = line.removesuffix(b"\r")
            while len(line) > max_bytes:
                head = _cut(line, max_bytes)
                space = head.rfind(b" ")
                head = head[:space] if space > 0 else head
                yield head.decode()
                line = line[len(head) :]
            if line:
                yield line.decode()


def name_breaker(names: Sequence[str], mark: str) -> Callable[[str], str]:
    """Return a function that inserts ``mark`` after the first character of each of the names in a text.

    The names of control pieces are text like any other in a corpus, so their characters count; no piece may
    spell a whole name, or text would encode to a control id. A name of one character becomes the mark.
    """
    pattern = re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)))

    def broken(match: re.Match[str]) -> str:
        name = match[0]
        return f"{name[0]}{mark}{name[1:]}" if len(name) > 1 else mark

    return lambda text: pattern.sub(broken, text)


def _cut(content: bytes, length: int) -> bytes:
    """Return the longest beginning of at most ``length`` bytes that ends between two characters."""
    while length > 0 and content[length] & 0xC0 == 0x80:
        length -= 1
    return content[:length]
