#!/bin/sh
# The man pages are clean mdoc: man.sh <pages...>
command -v mandoc >/dev/null || { echo "no mandoc here" && exit 77; }
exec mandoc -T lint -W warning "$@"
