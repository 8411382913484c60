"""The demo's child processes: none outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from demo.processes import Child, ChildFailed, Crew

SLEEPER = "import time; print('listening on 127.0.0.1:4711 ', flush=True); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
PARENT = """
import sys, time
from pathlib import Path
from demo.processes import Crew
with Crew(Path(sys.argv[1])) as crew:
    print(crew.start("child", "-c", sys.argv[2], has_port=True).process.pid, flush=True)
    time.sleep(60)
"""


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return status != "Z"


def test_a_child_says_its_port_and_ends_with_the_crew(tmp_path: Path) -> None:
    with Crew(tmp_path) as crew:
        child = crew.start("sleeper", "-c", SLEEPER, has_port=True)
        assert child.url == "http://127.0.0.1:4711"
        assert child.is_running()

    assert not child.is_running()


def test_children_end_when_the_block_is_left_by_an_exception(tmp_path: Path) -> None:
    children: list[Child] = []

    def interrupted() -> None:
        with Crew(tmp_path) as crew:
            children.extend(crew.start("sleeper", "-c", SLEEPER, has_port=True) for _ in range(2))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert len(children) == 2
    assert not any(each.is_running() for each in children)


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demo.processes.STOP_LIMIT", 0.2)

    with Crew(tmp_path) as crew:
        child = crew.start("stubborn", "-c", STUBBORN, has_port=True)

    assert child.process.returncode == -signal.SIGKILL


def test_a_child_that_fails_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    with Crew(tmp_path) as crew, pytest.raises(ChildFailed, match=r"(?s)The broken ended with 1.*no luck today"):
        crew.start("broken", "-c", "raise SystemExit('no luck today')", has_port=True)


def test_the_check_tells_of_a_child_that_has_ended(tmp_path: Path) -> None:
    with Crew(tmp_path) as crew:
        child = crew.start("sleeper", "-c", SLEEPER, has_port=True)
        crew.check()
        child.process.kill()
        child.process.wait()
        with pytest.raises(ChildFailed, match="The sleeper ended with -9"):
            crew.check()


@pytest.mark.race
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's own")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_child_outlives_a_parent_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path), SLEEPER]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        assert is_alive(child)

        parent.send_signal(number)
        parent.wait(timeout=20)

    deadline = time.monotonic() + 10
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(child)
