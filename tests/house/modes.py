#!/usr/bin/env -S python3 -B
"""Tests of the mode in files of zero/ that belong to no mode; modes.txt says what such a test is.

A value that is copied, or given to a call, is no test: `x = config->stage;`, `f(config->stage)`.

modes.py [--list]: --list prints every test.
"""
import re
import sys

import house

HOMES = ('zero/config/', 'zero/exec/', 'zero/store/', 'zero/link/')  # where modes may be asked


# Up to the name that matches: an assignment, a comma, or the parenthesis of a call.
VALUE_BEFORE = re.compile(r'(?:(?<![=!<>])=|,|\b(?!(?:if|while|for|switch|assert)\b)\w+\()\s*'
                          r'(?:\w+(?:->|\.))*$')
VALUE_BEHIND = re.compile(r'\s*[,;)]')
ASSIGNED = re.compile(r'\s*=[^=]')


def tests(pattern, text):
    """The lines on which a pattern is asked, not copied."""
    for match in re.finditer(pattern, text):
        copied = match.group()[-1] != '(' and VALUE_BEHIND.match(text, match.end()) and \
            VALUE_BEFORE.search(text[max(0, match.start() - 200):match.start()])
        if not copied and not ASSIGNED.match(text, match.end()):
            yield text.count('\n', 0, match.start()) + 1


def main():
    options = house.arguments(__doc__)
    rows = [line.split() for line in (house.HERE / 'modes.txt').read_text().splitlines()
            if line and not line.startswith('#')]
    texts = {file: house.without_comments(house.read(file))
             for file in house.sources('.c', folders=('zero',))}
    values = dict.fromkeys((mode for mode, _ in rows), 0)
    status = 0
    for mode, pattern in rows:
        if not any(re.search(pattern, text) for text in texts.values()):
            print(f'modes.txt: nothing in zero/ matches {pattern}: was it renamed? '
                  'Rename it there, too, or take the line out')
            status = 1
        for file, text in texts.items():
            lines = [] if file.startswith(HOMES) else list(tests(pattern, text))
            values[mode] += len(lines)
            if options.list:
                print(*(f'{file}:{line}: {mode}' for line in lines), sep='\n', end='')
                print('\n' if lines else '', end='')
    return max(status, house.check(options, values))


if __name__ == '__main__':
    sys.exit(main())
