#!/usr/bin/env -S python3 -B
"""Tests of the mode in files of zero/ that belong to no mode; modes.txt says what such a test is.

modes.py [--list]: --list prints the count of every file.
"""
import collections
import re
import sys

import house

HOMES = ('zero/config/', 'zero/exec/', 'zero/store/', 'zero/link/')  # where modes may be asked


def main():
    options = house.arguments(__doc__)
    rows = [line.split() for line in (house.HERE / 'modes.txt').read_text().splitlines()
            if line and not line.startswith('#')]
    texts = {file: house.without_comments(house.read(file))
             for file in house.sources('.c', folders=('zero',))}
    values = dict.fromkeys((mode for mode, _ in rows), 0)
    of_file = collections.Counter()
    status = 0
    for mode, pattern in rows:
        places = {file: len(re.findall(pattern, text)) for file, text in texts.items()}
        if not sum(places.values()):
            print(f'modes.txt: nothing in zero/ matches {pattern}: was it renamed? '
                  'Rename it there, too, or take the line out')
            status = 1
        for file, count in places.items():
            if not file.startswith(HOMES):
                values[mode] += count
                of_file[file] += count
    if options.list:
        for file, count in of_file.most_common():
            print(f'{count:4} {file}')
    return max(status, house.check(options, values))


if __name__ == '__main__':
    sys.exit(main())
