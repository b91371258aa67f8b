#!/usr/bin/env -S python3 -B
"""External symbols that do not begin as those of their folder do; prefixes.txt says how.

prefixes.py [--build DIR] [--list]
"""
import sys

import house


def main():
    options = house.arguments(__doc__)
    rows = [line.split() for line in (house.HERE / 'prefixes.txt').read_text().splitlines()
            if line and not line.startswith('#')]
    rows.sort(key=lambda row: -len(row[0]))
    strangers, folders = [], set()
    for symbol, files in house.Graph(options.build).defined.items():
        for file in files:
            row = next((row for row in rows if file.startswith(row[0] + '/')), None)
            if row:
                folders.add(row[0])
            if row and symbol.split('_')[0] not in (*row[1:], 'zero', 'main'):
                strangers.append(f'{file}: {symbol}')
    if options.list and strangers:
        print(*sorted(strangers), sep='\n')
    status = 0
    for row in rows:
        if row[0] not in folders and not options.partial:
            print(f'prefixes.txt: {row[0]} defines no symbol: was it renamed?')
            status = 1
    return max(status, house.check(options, {'symbols': len(strangers)}))


if __name__ == '__main__':
    sys.exit(main())
