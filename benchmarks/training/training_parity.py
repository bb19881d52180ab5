"""The losses of a recipe's first steps, beside Hugging Face's own PyTorch model.

Both sides get the same initial weights (through our export), the same batches and masks, and the same
optimizer written twice: ours in optax, theirs torch.optim.AdamW with a norm clip. Dropout is 0 on both sides,
since two random streams cannot be equal. Prints both losses per step and the largest relative difference.

    python benchmarks/training/training_parity.py RECIPE.toml data/manifest.json --steps 50
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
import transformers
from torch.nn import functional

from outlast.huggingface.export import export_model
from outlast.models.params import flatten
from outlast.models.randomness import fold, row_keys
from outlast.objectives.loss import mean_loss
from outlast.recipe import Recipe, read_recipe
from outlast.run.assemble import assemble
from outlast.run.text import TextParts
from outlast.training.step import make_train_step


def read_without_dropout(recipe: Path, manifest: str, overrides: tuple[str, ...] = ()) -> Recipe:
    """Return a recipe on a data set, with every dropout at 0."""
    zero = ("model.dropout=0.0", "model.attention_dropout=0.0", f'stream.manifest="{manifest}"')
    return read_recipe(recipe, (*overrides, *zero))


def our_losses(parts: TextParts, num_steps: int) -> list[float]:
    """Return the mean loss of each of the first steps, trained by Outlast."""
    learner = parts.learner
    state = learner.initial_state()
    step = make_train_step(
        learner.objective, learner.optimizer, learner.schedule, seed=learner.seed, num_microbatches=1
    )
    losses: list[float] = []
    for number in range(num_steps):
        state, measured = step(state, parts.stream.batch(number))
        losses.append(float(mean_loss(measured.terms)))
    return losses


def their_losses(parts: TextParts, num_steps: int) -> list[float]:
    """Return the same from transformers' model and torch's AdamW."""
    model = _their_model(parts)
    config = parts.recipe.optimizer
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.epsilon)
    losses: list[float] = []
    for number in range(num_steps):
        batch, masked = _masked(parts, number)
        logits = model(
            input_ids=_tensor(masked.input_ids), attention_mask=_tensor(batch["attention_mask"])
        ).logits
        chosen = torch.take_along_dim(logits, _tensor(masked.positions)[:, :, None], dim=1)
        weights = torch.tensor(np.asarray(masked.weights))
        nll = functional.cross_entropy(
            chosen.flatten(0, 1), _tensor(masked.labels).flatten(), reduction="none"
        )
        loss = (nll * weights.flatten()).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = float(parts.learner.schedule(number))
        optimizer.step()
        losses.append(loss.item())
    return losses


def _their_model(parts: TextParts) -> Any:
    params = flatten(parts.learner.initial_state().params)
    with tempfile.TemporaryDirectory() as folder:
        exported = export_model(
            {name: np.asarray(value) for name, value in params.items()},
            parts.learner.objective.model,
            Path(folder, "model"),
            special_ids=parts.stream.manifest.tokenizer.special_ids,
            write_tokenizer=lambda _: None,
            provenance={},
        )
        model = transformers.AutoModelForMaskedLM.from_pretrained(exported)
    return model.train()


def _masked(parts: TextParts, step: int) -> tuple[dict[str, Any], Any]:
    """Return a step's batch, and its masks as the train step draws them."""
    batch = parts.stream.batch(step)
    rows = jax.numpy.arange(len(batch["input_ids"]), dtype=jax.numpy.int32)
    keys = fold(row_keys(parts.recipe.training.seed, "train", step, rows), "masks")
    return batch, parts.learner.objective.mask(
        jax.numpy.asarray(batch["input_ids"]), jax.numpy.asarray(batch["attention_mask"]), keys
    )


def _tensor(array: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(array).astype(np.int64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("manifest")
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    parts = assemble(read_without_dropout(arguments.recipe, arguments.manifest))
    ours, theirs = our_losses(parts, arguments.steps), their_losses(parts, arguments.steps)
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True), start=1):
        print(f"step {step:3d}  ours {a:.6f}  transformers {b:.6f}  relative {abs(a - b) / b:.1e}")
    worst = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    print(f"largest relative difference over {arguments.steps} steps: {worst:.1e}")


if __name__ == "__main__":
    main()
