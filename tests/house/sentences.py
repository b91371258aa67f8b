#!/usr/bin/env -S python3 -B
"""Words of a sentence in public headers; comments without a subject, texts without an actor.

sentences.py [--list]: --list prints the five longest sentences of each
header, and every comment and string that counts.
"""
import re
import statistics
import sys

import house

COMMENT = re.compile(r'/\*.*?\*/|(?://[^\n]*\n[ \t]*)*//[^\n]*', re.DOTALL)
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
HEADLESS = re.compile(r'(The same|Of (a|an|the|what))\b')
NOBODY = re.compile(r'\b(nobody|somebody|anybody|whoever)\b', re.IGNORECASE)


def comments(file):
    """(line, text) of each comment; lines of // that follow each other are one."""
    text = house.read(file)
    for match in COMMENT.finditer(text):
        lines = (re.sub(r'^\s*(/\*+<?|\*(?!/)|//+)|\*/$', '', line).strip()
                 for line in match.group().split('\n'))
        yield text.count('\n', 0, match.start()) + 1, '\n'.join(lines).strip()


def strings(file):
    """(line, text) of each string."""
    text = house.without_comments(house.read(file))
    for match in STRING.finditer(text):
        yield text.count('\n', 0, match.start()) + 1, match.group()


def sentences(file):
    """The words between the full stops of all comments: one that ends without a full stop goes on in
    the next comment, as it does for a reader."""
    text = ' '.join(text for _, text in comments(file))
    return [words for words in map(str.split, re.split(r'[.!?]\s', text)) if words]


def public_headers():
    listed = re.search(r'set\(ZERO_PUBLIC_HEADERS ([^)]*)\)', house.read('cmake/Folders.cmake'))
    if not listed:
        sys.exit('sentences: no ZERO_PUBLIC_HEADERS in cmake/Folders.cmake')
    return ['zero/' + name for name in listed.group(1).split()]


def main():
    options = house.arguments(__doc__)
    values = {}
    for file in public_headers():
        found = sorted(sentences(file), key=len)
        lengths = [len(words) for words in found]
        name = file.split('/')[-1].removesuffix('.h')
        values[f'{name}.median'] = int(statistics.median(lengths))
        values[f'{name}.p90'] = lengths[len(lengths) * 9 // 10]
        if options.list:
            print(*(f'{file}: {len(words)} words: {" ".join(words)}' for words in found[-5:]), sep='\n')
    headless, nobody = [], []
    for file in house.sources('.c', '.h', '.cu'):
        for line, text in comments(file):
            where = f'{file}:{line}: {text.splitlines()[0] if text else ""}'
            headless += [where] if HEADLESS.match(text) else []
            nobody += [where] if NOBODY.search(text) else []
        nobody += [f'{file}:{line}: {text}' for line, text in strings(file) if NOBODY.search(text)]
    if options.list:
        print(*headless, *nobody, sep='\n')
    return house.check(options, values | {'headless': len(headless), 'nobody': len(nobody)})


if __name__ == '__main__':
    sys.exit(main())
