"""Runs on images: what differs from runs on text, in one place.

In: an ``ImageRecipe`` and its data set, or the run directory of such a run. Out: its parts, its held-out
pictures, its description, its artifact. The loop, the checkpoints and the metrics are those of text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from outlast.checkpoint.restore import Restored
from outlast.config import build, to_dict
from outlast.errors import OutlastError
from outlast.images.manifest import check_num_classes
from outlast.images.stream import ImageStream
from outlast.logs import log
from outlast.models.resnet_config import ResNetConfig, resolve_resnet
from outlast.objectives.classify import ClassifyObjective
from outlast.recipe import ImageRecipe, in_steps
from outlast.run.parts import RunParts
from outlast.storage import split_url
from outlast.stream.sources import in_manifest_order, manifest_url
from outlast.training.evaluate import HeldOutSource
from outlast.training.optimizer import decays, make_optimizer, make_schedule
from outlast.training.phase_plan import Phase
from outlast.training.phases import Phases

ARCHITECTURE = "resnet"
_MEASURED = 64
"""Held-out pictures that an export compares."""
_SPLIT = "validation"


@dataclass(frozen=True, kw_only=True)
class ImageParts(RunParts):
    """What a recipe of images and its data come to, before any array is made."""

    recipe: ImageRecipe
    phases: Phases[ImageStream]
    objective: ClassifyObjective

    @property
    def stream(self) -> ImageStream:
        """The pictures that are trained on."""
        return self.phases.streams[0]


def assemble_images(recipe: ImageRecipe) -> ImageParts:
    """Check a recipe against its data and make the parts of the run. Raises ConfigError, ShardError."""
    stream = ImageStream(recipe.stream, seed=recipe.training.seed)
    check_num_classes(stream.manifest, where=manifest_url(recipe.stream))
    recipe = in_steps(recipe, stream.num_examples)
    model = resolve_resnet(recipe.model, num_classes=stream.manifest.num_classes)
    objective = ClassifyObjective(
        model=model,
        config=recipe.objective,
        compute_dtype=jnp.dtype(recipe.training.compute_dtype),
        remat=recipe.training.remat == "layer",
    )
    schedule = make_schedule(recipe.optimizer, recipe.training.total_steps)
    # One phase; a picture counts as one.
    phase = Phase(
        first_step=0,
        num_steps=recipe.training.total_steps,
        sequence_length=1,
        global_batch_size=recipe.stream.global_batch_size,
        first_data_step=0,
        examples_before=0,
        tokens_before=0,
    )
    return ImageParts(
        recipe=recipe,
        phases=Phases([phase], [stream]),
        objective=objective,
        schedule=schedule,
        optimizer=make_optimizer(
            recipe.optimizer,
            schedule,
            decays(objective.param_table, biases_and_norms=recipe.optimizer.decay_biases_and_norms),
        ),
        identity={
            "seed": recipe.training.seed,
            "data": stream.identity,
            "model": {"architecture": ARCHITECTURE, **model.to_dict()},
            "objective": to_dict(recipe.objective),
            "optimizer": to_dict(recipe.optimizer),
            "total_steps": recipe.training.total_steps,
        },
    )


class HeldOutImages:
    """The held-out split of a run on images, each picture as evaluation shows it."""

    def __init__(self, parts: ImageParts) -> None:
        config = in_manifest_order(parts.recipe.stream)
        self._stream = ImageStream(config, seed=parts.recipe.training.seed, split=_SPLIT)
        self._limit = parts.recipe.training.evaluation_examples

    def sources(self, step: int) -> list[HeldOutSource]:
        """Return one pass; it is the same for every step."""
        del step
        return [HeldOutSource(None, self._stream.evaluation_batches(self._limit))]


def open_held_out_images(parts: ImageParts) -> HeldOutImages | None:
    """Return the held-out pictures of a run, None where its data set has none."""
    return HeldOutImages(parts) if _SPLIT in parts.stream.manifest.splits else None


def describe_images(parts: ImageParts) -> dict[str, Any]:
    """Return what the run directory keeps: the recipe as resolved, and the names of the classes."""
    recipe = to_dict(parts.recipe)
    # Whole, so that the run can be evaluated from any folder.
    name = split_url(recipe["stream"]["manifest"])[1]
    recipe["stream"]["manifest"] = f"{parts.stream.store.url}/{name}"
    return {"recipe": recipe, "classes": parts.stream.manifest.classes}


def warn_of_classes(of_model: Sequence[str] | None, of_data: Sequence[str] | None) -> None:
    """Say where the classifier of a model calls a class otherwise than the data do: equal numbers of classes
    do not show that the classes are the same, nor in the same order. A model may have more names than the
    data, and the other way round.
    """
    for number, (there, here) in enumerate(zip(of_model or (), of_data or (), strict=False)):
        if there != here:
            log.warning(
                "the model's classifier is taken, though the data's classes have other names: %d is %r there "
                "and %r here",
                number,
                there,
                here,
            )
            return


def export_images(
    restored: Restored, description: dict[str, Any], out: Path, *, where: str, provenance: dict[str, Any]
) -> Path:
    """Write a checkpoint as a Hugging Face model folder; return the folder.

    Args:
        description: what ``describe_images`` returned, as it was read back.
        where: the file it was read from.
    """
    from outlast.huggingface.image_processor import image_processor_config
    from outlast.huggingface.images import export_image_model

    recipe = build(ImageRecipe, description["recipe"], where=where)
    model = dict(restored.commit.identity["model"])
    del model["architecture"]

    images = recipe.stream.images
    return export_image_model(
        restored.under("params/"),
        restored.under("model_state/"),
        ResNetConfig.from_dict(model),
        out,
        classes=description.get("classes"),
        preprocessor=image_processor_config(
            image_size=images.image_size,
            shorter_side=images.resize,
            mean=recipe.objective.pixel_mean,
            deviation=recipe.objective.pixel_deviation,
        ),
        differences=_measure_pixels(recipe),
        provenance=provenance,
    )


def _measure_pixels(recipe: ImageRecipe) -> str:
    """Return how far the pictures that transformers shows the model are from those of our evaluation, in
    words: of up to so many held-out pictures, spread evenly; "" where the data set is not at hand.
    """
    from outlast.huggingface.image_processor import show_as_transformers

    try:
        config = in_manifest_order(recipe.stream)
        stream = ImageStream(config, seed=recipe.training.seed, split=_SPLIT)
        total = stream.num_examples
        chosen = np.unique(np.linspace(0, total - 1, min(total, _MEASURED)).astype(np.int64))
        means: list[float] = []
        for index in chosen.tolist():
            ours = stream.examples(np.array([index]))
            theirs = show_as_transformers(
                bytes(stream.content(index)),
                image_size=recipe.stream.images.image_size,
                shorter_side=recipe.stream.images.resize,
            )
            if theirs is not None and ours["example_weights"][0]:
                means.append(float(np.abs(ours["images"][0].astype(np.int16) - theirs).mean()))
    except (OutlastError, ImportError) as error:  # neither the data nor what decodes them has to be there
        reason = error.message if isinstance(error, OutlastError) else error
        log.info("transformers' pixels were not compared with those of our evaluation: %s", reason)
        return ""
    if not means:
        return ""
    of_255 = f"{np.mean(means):.2f} of 255 on average, {max(means):.2f} on the worst picture"
    log.info(
        "transformers' pixels beside those of our evaluation, %d held-out pictures: apart by %s",
        len(means),
        of_255,
    )
    if not max(means):
        return f"transformers shows the pixels of our evaluation: {len(means)} pictures were compared."
    return f"""transformers cuts out the same part of a picture as the evaluation of the training run did, to
a pixel, and resizes it by another filter. On {len(means)} held-out pictures its pixels are others by
{of_255}."""
