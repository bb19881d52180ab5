"""What a compiled program moves between devices and multiplies: its text, ``compiled.as_text()``, is read."""

import math
import re
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(ENTRY )?%(\S+) \(")
_OPERATION = re.compile(r"^ +(?:ROOT )?%(\S+) = (.+?) ([\w-]+)\((.*)$")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+)\[([\d,]*)\]")
_COLLECTIVES = {
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"),
    *("collective-broadcast", "ragged-all-to-all"),
}
_CALLED = re.compile(
    r"(?:calls|body|to_apply|true_computation|false_computation)=%([\w.-]+)|branch_computations=\{([^}]*)\}"
)
_NUM_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_CONDITION = re.compile(r"condition=%([\w.-]+)")
_LIMIT = re.compile(r" = s32\[\]\S* constant\((\d+)\)")
_STRETCHED = re.compile(r'channel_id=(\d+),.*chain_id="(\d+)"')
"""A collective of a TPU that runs beside several fused computations, each of which holds it again."""


class Moved(NamedTuple):
    """The result of a collective: an array on one device."""

    kind: str
    shape: tuple[int, ...]
    bytes: int
    times: int
    """How often a step runs it."""


class Program(NamedTuple):
    """What one step does on one device."""

    collectives: list[Moved]
    product_flops: int
    """Of matrix products and convolutions."""

    def of(self, kind: str) -> list[Moved]:
        return [each for each in self.collectives if each.kind == kind]


def read_program(text: str) -> Program:
    """Return what a step does. A loop that does not say how long it is counts once, a choice as all of it."""
    computations: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            name = head[2]
            entry = name if head[1] else entry
        computations.setdefault(name, []).append(line)
    moved: list[Moved] = []
    stretched: set[tuple[str, ...]] = set()

    def walk(name: str, times: int) -> int:
        flops = 0
        shapes: dict[str, tuple[int, ...]] = {}
        for line in computations[name]:
            if not (found := _OPERATION.match(line)):
                continue
            label, result, kind, rest = found.groups()
            arrays = _arrays(result)
            shapes[label] = arrays[0][0] if arrays else ()
            collective = kind.removesuffix("-start")
            if collective in _COLLECTIVES:
                if (again := _STRETCHED.search(rest)) and again.groups() in stretched:
                    continue
                stretched.update({again.groups()} if again else ())
                if kind == "all-gather-start":  # it gives its operands too, before its results
                    arrays = arrays[len(arrays) // 2 :]
                moved.extend(Moved(collective, shape, size, times) for shape, size in arrays)
                continue
            if kind in ("dot", "convolution"):
                flops += times * _product_flops(kind, rest, shapes, shapes[label])
            inner = times * (_num_trips(rest, computations) if kind == "while" else 1)
            for one, several in _CALLED.findall(rest):
                flops += sum(walk(called.strip(" %"), inner) for called in (one or several).split(","))
        return flops

    return Program(moved, walk(entry, 1))


def _num_trips(rest: str, computations: dict[str, list[str]]) -> int:
    """Return how often a loop runs: as it says, or as the one number in its condition does; else 1."""
    if told := _NUM_TRIPS.search(rest):
        return int(told[1])
    condition = _CONDITION.search(rest)
    limits = _LIMIT.findall("\n".join(computations[condition[1]])) if condition else []
    return int(limits[0]) if len(limits) == 1 else 1


def _arrays(result: str) -> list[tuple[tuple[int, ...], int]]:
    """Return the shape and the bytes of each array that an operation gives."""
    found: list[tuple[tuple[int, ...], int]] = []
    for kind, sizes in _ARRAY.findall(result):
        shape = tuple(int(size) for size in sizes.split(",") if size)
        bits = 8 if kind == "pred" else int(kind.lstrip("abcdefghijklmnopqrstuvwxyz"))
        found.append((shape, math.prod(shape) * bits // 8))
    return found


def _product_flops(kind: str, rest: str, shapes: dict[str, tuple[int, ...]], result: tuple[int, ...]) -> int:
    left, right = (shapes[name] for name in re.findall(r"%([\w.-]+)", rest)[:2])
    if kind == "dot":
        axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", rest)
        contracted = [int(axis) for axis in axes[1].split(",") if axis] if axes else []
        return 2 * math.prod(result) * math.prod(left[axis] for axis in contracted)
    labels = re.search(r"dim_labels=\w+_(\w+)->", rest)
    assert labels, rest
    return 2 * math.prod(result) * math.prod(right) // right[labels[1].index("o")]
