"""The one seam through which every ended run passes.

`runs_ended` is sent once per committed write with `runs`, a sequence of `django_jobs.runs.EndedRun`; `jobs_died` with
`letters`, a list of `django_jobs.runs.Death`, exactly once for each dead letter. Both are sent by whoever wrote the
rows (a worker as a rule), after the commit, with `send_robust` and `using`, the database alias.
"""

from __future__ import annotations

from django.dispatch import Signal

runs_ended = Signal()
jobs_died = Signal()
