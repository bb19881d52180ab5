"""Whole words: what is masked on real data, and what choosing them costs.

For each data set: pieces per word, words of one piece, and over its first batches the share of the eligible
tokens that are predicted, how many of the wanted predictions find a word, and what became of them (mask,
another id, themselves).

    python benchmarks/preparation/whole_words.py DATA/manifest.json ...

With --cost: masking alone, whole words beside tokens, in turn; with --step a step of BERT-base with each.
Words have one to five pieces, 1.6 on average. The medians of the rounds and their ratio are printed.

    python benchmarks/preparation/whole_words.py --cost --step --rows 8 --length 128 --rounds 9
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlast.models.randomness import row_keys
from outlast.objectives.config import MlmConfig
from outlast.objectives.mlm import MaskedBatch, mask_tokens
from outlast.recipe import make_recipe
from outlast.run.assemble import make_learner
from outlast.run.kind import DataFacts
from outlast.shards.describe import describe_manifest
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from outlast.training.step import make_train_step

SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
PIECES_PER_WORD = (0.62, 0.22, 0.1, 0.04, 0.02)
VOCAB_SIZE = 32_000


def show_masks(manifest: str, length: int, num_batches: int) -> None:
    """Print a line on the words of a data set and what is masked of them."""
    config = StreamConfig(manifest=manifest, sequence_length=length, global_batch_size=256)
    stream = TokenStream(config, seed=0, word_starts=True)
    tokenizer = stream.manifest.tokenizer
    excluded = tuple(sorted(tokenizer.special_ids.values()))
    options: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "mask_id": tokenizer.special_ids["mask"],
        "excluded_ids": excluded,
    }
    mask = jax.jit(partial(mask_tokens, config=MlmConfig(whole_words=True), **options))
    eligible = wanted = single = words = 0
    fates = np.zeros(3, np.int64)
    for step in range(num_batches):
        batch = stream.batch(step)
        ids, starts = batch["input_ids"], batch["word_starts"] != 0
        keys = row_keys(0, "train", step, jnp.arange(len(ids)))
        masked: MaskedBatch = mask(ids, batch["attention_mask"], keys, word_starts=batch["word_starts"])
        is_text = ~np.isin(ids, excluded) & (batch["attention_mask"] != 0)
        ends = np.concatenate((starts[:, 1:], np.ones_like(starts[:, :1])), axis=1)
        words += int((starts & is_text).sum())
        single += int((starts & ends & is_text).sum())
        counts = is_text.sum(axis=1)
        eligible += int(counts.sum())
        wanted += int(np.clip(np.round(0.15 * counts), 1, MlmConfig().num_predictions(length)).sum())
        used = np.asarray(masked.weights) == 1
        new = np.take_along_axis(np.asarray(masked.input_ids), np.asarray(masked.positions), axis=1)[used]
        old = np.asarray(masked.labels)[used]
        is_mask = new == options["mask_id"]
        fates += [is_mask.sum(), (~is_mask & (new != old)).sum(), (~is_mask & (new == old)).sum()]
    shares = ", ".join(f"{fate / fates.sum():.2%}" for fate in fates)
    found = describe_manifest(manifest)["splits"]["train"]
    print(
        f"{manifest}: {(found['tokens'] - found['documents']) / found['words']:.3f} pieces a word, "
        f"{single / words:.1%} of the words one piece; predicted {fates.sum() / eligible:.2%} of the tokens, "
        f"{fates.sum() / wanted:.2%} of those wanted; mask, another, the same: {shares}"
    )


def make_batch(number: int, rows: int, length: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    sizes = rng.choice(np.arange(1, 6), p=PIECES_PER_WORD, size=rows * length)
    starts = np.zeros(rows * length, np.int8)
    begins = np.cumsum(sizes) - sizes
    starts[begins[begins < len(starts)]] = 1
    return {
        "input_ids": rng.integers(5, VOCAB_SIZE, (rows, length)).astype(np.int32),
        "attention_mask": np.ones((rows, length), np.int8),
        "word_starts": starts.reshape(rows, length),
    }


def compare(what: str, runs: dict[str, Callable[[int], Any]], rounds: int, repeats: int) -> None:
    """Time the runs in turn; print the medians and the ratio of the second to the first."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(0)
    for number in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            for repeat in range(repeats):
                run(number * repeats + repeat)
            seconds[name].append((time.perf_counter() - began) / repeats)
    tokens, words = seconds.values()
    ratios = [word / token for token, word in zip(tokens, words, strict=True)]
    print(
        f"{what}: tokens {statistics.median(tokens) * 1e3:.2f} ms, "
        f"whole words {statistics.median(words) * 1e3:.2f} ms, "
        f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
    )


CONFIGS = {"tokens": MlmConfig(), "words": MlmConfig(whole_words=True)}


def show_cost(rows: int, length: int, rounds: int) -> None:
    """Print what whole words cost in masking."""
    batches = [jax.device_put(make_batch(number, rows, length)) for number in range(4)]
    keys = [row_keys(0, "train", number, jnp.arange(rows)) for number in range(4)]

    def masking(config: MlmConfig) -> Callable[[int], Any]:
        options: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "mask_id": 4, "excluded_ids": (0, 1, 2, 3, 4)}
        mask = jax.jit(partial(mask_tokens, config=config, **options))

        def run(number: int) -> None:
            batch = batches[number % 4]
            starts = batch["word_starts"]
            jax.block_until_ready(
                mask(batch["input_ids"], batch["attention_mask"], keys[number % 4], word_starts=starts)
            )

        return run

    compare(f"masking {rows} x {length}", {n: masking(c) for n, c in CONFIGS.items()}, rounds, 10)


def show_step(rows: int, length: int, rounds: int) -> None:
    """Print what whole words cost in a step."""
    batches = [jax.device_put(make_batch(number, rows, length)) for number in range(4)]

    def stepping(config: MlmConfig) -> Callable[[int], Any]:
        tables = {"stream": {"sequence_length": length}, "objective": {"whole_words": config.whole_words}}
        facts = DataFacts(vocab_size=VOCAB_SIZE, special_ids=SPECIAL_IDS)
        learner = make_learner(make_recipe(tables, where="here"), facts)
        state = learner.initial_state()
        step = make_train_step(
            learner.objective, learner.optimizer, learner.schedule, seed=0, num_microbatches=1
        )

        def run(number: int) -> None:
            nonlocal state
            state, _ = step(state, batches[number % 4])
            jax.block_until_ready(state)

        return run

    compare(f"BERT-base step {rows} x {length}", {n: stepping(c) for n, c in CONFIGS.items()}, rounds, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("manifests", nargs="*")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--step", action="store_true")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    for manifest in arguments.manifests:
        show_masks(manifest, arguments.length, arguments.batches)
    if arguments.cost:
        show_cost(arguments.rows, arguments.length, arguments.rounds)
    if arguments.step:
        show_step(arguments.rows, arguments.length, arguments.rounds)


if __name__ == "__main__":
    main()
