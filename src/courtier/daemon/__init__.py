"""The one-box shell: a broker process around the engine's loop."""
