"""The access layer: one address in front of a fleet of prefill, decode and unified workers."""
