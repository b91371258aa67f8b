"""Where the time of a training step of gpt2 on a GPU goes, kernel by kernel, by NVIDIA's ncu.

    gpt2_kernels.py FOLDER_OF_GPT2

GPT-2 124M, bf16, 16 sequences of 1024 tokens. Prints microseconds a step and runs of each kernel, the
longest first. Each kernel runs alone and is counted by itself, so the sum is what the GPU computes
for, without what lies between kernels."""

import collections
import csv
import os
import subprocess
import sys
import tempfile

from gpt2_gpu import write_text

STEPS = 2
MODEL = ("--device cuda --dtype bf16 --layers 12 --heads 12 --width 768 --context 1024 "
         "--vocab 50304 --batch 16 --clip 1 --sample 0").split()


def profile(program):
    """A list of (kernel, nanoseconds)."""
    with tempfile.NamedTemporaryFile(suffix=".bin") as text:
        write_text(text.name)
        said = subprocess.run(
            ["ncu", "--clock-control", "none", "--csv", "--print-units", "base", "--metrics", "gpu__time_duration.sum",
             program, *MODEL, "--steps", str(STEPS), "--data", text.name],
            stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = said.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    return [(row["Kernel Name"], float(row["Metric Value"].replace(",", "")))
            for row in csv.DictReader(line for line in lines[head:] if line.startswith('"'))]


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: gpt2_kernels.py FOLDER_OF_GPT2")
    total, runs = collections.Counter(), collections.Counter()
    for kernel, nanoseconds in profile(os.path.join(sys.argv[1], "gpt2")):
        total[kernel] += nanoseconds
        runs[kernel] += 1
    everything = sum(total.values())
    print("%.0f us a step in kernels" % (everything / STEPS / 1e3))
    for kernel, nanoseconds in total.most_common():
        print("%8.0f us %5.1f %% %6.1f runs  %s" % (nanoseconds / STEPS / 1e3,
              100 * nanoseconds / everything, runs[kernel] / STEPS, kernel[:100]))


if __name__ == "__main__":
    main()
