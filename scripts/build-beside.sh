#!/usr/bin/env bash
# Builds what steps of the test command build in folders of their own, in the order of these steps: the Python package,
# keel-mpi, suites of others. Each step builds its part again, which finds most of it done, and says what is wrong.
set -u
cd "$(dirname "$0")/.."
status=0
scripts/python-client.sh --build || status=1
scripts/mpi-build.sh || status=1
scripts/mount-suites.sh --build || status=1
scripts/mem-suites.sh --build || status=1
exit "$status"
