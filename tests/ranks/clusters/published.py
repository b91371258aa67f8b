#!/usr/bin/env python3
"""The files of examples/clusters against the schemas that others have published.

published.py FILES...     Python packages kubernetes-validate and azure-ai-ml say what is wrong.

Jobs and pods inside other objects are validated as what they become. Nothing is sent anywhere.
"""
import sys

import kubernetes_validate
import yaml


def inside(value):
    """Jobs and pods that a controller makes of this object."""
    if isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("template"), dict) and "containers" in str(spec):
            if "containers" in spec["template"].get("spec", {}):
                yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec}
        if "containers" in (spec or {}):
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        for one in value.values():
            yield from inside(one)
    elif isinstance(value, list):
        for one in value:
            yield from inside(one)


def check_kubernetes(document):
    found = list(inside(document))
    for one in found:
        kubernetes_validate.validate(one, "1.34", strict=True)
    return [one["kind"] for one in found]


def check_azure(path, document):
    from azure.ai.ml import load_environment, load_job  # large: only where there are such files

    if "command" in document:
        load_job(path)
    else:
        load_environment(path)
    return [document["$schema"].split("/")[-1]]


def main(paths):
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for document in yaml.safe_load_all(file):
                what = check_azure(path, document) if "$schema" in document else check_kubernetes(document)
                print(f"{path}: {', '.join(what) or 'nothing inside'}")


if __name__ == "__main__":
    main(sys.argv[1:])
