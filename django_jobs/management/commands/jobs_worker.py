"""manage.py jobs_worker: runworker by another name, as Channels has a command of that name too."""

from django_jobs.management.commands import runworker


class Command(runworker.Command):
    help = "Runs background jobs until it is stopped. The same as runworker, whose name Channels uses too."
