"""python -m tests.chaos: CHAOS_SECONDS of faults in the order of CHAOS_SEED. 0 if nothing promised was broken."""

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "example_project")]

from services.postgres import EmbeddedPostgresMissing, embedded_server  # noqa: E402  example_project is on the path now
from tests.wire import Wire  # noqa: E402


def end(signum: int, _frame: FrameType | None) -> None:
    """Ctrl-C and SIGTERM leave by the same door, past every `finally`."""
    raise SystemExit(128 + signum)


def main() -> int:
    seconds = float(os.environ.get("CHAOS_SECONDS", "60"))
    seed = os.environ.get("CHAOS_SEED") or str(random.randrange(10**6))
    print(f"chaos: CHAOS_SEED={seed} CHAOS_SECONDS={seconds:g}", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    folder = Path(tempfile.mkdtemp(prefix="django-jobs-chaos-"))
    try:
        with embedded_server(fsync=False) as server:  # it is killed, but the machine is not
            where = server.url.rpartition("@")[2].partition("/")[0].partition(":")
            wire = Wire(where[0], int(where[2]))
            wired = server.url.replace(f":{where[2]}/", f":{wire.port}/")
            _configure(server.url)
            from tests.chaos.run import run

            return run(seed, seconds, folder=folder, server=server, wire=wire, wired=wired)
    except SystemExit:  # told to end: the logs tell nothing
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except EmbeddedPostgresMissing as reason:
        print(f"No embedded PostgreSQL: {reason}.", file=sys.stderr)
        return 2


def _configure(url: str) -> None:
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.chaos.settings"
    os.environ["CHAOS_DATABASE_URL"] = url
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "example_project")])
    os.environ.pop("DJANGO_JOBS", None)
    django.setup()


if __name__ == "__main__":
    started = time.monotonic()
    code = main()
    print(f"chaos: {time.monotonic() - started:.0f} s in all", flush=True)
    sys.exit(code)
