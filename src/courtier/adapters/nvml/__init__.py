"""NVIDIA's management library, asked in a process of its own so that a driver that hangs holds up nobody else.

`discovery` finds the GPUs before the broker starts; `telemetry` reads them afterwards; `worker` is the process that
both talk to, and the only place that loads the library. Importing this package must never load it.
"""
