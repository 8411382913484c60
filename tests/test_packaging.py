"""What leaves the repository: the wheel, the commands that the README promises, and nothing of anybody's machine."""

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DATA = ("templates", "static", "locale", "py.typed")
# Homes and work folders of people and machines, and addresses of private networks and indexes.
OF_A_MACHINE = re.compile(
    r"(?<![\w.$}])/(?:home|Users|root|work|workspace|builds?)/(?!me\b)[\w.-]+"
    r"|\b(?:10\.\d{1,3}|192\.168)(?:\.\d{1,3}){2}\b"
    r"|--(?:extra-)?index-url|\bfind-links\b",
)


def tracked_files() -> list[Path]:
    # A clone may belong to another user than the one who runs the tests, which git takes for an attack.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    package = ROOT / "django_jobs"
    files = {str(path.relative_to(ROOT)) for path in tracked_files() if package in path.parents}

    assert files <= set(wheel.namelist())
    assert "django_jobs/py.typed" in files


@pytest.mark.slow
def test_the_wheel_holds_nothing_but_the_package(wheel: zipfile.ZipFile) -> None:
    folders = {name.split("/")[0] for name in wheel.namelist()}

    assert folders == {"django_jobs", f"django_jobs_db-{PROJECT['version']}.dist-info"}


@pytest.mark.slow
def test_the_wheel_needs_django_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    required = re.findall(r"^Requires-Dist: ([\w-]+)(.*)$", wheel.read(metadata).decode(), re.MULTILINE)

    assert [name for name, condition in required if "extra ==" not in condition] == ["django"]


def test_the_readmes_commands_are_targets_of_the_makefile() -> None:
    promised = set(re.findall(r"(?:^|`)make ([a-z]+)\b", (ROOT / "README.md").read_text(), re.MULTILINE))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert {"demo", "test"} <= promised <= targets


def test_the_face_tells_the_version_that_is_built() -> None:
    import django_jobs

    assert getattr(django_jobs, "__version__", PROJECT["version"]) == PROJECT["version"]


def test_no_tracked_file_names_a_path_or_address_of_a_machine() -> None:
    found = []
    for path in tracked_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if path != Path(__file__):
            found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in OF_A_MACHINE.finditer(text)]

    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "see /home/ann/project",
        'open("/work/main/x")',
        "pip install --extra-index-url x",
        "http://192.168.3.4/",
        "10.1.2.3",
    ],
)
def test_a_path_or_address_of_a_machine_is_recognised(text: str) -> None:
    assert OF_A_MACHINE.search(text)


@pytest.mark.parametrize(
    "text", ["$HOME/.pyenv", "/usr/bin/python3", "https://example.com/home/ann", "version 10.11.19"]
)
def test_what_every_machine_has_is_no_path_of_one(text: str) -> None:
    assert not OF_A_MACHINE.search(text)
