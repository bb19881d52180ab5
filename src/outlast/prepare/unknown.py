"""What a build says of unknown pieces, in its last lines and in its manifest.

In: the records of all portions. Out: values for the manifest's provenance, and lines of the log.
"""

from collections.abc import Sequence
from typing import Any

from outlast.logs import log
from outlast.prepare.portion import TextRecord
from outlast.shards.describe import describe_counts, describe_unknown
from outlast.tokenizer.unknown import add_tallies

MOST_UNKNOWN = 0.01
"""Above this share of the tokens the unknown ones are warned of."""
_MOST_LISTED = 10


def tell_unknown(records: Sequence[TextRecord]) -> dict[str, Any]:
    """Say what the vocabulary does not know; return ``unknown_pieces`` and, where the text holds names of
    control pieces, ``control_names``.

    Portions that an older version built have counted nothing: ``pieces_not_counted`` says how many.
    """
    counted = [record.unknown for record in records if record.unknown is not None]
    tally = add_tallies(counted)
    found: dict[str, Any] = {
        "tokens": tally.tokens,
        "unknown": tally.unknown,
        "share": round(tally.share, 6),
        "characters": dict(list(tally.characters.items())[:_MOST_LISTED]),
    }
    if len(counted) < len(records):
        found["pieces_not_counted"] = len(records) - len(counted)
    log.info("unknown pieces: %s", describe_unknown(found))
    if tally.share > MOST_UNKNOWN:
        log.warning(
            "more than %.0f %% of the tokens are unknown: raise tokenizer.character_coverage or "
            "tokenizer.vocab_size, set tokenizer.byte_fallback, or take another tokenizer",
            100 * MOST_UNKNOWN,
        )
    if not tally.control_names:
        return {"unknown_pieces": found}
    log.warning(
        "the corpus holds names of control pieces, which are text in it: %s; transformers takes them for "
        "the pieces themselves, unless split_special_tokens=True",
        describe_counts(tally.control_names),
    )
    return {"unknown_pieces": found, "control_names": tally.control_names}
