"""The knobs of a decision, as data. Every limit and default is one field, with its why."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """barrier_after_ms    a job that waited longer lets no later job take what it waits for: nobody starves
    heads_per_class     how many jobs of one kind one cycle looks at; the loop asks again while there is room
    user_gpus_max       GPUs that one user's jobs may hold at once; 0: no limit
    master_port_*       range of rendezvous ports, below the kernel's ephemeral range
    """

    barrier_after_ms: int = 600_000
    heads_per_class: int = 64
    user_gpus_max: int = 0
    master_port_first: int = 20_000
    master_port_count: int = 10_000
