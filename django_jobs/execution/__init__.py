"""Call one task of one claimed run and return an Outcome. No SQL and no loop: the caller decides where and when."""

from django_jobs.execution.asynchronous import aexecute
from django_jobs.execution.atomic import Recording
from django_jobs.execution.attempt import Attempt
from django_jobs.execution.synchronous import execute

__all__ = ["Attempt", "Recording", "aexecute", "execute"]
