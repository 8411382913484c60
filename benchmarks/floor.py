"""The floor's SQL: the least work for a job that outlives the death of its worker. No history, no lease, no retry."""

from __future__ import annotations

BATCH = 1000
CHANNEL = "floor_job"

# The fill factor leaves room beside a row, so that its claim touches no index but the one of ready jobs.
TABLE = """
    CREATE TABLE floor_job (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        queue text NOT NULL,
        task text NOT NULL,
        number bigint NOT NULL,
        priority smallint NOT NULL DEFAULT 0,
        state smallint NOT NULL DEFAULT 0,
        run_at timestamptz NOT NULL DEFAULT now()
    ) WITH (fillfactor = 70);
    CREATE INDEX floor_job_ready ON floor_job (queue, priority DESC, id) WHERE state = 0"""
FILL = """
    INSERT INTO floor_job (queue, task, number)
    SELECT 'default', %(task)s, n FROM generate_series(%(first)s::bigint, %(last)s::bigint) n"""

INSERT = "INSERT INTO floor_job (queue, task, number) VALUES ('default', %s, %s)"
INSERT_MANY = "INSERT INTO floor_job (queue, task, number) SELECT 'default', %s, unnest(%s::bigint[])"
# One round trip and one commit for the job and the wake-up of its worker.
INSERT_AND_NOTIFY = f"WITH new AS ({INSERT} RETURNING id) SELECT pg_notify('{CHANNEL}', '') FROM new"

# Finish a batch and claim the next: one round trip, one commit.
STEP = """
    WITH done AS (DELETE FROM floor_job WHERE id = ANY(%s)),
    picked AS MATERIALIZED (
        SELECT id FROM floor_job WHERE state = 0 AND queue = 'default' AND run_at <= now()
        ORDER BY priority DESC, id LIMIT %s FOR UPDATE SKIP LOCKED
    )
    UPDATE floor_job AS job SET state = 1 FROM picked WHERE job.id = picked.id RETURNING job.id, job.number"""
