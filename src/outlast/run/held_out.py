"""The held-out splits of a run: for each source of its data, as the phase that is evaluated reads it.

In: the parts of a run, a step. Out: one pass over every held-out example, or over
``training.evaluation_examples`` of each source, source by source in manifest order. Each source is read
as if it were the only one, so its loss does not depend on the other sources.
"""

from dataclasses import replace
from typing import Any

from outlast.logs import log
from outlast.run.kind import Parts
from outlast.stream.examples import ExampleStream
from outlast.stream.sources import in_manifest_order
from outlast.training.evaluate import HeldOutSource
from outlast.training.phase_plan import phase_behind

_SPLIT = "validation"


class HeldOut:
    """Reads the held-out splits of a run.

    Args:
        parts: of a run whose data has a held-out split (``open_held_out``).
    """

    def __init__(self, parts: Parts[Any, Any]) -> None:
        self._parts = parts
        self._streams: dict[int, list[tuple[str | None, ExampleStream]]] = {}

    def sources(self, step: int) -> list[HeldOutSource]:
        """Return a pass for the state of a step: the examples are those of the phase it was made in."""
        phase = phase_behind(self._parts.phases.plan, step)
        if phase not in self._streams:
            self._streams[phase] = self._open(phase)
        limit = self._parts.recipe.training.evaluation_examples
        return [
            HeldOutSource(label, stream.evaluation_batches(limit)) for label, stream in self._streams[phase]
        ]

    def _open(self, phase: int) -> list[tuple[str | None, ExampleStream]]:
        recipe, phases = self._parts.recipe, self._parts.phases
        config = phases.plan[phase].stream(recipe.stream)
        opened: list[tuple[str | None, ExampleStream]] = []
        for data_set in phases.streams[phase].data_sets:
            if _SPLIT in data_set.splits:
                alone = in_manifest_order(replace(config, manifest=data_set.url, sources=()))
                opened.append((data_set.label, self._parts.kind.open_stream(recipe, alone, _SPLIT)))
            else:
                log.warning("%s has no held-out split: evaluations leave it out", data_set.url)
        return opened


def open_held_out(parts: Parts[Any, Any]) -> HeldOut | None:
    """Return the held-out splits of a run, None where no source of its data has one."""
    has_one = any(_SPLIT in data_set.splits for data_set in parts.stream.data_sets)
    return HeldOut(parts) if has_one else None
