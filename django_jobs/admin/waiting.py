"""Why a job waits. Every waiting job can say so."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _

from django_jobs import registry
from django_jobs.admin.display import counted, first_line, relative, rough_span, span, strings
from django_jobs.conf import get_settings
from django_jobs.models import Job, JobRun, Worker
from django_jobs.statuses import JobStatus

MOST_AHEAD = 1000  # jobs counted before this one

_ZERO = timedelta(0)


def attempts_allowed(job: Job) -> int:
    """How many failures the job may have."""
    task = registry.find(job.task_name)
    return task.effective(job.options).max_attempts if task else get_settings().MAX_ATTEMPTS


def briefly(job: Job, now: datetime) -> str:
    """What a job does or waits for, told from its row alone."""
    if job.status == JobStatus.RUNNING:
        return _("running for %(span)s") % {"span": rough_span(max(now - (job.claimed_at or now), _ZERO))}
    if job.status == JobStatus.WAITING:
        return _("no running worker knows its task")
    if job.status == JobStatus.READY:
        return _("ready for %(span)s") % {"span": rough_span(max(now - job.run_at, _ZERO))}
    return _("waits to run alone") if job.waiting_since is not None else _scheduled_briefly(job, now)


def _scheduled_briefly(job: Job, now: datetime) -> str:
    if job.run_at <= now:
        return _("due for %(span)s") % {"span": rough_span(max(now - job.run_at, _ZERO))}
    if job.failures or job.crashes:
        words = {"n": job.failures + 1, "most": attempts_allowed(job), "span": rough_span(job.run_at - now)}
        return _("attempt %(n)d of %(most)d in %(span)s") % words
    return _("due in %(span)s") % {"span": rough_span(job.run_at - now)}


def explain(job: Job, now: datetime, using: str) -> list[str]:
    """Why the job waits, or where it runs, in sentences: the first says it, the others what to know or do."""
    if job.status == JobStatus.RUNNING:
        return [_running(job, now, using)]
    if job.status == JobStatus.WAITING:
        return _waiting(job, now, using)
    if job.status == JobStatus.READY:
        return [_ready(job, now), *_ahead(job, using), *_unserved(job, now, using)]
    if job.waiting_since is not None:
        return _unserved(job, now, using)
    return [*_scheduled(job, now, using), *_unserved(job, now, using)]


def _scheduled(job: Job, now: datetime, using: str) -> list[str]:
    due = relative(job.run_at, now)
    if job.run_at <= now:
        return [_("It was due %(when)s; a worker makes it ready at its next look.") % {"when": due}]
    if not (job.failures or job.crashes):
        return [_("It is due %(when)s.") % {"when": due}]
    said = _("Attempt %(n)d of %(most)d starts %(when)s%(because)s.") % {
        "n": job.failures + 1,
        "most": attempts_allowed(job),
        "when": due,
        "because": _because(job, using),
    }
    return [said]


def _because(job: Job, using: str) -> str:
    columns = ("error_type", "error_text")
    runs = JobRun.objects.using(using).filter(job_id=job.pk)
    last = runs.order_by("-claim_number").values_list(*columns).first()
    if last is None or not last[0]:
        return ""
    error = f"{last[0]}: {first_line(last[1])}".rstrip(": .")
    return _(", because the last run ended with %(error)s") % {"error": error}


def _ready(job: Job, now: datetime) -> str:
    waits = span(max(now - job.run_at, _ZERO))
    return _("It has been ready for %(span)s, in queue %(queue)s.") % {"span": waits, "queue": repr(job.queue_name)}


def _ahead(job: Job, using: str) -> list[str]:
    count = _count_ahead(job, using)
    if count > MOST_AHEAD:
        return [_("More than %(n)s jobs are ahead of it.") % {"n": f"{MOST_AHEAD:,}"}]
    if not count:
        return [_("It is the next of its queue.")]
    return [counted(count, "%(n)s job is ahead of it.", "%(n)s jobs are ahead of it.")]


def _count_ahead(job: Job, using: str) -> int:
    """Count range by range of the index: with an OR over them PostgreSQL would read what is behind the job as well."""
    same_queue = Job.objects.using(using).filter(status=JobStatus.READY, queue_name=job.queue_name)
    ordered = same_queue.order_by("-priority", "run_at", "id").values("id")
    same_moment = same_queue.filter(priority=job.priority, run_at=job.run_at).order_by()
    count = 0
    for before in (
        ordered.filter(priority__gt=job.priority),
        ordered.filter(priority=job.priority, run_at__lt=job.run_at),
    ):
        count += before[: MOST_AHEAD + 1].count()
        if count > MOST_AHEAD:
            return count
    # Compared here: for a range of ids PostgreSQL may take the index over all ids.
    return count + sum(pk < job.pk for pk in same_moment.values_list("pk", flat=True)[: MOST_AHEAD + 1])


def _unserved(job: Job, now: datetime, using: str) -> list[str]:
    """What is missing among the workers for this job to start."""
    workers = _live_workers(now, using)
    if not workers:
        return [_("No worker is running: start one with manage.py runworker.")]
    serving = [
        each for each in workers if each["queue_names"] is None or job.queue_name in strings(each["queue_names"])
    ]
    if not serving:
        return [_("No running worker serves queue %(queue)s.") % {"queue": repr(job.queue_name)}]
    if not any(job.task_name in strings(each["task_names"]) for each in serving):
        return [_("No running worker of its queue knows task %(task)s.") % {"task": repr(job.task_name)}]
    if job.crashes:
        return [_("A worker died while it held this job, so it runs alone, when a worker has nothing else to do.")]
    return []


def _serves(queue_names: Any, queue_name: str) -> bool:
    return queue_names is None or queue_name in strings(queue_names)


def _live_workers(now: datetime, using: str) -> list[Any]:
    live = Worker.objects.using(using).filter(lease_expires_at__gt=now)
    return list(live.values("queue_names", "task_names")[:200])


def _waiting(job: Job, now: datetime, using: str) -> list[str]:
    since = job.waiting_since or job.enqueued_at
    ends = since + get_settings().UNKNOWN_TASK_PATIENCE
    sentences = [
        _("No running worker knows task %(task)s: it has waited for one for %(span)s.")
        % {"task": repr(job.task_name), "span": span(max(now - since, _ZERO))},
        _("It becomes a dead letter %(when)s, unless a worker that knows the task starts before.")
        % {"when": relative(max(ends, now), now)},
    ]
    if registry.find(job.task_name) is None:
        return [*sentences, _("This process does not know the task either: was it renamed? Then add aliases= to it.")]
    return [*sentences, _("This process knows the task: does a worker run the same release?")]


def _running(job: Job, now: datetime, using: str) -> str:
    runs_for = span(max(now - (job.claimed_at or now), _ZERO))
    worker = Worker.objects.using(using).filter(pk__in=[job.worker_id] if job.worker_id else []).first()
    if worker is None:
        return _("Its worker is gone; another one takes the job back.")
    words = {"span": runs_for, "worker": repr(worker.name), "attempt": job.attempt}
    if worker.lease_expires_at <= now:
        return (
            _(
                "Attempt %(attempt)d runs for %(span)s on worker %(worker)s, whose lease has expired: "
                "another one takes the job back."
            )
            % words
        )
    return _("Attempt %(attempt)d runs for %(span)s on worker %(worker)s.") % words
