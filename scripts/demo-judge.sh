#!/usr/bin/env bash
# Reads what `keel demo --full` has printed. Fails unless all promises are there, files in memory were shown, and
# nothing is broken but for lateness: the machine may do something else besides.
#   scripts/demo-judge.sh FILE
set -euo pipefail
awk '
    /^  (kept     |NOT KEPT |not shown) / { promises++ }
    /^  kept      Hot files / { served = 1 }
    /^  NOT KEPT / && !/ (Deadlines hold|After a power cut) / { broken = 1 }
    END { exit !(promises == 9 && served && !broken) }' "$1" || {
    cat "$1"
    printf 'demo-judge: a promise is missing, broken or, for files in memory, not shown\n'
    exit 1
}
