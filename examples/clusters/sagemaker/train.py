#!/usr/bin/env python3
"""SageMaker starts this program as `train` on each host: it starts zero-run there.

Hyperparameters of the job become options of the program: {"stage": "3"} is --stage 3. Checkpoints are
in /opt/ml/checkpoints, which checkpoint_s3_uri of the job keeps. If the job fails, the last lines are
the reason that SageMaker shows. Only Python's standard library is needed.
"""
import collections
import json
import os
import signal
import subprocess
import sys

BASE = os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml")
PROGRAM = os.environ.get("ZERO_PROGRAM", "gpt2")


def read(name):
    try:
        with open(f"{BASE}/input/config/{name}.json", encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def main():
    # SageMaker's own images have these variables; in others they are in a file.
    hosts = read("resourceconfig")
    environment = dict(os.environ)
    if "hosts" in hosts:
        environment.setdefault("SM_HOSTS", json.dumps(hosts["hosts"]))
        environment.setdefault("SM_CURRENT_HOST", hosts["current_host"])
    options = {"data": f"{BASE}/input/data/training", "checkpoint": f"{BASE}/checkpoints",
               "save-every": "200", "resume": "auto", "micro-batches": "16"}
    options.update(read("hyperparameters"))
    command = ["zero-run", "--max-restarts", "2", "--grace", "60s", "--", PROGRAM]
    for name, value in options.items():
        command += [f"--{name}", str(value).strip('"')]
    os.makedirs(options["checkpoint"], exist_ok=True)

    job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, errors="replace")
    for number in (signal.SIGTERM, signal.SIGINT):  # a spot instance is taken back: 75
        signal.signal(number, lambda number, frame: job.send_signal(number))
    tail = collections.deque(maxlen=20)
    for line in job.stdout:
        tail.append(line)
        print(line, end="", flush=True)
    status = job.wait()
    if status not in (0, 75):
        os.makedirs(f"{BASE}/output", exist_ok=True)
        with open(f"{BASE}/output/failure", "w", encoding="utf-8") as file:
            file.write(f"zero-run ended with {status}\n" + "".join(tail)[-900:])
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
