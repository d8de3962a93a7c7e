"""Many nodes as arrays: what is free on each, and what requests of a few kinds ask for. Values only; numpy.

Rows are in the order of the tie-break: of equal scores the first row wins. Amounts are integers: CPU and GPU in
thousandths, memory in MiB. Must never be changed by a decision: who decides works on a copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

GPU_MILLI = 1000
# In gpu_milli_free: the node has no such GPU.
ABSENT = -1
# Models are bits of a mask.
MODELS_MAX = 62


@dataclass(frozen=True, slots=True)
class Fleet:
    """gpu_milli_free is nodes x GPUs; model is a number below len(models)."""

    models: tuple[str, ...]
    cpu_milli_free: Ints
    memory_mib_free: Ints
    gpu_milli_free: Ints
    model: Ints

    def __len__(self) -> int:
        return len(self.cpu_milli_free)

    @property
    def gpu_milli_total(self) -> int:
        """Of an empty fleet: a thousand for each GPU."""
        return int((self.gpu_milli_free != ABSENT).sum()) * GPU_MILLI


@dataclass(frozen=True, slots=True)
class Kind:
    """What one kind of request asks for: a share of one GPU (gpu_milli < 1000), whole GPUs, or none.

    models None: any; a name that the fleet does not have fits nowhere.
    """

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    models: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Kinds:
    """Kinds as columns, one row each; models is a mask over the fleet's models."""

    cpu_milli: Ints
    memory_mib: Ints
    gpus: Ints
    gpu_milli: Ints
    models: Ints


def model_mask(models: Sequence[str] | None, known: Sequence[str]) -> int:
    """Bits of the fleet's models that are allowed."""
    if models is None:
        return (1 << len(known)) - 1
    return sum(1 << place for place, name in enumerate(known) if name in models)


def columns(kinds: Sequence[Kind], models: Sequence[str]) -> Kinds:
    def column(values: Sequence[int]) -> Ints:
        return np.array(values, dtype=np.int64)

    return Kinds(
        column([kind.cpu_milli for kind in kinds]),
        column([kind.memory_mib for kind in kinds]),
        column([kind.gpus for kind in kinds]),
        column([kind.gpu_milli for kind in kinds]),
        column([model_mask(kind.models, models) for kind in kinds]),
    )
