#!/usr/bin/env python3
"""Starts the ranks of a job in a barrier stage: spark-submit spark_ranks.py RANKS program [arguments]

A rank is a task; spark.task.cpus says how many processors it has. Exit status 75 (asked to stop) starts
the ranks again, 64 and 78 do not, others do at most RESTARTS times (2)."""
import os
import secrets
import socket
import subprocess
import sys

from py4j.protocol import Py4JJavaError
from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession


def run_rank(command):
    """In a task: rank 0 tells all where it is and how the job is called; the exit status."""
    context = BarrierTaskContext.get()
    rank, tasks = context.partitionId(), context.getTaskInfos()
    with socket.create_server(("", 0)) as one:
        mine = f"{one.getsockname()[1]} {secrets.token_hex(16)}"
    port, job = context.allGather(mine)[0].split()
    address = tasks[0].address.rsplit(":", 1)[0]
    environment = dict(os.environ, ZERO_RANK=str(rank), ZERO_WORLD_SIZE=str(len(tasks)),
                       ZERO_JOB=job, ZERO_MASTER_ADDR=address, ZERO_MASTER_PORT=port)
    return subprocess.run(command, env=environment, check=False).returncode


def start(context, world, command):
    """The exit statuses of all ranks. Spark itself does not start a barrier stage again."""
    ranks = context.parallelize(range(world), world).barrier()
    try:
        return ranks.mapPartitions(lambda _: [run_rank(command)]).collect()
    except Py4JJavaError as lost:  # an executor is gone
        print(f"spark_ranks.py: {lost.java_exception}", file=sys.stderr)
        return [1]


def main(world, command):
    context = SparkSession.builder.appName("zero").getOrCreate().sparkContext
    left = int(os.environ.get("RESTARTS", "2"))
    while True:
        statuses = [status for status in start(context, world, command) if status]
        if not statuses or any(status in (64, 78) for status in statuses):
            return max(statuses, default=0)
        left -= any(status != 75 for status in statuses)
        if left < 0:
            return max(abs(status) for status in statuses if status != 75)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
