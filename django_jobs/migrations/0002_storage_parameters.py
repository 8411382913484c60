from django.db import migrations

from django_jobs.operations import SetStorageParameters

# docs/how-to/postgresql.md has the measurements behind these numbers.
JOB = {
    # Room beside each row for the version that a claim writes: within one page its WAL holds only what differs.
    "fillfactor": 50,
    # A share of the table would let 1,000,000 jobs for tomorrow allow 200,000 dead entries before those of today.
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 10_000,
    # A limit of its own: PostgreSQL then does not divide the common one with a long vacuum elsewhere.
    "autovacuum_vacuum_cost_limit": 1_000,
    # Cutting an emptied table shorter needs a lock that claims wait for.
    "vacuum_truncate": False,
}
WORKER = {
    # Room beside each row, so that a heartbeat stays within its page and touches no index (HOT).
    "fillfactor": 50,
}
HISTORY = {
    # Pruning walks over the entries of what it has deleted. Below 2 % of the pages a vacuum leaves the indexes alone.
    "autovacuum_vacuum_scale_factor": 0.03,
    # New rows are frozen in small helpings, and not a fifth of the table at once.
    "autovacuum_vacuum_insert_scale_factor": 0.03,
    "autovacuum_vacuum_insert_threshold": 100_000,
}
KEYS = {"autovacuum_vacuum_scale_factor": 0.03}


class Migration(migrations.Migration):
    dependencies = [("django_jobs", "0001_initial")]

    operations = [
        SetStorageParameters("job", JOB),
        SetStorageParameters("worker", WORKER),
        SetStorageParameters("jobrun", HISTORY),
        SetStorageParameters("jobkey", KEYS),
    ]
