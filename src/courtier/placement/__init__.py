"""Where: whether a request fits, on which GPUs, and if not why not. Pure."""
