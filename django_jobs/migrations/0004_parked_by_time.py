from django.db import migrations

from django_jobs.models.fields import StatusIndex
from django_jobs.operations import AddIndexConcurrently, RemoveIndexConcurrently


class Migration(migrations.Migration):
    """Find what has waited longest for a worker that knows its task, without reading all that waits for one."""

    dependencies = [("django_jobs", "0003_worker_is_awake")]
    atomic = False

    operations = [
        AddIndexConcurrently(
            "job",
            StatusIndex(fields=["task_name", "waiting_since", "id"], name="django_jobs_job_parked", status="waiting"),
        ),
        RemoveIndexConcurrently("job", "django_jobs_job_waiting"),
    ]
