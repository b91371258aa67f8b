#!/usr/bin/env -S python3 -B
"""Asserts a thousand lines of a folder: its floor goes up to 10 at least.

asserts.py [--list]: --list prints files of more than 100 lines that have none.
"""
import re
import sys

import house


def main():
    options = house.arguments(__doc__)
    values = {}
    for folder in ('base', 'collectives', 'offload', 'zero'):
        texts = {file: house.read(file) for file in house.sources('.c', '.h', folders=(folder,))}
        lines = {file: text.count('\n') for file, text in texts.items()}
        asserts = {file: len(re.findall(r'\bassert\(', house.without_comments(text)))
                   for file, text in texts.items()}
        values[folder] = 1000 * sum(asserts.values()) // sum(lines.values())
        if options.list:
            print(*(f'{file}: {lines[file]} lines' for file in texts
                    if lines[file] > 100 and not asserts[file]), sep='\n')
    return house.check(options, values, at_least=True)


if __name__ == '__main__':
    sys.exit(main())
