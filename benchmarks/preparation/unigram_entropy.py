"""What a model that knows only how often each piece occurs would lose on the held-out text (nats).

Two numbers: the entropy of the held-out tokens under their own frequencies (the lowest any such model can
reach), and their cross-entropy under the frequencies of the training split. Special ids are left out, as the
objective leaves them.

    python benchmarks/preparation/unigram_entropy.py data/manifest.json
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from outlast.shards.manifest import Manifest, read_manifest
from outlast.shards.opened import OpenedFile
from outlast.shards.read import open_tokens
from outlast.storage import Store


def count_tokens(manifest: Manifest, store: Store, split: str) -> NDArray[np.float64]:
    """Return how often each id occurs in a split, special ids left out, float64 of shape (vocab_size,)."""
    counts = np.zeros(manifest.tokenizer.vocab_size)
    for entry in manifest.shards(split):
        path = store.local_path(entry.name)
        assert path is not None, "copy the data set to this machine first"
        file = OpenedFile(path, entry)
        tokens, _ = open_tokens(file, entry, tokenizer_fingerprint=manifest.tokenizer.fingerprint)
        counts += np.bincount(tokens.read(0, len(tokens)), minlength=len(counts))
    counts[list(manifest.tokenizer.special_ids.values())] = 0
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("manifest")
    manifest, store = read_manifest(parser.parse_args().manifest)
    held_out = count_tokens(manifest, store, "validation")
    train = count_tokens(manifest, store, "train") + 1.0
    share = held_out[held_out > 0] / held_out.sum()
    own = -(share * np.log(share)).sum()
    cross = -(held_out / held_out.sum() * np.log(train / train.sum())).sum()
    print(f"{int(held_out.sum())} tokens: entropy {own:.4f} nats, under training frequencies {cross:.4f}")


if __name__ == "__main__":
    main()
