"""The tables. No behaviour here: `lifecycle` is the only writer."""

from django_jobs.models.dead_letter import DeadLetter
from django_jobs.models.job import Job
from django_jobs.models.job_key import JobKey
from django_jobs.models.job_run import JobRun
from django_jobs.models.lock import Lock
from django_jobs.models.worker import Worker

__all__ = ["DeadLetter", "Job", "JobKey", "JobRun", "Lock", "Worker"]
