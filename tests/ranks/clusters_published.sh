#!/bin/sh
# clusters_published.sh <repository>: the files of examples/clusters against the schemas of Python packages
# of PyPI.
set -eu
repository="$1"
here="$(mktemp -d)"
trap 'rm -rf "$here"' EXIT
trap 'exit 1' HUP INT TERM

{ python3 -m venv "$here/python" && "$here/python/bin/pip" install -q kubernetes-validate azure-ai-ml; } ||
    { echo "no Python packages kubernetes-validate and azure-ai-ml to be had" && exit 1; }
"$here/python/bin/python" -B "$repository/tests/ranks/clusters/published.py" \
    "$repository"/examples/clusters/*/*.yml "$repository"/examples/clusters/*/*.yaml
