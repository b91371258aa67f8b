"""Writes a million random tokens below a limit, 16 bits each behind llm.c's header of 256 words, to a
file: tokens.py <file> <limit>."""

import array
import random
import sys

random.seed(1)
tokens = [random.randrange(int(sys.argv[2])) for _ in range(1 << 20)]
with open(sys.argv[1], "wb") as out:
    array.array("i", [20240520, 1, len(tokens)] + [0] * 253).tofile(out)
    array.array("H", tokens).tofile(out)
