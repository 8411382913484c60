"""The shop's web server: waitress, a few threads in one process.

    python example_project/services/web.py [--port 8000] [--threads 4]

The first line printed names the port; 0 takes a free one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT.parent)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=4)
    options = parser.parse_args(arguments)
    from waitress.server import create_server

    from config.wsgi import application

    server = create_server(application, host="127.0.0.1", port=options.port, threads=options.threads)
    print(f"listening on 127.0.0.1:{server.effective_port}", flush=True)
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
