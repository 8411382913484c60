"""Claim, execute, finish: one process that serves queues."""

from django_jobs.worker.worker import Worker

__all__ = ["Worker"]
