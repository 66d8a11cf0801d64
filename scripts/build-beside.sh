#!/usr/bin/env bash
# Builds what steps of the test command build in folders of their own, in the order of these steps: the Python package,
# keel-mpi, suites of others. Each step builds its part again, which then takes a second, and says what is wrong.
set -u
cd "$(dirname "$0")/.."
scripts/python-client.sh --build
scripts/mpi-build.sh
scripts/mount-suites.sh --build
scripts/mem-suites.sh --build
