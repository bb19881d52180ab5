"""The held-out splits of a run: for each source of its data, at the length of the phase that is evaluated.

In: the parts of a run, a step. Out: one pass over every held-out example, or over
``training.evaluation_examples`` of each source, source by source in manifest order. A source is read as a run
on it alone would read it, so its loss does not depend on the other sources.
"""

from dataclasses import replace

from outlast.logs import log
from outlast.run.images import HeldOutImages, ImageParts, open_held_out_images
from outlast.run.parts import Parts, RunParts, config_of_phase
from outlast.stream.loader import TokenStream
from outlast.stream.sources import in_manifest_order
from outlast.training.evaluate import HeldOutSource
from outlast.training.phase_plan import phase_behind

_SPLIT = "validation"


class HeldOut:
    """Reads the held-out splits of a run.

    Args:
        parts: of a run whose data has a held-out split (``has_held_out``).
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._streams: dict[int, list[tuple[str | None, TokenStream]]] = {}

    def sources(self, step: int) -> list[HeldOutSource]:
        """Return a pass for the state of a step: the examples are those of the phase it was made in."""
        phase = phase_behind(self._parts.phases.plan, step)
        if phase not in self._streams:
            self._streams[phase] = self._open(phase)
        limit = self._parts.recipe.training.evaluation_examples
        return [
            HeldOutSource(label, stream.evaluation_batches(limit)) for label, stream in self._streams[phase]
        ]

    def _open(self, phase: int) -> list[tuple[str | None, TokenStream]]:
        recipe, phases = self._parts.recipe, self._parts.phases
        config = config_of_phase(recipe, phases.plan[phase])
        opened: list[tuple[str | None, TokenStream]] = []
        for source in phases.streams[phase].sources:
            if _SPLIT in source.manifest.splits:
                alone = in_manifest_order(replace(config, manifest=source.url, sources=()))
                words = recipe.objective.whole_words
                stream = TokenStream(alone, seed=recipe.training.seed, split=_SPLIT, word_starts=words)
                opened.append((source.label, stream))
            else:
                log.warning("%s has no held-out split: evaluations leave it out", source.url)
        return opened


def open_held_out(parts: RunParts) -> HeldOut | HeldOutImages | None:
    """Return the held-out splits of a run, None where no source of its data has one."""
    if isinstance(parts, ImageParts):
        return open_held_out_images(parts)
    assert isinstance(parts, Parts)
    has_one = any(_SPLIT in source.manifest.splits for source in parts.stream.sources)
    return HeldOut(parts) if has_one else None
