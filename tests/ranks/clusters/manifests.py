#!/usr/bin/env python3
"""What the files of examples/clusters say.

manifests.py check FILES...          every key is one that the platform has, with a value of its kind.
manifests.py write FOLDER FILES...   of each the command line, as a shell has it, to FOLDER/<name>.sh.
                                     ${{inputs.data}} and /text become "$DATA", ${{outputs.checkpoints}}
                                     and /checkpoints "$CHECKPOINTS". What the file sets in its
                                     environment goes to FOLDER/<name>.variables.

The kinds below are those of the API objects as of 2026, as far as the files use them: a key that is
not here is either wrong, or to be added here by who has looked it up.
"""
import os
import re
import shlex
import sys

import yaml

ANY, TEXT, NUMBER, FLAG = object(), str, int, bool


class Choice:
    def __init__(self, *values):
        self.values = values


class Map:  # of names that are free
    def __init__(self, kind):
        self.kind = kind


class Needs(dict):
    """An object: keys that end in "!" have to be there."""


METADATA = Needs({"name!": TEXT, "namespace": TEXT, "labels": Map(TEXT), "annotations": Map(TEXT)})
VARIABLE = Needs({"name!": TEXT, "value": TEXT, "valueFrom": Needs({
    "secretKeyRef": Needs({"name!": TEXT, "key!": TEXT, "optional": FLAG}),
    "fieldRef": Needs({"fieldPath!": TEXT})})})
CONTAINER = Needs({
    "name!": TEXT, "image!": TEXT, "imagePullPolicy": Choice("Always", "IfNotPresent", "Never"),
    "command": [TEXT], "args": [TEXT], "env": [VARIABLE], "workingDir": TEXT,
    "resources": Needs({"limits": Map(ANY), "requests": Map(ANY)}),
    "volumeMounts": [Needs({"name!": TEXT, "mountPath!": TEXT, "readOnly": FLAG})]})
POD = Needs({
    "restartPolicy": Choice("Never", "OnFailure", "Always"), "terminationGracePeriodSeconds": NUMBER,
    "containers!": [CONTAINER],
    "volumes": [Needs({"name!": TEXT, "persistentVolumeClaim": Needs({"claimName!": TEXT}),
                       "emptyDir": Needs({})})]})
POD_TEMPLATE = Needs({"metadata": Needs({"labels": Map(TEXT), "annotations": Map(TEXT)}), "spec!": POD})
POD_FAILURE_POLICY = Needs({"rules!": [Needs({
    "action!": Choice("FailJob", "FailIndex", "Ignore", "Count"),
    "onExitCodes": Needs({"containerName": TEXT, "operator!": Choice("In", "NotIn"),
                          "values!": [NUMBER]}),
    "onPodConditions": [Needs({"type!": TEXT, "status": Choice("True", "False", "Unknown")})]})]})
JOB_TEMPLATE = Needs({
    "metadata": Needs({"labels": Map(TEXT), "annotations": Map(TEXT)}),
    "spec!": Needs({
        "completionMode": Choice("Indexed", "NonIndexed"), "completions": NUMBER,
        "parallelism": NUMBER, "backoffLimit": NUMBER, "activeDeadlineSeconds": NUMBER,
        "podFailurePolicy": POD_FAILURE_POLICY, "template!": POD_TEMPLATE})})
JOB_SET_SPEC = Needs({
    "failurePolicy": Needs({"maxRestarts": NUMBER, "rules": [Needs({
        "name": TEXT,
        "action!": Choice("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
        "onJobFailureReasons": [Choice("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes",
                                       "MaxFailedIndexesExceeded", "PodFailurePolicy")],
        "targetReplicatedJobs": [TEXT]})]}),
    "network": Needs({"enableDNSHostnames": FLAG, "subdomain": TEXT}),
    "replicatedJobs!": [Needs({"name!": TEXT, "replicas": NUMBER, "template!": JOB_TEMPLATE})]})
REPLICA = Needs({"replicas!": NUMBER, "template!": POD_TEMPLATE,
                 "restartPolicy": Choice("Never", "OnFailure", "Always", "ExitCode")})
OBJECTS = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): JOB_SET_SPEC,
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): Needs({
        "mlPolicy": Needs({"numNodes": NUMBER, "torch": Needs({"numProcPerNode": ANY})}),
        "template!": Needs({"metadata": Needs({}), "spec!": JOB_SET_SPEC})}),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): Needs({
        "runtimeRef!": Needs({"name!": TEXT, "kind": TEXT, "apiGroup": TEXT}),
        "trainer": Needs({"image": TEXT, "numNodes": NUMBER, "numProcPerNode": ANY,
                          "command": [TEXT], "args": [TEXT], "env": [VARIABLE]})}),
    ("kubeflow.org/v1", "PyTorchJob"): Needs({
        "nprocPerNode": TEXT, "runPolicy": Needs({"backoffLimit": NUMBER}),
        "pytorchReplicaSpecs!": Needs({"Master": REPLICA, "Worker": REPLICA})}),
    ("kubeflow.org/v2beta1", "MPIJob"): Needs({
        "slotsPerWorker": NUMBER, "sshAuthMountPath": TEXT,
        "mpiImplementation": Choice("OpenMPI", "Intel", "MPICH"),
        "launcherCreationPolicy": Choice("AtStartup", "WaitForWorkersReady"),
        "runPolicy": Needs({"backoffLimit": NUMBER, "activeDeadlineSeconds": NUMBER,
                            "cleanPodPolicy": Choice("None", "Running", "All")}),
        "mpiReplicaSpecs!": Needs({"Launcher!": REPLICA, "Worker!": REPLICA})}),
}
AZURE_PATH = Needs({"type!": Choice("uri_file", "uri_folder", "mltable"), "path": TEXT,
                    "mode": Choice("ro_mount", "rw_mount", "download", "upload", "direct")})
AZURE = {
    "commandJob": Needs({
        "$schema": TEXT, "type!": Choice("command"), "name": TEXT, "display_name": TEXT,
        "experiment_name": TEXT, "description": TEXT, "environment!": TEXT, "compute": TEXT,
        "resources": Needs({"instance_count": NUMBER, "instance_type": TEXT, "shm_size": TEXT}),
        "distribution": Needs({"type!": Choice("pytorch", "mpi", "tensorflow"),
                               "process_count_per_instance": NUMBER, "worker_count": NUMBER,
                               "parameter_server_count": NUMBER}),
        "inputs": Map(AZURE_PATH), "outputs": Map(AZURE_PATH), "environment_variables": Map(TEXT),
        "command!": TEXT}),
    "environment": Needs({
        "$schema": TEXT, "name!": TEXT, "version": TEXT, "description": TEXT, "image": TEXT,
        "build": Needs({"path!": TEXT, "dockerfile_path": TEXT})}),
}


def check(value, kind, where):
    """Yields what is wrong."""
    if kind is ANY:
        return
    if isinstance(kind, list):
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for i, one in enumerate(value):
            yield from check(one, kind[0], f"{where}[{i}]")
    elif isinstance(kind, (Map, Needs)):
        if not isinstance(value, dict):
            yield f"{where} is no object"
            return
        for name, one in value.items():
            inner = kind.kind if isinstance(kind, Map) else kind.get(name, kind.get(f"{name}!"))
            if inner is None:
                yield f"{where} has no key {name}"
            else:
                yield from check(one, inner, f"{where}.{name}")
        for name in kind if isinstance(kind, Needs) else ():
            if name.endswith("!") and name[:-1] not in value:
                yield f"{where} lacks {name[:-1]}"
    elif isinstance(kind, Choice):
        if value not in kind.values:
            yield f"{where} is {value!r}, none of {kind.values}"
    elif type(value) is not kind:
        yield f"{where} is {value!r}, no {kind.__name__}"


def containers(value):
    """All pods' containers, with their pod."""
    if isinstance(value, dict):
        for container in value.get("containers", ()):
            yield container, value
        for one in value.values():
            yield from containers(one)
    elif isinstance(value, list):
        for one in value:
            yield from containers(one)


def policies(value):
    if isinstance(value, dict):
        if "podFailurePolicy" in value:
            yield value
        for one in value.values():
            yield from policies(one)
    elif isinstance(value, list):
        for one in value:
            yield from policies(one)


def check_kubernetes(document):
    kind = OBJECTS.get((document.get("apiVersion"), document.get("kind")))
    if not kind:
        yield f"no object {document.get('apiVersion')} {document.get('kind')} is known here"
        return
    whole = Needs({"apiVersion!": TEXT, "kind!": TEXT, "metadata!": METADATA, "spec!": kind})
    yield from check(document, whole, document["kind"])
    for container, pod in containers(document):
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        for mount in container.get("volumeMounts", ()):
            if mount["name"] not in volumes:
                yield f"container {container['name']} mounts {mount['name']}, which its pod lacks"
    for job in policies(document):  # what Kubernetes refuses, and what an exit code has to do
        pod = job["template"]["spec"]
        names = {container["name"] for container in pod["containers"]}
        actions = {}
        for rule in job["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes", {"values": ()})
            if codes.get("containerName", next(iter(names))) not in names:
                yield f"podFailurePolicy: no container {codes['containerName']}"
            for code in codes["values"]:
                actions.setdefault(code, rule["action"])
        if pod.get("restartPolicy") != "Never":
            yield "podFailurePolicy needs restartPolicy: Never"
        if (actions.get(75), actions.get(64), actions.get(78)) != ("Ignore", "FailJob", "FailJob"):
            yield f"exit codes lead to {actions}"


def check_file(path):
    documents = read(path)
    if "$schema" in documents[0]:
        schema = documents[0]["$schema"].split("/")[-1].split(".")[0]
        yield from check(documents[0], AZURE[schema], schema)
        names = re.findall(r"\${{(\w+\.\w+)}}", documents[0].get("command", ""))
        for group, name in (name.split(".") for name in names):
            if name not in documents[0].get(group, {}):
                yield f"the command has {group}.{name}, and the job has not"
    else:
        for document in documents:
            yield from check_kubernetes(document)


def read(path):
    with open(path, encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def starter(document):
    """What has the command: the container that trains, or a TrainJob's trainer."""
    if document["kind"] == "TrainJob":
        return document["spec"]["trainer"]
    return next((one for one, _ in containers(document) if one.get("command")), None)


def command(document):
    if "command" in document:
        return re.sub(r"\${{(\w+)\.(\w+)}}", lambda match: f'"${match[2].upper()}"',
                      document["command"])
    words = starter(document)["command"] + starter(document).get("args", [])
    text = " ".join(shlex.quote(word) for word in words)
    for there, name in (("/text", "DATA"), ("/checkpoints", "CHECKPOINTS")):
        text = re.sub(rf"(?<= ){there}\b", f'"${name}"', text)
    return text


def variables(document):
    if "command" in document:
        pairs = document.get("environment_variables", {})
    else:
        pairs = {one["name"]: one["value"] for one in starter(document).get("env", ())
                 if "value" in one}
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in pairs.items())


def write(folder, paths):
    for path in paths:
        document = read(path)[-1]
        if "command" in document or "kind" in document:
            name = f"{folder}/{os.path.splitext(os.path.basename(path))[0]}"
            with open(f"{name}.sh", "w", encoding="utf-8") as file:
                file.write(command(document) + "\n")
            with open(f"{name}.variables", "w", encoding="utf-8") as file:
                file.write(variables(document))


def main(what, *paths):
    if what == "write":
        return write(paths[0], paths[1:])
    wrong = [f"{path}: {text}" for path in paths for text in check_file(path)]
    print("\n".join(wrong), end="\n" if wrong else "")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
