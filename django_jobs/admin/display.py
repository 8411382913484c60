"""Values as HTML. Every piece of data is escaped here; nothing is marked safe."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_jobs.statuses import DeathReason, JobStatus, LetterStatus, RunStatus

NOTHING = "-"
TEXT_LIMIT = 100_000  # characters of one text on one page

# A finished job has one word more than its rows have: a job whose dead letter is open is dead.
DEAD = "dead"
_LABELS: dict[str, Any] = {
    **dict(RunStatus.choices),
    **dict(JobStatus.choices),
    **dict(LetterStatus.choices),
    DEAD: gettext_lazy("dead"),
    "alive": gettext_lazy("alive"),
    "expired": gettext_lazy("expired"),
    "held": gettext_lazy("held"),
    "free": gettext_lazy("free"),
}


def badge(status: str) -> SafeString:
    """A status as a coloured word. The colours are in jobs.css."""
    return format_html('<span class="dj-badge dj-badge-{}">{}</span>', status, _LABELS.get(status, status))


def badge_and_note(status: str, note: str) -> SafeString:
    return format_html('{}<span class="dj-id"><span>{}</span></span>', badge(status), note)


def reason_label(reason: str) -> str:
    return str(dict(DeathReason.choices).get(reason, reason))


def strings(value: object) -> list[str]:
    """The strings of a list; none of a value of another kind, as a row can hold any JSON."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def mono(value: object) -> SafeString:
    """A name or an id, in a fixed-width face."""
    return format_html('<code class="dj-mono">{}</code>', value) if value not in {None, ""} else SafeString(NOTHING)


def named(row: Any, job_id: object) -> SafeString:
    """A job in a list: its task, queue, key, and the end of its id (ids made in the same moment begin alike)."""
    text = str(job_id)
    held = format_html('<span title="{}">{}</span>', _("key"), row.key) if row.key else ""
    return format_html(
        '<span class="dj-task">{}</span>'
        '<span class="dj-id"><span title="{}">{}</span><span title="{}">…{}</span>{}</span>',
        row.task_name,
        _("queue"),
        row.queue_name,
        text,
        text[-12:],
        held,
    )


def block(text: str, *, limit: int = TEXT_LIMIT) -> SafeString:
    """Text of several lines, as it is; what exceeds the limit is left out, and said to be."""
    if not text:
        return SafeString(NOTHING)
    shown = format_html('<pre class="dj-block" tabindex="0">{}</pre>', text[:limit])
    if len(text) <= limit:
        return shown
    note = _("%(shown)s of %(all)s characters are shown.") % {"shown": f"{limit:,}", "all": f"{len(text):,}"}
    return format_html('{}<p class="dj-note">{}</p>', shown, note)


def pretty_json(value: object) -> SafeString:
    return block(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def first_line(text: str, *, limit: int = 160) -> str:
    line = text.strip().split("\n", 1)[0][: limit + 1]
    return line if len(line) <= limit else f"{line[:limit]}…"


def short_error(error_type: str, text: str) -> str:
    """'DoesNotExist: There is no such row.', without the module of the class."""
    return f"{error_type.rpartition('.')[2]}: {text}".strip(": ")


def span(value: timedelta) -> str:
    """A span in its one or two greatest units: '350 ms', '14 s', '2 min 5 s', '3 d 4 h'."""
    seconds = abs(value.total_seconds())
    if seconds < 1:
        return _("%(n)d ms") % {"n": round(seconds * 1000)}
    if seconds < 10:
        return _("%(n)s s") % {"n": f"{seconds:.3g}"}
    whole = int(seconds)
    units = [(_("%(n)d d"), whole // 86400), (_("%(n)d h"), whole // 3600 % 24), (_("%(n)d min"), whole // 60 % 60)]
    words = [(text % {"n": n}) if n else "" for text, n in [*units, (_("%(n)d s"), whole % 60)]]
    start = next(index for index, word in enumerate(words) if word)
    return " ".join(word for word in words[start : start + 2] if word)


def rough_span(value: timedelta) -> str:
    """A span in its greatest unit: '14 s', '2 min', '3 d'."""
    seconds = round(abs(value.total_seconds()))
    for size, text in ((86400, _("%(n)d d")), (3600, _("%(n)d h")), (60, _("%(n)d min"))):
        if seconds >= size:
            return text % {"n": seconds // size}
    return _("%(n)d s") % {"n": seconds}


def exact(moment: datetime) -> str:
    """A moment in the current time zone, to the second."""
    local = timezone.localtime(moment) if timezone.is_aware(moment) else moment
    return local.strftime("%Y-%m-%d %H:%M:%S %Z").strip()


def relative(moment: datetime, now: datetime) -> str:
    """'3 min ago', 'in 14 s', 'now'."""
    away = moment - now
    if abs(away) < timedelta(seconds=1):
        return _("now")
    words = _("in %(span)s") if away > timedelta(0) else _("%(span)s ago")
    return words % {"span": rough_span(away)}


def when(moment: datetime | None, *, now: datetime | None = None) -> SafeString:
    """A moment as people say it; the exact one is its title."""
    if moment is None:
        return SafeString(NOTHING)
    text = relative(moment, now or timezone.now())
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), exact(moment), text)


def when_exactly(moment: datetime | None) -> SafeString:
    """Both, for a page with room."""
    if moment is None:
        return SafeString(NOTHING)
    text = relative(moment, timezone.now())
    return format_html(
        '<time datetime="{}">{} <span class="dj-note">({})</span></time>', moment.isoformat(), exact(moment), text
    )


def counted(count: int, singular: str, plural: str) -> str:
    return ngettext(singular, plural, count) % {"n": f"{count:,}"}
