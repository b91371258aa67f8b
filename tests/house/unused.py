#!/usr/bin/env -S python3 -B
"""External symbols that no file of the product uses but the one that defines them.

unused.py [--build DIR] [--list]: what libzero.map exports and what unused.txt excuses does not
count; --list prints all others.
"""
import re
import sys

import house


def main():
    options = house.arguments(__doc__)
    graph = house.Graph(options.build)
    excused = {line.split()[0] for line in (house.HERE / 'unused.txt').read_text().splitlines()
               if line and not line.startswith('#')}
    public = {'main'}
    for file in house.sources('.map'):
        public.update(re.findall(r'\b(zero_\w+);', house.read(file)))
    unused = {symbol: min(files) for symbol, files in graph.defined.items()
              if symbol not in public and graph.used[symbol] <= files}
    if options.list:
        for file, symbol in sorted((unused[symbol], symbol) for symbol in set(unused) - excused):
            print(f'{file}: {symbol}')
    status = 0
    for symbol in sorted(excused - set(unused)):
        print(f'unused.txt: {symbol} is used by another file, or there is none: take it out')
        status = 1
    return max(status, house.check(options, {'symbols': len(set(unused) - excused)}))


if __name__ == '__main__':
    sys.exit(main())
