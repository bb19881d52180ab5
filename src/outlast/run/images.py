"""Classification of images: what differs from other kinds of runs, in one place.

In: a recipe, a data set of images, a run directory. Out: streams of pictures, the objective on a ResNet, an
artifact that says how pictures are shown to it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from outlast.errors import ConfigError, OutlastError
from outlast.images.config import ImageStreamConfig
from outlast.images.manifest import check_num_classes
from outlast.images.stream import ImageStream
from outlast.logs import log
from outlast.models.params import unflatten
from outlast.models.resnet import CLASSIFIER
from outlast.models.resnet_config import RESNET, ResNetConfig
from outlast.objectives.classify import ClassifyObjective
from outlast.recipe import Recipe, make_recipe
from outlast.recipe.images import image_tables, resnet_of
from outlast.run.directory import PARAMS_PREFIX, STATE_PREFIX, find_description
from outlast.run.initialize import fitting, warn_of_differences
from outlast.run.kind import DataFacts, Former, Parts, RunKind
from outlast.storage import Store
from outlast.stream.sources import in_manifest_order
from outlast.training.state import TrainState

ImageParts = Parts[ImageStream, ClassifyObjective]
_MEASURED = 64
"""Held-out pictures that an export compares."""


class ImageClassification(RunKind[ImageStream, ClassifyObjective]):
    """The ``RunKind`` of images."""

    architectures = frozenset([RESNET])
    prefix = ""  # the running statistics belong to the model
    held_out_remedy = "name one when the data set is made: --validation SRC"

    def open_stream(self, recipe: Recipe, config: ImageStreamConfig, split: str = "train") -> ImageStream:
        return ImageStream(config, seed=recipe.training.seed, split=split)

    def facts_of(self, stream: ImageStream) -> DataFacts:
        """Return the number of classes. Raises ConfigError where there is only one."""
        (data_set,) = stream.data_sets
        check_num_classes(stream.manifest, where=data_set.url)
        return DataFacts(num_classes=stream.manifest.num_classes)

    def make_objective(self, recipe: Recipe, facts: DataFacts) -> ClassifyObjective:
        _, objective = image_tables(recipe)
        return ClassifyObjective(
            model=resnet_of(recipe, num_classes=facts.num_classes),
            config=objective,
            compute_dtype=jnp.dtype(recipe.training.compute_dtype),
            remat=recipe.training.remat == "layer",
        )

    def check_same_labels(self, former: Former, parts: ImageParts) -> None:
        classes = former.restored.commit.identity["model"]["num_classes"]
        if classes != parts.facts.num_classes:
            raise ConfigError(
                f"The model has {classes} classes, the data set {parts.facts.num_classes}.",
                where=parts.recipe.stream.manifest,
                remedy="name a data set of the model's own classes, or train on this one from the model: "
                f"--initialize-from {former.run_dir}",
            )
        _warn_of_classes(former.description.get("classes"), parts.stream.manifest.classes)

    def start_from(self, former: Former, state: TrainState, parts: ImageParts) -> TrainState:
        """Return the state with a ResNet's parameters and statistics, and its classifier where it fits."""
        restored, run_dir = former.restored, former.run_dir
        found, statistics = (unflatten(restored.under(prefix)) for prefix in (PARAMS_PREFIX, STATE_PREFIX))
        classes = restored.commit.identity["model"].get("num_classes")
        if classes != parts.facts.num_classes:
            found[CLASSIFIER] = state.params[CLASSIFIER]
            log.info(
                "its classifier has %s classes, the data %d: initialised by training.seed",
                classes,
                parts.facts.num_classes,
            )
        else:
            _warn_of_classes(former.description.get("classes"), parts.stream.manifest.classes)
        warn_of_differences(former, parts.identity)
        return state._replace(
            params=fitting(found, state.params, run_dir),
            model_state=fitting(statistics, state.model_state, run_dir),
        )

    def keep_labels(self, stream: ImageStream, store: Store) -> dict[str, Any]:
        """Return the names of the classes."""
        del store
        return {"classes": stream.manifest.classes}

    def export(self, former: Former, store: Store, out: Path, provenance: dict[str, Any]) -> Path:
        from outlast.huggingface.image_processor import image_processor_config
        from outlast.huggingface.images import export_image_model

        recipe = make_recipe(former.description["recipe"], where=f"{store.url}/{find_description(store)}")
        _, objective = image_tables(recipe)
        images = recipe.stream.images
        return export_image_model(
            former.restored.under(PARAMS_PREFIX),
            former.restored.under(STATE_PREFIX),
            ResNetConfig.from_dict(former.restored.commit.identity["model"]),
            out,
            classes=former.description.get("classes"),
            preprocessor=image_processor_config(
                image_size=images.image_size,
                shorter_side=images.resize,
                mean=objective.pixel_mean,
                deviation=objective.pixel_deviation,
            ),
            differences=_measure_pixels(recipe),
            provenance=provenance,
        )


def _warn_of_classes(of_model: Sequence[str] | None, of_data: Sequence[str] | None) -> None:
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


def _measure_pixels(recipe: Recipe) -> str:
    """Return how far the pictures that transformers shows the model are from those of our evaluation, in
    words: of up to so many held-out pictures, spread evenly; "" where the data set is not at hand.
    """
    from outlast.huggingface.image_processor import show_as_transformers

    try:
        config = in_manifest_order(recipe.stream)
        stream = ImageStream(config, seed=recipe.training.seed, split="validation")
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
