#!/usr/bin/env -S python3 -B
"""Functions of more than 60 lines, files of more than 500 and 800, structs of more than 30 fields,
the fields of each context, and all lines, in thousands.

lengths.py [--list]: --list prints what is too long.
"""
import re
import sys

import house

STRUCT = re.compile(r'^(?:typedef )?struct (\w+) \{\n(.*?)^\}', re.MULTILINE | re.DOTALL)


def structs(file):
    """(name, fields) of each; each name of a list of fields counts, and so do those of inner structs."""
    for name, body in STRUCT.findall(house.without_comments(house.read(file))):
        body = re.sub(r'\([^()]*\)', '', body)  # arguments of function pointers
        yield name, sum(1 + field.count(',') for field in body.split(';') if field.strip('} \n'))


def main():
    options = house.arguments(__doc__)
    values = {}
    for tree, folders in (('product', house.PRODUCT), ('tests', ('tests',))):
        files = house.sources('.c', '.h', '.cu', '.cpp', folders=folders)
        lines = {file: house.read(file).count('\n') for file in files}
        long = [f'{file}:{line}: {name}(), {length} lines' for file in files
                for name, line, length in house.functions(house.read(file)) if length > 60]
        large = [f'{file}: {count} lines' for file, count in lines.items() if count > 500]
        wide = []
        for file in files if tree == 'product' else ():
            for name, count in structs(file):
                wide += [f'{file}: struct {name}, {count} fields'] if count > 30 else []
                if re.search(r'(_ctx|context)$', name):
                    values[f'fields.{name}'] = count
        values[f'{tree}.functions'] = len(long)
        values[f'{tree}.files'] = len(large)
        values[f'{tree}.files_over_800'] = sum(count > 800 for count in lines.values())
        if tree == 'product':
            values[f'{tree}.thousands'] = -(-sum(lines.values()) // 1000)
            values[f'{tree}.structs'] = len(wide)
        if options.list:
            print(*long, *large, *wide, sep='\n')
    return house.check(options, values)


if __name__ == '__main__':
    sys.exit(main())
