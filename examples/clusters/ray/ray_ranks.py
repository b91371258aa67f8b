#!/usr/bin/env python3
"""Starts the ranks of a job on a Ray cluster: ray_ranks.py RANKS program [arguments]

A rank is a task with CPUS processors (1) and GPUS (0; else set ZERO_DEVICE=cuda:0). Exit status 75 (asked
to stop) starts the ranks again, 64 and 78 do not, others do at most RESTARTS times (2)."""
import os
import secrets
import socket
import subprocess
import sys

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Strategy


def find_place():
    with socket.create_server(("", 0)) as one:
        return ray.util.get_node_ip_address(), one.getsockname()[1]


def run_rank(rank, world, place, job, command):
    os.environ.update(ZERO_RANK=str(rank), ZERO_WORLD_SIZE=str(world), ZERO_JOB=job,
                      ZERO_MASTER_ADDR=place[0], ZERO_MASTER_PORT=str(place[1]))
    return subprocess.run(command, check=False).returncode


def start(world, command):
    cpus, gpus = float(os.environ.get("CPUS", "1")), float(os.environ.get("GPUS", "0"))
    group = placement_group([{"CPU": cpus, "GPU": gpus}] * world, strategy="PACK")
    ray.get(group.ready())

    def on(rank, function):
        return ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0, scheduling_strategy=Strategy(
            group, placement_group_bundle_index=rank))(function)

    try:
        job, place = secrets.token_hex(16), ray.get(on(0, find_place).remote())
        return ray.get([on(i, run_rank).remote(i, world, place, job, command) for i in range(world)])
    except ray.exceptions.RayError as lost:  # Ray killed a task, or there is no such program
        print(f"ray_ranks.py: {lost}", file=sys.stderr)
        return [1]
    finally:
        remove_placement_group(group)


def main(world, command):
    ray.init()
    left = int(os.environ.get("RESTARTS", "2"))
    while True:
        statuses = [status for status in start(world, command) if status]
        if not statuses or any(status in (64, 78) for status in statuses):
            return max(statuses, default=0)
        left -= any(status != 75 for status in statuses)
        if left < 0:
            return max(abs(status) for status in statuses if status != 75)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
