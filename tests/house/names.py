#!/usr/bin/env -S python3 -B
"""Names that stand for several things: of files, and of functions that are static in three or more.

names.py [--list]
"""
import collections
import pathlib
import re
import sys

import house

STATIC = re.compile(r'^static (?:inline )?[\w \*]*?(\w+)\(', re.MULTILINE)


def main():
    options = house.arguments(__doc__)
    files, statics = collections.defaultdict(list), collections.defaultdict(list)
    for file in house.sources('.c', '.h', '.cu'):
        files[pathlib.PurePath(file).name].append(file)
        for name in set(STATIC.findall(house.without_comments(house.read(file)))):
            statics[name].append(file)
    shared = {name: places for name, places in files.items() if len(places) > 1}
    repeated = {name: places for name, places in statics.items() if len(places) > 2}
    if options.list:
        for name, places in sorted((shared | repeated).items()):
            print(f'{name}: {" ".join(places)}')
    return house.check(options, {'files': len(shared), 'statics': len(repeated)})


if __name__ == '__main__':
    sys.exit(main())
