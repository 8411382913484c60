"""The chaos run: `make chaos`. See docs/explanation/proof.md.

Workers, callers and a seeded adversary on a PostgreSQL of their own; at the end an auditor compares what was asked for
with what was done. Everything that happens is decided by CHAOS_SEED, when it happens is up to the machine.
"""
