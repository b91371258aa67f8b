#!/bin/sh
# Functions of at most 100 lines in files of at most 800: lengths.sh <repository>
#
# A function starts at its brace in the first column and ends at the next one: clang-format sees to
# that.
set -eu
cd "$1"
find base collectives offload checkpoint zero examples tests -name '*.[ch]' | sort | xargs awk '
    FNR == 1 { opened = 0 }
    /^\{/ { opened = FNR }
    /^\}/ && opened {
        if (FNR - opened - 1 > 100) {
            printf "%s:%d: a function of %d lines\n", FILENAME, opened, FNR - opened - 1
            bad = 1
        }
        opened = 0
    }
    FNR == 801 { printf "%s: more than 800 lines\n", FILENAME; bad = 1 }
    END { exit bad }'
