"""The shop run for real: every server a process of its own, and a person's clicks as HTTP requests."""
