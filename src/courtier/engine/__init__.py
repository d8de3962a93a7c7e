"""The machine: what happened, what to do, and the loop that every shell drives. No I/O except through ports."""
